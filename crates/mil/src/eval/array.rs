//! Dense arrays of the interpreter: conversion from and to tensors, elementwise and index helpers.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tensor::{AlignedBuf, Bytes, DType, Tensor};

use super::functions;
use super::index::{Strided, bounded, broadcast_shape};
use crate::OpError;

/// Elements of an array, by kind of type.
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    /// Of any float type.
    Float(Vec<f64>),
    /// Of any integer type.
    Int(Vec<i64>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Strings.
    Str(Vec<String>),
}

/// A dense row-major array.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: Data,
}

/// The integers of an integer tensor, sub-byte types unpacked; `None` for other types.
pub fn tensor_ints(t: &Tensor) -> Option<Vec<i64>> {
    let bytes: &[u8] = t.bytes();
    fn wide<const N: usize, T: Into<i64>>(bytes: &[u8], from: fn([u8; N]) -> T) -> Vec<i64> {
        bytes.as_chunks::<N>().0.iter().map(|&c| from(c).into()).collect()
    }
    Some(match t.dtype() {
        DType::I8 => wide(bytes, i8::from_le_bytes),
        DType::I16 => wide(bytes, i16::from_le_bytes),
        DType::I32 => wide(bytes, i32::from_le_bytes),
        DType::I64 => wide(bytes, i64::from_le_bytes),
        DType::U8 => wide(bytes, u8::from_le_bytes),
        DType::U16 => wide(bytes, u16::from_le_bytes),
        DType::U32 => wide(bytes, u32::from_le_bytes),
        // Above i64::MAX the value wraps; MIL uses uint64 only for blob offsets.
        DType::U64 => wide(bytes, i64::from_le_bytes),
        d if d.is_int() => {
            let bits = d.block_bytes() * 8 / d.block_len();
            let signed = d == DType::I4;
            (0..t.len())
                .map(|i| {
                    let mut v = 0i64;
                    for b in 0..bits {
                        let at = i * bits + b;
                        v |= i64::from(bytes[at / 8] >> (at % 8) & 1) << b;
                    }
                    if signed && v >> (bits - 1) & 1 == 1 { v - (1 << bits) } else { v }
                })
                .collect()
        }
        _ => return None,
    })
}

/// The floats of a float or block-quantised tensor; `None` for other types.
pub fn tensor_floats(t: &Tensor) -> Option<Vec<f64>> {
    let bytes: &[u8] = t.bytes();
    Some(match t.dtype() {
        DType::F64 => bytes.as_chunks::<8>().0.iter().map(|&c| f64::from_le_bytes(c)).collect(),
        DType::F32 => {
            bytes.as_chunks::<4>().0.iter().map(|&c| f32::from_le_bytes(c).into()).collect()
        }
        DType::F16 => {
            let halves = bytes.as_chunks::<2>().0.iter();
            let halves: Vec<f16> = halves.map(|&c| f16::from_le_bytes(c)).collect();
            let mut floats = vec![0.0; halves.len()];
            halves.convert_to_f64_slice(&mut floats);
            floats
        }
        DType::Bf16 => {
            bytes.as_chunks::<2>().0.iter().map(|&c| bf16::from_le_bytes(c).to_f64()).collect()
        }
        d if d.is_block_quantized() => {
            let mut out = vec![0f32; t.len()];
            if !tensor::dequantize(d, bytes, &mut out) {
                return None;
            }
            out.into_iter().map(f64::from).collect()
        }
        _ => return None,
    })
}

/// Row `row` of a float or block-quantised matrix.
///
/// # Errors
/// When it is of another type.
pub(super) fn tensor_row(t: &Tensor, row: usize) -> Result<Vec<f64>, OpError> {
    let width = t.shape().last().copied().unwrap_or(0);
    let row = t.dtype().byte_len(width).and_then(|n| {
        let bytes = t.bytes().slice(row * n..(row + 1) * n)?;
        tensor_floats(&Tensor::new(t.dtype(), &[width], bytes).ok()?)
    });
    row.ok_or_else(|| OpError::invalid(format!("rows of {} where floats are needed", t.dtype())))
}

