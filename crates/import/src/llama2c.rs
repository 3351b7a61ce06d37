//! llama2.c checkpoints: the legacy file (version 0), and versions 1 (f32) and 2 (int8).
//!
//! All three hold one Llama model as tensors without names, in a fixed order that the header's
//! dimensions determine. Tensors are given the names Hugging Face's Llama has.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use tensor::{AlignedBuf, Bytes, DType, Tensor};

use crate::reader::Reader;
use crate::source::{map_file, window};
use crate::{ImportError, Result};

/// First bytes of versions 1 and 2: `ak42` as a big-endian number, stored little-endian.
pub(crate) const MAGIC: [u8; 4] = 0x616b_3432u32.to_le_bytes();
/// Where the weights of versions 1 and 2 begin.
const HEADER_LEN: usize = 256;
/// Far beyond every Llama; keeps the table of tensors small when the file is hostile.
const MAX_LAYERS: usize = 4096;

/// The dimensions in the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Width of the residual stream.
    pub dim: usize,
    /// Width of the feed-forward network.
    pub hidden_dim: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Number of tokens.
    pub vocab_size: usize,
    /// Longest sequence the model was trained for.
    pub seq_len: usize,
    /// Whether the output matrix is the embedding; else the file holds `lm_head.weight`.
    pub shared_classifier: bool,
}

impl Config {
    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.n_heads
    }

    /// Width of all key (or value) heads together.
    pub fn kv_dim(&self) -> usize {
        self.head_dim() * self.n_kv_heads
    }
}

/// An open llama2.c checkpoint.
#[derive(Clone, Debug)]
pub struct Llama2c {
    path: PathBuf,
    bytes: Bytes,
    version: u32,
    group_size: Option<usize>,
    config: Config,
    tensors: IndexMap<String, TensorInfo>,
}

/// Where a tensor lies and what it is.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// First byte of the data in the file.
    pub offset: usize,
    /// Bytes of data in the file.
    pub byte_len: usize,
    /// Whether the data is int8 groups with f32 scales, not f32.
    pub quantized: bool,
}

impl Llama2c {
    /// Query and key rows are laid out for rotary embedding of neighbouring elements (2i, 2i + 1),
    /// unlike Hugging Face's weights of the same names, which pair i with i + head/2.
    pub const ROPE_INTERLEAVED: bool = true;
    /// Base of the rotary frequencies; the format has no field for it.
    pub const ROPE_BASE: f32 = 10_000.0;
    /// Epsilon of the RMS norms; the format has no field for it.
    pub const NORM_EPS: f32 = 1e-5;

    /// Maps `path`.
    ///
    /// # Errors
    /// When it cannot be mapped or breaks the format.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_bytes(path.as_ref(), map_file(path.as_ref())?)
    }

    /// Reads a file's contents from memory; `name` stands for the file in errors.
    ///
    /// # Errors
    /// When the bytes break the format.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: Bytes) -> Result<Self> {
        let path = name.as_ref();
        let header = Header::read(path, &bytes)?;
        let tensors = header.place(path, bytes.len())?;
        let Header { version, config, group_size, .. } = header;
        Ok(Llama2c { path: path.to_path_buf(), bytes, version, group_size, config, tensors })
    }

    /// Whether `bytes` begin like a file of this format. Version 0 has no magic number: its
    /// dimensions have to make a possible model.
    pub(crate) fn looks_like(path: &Path, bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC) || Header::read(path, bytes).is_ok()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// The file's version: 0, 1 or 2.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// How many int8 weights share a scale; `None` in files of f32.
    pub fn group_size(&self) -> Option<usize> {
        self.group_size
    }

    /// The dimensions.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All tensors by name, in the order of the file. The rotary tables of version 0 are left out.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, info)| (name.as_str(), info))
    }

    /// What is known of a tensor without reading it.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// A tensor of f32. It is a window of the mapped file where that holds f32; int8 weights are
    /// dequantised into new memory at every call, because no data type has their layout (all
    /// weights of a tensor first, then an f32 scale for each group).
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let Some(info) = self.tensors.get(name) else {
            return Err(ImportError::invalid(&self.path, "no such tensor").tensor(name));
        };
        let stored = info.offset..info.offset + info.byte_len;
        let bytes = match self.group_size.filter(|_| info.quantized) {
            Some(group) => dequantize(&self.bytes[stored], group),
            None => window(&self.bytes, stored, DType::F32).expect("ranges are checked on reading"),
        };
        Tensor::new(DType::F32, &info.shape, bytes)
            .map_err(|e| ImportError::invalid(&self.path, e.to_string()).tensor(name))
    }
}

