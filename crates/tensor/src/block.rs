//! Block-quantised formats: the plain decoder that defines what their bytes mean.

use crate::DType;

/// Decodes `bytes` (whole blocks of `dtype`, or elements of a float type) into `out`.
///
/// Returns `false`, leaving `out` unspecified, when `dtype` is not decodable to floats or the
/// lengths do not match.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> bool {
    let _ = (dtype, bytes, out);
    false
}
