//! Compressed constants: palettes, sparse tensors, affine quantisation, half precision.
//!
//! In iOS 16's form such an operation has no arguments: its operands are attributes, and bits are
//! packed in bytes, the lowest first. In iOS 18's form they are arguments of sub-byte types.

use std::rc::Rc;

use tensor::DType;

use super::constant::{check_blocks, numbers, shift_scale};
use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::{Array, Data, EvalCx, Strided, Value, bounded, strides};
use crate::{Dim, Literal, OpError, Opset, TensorType, Type};

/// The attribute `name`.
fn attribute<'a>(op: &OpView<'a>, name: &str) -> Result<&'a Literal, OpError> {
    let found = op.attributes.get(name);
    found.ok_or_else(|| OpError::invalid(format!("\"{name}\" is missing")))
}

/// The integers of attribute `name`.
fn attribute_ints(op: &OpView<'_>, name: &str) -> Result<Vec<i64>, OpError> {
    let tensor = attribute(op, name)?.resolve(op.weights);
    let ints = tensor.and_then(crate::eval::tensor_ints);
    ints.ok_or_else(|| OpError::invalid(format!("\"{name}\" is not of integers")))
}

/// The attribute `axis` of a tensor of `rank` axes.
fn attribute_axis(op: &OpView<'_>, rank: usize) -> Result<usize, OpError> {
    match *attribute_ints(op, "axis")? {
        [axis] => op.axis(axis, rank),
        _ => Err(OpError::invalid("\"axis\" is not one integer")),
    }
}

/// The tensor type of an operand in either form.
fn operand<'a>(op: &OpView<'a>, name: &str) -> Result<&'a TensorType, OpError> {
    if op.arg(name).is_some() {
        return op.tensor(name);
    }
    let ty = attribute(op, name)?.ty.as_tensor();
    ty.ok_or_else(|| OpError::invalid(format!("\"{name}\" is not a tensor")))
}

/// The value of an operand in either form.
fn operand_value(cx: &EvalCx<'_, '_>, name: &str) -> Result<Rc<Array>, OpError> {
    if cx.op.arg(name).is_some() {
        return cx.array(name);
    }
    Ok(Value::from_literal(attribute(&cx.op, name)?, cx.op.weights)?.array()?.clone())
}

/// Whether the operands are arguments; `shape` is then the shape of operand `name`, in iOS 16's
/// form it is an attribute.
fn form<'a>(op: &OpView<'a>, name: &str) -> Result<(bool, Vec<Dim>), OpError> {
    if op.arg(name).is_some() {
        if op.function.opset < Opset::Ios18 {
            return Err(OpError::invalid(format!("\"{name}\" is no attribute, as before iOS 18")));
        }
        return Ok((true, op.tensor(name)?.shape.clone()));
    }
    operand(op, name)?;
    let sizes = attribute_ints(op, "shape")?.into_iter().map(|n| usize::try_from(n).ok()).collect();
    let sizes: Option<Vec<usize>> = sizes;
    let sizes = sizes.ok_or_else(|| OpError::invalid("\"shape\" is no shape"))?;
    bounded(&sizes)?;
    Ok((false, sizes.into_iter().map(Dim::Fixed).collect()))
}

/// `count` numbers of `bits` bits that are packed in bytes, the lowest bits first.
fn unpack(packed: &[i64], bits: usize, count: usize) -> Result<Vec<i64>, OpError> {
    if (count * bits).div_ceil(8) != packed.len() {
        return Err(OpError::invalid(format!(
            "{} bytes do not hold {count} numbers of {bits} bits",
            packed.len()
        )));
    }
    let bit = |at: usize| packed[at / 8] >> (at % 8) & 1;
    Ok((0..count).map(|i| (0..bits).map(|b| bit(i * bits + b) << b).sum()).collect())
}

/// Fixed sizes of a shape.
fn fixed(shape: &[Dim]) -> Result<Vec<usize>, OpError> {
    let sizes = shape.iter().map(Dim::fixed).collect::<Option<_>>();
    sizes.ok_or_else(|| OpError::invalid("a compressed constant of unknown size"))
}