/// f32 values of `stored`: n int8 weights, then n / `group` f32 scales.
fn dequantize(stored: &[u8], group: usize) -> Bytes {
    let groups = stored.len() / (group + 4);
    let (weights, scales) = stored.split_at(groups * group);
    let mut out = AlignedBuf::zeroed(weights.len() * 4);
    let rows = out.chunks_exact_mut(group * 4).zip(weights.chunks_exact(group));
    for ((out, weights), scale) in rows.zip(scales.chunks_exact(4)) {
        let scale = f32::from_le_bytes(scale.try_into().expect("cut to four bytes"));
        for (out, &w) in out.chunks_exact_mut(4).zip(weights) {
            out.copy_from_slice(&(f32::from(w as i8) * scale).to_le_bytes());
        }
    }
    Bytes::from_buf(out)
}

struct Header {
    version: u32,
    config: Config,
    group_size: Option<usize>,
    /// Where the weights begin.
    len: usize,
}

impl Header {
    fn read(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(path, bytes);
        if !bytes.starts_with(&MAGIC) {
            let (mut config, vocab_size) = read_dims(&mut r)?;
            // A negative vocabulary says that the output matrix is the embedding's no more.
            config.shared_classifier = vocab_size > 0;
            return Ok(Header { version: 0, config, group_size: None, len: r.pos() });
        }
        r.take(MAGIC.len() as u64, "the magic")?;
        let version = r.u32("the version")?;
        if !(1..=2).contains(&version) {
            let why = format!("llama2.c checkpoint version {version}");
            return Err(ImportError::unsupported(path, why).at(MAGIC.len()));
        }
        let (mut config, vocab_size) = read_dims(&mut r)?;
        let at = r.pos();
        let shared = r.u8("the shared-classifier flag")?;
        if vocab_size < 0 || shared > 1 {
            let why = format!("vocabulary of {vocab_size}, shared-classifier flag {shared}");
            return Err(ImportError::invalid(path, why).at(at));
        }
        config.shared_classifier = shared == 1;
        let at = r.pos();
        let group_size = match version {
            2 => Some(r.i32("the group size")?),
            _ => None,
        };
        let group_size = match group_size.map(usize::try_from) {
            Some(Ok(1..)) | None => group_size.map(|g| g as usize),
            Some(_) => {
                let why = format!("group size {}", group_size.unwrap_or_default());
                return Err(ImportError::invalid(path, why).at(at));
            }
        };
        if bytes.len() < HEADER_LEN {
            let why = format!("file ends inside the header of {HEADER_LEN} bytes");
            return Err(ImportError::invalid(path, why).at(bytes.len()));
        }
        Ok(Header { version, config, group_size, len: HEADER_LEN })
    }

    /// The tensors in the order of the file, which has to be exactly as long as they need.
    fn place(&self, path: &Path, file_len: usize) -> Result<IndexMap<String, TensorInfo>> {
        let mut tensors = IndexMap::new();
        let mut end = self.len;
        for section in sections(self.version, &self.config) {
            for layer in 0..section.count {
                let name = section.name.replace('#', &layer.to_string());
                let offset = end;
                let stored = self.stored_len(&section);
                let (next, byte_len) = stored
                    .and_then(|n| Some((offset.checked_add(n)?, n)))
                    .filter(|&(next, _)| next <= file_len)
                    .ok_or_else(|| self.misfit(path, &section, &name, offset, file_len))?;
                end = next;
                if section.kind != Kind::Skipped {
                    let shape = section.shape.clone();
                    let quantized = self.group_size.is_some() && section.kind == Kind::Matrix;
                    tensors.insert(name, TensorInfo { shape, offset, byte_len, quantized });
                }
            }
        }
        if end != file_len {
            let why = format!("{} bytes after the last tensor belong to none", file_len - end);
            return Err(ImportError::invalid(path, why).at(end));
        }
        Ok(tensors)
    }

    /// Bytes of one tensor of `section`; `None` if it cuts a group or does not fit in memory.
    fn stored_len(&self, section: &Section) -> Option<usize> {
        let elements = tensor::element_count(&section.shape)?;
        match self.group_size.filter(|_| section.kind == Kind::Matrix) {
            Some(group) if elements.is_multiple_of(group) => {
                elements.checked_add((elements / group).checked_mul(4)?)
            }
            Some(_) => None,
            None => elements.checked_mul(4),
        }
    }

    fn misfit(
        &self,
        path: &Path,
        section: &Section,
        name: &str,
        offset: usize,
        file_len: usize,
    ) -> ImportError {
        let shape = &section.shape;
        let why = match (self.stored_len(section), self.group_size) {
            (Some(need), _) => {
                let left = file_len - offset;
                format!("file ends inside shape {shape:?}: {need} bytes needed, {left} left")
            }
            (None, Some(group)) => format!("shape {shape:?} cannot be cut in groups of {group}"),
            (None, None) => format!("shape {shape:?} is too large"),
        };
        ImportError::invalid(path, why).at(offset).tensor(name)
    }
}

