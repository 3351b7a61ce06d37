//! Quantising activations.

use tensor::DType;

use super::compressed::along;
use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::{Array, Data, EvalCx, Strided, Value};
use crate::{OpError, Opset, TensorType, Type};

/// The axis that `scale` and `zero_point` lie along; checks that both are scalars or vectors of
/// `input`'s size there, and that `zero_point` is of type `dtype`.
fn axis(op: &OpView<'_>, dtype: DType) -> Result<usize, OpError> {
    let (input, scale) = (op.tensor("input")?, op.tensor("scale")?);
    let axis = match op.int("axis")? {
        Some(axis) => op.axis(axis, input.rank())?,
        None if scale.rank() == 0 => 0,
        None => return Err(OpError::invalid("\"axis\" is missing")),
    };
    let zero_point = op.opt_tensor("zero_point")?;
    for (name, t) in [("scale", Some(scale)), ("zero_point", zero_point)] {
        let Some(t) = t else { continue };
        let fits = t.rank() == scale.rank()
            && (t.rank() == 0 || (t.rank() == 1 && t.shape[0].compatible(&input.shape[axis])));
        if !fits {
            return Err(OpError::invalid(format!("{name} {t} does not fit input {input}")));
        }
    }
    match zero_point {
        Some(t) if t.dtype != dtype => {
            Err(OpError::invalid(format!("zero_point {t} is not of {dtype}")))
        }
        _ => Ok(axis),
    }
}

/// Scale and zero point of each element of `input`.
fn parameters(cx: &EvalCx<'_, '_>, input: &Array, axis: usize) -> Result<Vec<(f64, f64)>, OpError> {
    let rank = input.shape.len();
    let all = |array: &Array| {
        let array = if rank == 0 { array.clone() } else { along(array, &input.shape, axis)? };
        let steps = Strided::broadcast(&array.shape, &input.shape);
        super::constant::numbers(&array.pick(input.shape.clone(), steps))
    };
    let scales = all(&*cx.array("scale")?)?;
    let zeros = match cx.opt_array("zero_point")? {
        Some(array) => all(&array)?,
        None => vec![0.0; scales.len()],
    };
    Ok(scales.into_iter().zip(zeros).collect())
}

/// `input / scale`, rounded to the nearest integer (ties to even), plus `zero_point`, confined to the
/// type that the constant string `output_dtype` names, `int8` or `uint8`. The constants `scale` and
/// `zero_point` (0 by default) are scalars or vectors along the constant `axis`.
pub(super) struct Quantize;

impl Quantize {
    fn dtype(op: &OpView<'_>) -> Result<DType, OpError> {
        match op.str("output_dtype")? {
            Some("int8") => Ok(DType::I8),
            Some("uint8") => Ok(DType::U8),
            other => Err(OpError::invalid(format!("output_dtype {other:?} is no 8-bit integer"))),
        }
    }
}

impl OpDef for Quantize {
    fn name(&self) -> &'static str {
        "quantize"
    }

    fn opset(&self) -> Opset {
        Opset::Ios17
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("input", Domain::Float),
                Param::new("zero_point", Domain::Int).optional().constant(),
                Param::new("scale", Domain::Float).constant(),
                Param::new("axis", Domain::Int).optional().constant(),
                Param::new("output_dtype", Domain::Str).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let dtype = Self::dtype(op)?;
        axis(op, dtype)?;
        Ok(vec![TensorType { dtype, shape: op.tensor("input")?.shape.clone() }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let dtype = Self::dtype(&cx.op)?;
        let input = cx.array("input")?;
        let parameters = parameters(cx, &input, axis(&cx.op, dtype)?)?;
        let (low, high) = if dtype == DType::I8 { (-128.0, 127.0) } else { (0.0, 255.0) };
        let values = input.floats()?.iter().zip(parameters).map(|(x, (scale, zero))| {
            ((x / scale).round_ties_even() + zero).clamp(low, high) as i64
        });
        let data = Data::Int(values.collect());
        Ok(vec![Array { dtype, shape: input.shape.clone(), data }.into()])
    }

    /// Three an element: division, rounding, sum.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        3.0 * elements(results)
    }
}

/// `(input - zero_point) * scale`, of `scale`'s element type. The constants `scale` and `zero_point`
/// (0 by default) are scalars or vectors along the constant `axis`.
pub(super) struct Dequantize;

impl OpDef for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }

    fn opset(&self) -> Opset {
        Opset::Ios17
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("input", Domain::Int),
                Param::new("zero_point", Domain::Int).optional().constant(),
                Param::new("scale", Domain::Float).constant(),
                Param::new("axis", Domain::Int).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let input = op.tensor("input")?;
        axis(op, input.dtype)?;
        let dtype = op.tensor("scale")?.dtype;
        Ok(vec![TensorType { dtype, shape: input.shape.clone() }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let input = cx.array("input")?;
        let parameters = parameters(cx, &input, axis(&cx.op, input.dtype)?)?;
        let values = input.ints()?.iter().zip(parameters);
        let data = Data::Float(values.map(|(&x, (s, zero))| (x as f64 - zero) * s).collect());
        let dtype = cx.op.tensor("scale")?.dtype;
        Ok(vec![Array { dtype, shape: input.shape.clone(), data }.into()])
    }

    /// Two an element.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        2.0 * elements(results)
    }
}