/// The constant `vector_axis` of tensors of `rank` axes, needed for vectors of several elements.
fn vector_axis(op: &OpView<'_>, rank: usize, length: usize) -> Result<usize, OpError> {
    match op.int("vector_axis")? {
        Some(axis) => op.axis(axis, rank),
        None if length == 1 => Ok(0),
        None => Err(OpError::invalid("\"vector_axis\" is missing")),
    }
}

/// Checks a palette against indices of type `dtype` and shape `indices`; the shape of the result.
fn palette_shape(
    op: &OpView<'_>,
    dtype: DType,
    indices: &[Dim],
    lut: &TensorType,
) -> Result<Vec<Dim>, OpError> {
    let mismatch = || {
        let shape = TensorType { dtype, shape: indices.to_vec() };
        OpError::invalid(format!("lut {lut} does not fit indices {shape}"))
    };
    let (indices, sizes) = (fixed(indices)?, fixed(&lut.shape)?);
    let [groups @ .., palette, length] = &*sizes else { return Err(mismatch()) };
    let divides = |(n, g): (&usize, &usize)| *g > 0 && n.is_multiple_of(*g);
    let range = dtype.int_range().map(|(_, high)| high + 1);
    if groups.len() != indices.len()
        || !indices.iter().zip(groups).all(divides)
        || range != Some(*palette as i128)
        || *length == 0
    {
        return Err(mismatch());
    }
    let mut shape = indices;
    if !shape.is_empty() {
        shape[vector_axis(op, groups.len(), *length)?] *= length;
    }
    bounded(&shape)?;
    Ok(shape.into_iter().map(Dim::Fixed).collect())
}

/// Elements of the palettes `lut` `[groups..., entries, length]` at `indices`, vectors lying along
/// `axis`.
fn look_up(indices: &Array, lut: &Array, axis: usize) -> Result<Array, OpError> {
    let mismatch = || {
        OpError::invalid(format!("lut {:?} does not fit indices {:?}", lut.shape, indices.shape))
    };
    let [groups @ .., palette, length] = &*lut.shape else { return Err(mismatch()) };
    let divides = |(n, g): (&usize, &usize)| *g > 0 && n.is_multiple_of(*g);
    if groups.len() != indices.shape.len() || !indices.shape.iter().zip(groups).all(divides) {
        return Err(mismatch());
    }
    let (mut view, mut steps) = (Vec::new(), Vec::new());
    for ((&n, &g), step) in indices.shape.iter().zip(groups).zip(strides(&lut.shape)) {
        view.extend([g, n / g]);
        steps.extend([step, 0]);
    }
    let mut sources = Vec::with_capacity(indices.len() * length);
    for (&index, palette_start) in indices.ints()?.iter().zip(Strided::new(&view, &steps, 0)) {
        let entry = usize::try_from(index).ok().filter(|i| i < palette).ok_or_else(|| {
            OpError::invalid(format!("index {index} is not in a palette of {palette}"))
        })?;
        let start = palette_start + entry * length;
        sources.extend(start..start + length);
    }
    // The elements of a vector come last; they belong behind their axis.
    let shape = [&*indices.shape, &[*length]].concat();
    let dense = lut.pick(shape, sources.into_iter());
    if *length == 1 {
        return dense.reshaped(&indices.shape);
    }
    let rank = indices.shape.len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.insert((axis + 1).min(rank), rank);
    let mut shape = indices.shape.clone();
    shape[axis] *= length;
    dense.transposed(&perm).reshaped(&shape)
}

/// Constants from palettes: `indices`, whose shape the result has, choose among the `2^n` entries of
/// `lut`.
///
/// In iOS 18's form `lut` is `[groups..., 2^n, V]`: each axis of `indices` is divided into that many
/// equal groups with a palette each, and an entry is a vector of `V` elements along `vector_axis`,
/// so that this axis becomes `V` times as large. In iOS 16's form the attributes are `lut` `[2^n]`,
/// `indices`, packed numbers of `n` bits, and `shape`.
pub(super) struct ConstexprLutToDense;

