//! Constants, plain and compressed.

use tensor::DType;

use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::{Array, Data, EvalCx, Strided, Value, strides};
use crate::{Cost, Dim, OpError, Opset, TensorType, Type};

/// A constant: the attribute `val`, as a value.
pub(super) struct Const;

impl OpDef for Const {
    fn name(&self) -> &'static str {
        "const"
    }

    fn params(&self) -> &'static [Param] {
        &[]
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let val = op.attributes.get("val");
        Ok(vec![val.ok_or_else(|| OpError::invalid("attribute \"val\" is missing"))?.ty.clone()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let op = cx.op;
        let val = op.attributes.get("val");
        let val = val.ok_or_else(|| OpError::invalid("attribute \"val\" is missing"))?;
        Ok(vec![Value::from_literal(val, op.weights)?])
    }

    /// Nothing: whoever uses it reads it.
    fn cost(&self, _: &OpView<'_>, _: &[Type]) -> Cost {
        Cost::default()
    }
}

/// `(data - offset) * scale`, all constants, where `scale` and `offset` (0 by default) hold one number
/// for a block of `data`: a block is `data`'s size by `scale`'s size on each axis. The result has
/// `scale`'s element type.
pub(super) struct ConstexprBlockwiseShiftScale;

impl OpDef for ConstexprBlockwiseShiftScale {
    fn name(&self) -> &'static str {
        "constexpr_blockwise_shift_scale"
    }

    fn opset(&self) -> Opset {
        Opset::Ios18
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("data", Domain::Number),
                Param::new("scale", Domain::Float),
                Param::new("offset", Domain::Number).optional(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (data, scale) = (op.tensor("data")?, op.tensor("scale")?);
        check_blocks(data, data.dtype, scale, op.opt_tensor("offset")?)?;
        Ok(vec![TensorType { dtype: scale.dtype, shape: data.shape.clone() }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (data, scale, offset) =
            (cx.array("data")?, cx.array("scale")?, cx.opt_array("offset")?);
        Ok(vec![shift_scale(&data, &scale, offset.as_deref())?.into()])
    }

    /// Two an element.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        2.0 * elements(results)
    }
}

/// Checks that `scale` and `offset` divide `data`, of stored type `stored`, into blocks.
pub(super) fn check_blocks(
    data: &TensorType,
    stored: DType,
    scale: &TensorType,
    offset: Option<&TensorType>,
) -> Result<(), OpError> {
    let divides = |(d, s): (&Dim, &Dim)| match (d, s) {
        (Dim::Fixed(d), Dim::Fixed(s)) => *s > 0 && d.is_multiple_of(*s),
        _ => true,
    };
    let fits = data.rank() == scale.rank()
        && data.rank() > 0
        && data.shape.iter().zip(&scale.shape).all(divides);
    if !fits {
        return Err(OpError::invalid(format!("scale {scale} does not fit data {data}")));
    }
    if let Some(offset) = offset
        && (offset.shape != scale.shape || !(offset.dtype.is_float() || offset.dtype == stored))
    {
        return Err(OpError::invalid(format!(
            "offset {offset} does not fit data {data} and scale {scale}"
        )));
    }
    Ok(())
}

/// `(data - offset) * scale`, each number of `scale` and `offset` for a block of `data`.
pub(super) fn shift_scale(
    data: &Array,
    scale: &Array,
    offset: Option<&Array>,
) -> Result<Array, OpError> {
    let rank = data.shape.len();
    let fits = scale.shape.len() == rank
        && data.shape.iter().zip(&scale.shape).all(|(d, &s)| s > 0 && d.is_multiple_of(s))
        && offset.is_none_or(|o| o.shape == scale.shape);
    if !fits {
        return Err(OpError::invalid(format!(
            "scale {:?} or offset does not fit data {:?}",
            scale.shape, data.shape
        )));
    }
    // Each axis as (block, element of the block); all elements of a block share a number.
    let (mut view, mut steps) = (Vec::new(), Vec::new());
    for ((&d, &s), step) in data.shape.iter().zip(&scale.shape).zip(strides(&scale.shape)) {
        view.extend([s, d / s]);
        steps.extend([step, 0]);
    }
    let (values, scales) = (numbers(data)?, scale.floats()?);
    let offsets = offset.map(numbers).transpose()?;
    let blocks = Strided::new(&view, &steps, 0);
    let shifted = values
        .iter()
        .zip(blocks)
        .map(|(v, block)| (v - offsets.as_ref().map_or(0.0, |o| o[block])) * scales[block]);
    let data_of = Data::Float(shifted.collect());
    Ok(Array { dtype: scale.dtype, shape: data.shape.clone(), data: data_of })
}

/// Integers or floats as floats.
pub(super) fn numbers(a: &Array) -> Result<Vec<f64>, OpError> {
    match &a.data {
        Data::Int(v) => Ok(v.iter().map(|&i| i as f64).collect()),
        _ => a.floats().map(<[f64]>::to_vec),
    }
}
