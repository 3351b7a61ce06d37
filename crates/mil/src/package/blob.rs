//! Weight files: MIL's blob storage, version 2.
//!
//! All numbers are little-endian. A header of 64 bytes (`u32` number of blobs, `u32` version 2) is
//! followed by blobs that start at multiples of 64: a record of 64 bytes (`u32` sentinel
//! `0xDEADBEEF`, `u32` type, `u64` data bytes, `u64` data offset, `u64` unused bits in the last
//! byte, 32 reserved bytes), then the data. The file ends with the last data byte. MIL text refers
//! to a blob by the offset of its record; the shape stands in the text.
//!
//! Block-quantised tensors, for which the format has no type, are stored as `uint8` of their bytes.

use std::io::{self, Write};
use std::sync::Arc;

use cranelift_entity::SecondaryMap;
use tensor::{Bytes, DType, Tensor, WeightId, WeightStore};

use crate::{BlobRef, OpError, TensorType};

const ALIGNMENT: u64 = 64;
const VERSION: u32 = 2;
const SENTINEL: u32 = 0xDEAD_BEEF;

/// The path under which MIL text refers to the one weight file of a model.
pub const WEIGHTS_PATH: &str = "@model_path/weights/weight.bin";

/// Types of blobs by their number.
const TYPES: [DType; 17] = [
    DType::F16,
    DType::F32,
    DType::U8,
    DType::I8,
    DType::Bf16,
    DType::I16,
    DType::U16,
    DType::I4,
    DType::U1,
    DType::U2,
    DType::U4,
    DType::U3,
    DType::U6,
    DType::I32,
    DType::U32,
    DType::F8E4M3,
    DType::F8E5M2,
];

/// The type under which a blob holds a tensor of `dtype`; `None` if the format has none.
pub fn storage_type(dtype: DType) -> Option<DType> {
    let stored = if dtype.is_block_quantized() { DType::U8 } else { dtype };
    TYPES.contains(&stored).then_some(stored)
}

/// The number of a blob type that [`storage_type`] gave.
fn type_number(stored: DType) -> u32 {
    TYPES.iter().position(|&d| d == stored).map_or(0, |i| i as u32 + 1)
}

/// One blob of a file.
#[derive(Clone, Debug)]
pub struct Blob {
    /// Offset of its record, by which it is referred to.
    pub offset: u64,
    /// Element type.
    pub dtype: DType,
    /// The elements.
    pub data: Bytes,
    /// Bits of the last byte that belong to no element.
    pub unused_bits: u64,
}

/// A weight file, usually memory-mapped.
#[derive(Clone, Debug)]
pub struct BlobFile {
    bytes: Bytes,
    count: u32,
}

impl BlobFile {
    /// The file with these bytes.
    ///
    /// # Errors
    /// When the header is missing or of another version.
    pub fn new(bytes: Bytes) -> Result<Self, OpError> {
        let (Some(count), Some(version)) = (u32_at(&bytes, 0), u32_at(&bytes, 4)) else {
            return Err(OpError::invalid("the weight file is shorter than its header"));
        };
        if version != VERSION {
            return Err(OpError::unsupported(format!(
                "weight file of version {version}, only {VERSION} is known"
            )));
        }
        Ok(BlobFile { bytes, count })
    }

    /// Number of blobs that the header states.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The blob whose record is at `offset`.
    ///
    /// # Errors
    /// When there is none, it reaches beyond the file, or its data lie over it or before it.
    pub fn blob(&self, offset: u64) -> Result<Blob, OpError> {
        let error = |what: String| OpError::invalid(format!("blob at offset {offset}: {what}"));
        let size = self.bytes.len();
        let record = usize::try_from(offset)
            .ok()
            .filter(|_| offset >= ALIGNMENT && offset.is_multiple_of(ALIGNMENT))
            .and_then(|at| self.bytes.slice(at..at.checked_add(ALIGNMENT as usize)?))
            .ok_or_else(|| error(format!("no record can be there in a file of {size} bytes")))?;
        let field = |at: usize| u64_at(&record, at).unwrap_or_default();
        if u32_at(&record, 0) != Some(SENTINEL) {
            return Err(error("the record does not start with the sentinel".into()));
        }
        let number = u32_at(&record, 4).unwrap_or_default();
        let dtype = (number as usize)
            .checked_sub(1)
            .and_then(|i| TYPES.get(i).copied())
            .ok_or_else(|| OpError::unsupported(error(format!("type {number}")).message))?;
        let (len, start) = (field(8), field(16));
        let after = offset + ALIGNMENT;
        if start < after {
            return Err(error(format!("its data at {start} lie before the end of the record")));
        }
        let range = usize::try_from(start).ok().zip(usize::try_from(len).ok());
        let data = range
            .and_then(|(start, len)| self.bytes.slice(start..start.checked_add(len)?))
            .ok_or_else(|| {
                error(format!("{len} bytes at {start} reach beyond the file's {size}"))
            })?;
        Ok(Blob { offset, dtype, data, unused_bits: field(24) })
    }