impl Array {
    /// The array of a tensor. Block-quantised tensors become their `fp32` values.
    ///
    /// # Errors
    /// When the type has no numeric meaning here.
    pub fn from_tensor(t: &Tensor) -> Result<Self, OpError> {
        let shape = t.shape().to_vec();
        let dtype = if t.dtype().is_block_quantized() { DType::F32 } else { t.dtype() };
        let data = if dtype == DType::Bool {
            Data::Bool(t.bytes().iter().map(|&b| b != 0).collect())
        } else if let Some(ints) = tensor_ints(t) {
            Data::Int(ints)
        } else if let Some(floats) = tensor_floats(t) {
            Data::Float(floats)
        } else {
            return Err(OpError::unsupported(format!(
                "values of type {} in the interpreter",
                t.dtype()
            )));
        };
        Ok(Array { dtype, shape, data })
    }

    /// The tensor of an array, elements rounded to its type.
    ///
    /// # Errors
    /// When the type has no byte form here (strings, sub-byte integers, 8-bit floats).
    pub fn to_tensor(&self) -> Result<Tensor, OpError> {
        let mut bytes = Vec::new();
        match (&self.data, self.dtype) {
            (Data::Bool(v), _) => bytes.extend(v.iter().map(|&b| u8::from(b))),
            (Data::Float(v), DType::F64) => v.iter().for_each(|x| bytes.extend(x.to_le_bytes())),
            (Data::Float(v), DType::F32) => {
                v.iter().for_each(|x| bytes.extend((*x as f32).to_le_bytes()))
            }
            (Data::Float(v), DType::F16) => {
                let singles: Vec<f32> = v.iter().map(|&x| functions::odd_single(x)).collect();
                let mut halves = vec![f16::ZERO; v.len()];
                halves.convert_from_f32_slice(&singles);
                bytes = halves.into_iter().flat_map(f16::to_le_bytes).collect();
            }
            (Data::Float(v), DType::Bf16) => {
                v.iter().for_each(|x| bytes.extend(functions::brain(*x).to_le_bytes()))
            }
            (Data::Int(v), d) if d.block_len() == 1 => {
                v.iter().for_each(|x| bytes.extend(&x.to_le_bytes()[..d.block_bytes()]));
            }
            _ => {
                return Err(OpError::unsupported(format!(
                    "a tensor of {} from the interpreter",
                    self.dtype
                )));
            }
        }
        let mut buf = AlignedBuf::zeroed(bytes.len());
        buf.copy_from_slice(&bytes);
        Tensor::new(self.dtype, &self.shape, Bytes::from_buf(buf))
            .map_err(|e| OpError::invalid(e.to_string()))
    }

