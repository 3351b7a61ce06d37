//! Writing GGUF version 3.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

use tensor::Tensor;

use super::value::encode_string;
use super::{DEFAULT_ALIGNMENT, GgmlType, Value, align_up};
use crate::atomic::write_file;
use crate::{ImportError, Result};

/// Writes metadata and tensors, in the order given, to a new file, which appears at `path` when it
/// is whole. `general.alignment` is honoured if it is among the metadata.
///
/// # Errors
/// When a key or tensor occurs twice, a tensor's type or number of dimensions has no GGUF form, the alignment is no power of two,
/// or the file cannot be written.
pub fn write(
    path: impl AsRef<Path>,
    metadata: &[(&str, Value)],
    tensors: &[(&str, &Tensor)],
) -> Result<()> {
    let path = path.as_ref();
    let alignment = match metadata.iter().find(|(k, _)| *k == "general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some((_, Value::U32(a))) if a.is_power_of_two() => *a as usize,
        Some((key, _)) => {
            return Err(ImportError::invalid(path, "must be a u32 and a power of two").key(key));
        }
    };
    refuse_repeats(path, metadata, tensors)?;
    let mut header = b"GGUF".to_vec();
    header.extend_from_slice(&3u32.to_le_bytes());
    header.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    header.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        encode_string(key.as_bytes(), &mut header);
        header.extend_from_slice(&(value.value_type() as u32).to_le_bytes());
        value.encode(&mut header);
    }
    let mut offset = 0;
    for (name, tensor) in tensors {
        let Some(ggml_type) = GgmlType::of(tensor.dtype()).filter(|_| tensor.shape().len() <= 4)
        else {
            let why =
                format!("{} tensor of shape {:?} has no GGUF form", tensor.dtype(), tensor.shape());
            return Err(ImportError::unsupported(path, why).tensor(name));
        };
        encode_string(name.as_bytes(), &mut header);
        header.extend_from_slice(&(tensor.shape().len() as u32).to_le_bytes());
        for &dim in tensor.shape().iter().rev() {
            header.extend_from_slice(&(dim as u64).to_le_bytes());
        }
        header.extend_from_slice(&ggml_type.0.to_le_bytes());
        header.extend_from_slice(&(offset as u64).to_le_bytes());
        offset += padded(tensor.bytes().len(), alignment);
    }
    header.resize(padded(header.len(), alignment), 0);
    write_file(path, |out| {
        out.write_all(&header)?;
        for (_, tensor) in tensors {
            out.write_all(tensor.bytes())?;
            pad(out, padded(tensor.bytes().len(), alignment) - tensor.bytes().len())?;
        }
        Ok(())
    })
}

fn refuse_repeats(
    path: &Path,
    metadata: &[(&str, Value)],
    tensors: &[(&str, &Tensor)],
) -> Result<()> {
    let invalid = |why: &str| ImportError::invalid(path, why);
    let mut seen = HashSet::new();
    if let Some((key, _)) = metadata.iter().find(|(key, _)| !seen.insert(*key)) {
        return Err(invalid("key occurs twice").key(key));
    }
    seen.clear();
    if let Some((name, _)) = tensors.iter().find(|(name, _)| !seen.insert(*name)) {
        return Err(invalid("tensor occurs twice").tensor(name));
    }
    Ok(())
}

fn padded(len: usize, alignment: usize) -> usize {
    align_up(len, alignment).expect("bytes in memory are far fewer than usize::MAX")
}

fn pad(out: &mut impl Write, len: usize) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), len as u64), out).map(drop)
}