impl OpDef for ConstexprLutToDense {
    fn name(&self) -> &'static str {
        "constexpr_lut_to_dense"
    }

    fn opset(&self) -> Opset {
        Opset::Ios16
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("indices", Domain::Int).optional(),
                Param::new("lut", Domain::Number).optional(),
                Param::new("vector_axis", Domain::Int).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (arguments, shape) = form(op, "indices")?;
        let lut = operand(op, "lut")?;
        if arguments {
            let shape = palette_shape(op, op.tensor("indices")?.dtype, &shape, lut)?;
            return Ok(vec![TensorType { dtype: lut.dtype, shape }.into()]);
        }
        match lut.fixed_shape().as_deref() {
            Some(&[n]) if n.is_power_of_two() && (2..=256).contains(&n) => {
                Ok(vec![TensorType { dtype: lut.dtype, shape }.into()])
            }
            _ => Err(OpError::invalid(format!("lut {lut} is not of 2^1 to 2^8 elements"))),
        }
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (indices, lut) = (operand_value(cx, "indices")?, operand_value(cx, "lut")?);
        let (arguments, shape) = form(&cx.op, "indices")?;
        if arguments {
            let length = lut.shape.last().copied().unwrap_or(1);
            let axis = vector_axis(&cx.op, indices.shape.len(), length)?;
            return Ok(vec![look_up(&indices, &lut, axis)?.into()]);
        }
        let shape = fixed(&shape)?;
        let bits = lut.len().checked_ilog2().unwrap_or(0) as usize;
        let indices = unpack(indices.ints()?, bits, shape.iter().product())?;
        Ok(vec![lut.pick(shape, indices.into_iter().map(|i| i as usize)).into()])
    }

    /// Nothing but moves.
    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The places of `mask` that are set.
fn set_places(mask: &[i64]) -> impl Iterator<Item = usize> {
    mask.iter().enumerate().filter(|(_, m)| **m != 0).map(|(i, _)| i)
}

/// Zeros with the elements of `nonzero`, in order, where `mask` is set.
fn densify(mask: &[i64], shape: &[usize], nonzero: &Array) -> Result<Array, OpError> {
    let set = set_places(mask).count();
    if set != nonzero.len() {
        return Err(OpError::invalid(format!(
            "{} elements for {set} places of the mask",
            nonzero.len()
        )));
    }
    let mut data = match &nonzero.data {
        Data::Int(_) => Data::Int(vec![0; mask.len()]),
        _ => Data::Float(vec![0.0; mask.len()]),
    };
    data.put(set_places(mask), &nonzero.data)?;
    Ok(Array { dtype: nonzero.dtype, shape: shape.to_vec(), data })
}

/// Checks that `nonzero` is a vector and `mask`, if an argument, one of bits.
fn check_sparse(op: &OpView<'_>, mask: &str, nonzero: &str) -> Result<(), OpError> {
    let (bits, values) = (operand(op, mask)?, operand(op, nonzero)?);
    let masked = op.arg(mask).is_none() || bits.dtype == DType::U1;
    if values.rank() != 1 || !masked {
        return Err(OpError::invalid(format!(
            "{nonzero} {values} does not fill {mask} {bits} of bits"
        )));
    }
    Ok(())
}

/// Sparse constants: the elements of `nonzero_data`, in order, where `mask` is 1, zeros elsewhere.
///
/// In iOS 18's form `mask`, of bits, has the shape of the result; in iOS 16's form it is an attribute
/// of packed bits, and `shape` another.
pub(super) struct ConstexprSparseToDense;

