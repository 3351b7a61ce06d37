//! Any model file: told apart by content, and listed and read in one way.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tensor::{DType, Tensor};

use crate::gguf::{self, Gguf};
use crate::hf::{self, HfDir};
use crate::llama2c::{self, Llama2c};
use crate::safetensors::{self, SafeTensors};
use crate::source::{check_regular, dir_of};
use crate::{ImportError, Result};

/// What [`open`] can open, for messages.
const UNDERSTOOD: &str = "a GGUF file, a directory with config.json and model.safetensors (or \
     model.safetensors.index.json), a .safetensors file beside its config.json, a llama2.c \
     checkpoint, or a directory with exactly one GGUF model";

/// How PyTorch's files begin: a zip archive, or a bare pickle of protocol 2.
const PICKLE_MAGICS: &[&[u8]] = &[b"PK\x03\x04", b"\x80\x02"];

/// An open model file or directory.
#[derive(Clone, Debug)]
pub enum ModelFile {
    /// GGUF, in one file or split.
    Gguf(Gguf),
    /// `config.json` and safetensors.
    HuggingFace(HfDir),
    /// A llama2.c checkpoint.
    Llama2c(Llama2c),
}

/// A tensor as a file lists it, whether or not its type is supported.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorEntry<'a> {
    /// The name, unique in the model.
    pub name: &'a str,
    /// The type as the format names it, such as `Q4_K` or `BF16`.
    pub type_name: Cow<'a, str>,
    /// The type of the tensor that [`ModelFile::tensor`] returns; `None` if it is unsupported.
    pub dtype: Option<DType>,
    /// Dimensions, slowest first.
    pub shape: &'a [usize],
    /// The file that holds the data.
    pub file: &'a Path,
    /// First byte of the data in `file`.
    pub offset: usize,
    /// Bytes of data in `file`; `None` for a type of unknown size.
    pub byte_len: Option<usize>,
}

/// Opens a model, telling its format by content, not by name.
///
/// # Errors
/// When there is no such file, no format is recognised, or the file breaks its format.
pub fn open(path: impl AsRef<Path>) -> Result<ModelFile> {
    let path = path.as_ref();
    let meta = std::fs::metadata(path).map_err(|e| ImportError::io(path, "open", e))?;
    if meta.is_dir() { open_dir(path) } else { open_file(path) }
}

fn open_file(path: &Path) -> Result<ModelFile> {
    check_regular(path)?;
    let head = read_head(path).map_err(|e| ImportError::io(path, "read", e))?;
    if head.starts_with(b"GGUF") {
        return Gguf::open(path).map(ModelFile::Gguf);
    }
    if path.file_name().is_some_and(|name| name == hf::INDEX) {
        return HfDir::open(dir_of(path)).map(ModelFile::HuggingFace);
    }
    // The header's length, and the JSON object that begins it.
    if head.len() > 8 && head[8] == b'{' && head[4..8] == [0; 4] {
        return HfDir::open_file(path).map(ModelFile::HuggingFace);
    }
    if Llama2c::looks_like(path, &head) {
        return Llama2c::open(path).map(ModelFile::Llama2c);
    }
    if PICKLE_MAGICS.iter().any(|magic| head.starts_with(magic)) {
        let why = "looks like pickled or zipped weights; convert them to safetensors";
        return Err(ImportError::unsupported(path, why));
    }
    let why = match head.is_empty() {
        true => "file is empty".to_owned(),
        false => format!("not a model file; what can be opened is {UNDERSTOOD}"),
    };
    Err(ImportError::invalid(path, why))
}

/// Enough bytes to tell formats apart.
fn read_head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(256).read_to_end(&mut head)?;
    Ok(head)
}

fn open_dir(dir: &Path) -> Result<ModelFile> {
    let ggufs = ggufs_in(dir)?;
    if HfDir::has_weights(dir) || (ggufs.is_empty() && dir.join(hf::CONFIG).is_file()) {
        return HfDir::open(dir).map(ModelFile::HuggingFace);
    }
    match ggufs.as_slice() {
        [one] => Gguf::open(one).map(ModelFile::Gguf),
        [] => {
            let why = format!("no model in this directory; what can be opened is {UNDERSTOOD}");
            Err(ImportError::invalid(dir, why))
        }
        several => {
            let names: Vec<_> =
                several.iter().filter_map(|p| p.file_name()?.to_str()).take(8).collect();
            let why = format!(
                "{} GGUF models in this directory, name one of them: {}",
                several.len(),
                names.join(", ")
            );
            Err(ImportError::invalid(dir, why))
        }
    }
}

