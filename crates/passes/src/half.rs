//! Constants in half precision: conversion, and what does not fit.

use mil::eval::Array;
use mil::{Literal, OpError, Payload, TensorType};
use tensor::{DType, Tensor, WeightId, WeightStore};

/// The largest finite number of half precision.
pub(crate) const LARGEST: f64 = 65504.0;
/// The smallest positive number of half precision.
const SMALLEST: f64 = 1.0 / 16_777_216.0;

/// What becomes of numbers beyond half precision's range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Beyond {
    /// They become the largest number: right where they only stand for "very much", as in masks.
    Clamp,
    /// They are an error.
    Refuse,
}

/// The values of a float or block-quantised tensor in half precision. A single number that would
/// become zero, such as an epsilon, becomes the smallest instead.
///
/// # Errors
/// `limit` when a number is beyond the range and `beyond` does not allow it; NaN is always refused.
pub(crate) fn tensor(source: &Tensor, beyond: Beyond) -> Result<Tensor, OpError> {
    let mut array = Array::from_tensor(source)?;
    array.dtype = DType::F16;
    let values = array.floats_mut()?;
    let single = values.len() == 1;
    for x in values {
        // Half of a unit in the last place above the largest number rounds up.
        let fits = x.abs() < LARGEST + 16.0;
        match beyond {
            _ if fits => {}
            Beyond::Clamp if !x.is_nan() => *x = LARGEST.copysign(*x),
            _ => {
                return Err(OpError::limit(format!(
                    "{x:e} is beyond fp16, whose largest number is {LARGEST}"
                )));
            }
        }
        if single && *x != 0.0 && x.abs() < SMALLEST {
            *x = SMALLEST.copysign(*x);
        }
    }
    array.to_tensor()
}

/// The constant in half precision, in the store if it was there. Equal weights are one, so that what
/// several functions share they still share.
///
/// # Errors
/// As [`tensor`].
pub(crate) fn literal(
    source: &Literal,
    weights: &mut WeightStore,
    beyond: Beyond,
) -> Result<Literal, OpError> {
    let tensor = |t| tensor(t, beyond);
    match &source.payload {
        Payload::Tensor(t) => Ok(Literal::tensor(tensor(t)?)),
        Payload::Weight(id) => {
            let weight = weights.get(*id).cloned();
            let weight = weight.ok_or_else(|| OpError::invalid(format!("no {id} in the store")))?;
            let half = tensor(&weight.tensor)?;
            let id = match find(weights, &half) {
                Some(id) => id,
                None => weights.insert(weight.name.clone(), half),
            };
            Literal::weight(weights, id)
        }
        _ => Err(OpError::invalid(format!("a constant of type {} in fp16", source.ty))),
    }
}

fn find(weights: &WeightStore, tensor: &Tensor) -> Option<WeightId> {
    let same = |t: &Tensor| {
        t.dtype() == tensor.dtype()
            && t.shape() == tensor.shape()
            && t.bytes()[..] == tensor.bytes()[..]
    };
    weights.iter().find(|(_, w)| same(&w.tensor)).map(|(id, _)| id)
}

/// The same type with elements in half precision.
pub(crate) fn of_type(ty: &TensorType) -> TensorType {
    TensorType { dtype: DType::F16, shape: ty.shape.clone() }
}