impl OpDef for ConstexprSparseToDense {
    fn name(&self) -> &'static str {
        "constexpr_sparse_to_dense"
    }

    fn opset(&self) -> Opset {
        Opset::Ios16
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("nonzero_data", Domain::Number).optional(),
                Param::new("mask", Domain::Int).optional(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check_sparse(op, "mask", "nonzero_data")?;
        let dtype = operand(op, "nonzero_data")?.dtype;
        Ok(vec![TensorType { dtype, shape: form(op, "mask")?.1 }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (mask, nonzero) = (operand_value(cx, "mask")?, operand_value(cx, "nonzero_data")?);
        let (arguments, shape) = form(&cx.op, "mask")?;
        if arguments {
            return Ok(vec![densify(mask.ints()?, &mask.shape, &nonzero)?.into()]);
        }
        let shape = fixed(&shape)?;
        let mask = unpack(mask.ints()?, 1, shape.iter().product())?;
        Ok(vec![densify(&mask, &shape, &nonzero)?.into()])
    }

    /// Nothing but moves.
    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// A sparse constant whose elements come from palettes: the mask and the elements that
/// `constexpr_lut_to_dense` makes where `indices_mask` is 1, `indices_nonzero_data` being the indices
/// there. Vectors lengthen both results.
pub(super) struct ConstexprLutToSparse;

impl OpDef for ConstexprLutToSparse {
    fn name(&self) -> &'static str {
        "constexpr_lut_to_sparse"
    }

    fn opset(&self) -> Opset {
        Opset::Ios18
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("indices_mask", Domain::Int),
                Param::new("indices_nonzero_data", Domain::Int),
                Param::new("lut", Domain::Number),
                Param::new("vector_axis", Domain::Int).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check_sparse(op, "indices_mask", "indices_nonzero_data")?;
        let (mask, indices) = (op.tensor("indices_mask")?, op.tensor("indices_nonzero_data")?);
        let lut = op.tensor("lut")?;
        let shape = palette_shape(op, indices.dtype, &mask.shape, lut)?;
        let length = lut.shape.last().and_then(Dim::fixed).unwrap_or(1);
        let count = indices.shape[0].fixed().map_or(Dim::Unknown, |n| Dim::Fixed(n * length));
        Ok(vec![
            TensorType { dtype: mask.dtype, shape }.into(),
            TensorType { dtype: lut.dtype, shape: vec![count] }.into(),
        ])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (mask, lut) = (cx.array("indices_mask")?, cx.array("lut")?);
        let indices = densify(mask.ints()?, &mask.shape, &*cx.array("indices_nonzero_data")?)?;
        let length = lut.shape.last().copied().unwrap_or(1);
        let axis = vector_axis(&cx.op, mask.shape.len(), length)?;
        // The mask goes the way of the elements: as the indices of a palette of vectors of its bits.
        let bits = vec![0.0; length].into_iter().chain(vec![1.0; length]).collect();
        let shape = [vec![1; mask.shape.len()], vec![2, length]].concat();
        let bits = Array { dtype: DType::F32, shape, data: Data::Float(bits) };
        let wide = look_up(&mask, &bits, axis)?;
        let places: Vec<i64> = wide.floats()?.iter().map(|&b| b as i64).collect();
        let dense = look_up(&indices, &lut, axis)?;
        let values = dense.data.pick(set_places(&places));
        let count = set_places(&places).count();
        Ok(vec![
            Array { dtype: mask.dtype, shape: wide.shape, data: Data::Int(places) }.into(),
            Array { dtype: lut.dtype, shape: vec![count], data: values }.into(),
        ])
    }

    /// Nothing but moves.
    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// A sparse constant of quantised elements: `data_mask` and, of its places that are 1, `(data -
/// offset) * scale` with `nonzero_data` as data, as `constexpr_blockwise_shift_scale` does it.
pub(super) struct ConstexprSparseBlockwiseShiftScale;

impl OpDef for ConstexprSparseBlockwiseShiftScale {
    fn name(&self) -> &'static str {
        "constexpr_sparse_blockwise_shift_scale"
    }

    fn opset(&self) -> Opset {
        Opset::Ios18
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("data_mask", Domain::Int),
                Param::new("nonzero_data", Domain::Number),
                Param::new("scale", Domain::Float),
                Param::new("offset", Domain::Number).optional(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check_sparse(op, "data_mask", "nonzero_data")?;
        let (mask, data) = (op.tensor("data_mask")?, op.tensor("nonzero_data")?);
        let scale = op.tensor("scale")?;
        check_blocks(mask, data.dtype, scale, op.opt_tensor("offset")?)?;
        let nonzero = TensorType { dtype: scale.dtype, shape: data.shape.clone() };
        Ok(vec![mask.clone().into(), nonzero.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (mask, nonzero) = (cx.array("data_mask")?, cx.array("nonzero_data")?);
        let (scale, offset) = (cx.array("scale")?, cx.opt_array("offset")?);
        let data = densify(mask.ints()?, &mask.shape, &nonzero)?;
        let dense = shift_scale(&data, &scale, offset.as_deref())?;
        let values = dense.data.pick(set_places(mask.ints()?));
        let shape = nonzero.shape.clone();
        let nonzero = Array { dtype: scale.dtype, shape, data: values };
        Ok(vec![Value::Array(mask), nonzero.into()])
    }

    /// Two an element that is stored.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        2.0 * elements(results.get(1..).unwrap_or(&[]))
    }
}

/// `(quantized_data - zero_point) * scale`, where `scale` and `zero_point` are scalars or hold one
/// number for each place of axis `axis`. All are attributes; the result has `scale`'s element type.
pub(super) struct ConstexprAffineDequantize;

impl OpDef for ConstexprAffineDequantize {
    fn name(&self) -> &'static str {
        "constexpr_affine_dequantize"
    }

    fn opset(&self) -> Opset {
        Opset::Ios16
    }

    fn params(&self) -> &'static [Param] {
        &[]
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (data, scale) = (operand(op, "quantized_data")?, operand(op, "scale")?);
        let axis = attribute_axis(op, data.rank())?;
        for (name, t) in [("scale", scale), ("zero_point", operand(op, "zero_point")?)] {
            let fits = t.rank() == 0 || (t.rank() == 1 && t.shape[0].compatible(&data.shape[axis]));
            if !fits {
                return Err(OpError::invalid(format!(
                    "{name} {t} does not fit axis {axis} of quantized_data {data}"
                )));
            }
        }
        if !scale.dtype.is_float() || !data.dtype.is_int() {
            return Err(OpError::invalid(format!(
                "scale {scale} does not fit quantized_data {data}"
            )));
        }
        Ok(vec![TensorType { dtype: scale.dtype, shape: data.shape.clone() }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let data = operand_value(cx, "quantized_data")?;
        let axis = attribute_axis(&cx.op, data.shape.len())?;
        let scale = along(&*operand_value(cx, "scale")?, &data.shape, axis)?;
        let zero_point = operand_value(cx, "zero_point")?;
        let zero_point = along(&zero_point, &data.shape, axis)?;
        Ok(vec![shift_scale(&data, &scale, Some(&zero_point))?.into()])
    }

    /// Two an element.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        2.0 * elements(results)
    }
}

/// The floats of a scalar or a vector along `axis` of `shape`, as an array that has that axis and
/// others of size 1.
pub(super) fn along(array: &Array, shape: &[usize], axis: usize) -> Result<Array, OpError> {
    let mut sizes = vec![1; shape.len()];
    sizes[axis] = shape[axis];
    let vector =
        if array.shape.is_empty() { array.broadcast_to(&sizes) } else { array.reshaped(&sizes)? };
    let dtype = if array.dtype.is_int() { DType::F32 } else { array.dtype };
    Ok(Array { dtype, shape: sizes, data: Data::Float(numbers(&vector)?) })
}

/// `source_val`, of half precision, as the element type that the string `output_dtype` names, which
/// is `fp32`. In iOS 16's form both are attributes.
pub(super) struct ConstexprCast;

impl OpDef for ConstexprCast {
    fn name(&self) -> &'static str {
        "constexpr_cast"
    }

    fn opset(&self) -> Opset {
        Opset::Ios16
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("source_val", Domain::Float).optional(),
                Param::new("output_dtype", Domain::Str).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let source = operand(op, "source_val")?;
        let dtype = match op.str("output_dtype")? {
            Some(dtype) => dtype,
            None => attribute(op, "output_dtype")?.as_str().unwrap_or_default(),
        };
        if source.dtype != DType::F16 || dtype != "fp32" {
            return Err(OpError::invalid(format!("source_val {source} cannot be cast to {dtype}")));
        }
        Ok(vec![TensorType { dtype: DType::F32, shape: source.shape.clone() }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let source = operand_value(cx, "source_val")?;
        Ok(vec![Array { dtype: DType::F32, ..(*source).clone() }.into()])
    }
}
