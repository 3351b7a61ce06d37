//! One safetensors file: its header read by hand, for errors that name tensor and offset and for
//! files that use types this crate does not hold.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use tensor::{Bytes, DType, Tensor};

use crate::atomic::write_file;
use crate::error::quoted;
use crate::json::{self, UniqueMap, reason};
use crate::reader::Reader;
use crate::source::{map_file, window};
use crate::{ImportError, Result};

/// The format's own bound on the header, in bytes.
const MAX_HEADER: u64 = 100_000_000;
/// Beyond every tensor of a model; keeps messages that show a shape short.
const MAX_DIMS: usize = 16;
/// The one key of the header that is no tensor.
const METADATA: &str = "__metadata__";
/// The header is padded to a multiple of this many bytes.
const HEADER_ALIGNMENT: usize = 8;

/// An open safetensors file.
#[derive(Clone, Debug)]
pub struct SafeTensors {
    path: PathBuf,
    bytes: Bytes,
    metadata: IndexMap<String, String>,
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
            return Err(ImportError::limit(
                path,
                format!("header of {len} bytes, at most {MAX_HEADER}"),
            )
            .at(0));
        }
        let json = r.take(len, "the header")?;
        let header: Header<'_> = json::parse(path, json, 8)?;
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
    pub fn metadata(&self) -> &IndexMap<String, String> {
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
            let why = format!("data is of {}", quoted(&info.dtype));
            return Err(ImportError::unsupported(&self.path, why).tensor(name));
        };
        let bytes =
            window(&self.bytes, info.range.clone(), dtype).expect("ranges are checked on reading");
        Tensor::new(dtype, &info.shape, bytes)
            .map_err(|e| ImportError::invalid(&self.path, e.to_string()).tensor(name))
    }
}

/// Checks the table against the file: types and shapes give the byte lengths, and the data section
/// is covered from `data`, where it begins, to its end without overlap or hole, as the format demands.
fn place(
    path: &Path,
    raw: IndexMap<String, RawInfo<'_>>,
    data: usize,
    file_len: usize,
) -> Result<IndexMap<String, TensorInfo>> {
    let mut tensors = IndexMap::with_capacity(raw.len());
    for (name, raw) in raw {
        let info = locate(raw, data, file_len)
            .map_err(|why| ImportError::invalid(path, why).tensor(&name))?;
        tensors.insert(name, info);
    }
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_by_key(|(_, t)| (t.range.start, t.range.end));
    let mut covered = data;
    for (name, info) in in_order {
        let start = info.range.start;
        if start != covered {
            let why = if start < covered { "overlaps other data" } else { "leaves a hole before" };
            let why = format!("data {why} byte {} of the data section", covered.max(start) - data);
            return Err(ImportError::invalid(path, why).at(start).tensor(name));
        }
        covered = info.range.end;
    }
    if covered != file_len {
        let why = format!("{} bytes after the last tensor belong to none", file_len - covered);
        return Err(ImportError::invalid(path, why).at(covered));
    }
    Ok(tensors)
}

fn locate(
    raw: RawInfo<'_>,
    data: usize,
    file_len: usize,
) -> std::result::Result<TensorInfo, String> {
    let [start, end] = raw.data_offsets;
    if raw.shape.len() > MAX_DIMS {
        return Err(format!("{} dimensions, at most {MAX_DIMS}", raw.shape.len()));
    }
    if start > end {
        return Err(format!("data offsets {start} to {end} run backwards"));
    }
    let section = file_len - data;
    if end > section {
        return Err(format!(
            "data ends at byte {end} of the data section, the section at {section}"
        ));
    }
    let range = data + start..data + end;
    let info = TensorInfo { dtype: raw.dtype.into_owned(), shape: raw.shape, range };
    let elements = tensor::element_count(&info.shape);
    if let Some(dtype) = info.held_dtype() {
        let need = elements.and_then(|n| dtype.byte_len(n));
        if need != Some(end - start) {
            let need = need.map_or("more than memory".to_owned(), |n| format!("{n} bytes"));
            let (shape, dtype) = (&info.shape, &info.dtype);
            let has = end - start;
            return Err(format!(
                "shape {shape:?} of {dtype} needs {need}, its data is {has} bytes"
            ));
        }
    } else if elements.is_none() {
        return Err(format!("shape {:?} is too large", info.shape));
    }
    Ok(info)
}

/// The header: an object of tensors by name, and `__metadata__` among them.
struct Header<'a> {
    metadata: IndexMap<String, String>,
    tensors: IndexMap<String, RawInfo<'a>>,
}

#[derive(Deserialize)]
struct RawInfo<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

impl<'de> Deserialize<'de> for Header<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let (mut metadata, mut tensors) = (None, IndexMap::new());
                while let Some(name) = map.next_key::<String>()? {
                    let here = |why: String| A::Error::custom(format!("{}: {why}", quoted(&name)));
                    if name == METADATA {
                        let entries: UniqueMap<String> = map.next_value()?;
                        if metadata.replace(entries.0).is_some() {
                            return Err(here("occurs twice".to_owned()));
                        }
                    } else {
                        let info = map.next_value().map_err(|e| here(reason(&e)))?;
                        if tensors.contains_key(&name) {
                            return Err(here("tensor occurs twice".to_owned()));
                        }
                        tensors.insert(name, info);
                    }
                }
                Ok(Header { metadata: metadata.unwrap_or_default(), tensors })
            }
        }
        d.deserialize_map(Entries)
    }
}

/// Writes tensors and free-form metadata to a new file, which appears at `path` when it is whole.
/// Data lies in the order given.
///
/// # Errors
/// When a name occurs twice or is reserved, a tensor's type has no safetensors form, or the file
/// cannot be written.
pub fn write(
    path: impl AsRef<Path>,
    metadata: &[(&str, &str)],
    tensors: &[(&str, &Tensor)],
) -> Result<()> {
    let path = path.as_ref();
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        let entries = metadata.iter().map(|&(k, v)| (k.to_owned(), v.into()));
        header.insert(METADATA.to_owned(), serde_json::Value::Object(entries.collect()));
    }
    let mut offset = 0;
    for &(name, tensor) in tensors {
        let Some((dtype, _)) = DTYPES.iter().find(|&&(_, held)| held == tensor.dtype()) else {
            let why = format!("{} tensor has no safetensors form", tensor.dtype());
            return Err(ImportError::unsupported(path, why).tensor(name));
        };
        let end = offset + tensor.bytes().len();
        let info = serde_json::json!({
            "dtype": dtype, "shape": tensor.shape(), "data_offsets": [offset, end],
        });
        if name == METADATA || header.insert(name.to_owned(), info).is_some() {
            return Err(ImportError::invalid(path, "name is reserved or occurs twice").tensor(name));
        }
        offset = end;
    }
    let mut json = serde_json::Value::Object(header).to_string().into_bytes();
    // Spaces behind the header align the data for typed views of a mapped file.
    json.resize(json.len().next_multiple_of(HEADER_ALIGNMENT), b' ');
    write_file(path, |out| {
        out.write_all(&(json.len() as u64).to_le_bytes())?;
        out.write_all(&json)?;
        tensors.iter().try_for_each(|(_, tensor)| out.write_all(tensor.bytes()))
    })
}
