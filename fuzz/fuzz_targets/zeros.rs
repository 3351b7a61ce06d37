//! A weight file of zeros, in which there is a constant of every type at every place.

use mil::text::BlobSource;
use mil::{OpError, TensorType};
use tensor::Tensor;

/// The largest constant, in bytes.
const LARGEST: usize = 1 << 20;

pub struct Zeros;

impl BlobSource for Zeros {
    fn tensor(&self, _path: &str, _offset: u64, ty: &TensorType) -> Result<Tensor, OpError> {
        let shape = ty.fixed_shape().ok_or_else(|| OpError::invalid("an open size"))?;
        let len = tensor::element_count(&shape).and_then(|n| ty.dtype.byte_len(n));
        if len.is_none_or(|n| n > LARGEST) {
            return Err(OpError::limit("a large constant"));
        }
        Tensor::zeros(ty.dtype, &shape).map_err(|e| OpError::invalid(e.to_string()))
    }
}