    /// All blobs in the order of the file, which must be packed as this module writes it.
    ///
    /// # Errors
    /// As [`BlobFile::blob`].
    pub fn blobs(&self) -> impl Iterator<Item = Result<Blob, OpError>> {
        let mut offset = ALIGNMENT;
        let mut left = self.count;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let blob = self.blob(offset);
            match &blob {
                Ok(b) => offset = next_record(b.offset, b.data.len() as u64),
                Err(_) => left = 0,
            }
            Some(blob)
        })
    }

    /// The blob at `offset` as a tensor of type `ty`, without copying.
    ///
    /// # Errors
    /// When the blob is missing, of another type or size, or a dimension is not fixed.
    pub fn tensor(&self, offset: u64, ty: &TensorType) -> Result<Tensor, OpError> {
        let blob = self.blob(offset)?;
        let shape = ty.fixed_shape().ok_or_else(|| {
            OpError::invalid(format!("a blob cannot have type {ty}: its size is not fixed"))
        })?;
        if storage_type(ty.dtype) != Some(blob.dtype) {
            return Err(OpError::invalid(format!(
                "blob at offset {offset} is of {} where {ty} is needed",
                blob.dtype
            )));
        }
        if ty.dtype.block_len() == 1
            && !(blob.data.as_ptr() as usize).is_multiple_of(ty.dtype.block_bytes().max(1))
        {
            let message = format!("blob at offset {offset}: its data are not aligned for {ty}");
            return Err(OpError::invalid(message));
        }
        Tensor::new(ty.dtype, &shape, blob.data)
            .map_err(|e| OpError::invalid(format!("blob at offset {offset}: {e}")))
    }
}

/// Where the record after a blob starts.
fn next_record(offset: u64, len: u64) -> u64 {
    offset
        .saturating_add(ALIGNMENT)
        .saturating_add(len)
        .div_ceil(ALIGNMENT)
        .saturating_mul(ALIGNMENT)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|&b| u32::from_le_bytes(b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|&b| u64::from_le_bytes(b))
}

/// Where each weight of a store lies in a weight file that is to be written.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    blobs: Vec<(WeightId, u64)>,
    /// Where the next record starts; 0 before the first.
    end: u64,
}

impl Layout {
    /// Lays out `ids`, in this order.
    ///
    /// # Errors
    /// When a weight is missing or of a type that blobs cannot have.
    pub fn new(
        weights: &WeightStore,
        ids: impl IntoIterator<Item = WeightId>,
    ) -> Result<Self, OpError> {
        let mut layout = Layout::default();
        for id in ids {
            layout.push(weights, id)?;
        }
        Ok(layout)
    }

    /// Adds a weight at the end and returns its offset.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn push(&mut self, weights: &WeightStore, id: WeightId) -> Result<u64, OpError> {
        let weight =
            weights.get(id).ok_or_else(|| OpError::invalid(format!("no {id} in the store")))?;
        let dtype = weight.tensor.dtype();
        if storage_type(dtype).is_none() {
            return Err(OpError::unsupported(format!(
                "weight {} of type {dtype} in a weight file",
                weight.name
            )));
        }
        let offset = self.end.max(ALIGNMENT);
        self.blobs.push((id, offset));
        self.end = next_record(offset, weight.tensor.bytes().len() as u64);
        Ok(offset)
    }

    /// Whether there is no weight.
    pub fn is_empty(&self) -> bool {
        self.blobs.is_empty()
    }

    /// The references to the weights under `path`.
    pub fn refs(&self, path: &str) -> SecondaryMap<WeightId, Option<BlobRef>> {
        let path: Arc<str> = Arc::from(path);
        let mut refs = SecondaryMap::new();
        for &(id, offset) in &self.blobs {
            refs[id] = Some(BlobRef { path: path.clone(), offset });
        }
        refs
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Those of `out`; `InvalidInput` if `weights` is not the store that was laid out.
    pub fn write(&self, weights: &WeightStore, out: &mut impl Write) -> io::Result<()> {
        let mut header = [0; ALIGNMENT as usize];
        header[..4].copy_from_slice(&(self.blobs.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&VERSION.to_le_bytes());
        out.write_all(&header)?;
        let mut end = ALIGNMENT;
        for &(id, offset) in &self.blobs {
            let tensor = &weights.get(id).ok_or(io::ErrorKind::InvalidInput)?.tensor;
            let stored = storage_type(tensor.dtype()).ok_or(io::ErrorKind::InvalidInput)?;
            let padding = usize::try_from(offset.saturating_sub(end)).unwrap_or(0);
            out.write_all(&vec![0; padding])?;
            out.write_all(&record(tensor, stored, offset))?;
            out.write_all(tensor.bytes())?;
            end = offset + ALIGNMENT + tensor.bytes().len() as u64;
        }
        Ok(())
    }
}

/// The record of a blob at `offset`.
fn record(tensor: &Tensor, stored: DType, offset: u64) -> [u8; ALIGNMENT as usize] {
    let bytes = tensor.bytes().len();
    // Only sub-byte types leave bits unused: their blocks are longer than one element.
    let unused = if stored.block_len() > 1 {
        let bits = stored.block_bytes() * 8 / stored.block_len();
        bytes * 8 - tensor.len() * bits
    } else {
        0
    };
    let mut record = [0; ALIGNMENT as usize];
    record[..4].copy_from_slice(&SENTINEL.to_le_bytes());
    record[4..8].copy_from_slice(&type_number(stored).to_le_bytes());
    record[8..16].copy_from_slice(&(bytes as u64).to_le_bytes());
    record[16..24].copy_from_slice(&(offset + ALIGNMENT).to_le_bytes());
    record[24..32].copy_from_slice(&(unused as u64).to_le_bytes());
    record
}
