//! Reading one GGUF file: everything before the tensor data, and where the data lies.

use std::path::Path;

use indexmap::IndexMap;
use tensor::Bytes;

use super::value::{Value, read_string};
use super::{DEFAULT_ALIGNMENT, GgmlType, Gguf, Metadata, Part, TensorInfo, align_up, byte_len};
use crate::reader::Reader;
use crate::{ImportError, Result};

/// ggml's bound on the number of dimensions.
const MAX_DIMS: u32 = 4;
/// GGUF's bound on the length of a key, in bytes; tensor names are held to it too.
const MAX_NAME: usize = 65535;

impl Gguf {
    /// Reads `bytes`, the contents of `path`, as file number `part` of a model.
    pub(super) fn read_part(path: &Path, bytes: Bytes, part: usize) -> Result<Self> {
        let mut r = Reader::new(path, &bytes);
        let version = read_version(&mut r)?;
        let tensor_count = r.u64("the tensor count")?;
        let value_count = r.u64("the metadata count")?;

        let values = read_values(&mut r, &bytes, value_count)?;
        let metadata = Metadata { file: path.to_path_buf(), values };
        let alignment = read_alignment(&metadata)?;
        let mut tensors = read_infos(&mut r, tensor_count, part)?;
        place(path, &mut tensors, r.pos(), alignment, bytes.len())?;
        let parts = vec![Part { path: path.to_path_buf(), bytes }];
        Ok(Gguf { version, metadata, parts, tensors })
    }
}

fn read_version(r: &mut Reader<'_>) -> Result<u32> {
    let magic: [u8; 4] = r.array("the magic")?;
    if &magic != b"GGUF" {
        return Err(ImportError::invalid(
            r.file,
            format!("not a GGUF file: it begins with {:?}", magic.escape_ascii().to_string()),
        )
        .at(0));
    }
    match r.u32("the version")? {
        version @ 2..=3 => Ok(version),
        1 => Err(ImportError::unsupported(r.file, "GGUF version 1").at(4)),
        v if v.swap_bytes() < 0x100 => {
            Err(ImportError::unsupported(r.file, "big-endian GGUF").at(4))
        }
        v => Err(ImportError::unsupported(r.file, format!("GGUF version {v}")).at(4)),
    }
}

fn read_values(r: &mut Reader<'_>, bytes: &Bytes, count: u64) -> Result<IndexMap<String, Value>> {
    let mut values = IndexMap::new();
    for _ in 0..count {
        let at = r.pos();
        let key = read_name(r, "a metadata key")?.to_owned();
        let value = Value::read(r, bytes).map_err(|e| e.key(&key))?;
        if values.contains_key(&key) {
            return Err(ImportError::invalid(r.file, "key occurs twice").at(at).key(&key));
        }
        values.insert(key, value);
    }
    Ok(values)
}

fn read_name<'a>(r: &mut Reader<'a>, what: &str) -> Result<&'a str> {
    let at = r.pos();
    let name = read_string(r, what)?;
    if name.len() > MAX_NAME {
        return Err(ImportError::limit(
            r.file,
            format!("{what} of {} bytes, at most {MAX_NAME}", name.len()),
        )
        .at(at));
    }
    Ok(name)
}

fn read_alignment(metadata: &Metadata) -> Result<usize> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.find::<u32>(KEY)?.map_or(DEFAULT_ALIGNMENT, |a| a as usize);
    if !alignment.is_power_of_two() {
        return Err(metadata.error(KEY, format!("{alignment} is not a power of two")));
    }
    Ok(alignment)
}

/// The tensor table. Offsets stay relative to the data section, as the file has them.
fn read_infos(r: &mut Reader<'_>, count: u64, part: usize) -> Result<IndexMap<String, TensorInfo>> {
    let mut infos = IndexMap::new();
    for _ in 0..count {
        let at = r.pos();
        let name = read_name(r, "a tensor name")?.to_owned();
        let info = read_info(r, part).map_err(|e| e.tensor(&name))?;
        if infos.contains_key(&name) {
            return Err(ImportError::invalid(r.file, "tensor occurs twice").at(at).tensor(&name));
        }
        infos.insert(name, info);
    }
    Ok(infos)
}

fn read_info(r: &mut Reader<'_>, part: usize) -> Result<TensorInfo> {
    let at = r.pos();
    let invalid = |file, why: String| ImportError::invalid(file, why).at(at);
    let dims = r.u32("the number of dimensions")?;
    if dims > MAX_DIMS {
        return Err(invalid(r.file, format!("{dims} dimensions, at most {MAX_DIMS}")));
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        let dim = r.u64("a dimension")?;
        shape.push(
            usize::try_from(dim)
                .map_err(|_| invalid(r.file, format!("dimension {dim} is too large")))?,
        );
    }
    shape.reverse();
    let ggml_type = GgmlType(r.u32("the tensor type")?);
    let offset = r.u64("the tensor offset")?;
    let offset = usize::try_from(offset)
        .map_err(|_| invalid(r.file, format!("data offset {offset} is too large")))?;
    let byte_len = byte_len(ggml_type, &shape).map_err(|why| invalid(r.file, why))?;
    Ok(TensorInfo { ggml_type, shape, offset, byte_len, part })
}

/// Turns the offsets into offsets in the file, and checks that tensors are aligned, lie inside the
/// file and do not overlap. `header_len` is where the tensor table ends.
fn place(
    path: &Path,
    tensors: &mut IndexMap<String, TensorInfo>,
    header_len: usize,
    alignment: usize,
    file_len: usize,
) -> Result<()> {
    let error =
        |name: &str, at: usize, why: String| ImportError::invalid(path, why).at(at).tensor(name);
    for (name, info) in &mut *tensors {
        let relative = info.offset;
        if relative % alignment != 0 {
            let why =
                format!("data offset {relative} is not a multiple of the alignment {alignment}");
            return Err(ImportError::invalid(path, why).tensor(name));
        }
        let start = align_up(header_len, alignment).and_then(|data| data.checked_add(relative));
        // A type of unknown size is held to begin inside the file.
        let end = start.and_then(|s| s.checked_add(info.byte_len.unwrap_or(0)));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len => info.offset = start,
            (Some(start), Some(end)) => {
                return Err(error(
                    name,
                    start,
                    format!("data ends at byte {end}, the file at {file_len}"),
                ));
            }
            _ => {
                return Err(ImportError::invalid(
                    path,
                    format!("data offset {relative} is too large"),
                )
                .tensor(name));
            }
        }
    }
    let mut by_offset: Vec<_> =
        tensors.iter().filter(|(_, t)| t.byte_len.is_some_and(|n| n > 0)).collect();
    by_offset.sort_by_key(|(_, t)| t.offset);
    for pair in by_offset.windows(2) {
        let ((first, a), (second, b)) = (pair[0], pair[1]);
        if a.offset + a.byte_len.unwrap_or(0) > b.offset {
            return Err(error(
                second,
                b.offset,
                format!("data overlaps that of tensor {}", crate::error::quoted(first)),
            ));
        }
    }
    Ok(())
}
