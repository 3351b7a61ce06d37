//! Shapes taken from the tensors themselves: flattening, and shapes like those of others.

use tensor::DType;

use super::shapes::reshaped;
use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, Data, EvalCx, Value, tensor_ints};
use crate::{Arg, Dim, Literal, OpError, Opset, TensorType, Type};

/// `x` as a matrix: the axes before the constant `axis` (1 by default) are its rows, the others its
/// columns.
pub(super) struct Flatten2d;

impl Flatten2d {
    /// An axis, which may also be the end.
    fn axis(op: &OpView<'_>, rank: usize) -> Result<usize, OpError> {
        match op.int("axis")?.unwrap_or(1) {
            axis if axis == rank as i64 => Ok(rank),
            axis => op.axis(axis, rank),
        }
    }
}

impl OpDef for Flatten2d {
    fn name(&self) -> &'static str {
        "flatten2d"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any), Param::new("axis", Domain::Int).optional().constant()] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let axis = Self::axis(op, x.rank())?;
        let product = |dims: &[Dim]| Ok::<_, OpError>(reshaped(dims, &[-1])?.remove(0));
        let shape = vec![product(&x.shape[..axis])?, product(&x.shape[axis..])?];
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let axis = Self::axis(&cx.op, x.shape.len())?;
        let product = |sizes: &[usize]| sizes.iter().product();
        Ok(vec![x.reshaped(&[product(&x.shape[..axis]), product(&x.shape[axis..])])?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// A tensor of the shape of `ref_tensor`, every element the constant scalar `value`, by default the
/// `fp32` 0.
pub(super) struct FillLike;

impl OpDef for FillLike {
    fn name(&self) -> &'static str {
        "fill_like"
    }

    fn opset(&self) -> Opset {
        Opset::Ios16
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("ref_tensor", Domain::Any),
                Param::new("value", Domain::Any).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let dtype = match op.opt_tensor("value")? {
            None => DType::F32,
            Some(t) if t.rank() == 0 => t.dtype,
            Some(t) => return Err(OpError::invalid(format!("value {t} is not a scalar"))),
        };
        let shape = op.tensor("ref_tensor")?.shape.clone();
        Ok(vec![TensorType { dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let scalar = match cx.opt_array("value")? {
            Some(value) => (*value).clone(),
            None => Array { dtype: DType::F32, shape: vec![], data: Data::Float(vec![0.0]) },
        };
        Ok(vec![scalar.broadcast_to(&cx.array("ref_tensor")?.shape).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `x` under the shape that parts of the shapes of `ref_tensors` make, one after another: of each the
/// axes from `begins` to before `ends`, or to the last where `end_masks` holds. These three are lists
/// of as many constant scalars.
pub(super) struct ReshapeLike;

impl ReshapeLike {
    /// The constants of the list `name`.
    fn constants<'a>(op: &OpView<'a>, name: &str) -> Result<Vec<&'a Literal>, OpError> {
        let items = match op.required(name)? {
            Arg::List(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        let literals = items.iter().map(|a| op.function.const_arg(a)).collect::<Option<_>>();
        literals.ok_or_else(|| OpError::invalid(format!("an item of \"{name}\" is not a constant")))
    }

    fn ints(op: &OpView<'_>, name: &str) -> Result<Vec<i64>, OpError> {
        let single = |l: &Literal| match l.resolve(op.weights).and_then(tensor_ints).as_deref() {
            Some([n]) => Ok(*n),
            _ => Err(OpError::invalid(format!("an item of \"{name}\" is not one integer"))),
        };
        Self::constants(op, name)?.into_iter().map(single).collect()
    }

    fn bools(op: &OpView<'_>, name: &str) -> Result<Vec<bool>, OpError> {
        let single = |l: &Literal| match l.resolve(op.weights) {
            Some(t) if t.dtype() == DType::Bool && t.len() == 1 => Ok(t.bytes()[0] != 0),
            _ => Err(OpError::invalid(format!("an item of \"{name}\" is not one truth value"))),
        };
        Self::constants(op, name)?.into_iter().map(single).collect()
    }

    /// The parts of `shapes`, one after another.
    fn shape<T: Clone>(op: &OpView<'_>, shapes: &[&[T]]) -> Result<Vec<T>, OpError> {
        let (begins, ends) = (Self::ints(op, "begins")?, Self::ints(op, "ends")?);
        let masks = Self::bools(op, "end_masks")?;
        if [begins.len(), ends.len(), masks.len()] != [shapes.len(); 3] {
            return Err(OpError::invalid("the four lists are not equally long"));
        }
        let mut out = Vec::new();
        for (i, shape) in shapes.iter().enumerate() {
            // Ends may be one behind the last axis.
            let end = |n: i64| op.axis(if n < 0 { n - 1 } else { n }, shape.len() + 1);
            let to = if masks[i] { shape.len() } else { end(ends[i])? };
            let part = shape.get(end(begins[i])?..to);
            out.extend_from_slice(part.ok_or_else(|| {
                OpError::invalid(format!("axes {} to {to} of a reference", begins[i]))
            })?);
        }
        Ok(out)
    }
}

impl OpDef for ReshapeLike {
    fn name(&self) -> &'static str {
        "reshape_like"
    }

    fn opset(&self) -> Opset {
        Opset::Ios16
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("ref_tensors", Domain::Any).variadic(),
                Param::new("begins", Domain::Int).constant().variadic(),
                Param::new("ends", Domain::Int).constant().variadic(),
                Param::new("end_masks", Domain::Bool).constant().variadic(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, references) = (op.tensor("x")?, op.tensors("ref_tensors")?);
        let shapes: Vec<&[Dim]> = references.iter().map(|t| t.shape.as_slice()).collect();
        let shape = Self::shape(op, &shapes)?;
        let ty = TensorType { dtype: x.dtype, shape };
        if let (Some(from), Some(to)) = (x.fixed_shape(), ty.fixed_shape())
            && from.iter().product::<usize>() != to.iter().product::<usize>()
        {
            return Err(OpError::invalid(format!("x {x} cannot be reshaped to {ty}")));
        }
        Ok(vec![ty.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, references) = (cx.array("x")?, cx.arrays("ref_tensors")?);
        let shapes: Vec<&[usize]> = references.iter().map(|a| a.shape.as_slice()).collect();
        Ok(vec![x.reshaped(&Self::shape(&cx.op, &shapes)?)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}
