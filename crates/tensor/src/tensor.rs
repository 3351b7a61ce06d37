//! A dense row-major tensor value over shared bytes.

use crate::{AlignedBuf, Bytes, DType, Element};

/// Why bytes, a type and a shape do not make a tensor, or cannot be viewed as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TensorError {
    /// The shape's element count or byte length does not fit in memory, or it cuts a block.
    #[error("a {dtype} tensor of shape {shape:?} does not fit in memory or cuts a block")]
    BadShape {
        /// Element type.
        dtype: DType,
        /// The offending shape.
        shape: Vec<usize>,
    },
    /// Byte length and shape disagree.
    #[error("{dtype} tensor of shape {shape:?} needs {expected} bytes, got {actual}")]
    ByteLength {
        /// Element type.
        dtype: DType,
        /// Shape asked for.
        shape: Vec<usize>,
        /// Bytes that type and shape need.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
    /// A typed view of another type was asked for.
    #[error("tensor holds {actual}, asked for {asked}")]
    WrongType {
        /// Type held.
        actual: DType,
        /// Type asked for.
        asked: DType,
    },
    /// The bytes are not aligned for a typed view (only mapped files can be).
    #[error("tensor data is not aligned for {0}")]
    Misaligned(DType),
}

/// A dense row-major tensor. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    data: Bytes,
}

/// Product of the dimensions; `None` on overflow.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

/// Byte length of a row-major tensor. Block formats must have whole blocks in each row.
fn byte_len(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
    let bad = || TensorError::BadShape { dtype, shape: shape.to_vec() };
    if dtype.is_block_quantized()
        && !shape.last().is_some_and(|d| d.is_multiple_of(dtype.block_len()))
    {
        return Err(bad());
    }
    element_count(shape).and_then(|n| dtype.byte_len(n)).ok_or_else(bad)
}

impl Tensor {
    /// Bytes seen as a tensor.
    ///
    /// # Errors
    /// When the byte length is not exactly what `dtype` and `shape` need.
    pub fn new(dtype: DType, shape: &[usize], data: Bytes) -> Result<Self, TensorError> {
        let expected = byte_len(dtype, shape)?;
        if expected != data.len() {
            return Err(TensorError::ByteLength {
                dtype,
                shape: shape.to_vec(),
                expected,
                actual: data.len(),
            });
        }
        Ok(Tensor { dtype, shape: shape.to_vec(), data })
    }

    /// A tensor of zero bytes.
    ///
    /// # Errors
    /// When the size does not fit in memory.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Self, TensorError> {
        let buf = AlignedBuf::try_zeroed(byte_len(dtype, shape)?);
        let bad = || TensorError::BadShape { dtype, shape: shape.to_vec() };
        Ok(Tensor { dtype, shape: shape.to_vec(), data: Bytes::from_buf(buf.ok_or_else(bad)?) })
    }

    /// A tensor holding a copy of `values`.
    ///
    /// # Errors
    /// When the number of values is not the product of `shape`.
    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Result<Self, TensorError> {
        Tensor::new(T::DTYPE, shape, Bytes::copy_from(bytemuck::cast_slice(values)))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// The raw bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The elements as `T`.
    ///
    /// # Errors
    /// When the type differs or a mapped file leaves the data misaligned.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        if T::DTYPE != self.dtype {
            return Err(TensorError::WrongType { actual: self.dtype, asked: T::DTYPE });
        }
        bytemuck::try_cast_slice(&self.data).map_err(|_| TensorError::Misaligned(self.dtype))
    }

    /// The elements as `T`, to change; copied first if they are shared, or lie where `T` cannot be read.
    ///
    /// # Errors
    /// When the type differs.
    pub fn make_mut<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        if T::DTYPE != self.dtype {
            return Err(TensorError::WrongType { actual: self.dtype, asked: T::DTYPE });
        }
        if bytemuck::try_cast_slice::<u8, T>(&self.data).is_err() {
            self.data = Bytes::copy_from(&self.data);
        }
        let dtype = self.dtype;
        bytemuck::try_cast_slice_mut(self.data.make_mut())
            .map_err(|_| TensorError::Misaligned(dtype))
    }

    /// The same data under another shape of equally many elements.
    ///
    /// # Errors
    /// When the counts differ.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Self, TensorError> {
        Tensor::new(self.dtype, shape, self.data.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_and_errors() {
        let t = Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(t.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert!(matches!(t.as_slice::<i32>(), Err(TensorError::WrongType { .. })));
        assert!(matches!(
            t.reshaped(&[3]),
            Err(TensorError::ByteLength { expected: 12, actual: 16, .. })
        ));
        assert!(matches!(
            Tensor::zeros(DType::F32, &[usize::MAX, 2]),
            Err(TensorError::BadShape { .. })
        ));
        assert!(matches!(Tensor::zeros(DType::U8, &[1 << 50]), Err(TensorError::BadShape { .. })));
        // 64 elements are whole Q4_1 blocks in number, but not row by row.
        assert!(matches!(Tensor::zeros(DType::Q4_1, &[4, 16]), Err(TensorError::BadShape { .. })));
    }

    /// Small tensors, large ones and windows of others are changed alone, and in place where they can be.
    #[test]
    fn changes_are_the_owners_alone() {
        for len in [4usize, 400] {
            let mut t = Tensor::from_slice(&[len], &vec![1f32; len]).unwrap();
            let at = t.bytes().as_ptr();
            t.make_mut::<f32>().unwrap()[0] = 2.0;
            assert_eq!(t.bytes().as_ptr(), at, "in place");
            let other = t.clone();
            t.make_mut::<f32>().unwrap()[1] = 3.0;
            assert_eq!(&other.as_slice::<f32>().unwrap()[..2], [2.0, 1.0]);
            assert_eq!(&t.as_slice::<f32>().unwrap()[..2], [2.0, 3.0]);
            let bytes = t.bytes().slice(2..10).unwrap();
            drop((t, other));
            let mut window = Tensor::new(DType::F32, &[2], bytes.clone()).unwrap();
            drop(bytes);
            let before = window.bytes().to_vec();
            window.make_mut::<f32>().unwrap()[1] = 5.0;
            assert_eq!(window.bytes()[..4], before[..4], "misaligned");
            assert_eq!(window.as_slice::<f32>().unwrap()[1], 5.0);
            assert!(matches!(window.make_mut::<i32>(), Err(TensorError::WrongType { .. })));
        }
    }
}