    /// Zeros (`false`, no text).
    ///
    /// # Errors
    /// When there are too many.
    pub(crate) fn zeros(dtype: DType, shape: &[usize]) -> Result<Self, OpError> {
        bounded(shape)?;
        let n = shape.iter().product();
        let data = match dtype {
            DType::Bool => Data::Bool(vec![false; n]),
            DType::Str => Data::Str(vec![String::new(); n]),
            d if d.is_int() => Data::Int(vec![0; n]),
            _ => Data::Float(vec![0.0; n]),
        };
        Ok(Array { dtype, shape: shape.to_vec(), data })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as floats.
    ///
    /// # Errors
    /// When they are not of a float type.
    pub fn floats(&self) -> Result<&[f64], OpError> {
        match &self.data {
            Data::Float(v) => Ok(v),
            _ => Err(OpError::invalid(format!("{} values where floats are needed", self.dtype))),
        }
    }

    /// The elements as floats, to change.
    ///
    /// # Errors
    /// When they are not of a float type.
    pub fn floats_mut(&mut self) -> Result<&mut [f64], OpError> {
        match &mut self.data {
            Data::Float(v) => Ok(v),
            _ => Err(OpError::invalid(format!("{} values where floats are needed", self.dtype))),
        }
    }

    /// The elements as integers.
    ///
    /// # Errors
    /// When they are not of an integer type.
    pub fn ints(&self) -> Result<&[i64], OpError> {
        match &self.data {
            Data::Int(v) => Ok(v),
            _ => Err(OpError::invalid(format!("{} values where integers are needed", self.dtype))),
        }
    }

    /// The elements as truth values.
    ///
    /// # Errors
    /// When they are not.
    pub fn bools(&self) -> Result<&[bool], OpError> {
        match &self.data {
            Data::Bool(v) => Ok(v),
            _ => Err(OpError::invalid(format!(
                "{} values where truth values are needed",
                self.dtype
            ))),
        }
    }

    /// An array of the same type and shape with other floats.
    #[must_use]
    pub fn with_floats(&self, values: Vec<f64>) -> Self {
        Array { dtype: self.dtype, shape: self.shape.clone(), data: Data::Float(values) }
    }

    /// Combines two arrays elementwise, broadcasting; integer results wrap around in their type.
    /// `int` gives `None` where there is no result, such as a division by zero.
    ///
    /// # Errors
    /// When types or shapes do not go together or `int` fails.
    pub fn zip(
        &self,
        other: &Array,
        float: impl Fn(f64, f64) -> f64,
        int: impl Fn(i64, i64) -> Option<i64>,
    ) -> Result<Array, OpError> {
        let shape = broadcast_shape(&self.shape, &other.shape)?;
        let data = match (&self.data, &other.data) {
            (Data::Float(a), Data::Float(b)) => Data::Float(self.pair(a, other, b, &shape, float)),
            (Data::Int(a), Data::Int(b)) => {
                let wrapped = |x, y| int(x, y).map(|v| wrap(self.dtype, v));
                let values = self.pair(a, other, b, &shape, wrapped);
                let values: Option<Vec<i64>> = values.into_iter().collect();
                Data::Int(values.ok_or_else(|| OpError::invalid("division by zero"))?)
            }
            _ => return Err(self.mixed(other)),
        };
        Ok(Array { dtype: self.dtype, shape, data })
    }

    /// Combines two arrays elementwise to truth values, broadcasting.
    ///
    /// # Errors
    /// When types or shapes do not go together.
    pub(crate) fn compare(
        &self,
        other: &Array,
        float: impl Fn(f64, f64) -> bool,
        int: impl Fn(i64, i64) -> bool,
    ) -> Result<Array, OpError> {
        let shape = broadcast_shape(&self.shape, &other.shape)?;
        let values = match (&self.data, &other.data) {
            (Data::Float(a), Data::Float(b)) => self.pair(a, other, b, &shape, float),
            (Data::Int(a), Data::Int(b)) => self.pair(a, other, b, &shape, int),
            _ => return Err(self.mixed(other)),
        };
        Ok(Array { dtype: DType::Bool, shape, data: Data::Bool(values) })
    }

    /// Combines two arrays of truth values elementwise, broadcasting.
    ///
    /// # Errors
    /// When types or shapes do not go together.
    pub(crate) fn logic(
        &self,
        other: &Array,
        truth: impl Fn(bool, bool) -> bool,
    ) -> Result<Array, OpError> {
        let shape = broadcast_shape(&self.shape, &other.shape)?;
        let values = self.pair(self.bools()?, other, other.bools()?, &shape, truth);
        Ok(Array { dtype: DType::Bool, shape, data: Data::Bool(values) })
    }

    fn pair<A: Copy, B>(
        &self,
        a: &[A],
        other: &Array,
        b: &[A],
        shape: &[usize],
        f: impl Fn(A, A) -> B,
    ) -> Vec<B> {
        if self.shape == other.shape {
            return a.iter().zip(b).map(|(&x, &y)| f(x, y)).collect();
        }
        let (i, j) =
            (Strided::broadcast(&self.shape, shape), Strided::broadcast(&other.shape, shape));
        i.zip(j).map(|(i, j)| f(a[i], b[j])).collect()
    }

    fn mixed(&self, other: &Array) -> OpError {
        OpError::invalid(format!("cannot combine {} with {}", self.dtype, other.dtype))
    }
}

/// `v` wrapped around into the range of the integer type `dtype`.
pub(crate) fn wrap(dtype: DType, v: i64) -> i64 {
    match dtype.int_range() {
        Some((low, high)) => (low + (i128::from(v) - low).rem_euclid(high - low + 1)) as i64,
        None => v,
    }
}
