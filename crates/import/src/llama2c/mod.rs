//! llama2.c checkpoints: the legacy file (version 0), and versions 1 (f32) and 2 (int8).
//!
//! All three hold one Llama model as tensors without names, in a fixed order that the header's
//! dimensions determine. Tensors are given the names Hugging Face's Llama has.

mod header;
mod layout;

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use tensor::{AlignedBuf, Bytes, DType, Tensor};

use self::header::{Header, MAGIC};
use crate::source::{map_file, window};
use crate::{ImportError, Result};

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