/// The seven dimensions, checked, and the vocabulary with the sign it has in the file.
fn read_dims(r: &mut Reader<'_>) -> Result<(Config, i32)> {
    let mut dim = |what: &str| -> Result<usize> {
        let at = r.pos();
        let v = r.i32(what)?;
        match usize::try_from(v) {
            Ok(v @ 1..) => Ok(v),
            _ => Err(ImportError::invalid(r.file, format!("{what} is {v}")).at(at)),
        }
    };
    let (width, hidden_dim) = (dim("the width")?, dim("the feed-forward width")?);
    let n_layers = dim("the number of layers")?;
    let (n_heads, n_kv_heads) =
        (dim("the number of heads")?, dim("the number of key-value heads")?);
    let vocab_size = r.i32("the vocabulary size")?;
    let mut config = Config {
        dim: width,
        hidden_dim,
        n_layers,
        n_heads,
        n_kv_heads,
        vocab_size: vocab_size.unsigned_abs() as usize,
        seq_len: 0,
        shared_classifier: false,
    };
    let at = r.pos();
    let seq_len = r.i32("the sequence length")?;
    config.seq_len = usize::try_from(seq_len).unwrap_or(0);
    if vocab_size == 0 || config.seq_len == 0 {
        let why = format!("vocabulary of {vocab_size}, sequence length {seq_len}");
        return Err(ImportError::invalid(r.file, why).at(at));
    }
    if n_layers > MAX_LAYERS {
        let why = format!("{n_layers} layers, at most {MAX_LAYERS}");
        return Err(ImportError::limit(r.file, why).at(at));
    }
    let whole = width.is_multiple_of(n_heads)
        && (width / n_heads).is_multiple_of(2)
        && n_heads.is_multiple_of(n_kv_heads);
    if !whole {
        let why = format!(
            "width {width}, {n_heads} heads and {n_kv_heads} key-value heads do not divide evenly"
        );
        return Err(ImportError::invalid(r.file, why).at(at));
    }
    Ok((config, vocab_size))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Always f32.
    Vector,
    /// Quantised in version 2.
    Matrix,
    /// Nothing the model needs.
    Skipped,
}

/// `count` tensors of one shape, one after the other; `#` in the name is the layer.
struct Section {
    name: &'static str,
    kind: Kind,
    count: usize,
    shape: Vec<usize>,
}

/// What follows the header, in order.
fn sections(version: u32, c: &Config) -> Vec<Section> {
    let section =
        |name, kind, count, shape: &[usize]| Section { name, kind, count, shape: shape.to_vec() };
    let layers = c.n_layers;
    let matrix = |name, out, into| section(name, Kind::Matrix, layers, &[out, into]);
    let attention_norm =
        section("model.layers.#.input_layernorm.weight", Kind::Vector, layers, &[c.dim]);
    let ffn_norm =
        section("model.layers.#.post_attention_layernorm.weight", Kind::Vector, layers, &[c.dim]);
    let norm = section("model.norm.weight", Kind::Vector, 1, &[c.dim]);
    let embedding = section("model.embed_tokens.weight", Kind::Matrix, 1, &[c.vocab_size, c.dim]);
    let attention = [
        matrix("model.layers.#.self_attn.q_proj.weight", c.dim, c.dim),
        matrix("model.layers.#.self_attn.k_proj.weight", c.kv_dim(), c.dim),
        matrix("model.layers.#.self_attn.v_proj.weight", c.kv_dim(), c.dim),
        matrix("model.layers.#.self_attn.o_proj.weight", c.dim, c.dim),
    ];
    let ffn = [
        matrix("model.layers.#.mlp.gate_proj.weight", c.hidden_dim, c.dim),
        matrix("model.layers.#.mlp.down_proj.weight", c.dim, c.hidden_dim),
        matrix("model.layers.#.mlp.up_proj.weight", c.hidden_dim, c.dim),
    ];
    let mut all = Vec::new();
    if version == 0 {
        all.extend([embedding, attention_norm]);
        all.extend(attention);
        all.push(ffn_norm);
        all.extend(ffn);
        let rotary = [c.seq_len, c.head_dim() / 2];
        all.extend([norm, section("rotary table #", Kind::Skipped, 2, &rotary)]);
    } else {
        all.extend([attention_norm, ffn_norm, norm, embedding]);
        all.extend(attention);
        all.extend(ffn);
    }
    if !c.shared_classifier {
        all.push(section("lm_head.weight", Kind::Matrix, 1, &[c.vocab_size, c.dim]));
    }
    all
}
