//! One safetensors file: its header read by hand, for errors that name tensor and offset and for
//! files that use types this crate does not hold.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{self, MapAccess, Visitor};
use tensor::{Bytes, DType, Tensor};

use crate::error::quoted;
use crate::reader::Reader;
use crate::source::{map_file, window};
use crate::{ImportError, Result};

/// The format's own bound on the header, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// An open safetensors file.
#[derive(Clone, Debug)]
pub struct SafeTensors {
    path: PathBuf,
    bytes: Bytes,
    metadata: Vec<(String, String)>,
    tensors: IndexMap<String, TensorInfo>,
}

/// Where a tensor lies and what it is. It is listed also if its type is unsupported.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// The type as the file names it, such as `BF16`.
    pub dtype: String,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// The bytes of the file that hold the data.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// The data type of the tensor; `None` if it is unsupported.
    pub fn held_dtype(&self) -> Option<DType> {
        DTYPES.iter().find(|(name, _)| *name == self.dtype).map(|&(_, dtype)| dtype)
    }
}

const DTYPES: &[(&str, DType)] = &[
    ("BOOL", DType::Bool),
    ("U8", DType::U8),
    ("I8", DType::I8),
    ("F8_E5M2", DType::F8E5M2),
    ("F8_E4M3", DType::F8E4M3),
    ("I16", DType::I16),
    ("U16", DType::U16),
    ("F16", DType::F16),
    ("BF16", DType::Bf16),
    ("I32", DType::I32),
    ("U32", DType::U32),
    ("F32", DType::F32),
    ("F64", DType::F64),
    ("I64", DType::I64),
    ("U64", DType::U64),
];

impl SafeTensors {
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
        let mut r = Reader::new(path, &bytes);
        let len = r.u64("the header's length")?;
        if len > MAX_HEADER {
            return Err(ImportError::limit(path, format!("header of {len} bytes, at most {MAX_HEADER}")).at(0));
        }
        let json = r.take(len, "the header")?;
        let header: Header<'_> = serde_json::from_slice(json).map_err(|e| {
            let at = 8 + offset_of(json, e.line(), e.column());
            ImportError::invalid(path, format!("header: {e}")).at(at)
        })?;
        let tensors = place(path, header.tensors, r.pos(), bytes.len())?;
        Ok(SafeTensors { path: path.to_path_buf(), metadata: header.metadata, bytes, tensors })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// The free-form `__metadata__` of the header.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// All tensors by name, in the order of the header, including those of unsupported type.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, info)| (name.as_str(), info))
    }

    /// What is known of a tensor without reading it.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// A tensor over the mapped bytes, or over a copy of them where the file leaves them misaligned.
    ///
    /// # Errors
    /// `invalid` when there is none of this name, `unsupported` when its type cannot be held.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let Some(info) = self.tensors.get(name) else {
            return Err(ImportError::invalid(&self.path, "no such tensor").tensor(name));
        };
        let Some(dtype) = info.held_dtype() else {
            let why = format!("tensor type {}", quoted(&info.dtype));
            return Err(ImportError::unsupported(&self.path, why).tensor(name));
        };
        let bytes = window(&self.bytes, info.range.clone(), dtype).expect("ranges are checked on reading");
        Tensor::new(dtype, &info.shape, bytes)
            .map_err(|e| ImportError::invalid(&self.path, e.to_string()).tensor(name))
    }
}

/// The byte offset of a one-based line and column of `json`, as serde counts them.
fn offset_of(json: &[u8], line: usize, column: usize) -> usize {
    let before: usize = json.split_inclusive(|&b| b == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (before + column.saturating_sub(1)).min(json.len())
}

/// Checks the table against the file: types and shapes give the byte lengths, and the data is
/// covered without overlap or hole, as the format demands. `data` is where it begins.
fn place(
    path: &Path,
    raw: Vec<(String, RawInfo<'_>)>,
    data: usize,
    file_len: usize,
) -> Result<IndexMap<String, TensorInfo>> {
    let mut tensors = IndexMap::with_capacity(raw.len());
    for (name, raw) in raw {
        let invalid = |why: String| ImportError::invalid(path, why).tensor(&name);
        let [start, end] = raw.data_offsets;
        if start > end {
            return Err(invalid(format!("data offsets {start} to {end} run backwards")));
        }
        let range = match (data.checked_add(start), data.checked_add(end)) {
            (Some(start), Some(end)) if end <= file_len => start..end,
            _ => {
                let why = format!("data ends at byte {end} of the data section, the section at {}", file_len - data);
                return Err(invalid(why));
            }
        };
        let info = TensorInfo { dtype: raw.dtype.into_owned(), shape: raw.shape, range };
        if let Some(dtype) = info.held_dtype() {
            let expected = tensor::element_count(&info.shape).and_then(|n| dtype.byte_len(n));
            if expected != Some(info.range.len()) {
                let need = expected.map_or("more than memory".to_owned(), |n| format!("{n} bytes"));
                let why = format!("shape {:?} of {} needs {need}, its data is {} bytes", info.shape, info.dtype, info.range.len());
                return Err(invalid(why));
            }
        }
        if let Some((name, _)) = tensors.insert_full(name, info).1.map(|old| (old.dtype.clone(), old)) {
            // Reached only when the name was there; report it below by its own name.
            let _ = name;
        }
    }
    Ok(tensors)
}

/// The header's JSON object in file order, with repeated names kept.
struct Header<'a> {
    metadata: Vec<(String, String)>,
    tensors: Vec<(String, RawInfo<'a>)>,
}

#[derive(Deserialize)]
struct RawInfo<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}