/// The GGUF models in `dir`: each file, but of a split model the first only.
fn ggufs_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let listed = std::fs::read_dir(dir).and_then(|entries| {
        entries.map(|entry| entry.map(|e| e.path())).collect::<io::Result<Vec<_>>>()
    });
    let mut files = listed.map_err(|e| ImportError::io(dir, "list", e))?;
    files.retain(|path| path.extension().is_some_and(|x| x.eq_ignore_ascii_case("gguf")));
    files.sort();
    let all = files.clone();
    files.retain(|path| match gguf::first_of_split(path) {
        Some(first) => first == *path || !all.contains(&first),
        None => true,
    });
    Ok(files)
}

impl ModelFile {
    /// The file or directory that was opened (of a split GGUF model, its first file).
    pub fn path(&self) -> &Path {
        match self {
            ModelFile::Gguf(m) => m.path(),
            ModelFile::HuggingFace(m) => m.path(),
            ModelFile::Llama2c(m) => m.path(),
        }
    }

    /// The format's name and version, for people.
    pub fn format_name(&self) -> String {
        match self {
            ModelFile::Gguf(m) => format!("GGUF v{}", m.version()),
            ModelFile::HuggingFace(_) => "Hugging Face safetensors".to_owned(),
            ModelFile::Llama2c(m) => format!("llama2.c v{}", m.version()),
        }
    }

    /// Bytes of all files that hold tensors.
    pub fn byte_len(&self) -> usize {
        match self {
            ModelFile::Gguf(m) => m.byte_len(),
            ModelFile::HuggingFace(m) => m.shards().iter().map(|s| s.byte_len()).sum(),
            ModelFile::Llama2c(m) => m.byte_len(),
        }
    }

    /// All tensors in the order of the file, including those of unsupported type.
    pub fn tensors(&self) -> Vec<TensorEntry<'_>> {
        match self {
            ModelFile::Gguf(m) => {
                m.tensors().map(|(name, info)| gguf_entry(m, name, info)).collect()
            }
            ModelFile::HuggingFace(m) => {
                m.tensors().map(|(name, info, shard)| hf_entry(shard, name, info)).collect()
            }
            ModelFile::Llama2c(m) => {
                m.tensors().map(|(name, info)| llama2c_entry(m, name, info)).collect()
            }
        }
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            ModelFile::Gguf(m) => m.info(name).is_some(),
            ModelFile::HuggingFace(m) => m.info(name).is_some(),
            ModelFile::Llama2c(m) => m.info(name).is_some(),
        }
    }

    /// A tensor over the mapped bytes, wherever the file's layout and alignment serve.
    ///
    /// # Errors
    /// `invalid` when there is none of this name, `unsupported` when its type cannot be held.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        match self {
            ModelFile::Gguf(m) => m.tensor(name),
            ModelFile::HuggingFace(m) => m.tensor(name),
            ModelFile::Llama2c(m) => m.tensor(name),
        }
    }
}

fn gguf_entry<'a>(m: &'a Gguf, name: &'a str, info: &'a gguf::TensorInfo) -> TensorEntry<'a> {
    TensorEntry {
        name,
        type_name: info.ggml_type.name(),
        dtype: info.ggml_type.dtype(),
        shape: &info.shape,
        file: m.part_path(info.part),
        offset: info.offset,
        byte_len: info.byte_len,
    }
}

fn hf_entry<'a>(
    shard: &'a SafeTensors,
    name: &'a str,
    info: &'a safetensors::TensorInfo,
) -> TensorEntry<'a> {
    TensorEntry {
        name,
        type_name: info.dtype.as_str().into(),
        dtype: info.held_dtype(),
        shape: &info.shape,
        file: shard.path(),
        offset: info.range.start,
        byte_len: Some(info.range.len()),
    }
}

fn llama2c_entry<'a>(
    m: &'a Llama2c,
    name: &'a str,
    info: &'a llama2c::TensorInfo,
) -> TensorEntry<'a> {
    let type_name = match m.group_size().filter(|_| info.quantized) {
        Some(group) => format!("INT8 in groups of {group}").into(),
        None => "F32".into(),
    };
    TensorEntry {
        name,
        type_name,
        dtype: Some(DType::F32),
        shape: &info.shape,
        file: m.path(),
        offset: info.offset,
        byte_len: Some(info.byte_len),
    }
}
