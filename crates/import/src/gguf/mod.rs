//! GGUF, versions 2 and 3, little-endian, in one file or split over several.

mod header;
mod metadata;
mod types;
mod value;
mod write;

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use tensor::{Bytes, Tensor};

use crate::source::{map_file, window};
use crate::{ImportError, Result};

pub use metadata::{FromValue, Metadata};
pub use types::GgmlType;
pub use value::{Array, Value, ValueType};
pub use write::write;

/// Alignment of tensor data where `general.alignment` does not say.
const DEFAULT_ALIGNMENT: usize = 32;

/// An open GGUF model: metadata, and tensors as windows of the mapped file or files.
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    metadata: Metadata,
    parts: Vec<Part>,
    tensors: IndexMap<String, TensorInfo>,
}

#[derive(Clone, Debug)]
struct Part {
    path: PathBuf,
    bytes: Bytes,
}

/// Where a tensor lies and what it is. It is listed also if its type is unsupported.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// The type as the file numbers it.
    pub ggml_type: GgmlType,
    /// Dimensions, slowest first (the file lists them fastest first).
    pub shape: Vec<usize>,
    /// First byte of the data in its file.
    pub offset: usize,
    /// Bytes of data; `None` for a type whose block size is not known.
    pub byte_len: Option<usize>,
    /// Which of the files of a split model, from 0.
    pub part: usize,
}

impl Gguf {
    /// Maps `path`, and the other files of a split model of which `path` may be any.
    ///
    /// # Errors
    /// When a file cannot be mapped, breaks the format, or is not the part that its name says.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let model = Self::read_part(path, map_file(path)?, 0)?;
        match model.split()? {
            (0, 1) => Ok(model),
            (number, count) => Self::open_split(path, number, count),
        }
    }

    /// Reads a model from memory; `name` stands for the file in errors. The rest of a split model is
    /// not looked for.
    ///
    /// # Errors
    /// When the bytes break the format.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: Bytes) -> Result<Self> {
        Self::read_part(name.as_ref(), bytes, 0)
    }

    /// The file's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The file, or the first of several.
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// The file number `part` of a split model.
    pub(crate) fn part_path(&self, part: usize) -> &Path {
        &self.parts[part].path
    }

    /// Bytes of all files together.
    pub fn byte_len(&self) -> usize {
        self.parts.iter().map(|p| p.bytes.len()).sum()
    }

    /// The metadata (of the first file, where a model is split).
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors by name, in the order of the file, including those of unsupported type.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, info)| (name.as_str(), info))
    }

    /// What is known of a tensor without reading it.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// A tensor over the mapped bytes.
    ///
    /// # Errors
    /// `invalid` when there is none of this name, `unsupported` when its type cannot be held.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let Some(info) = self.tensors.get(name) else {
            return Err(ImportError::invalid(self.path(), "no such tensor").tensor(name));
        };
        let part = &self.parts[info.part];
        let (Some(dtype), Some(len)) = (info.ggml_type.dtype(), info.byte_len) else {
            let why = format!("data is of {}", info.ggml_type.name());
            return Err(ImportError::unsupported(&part.path, why).tensor(name));
        };
        let bytes = window(&part.bytes, info.offset..info.offset + len, dtype)
            .expect("ranges are checked on reading");
        Tensor::new(dtype, &info.shape, bytes)
            .map_err(|e| ImportError::invalid(&part.path, e.to_string()).tensor(name))
    }

    /// Which file of a split model this is, from 0, and of how many.
    fn split(&self) -> Result<(usize, usize)> {
        let count = self.metadata.find("split.count")?.unwrap_or(1).max(1);
        let number = self.metadata.find("split.no")?.unwrap_or(0);
        if number >= count {
            let why = format!("file number {number} (from 0) of a model of {count}");
            return Err(self.metadata.error("split.no", why));
        }
        Ok((number, count))
    }

    /// Reads all files of the split model of which `path` is the file `number`.
    fn open_split(path: &Path, number: usize, count: usize) -> Result<Self> {
        let prefix = split_prefix(path, number, count).ok_or_else(|| {
            let (this, suffix) = (number + 1, split_suffix(number, count));
            let why =
                format!("file {this} of {count} of a split model must be called NAME{suffix}");
            ImportError::invalid(path, why)
        })?;
        let open = |n| {
            let path = path.with_file_name(format!("{prefix}{}", split_suffix(n, count)));
            let part = Self::read_part(&path, map_file(&path)?, n)?;
            if part.split()? != (n, count) {
                let why =
                    format!("is not file {} of {count} of the model, as its name says", n + 1);
                return Err(ImportError::invalid(&path, why));
            }
            Ok(part)
        };
        let mut model = open(0)?;
        for n in 1..count {
            model.add_part(open(n)?)?;
        }
        let total = model.metadata.find::<usize>("split.tensors.count")?;
        if let Some(total) = total.filter(|&t| t != model.tensors.len()) {
            let why = format!("says {total}, the files hold {} tensors", model.tensors.len());
            return Err(model.metadata.error("split.tensors.count", why));
        }
        Ok(model)
    }

    fn add_part(&mut self, part: Gguf) -> Result<()> {
        let path = part.path().to_path_buf();
        self.parts.extend(part.parts);
        for (name, info) in part.tensors {
            if let Some(first) = self.tensors.get(&name) {
                let why = format!("also in {}", self.parts[first.part].path.display());
                return Err(ImportError::invalid(&path, why).tensor(&name));
            }
            self.tensors.insert(name, info);
        }
        Ok(())
    }
}

/// The first file of the split model of which `path`, by its name, is a part.
pub(crate) fn first_of_split(path: &Path) -> Option<PathBuf> {
    let (rest, count) = path.file_name()?.to_str()?.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let (number, count) = (number.parse::<usize>().ok()?, count.parse().ok()?);
    let suffix = split_suffix(number.checked_sub(1)?, count);
    // The name has to be what these numbers give, with the zeros in front of them.
    (path.file_name()?.to_str()? == format!("{prefix}{suffix}"))
        .then(|| path.with_file_name(format!("{prefix}{}", split_suffix(0, count))))
}

/// How the name of file `number` (from 0) of a split model ends.
fn split_suffix(number: usize, count: usize) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}

/// The common start of the file names of a split model.
fn split_prefix(path: &Path, number: usize, count: usize) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    name.strip_suffix(&split_suffix(number, count)).map(str::to_owned)
}

/// `n` rounded up to a multiple of `alignment`, a power of two.
fn align_up(n: usize, alignment: usize) -> Option<usize> {
    Some(n.checked_add(alignment - 1)? & !(alignment - 1))
}

/// Bytes of a tensor, or why it cannot have any.
fn byte_len(ggml_type: GgmlType, shape: &[usize]) -> std::result::Result<Option<usize>, String> {
    let bad = |why| format!("shape {shape:?} of type {} {why}", ggml_type.name());
    let elements = tensor::element_count(shape).ok_or_else(|| bad("is too large"))?;
    let Some((len, bytes)) = ggml_type.block() else { return Ok(None) };
    if len > 1 && !shape.last().is_some_and(|d| d.is_multiple_of(len)) {
        return Err(bad(&format!("cuts a block of {len}")));
    }
    (elements / len).checked_mul(bytes).map(Some).ok_or_else(|| bad("is too large"))
}
