//! Reshaping, transposing, shapes as values, and tensors made from shapes.

use tensor::DType;

use super::reduction::axes;
use super::shapes::reshaped;
use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, Data, EvalCx, Value, bounded};
use crate::{Dim, OpError, TensorType, Type};

/// The elements of `x`, row-major, under the shape `shape`: an integer vector where 0 (if `shape` has
/// as many items as `x` has axes) keeps `x`'s size and one -1 is what makes the sizes equal.
pub(super) struct Reshape;

impl OpDef for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any), Param::new("shape", Domain::Int)] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let shape = match op.literal("shape") {
            Some(_) => reshaped(&x.shape, &op.ints("shape")?.unwrap_or_default())
                .map_err(|e| OpError::invalid(format!("x {x}: {e}")))?,
            None => unknown_sizes(op, "shape")?,
        };
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, shape) = (cx.array("x")?, cx.array("shape")?);
        let dims: Vec<Dim> = x.shape.iter().map(|&n| n.into()).collect();
        let shape: Option<Vec<usize>> =
            reshaped(&dims, shape.ints()?)?.iter().map(Dim::fixed).collect();
        let shape = shape.ok_or_else(|| OpError::invalid("shape is not determined"))?;
        Ok(vec![x.reshaped(&shape)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// As many unknown sizes as the vector argument `name` has items.
pub(super) fn unknown_sizes(op: &OpView<'_>, name: &str) -> Result<Vec<Dim>, OpError> {
    let ty = op.tensor(name)?;
    match ty.fixed_shape().as_deref() {
        Some(&[n]) => Ok(vec![Dim::Unknown; n]),
        _ => Err(OpError::invalid(format!("{name} {ty} is not a vector of known length"))),
    }
}

/// `x` with axis `perm[i]` at place `i`; `perm` is constant.
pub(super) struct Transpose;

impl Transpose {
    fn perm(op: &OpView<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
        let given = op.ints("perm")?.unwrap_or_default();
        let perm = given.iter().map(|&a| op.axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
        let mut sorted = perm.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..rank) {
            return Err(OpError::invalid(format!("perm {given:?} does not permute {rank} axes")));
        }
        Ok(perm)
    }
}

impl OpDef for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any), Param::new("perm", Domain::Int).constant()] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let perm = Self::perm(op, x.rank()).map_err(|e| OpError::invalid(format!("x {x}: {e}")))?;
        let shape = perm.into_iter().map(|p| x.shape[p].clone()).collect();
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        Ok(vec![x.transposed(&Self::perm(&cx.op, x.shape.len())?).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `x` with axes of size 1 inserted, so that they are the constant `axes` of the result.
pub(super) struct ExpandDims;

impl ExpandDims {
    fn insert<T: Clone>(op: &OpView<'_>, shape: &[T], one: &T) -> Result<Vec<T>, OpError> {
        let given = op.ints("axes")?.unwrap_or_default();
        let rank = shape.len() + given.len();
        let mut axes = given.iter().map(|&a| op.axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
        axes.sort_unstable();
        if axes.windows(2).any(|w| w[0] == w[1]) {
            return Err(OpError::invalid(format!("axes {given:?} name one twice")));
        }
        let mut out = shape.to_vec();
        axes.into_iter().for_each(|a| out.insert(a, one.clone()));
        Ok(out)
    }
}

impl OpDef for ExpandDims {
    fn name(&self) -> &'static str {
        "expand_dims"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any), Param::new("axes", Domain::Int).constant()] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let shape = Self::insert(op, &x.shape, &Dim::Fixed(1))
            .map_err(|e| OpError::invalid(format!("x {x}: {e}")))?;
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        Ok(vec![x.reshaped(&Self::insert(&cx.op, &x.shape, &1)?)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `x` without the constant `axes`, which must have size 1; by default without all such axes.
pub(super) struct Squeeze;

impl OpDef for Squeeze {
    fn name(&self) -> &'static str {
        "squeeze"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any), Param::new("axes", Domain::Int).optional().constant()] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let given = op.arg("axes").is_some();
        let axes = axes(op, x.rank())?;
        let mut shape = Vec::new();
        for (i, size) in x.shape.iter().enumerate() {
            match size {
                Dim::Fixed(1) if axes.contains(&i) => {}
                size if given && axes.contains(&i) && !size.compatible(&Dim::Fixed(1)) => {
                    return Err(OpError::invalid(format!("axis {i} of x {x} is not of size 1")));
                }
                _ if given && axes.contains(&i) => {}
                size => shape.push(size.clone()),
            }
        }
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let given = cx.op.arg("axes").is_some();
        let axes = axes(&cx.op, x.shape.len())?;
        let drop = |i: usize, n: usize| axes.contains(&i) && (given || n == 1);
        let sizes = x.shape.iter().enumerate().filter(|&(i, &n)| !drop(i, n));
        let shape: Vec<usize> = sizes.map(|(_, &n)| n).collect();
        Ok(vec![x.reshaped(&shape)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The sizes of `x`, an `int32` vector.
pub(super) struct Shape;

impl OpDef for Shape {
    fn name(&self) -> &'static str {
        "shape"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any)] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        Ok(vec![TensorType::new(DType::I32, [op.tensor("x")?.rank()]).into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let sizes = x.shape.iter().map(|&n| n as i64).collect();
        let (dtype, shape) = (DType::I32, vec![x.shape.len()]);
        Ok(vec![Array { dtype, shape, data: Data::Int(sizes) }.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// A tensor of the sizes in the vector `shape`, every element the constant scalar `value`, by default
/// the `fp32` 0.
pub(super) struct Fill;

impl OpDef for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("shape", Domain::Int),
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
        let shape = match op.literal("shape") {
            Some(_) => {
                sizes(&op.ints("shape")?.unwrap_or_default())?.into_iter().map(Dim::Fixed).collect()
            }
            None => unknown_sizes(op, "shape")?,
        };
        Ok(vec![TensorType { dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let shape = sizes(cx.array("shape")?.ints()?)?;
        let scalar = match cx.opt_array("value")? {
            Some(value) => (*value).clone(),
            None => Array { dtype: DType::F32, shape: vec![], data: Data::Float(vec![0.0]) },
        };
        bounded(&shape)?;
        Ok(vec![scalar.broadcast_to(&shape).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

pub(super) fn sizes(values: &[i64]) -> Result<Vec<usize>, OpError> {
    let sizes: Option<Vec<usize>> = values.iter().map(|&v| usize::try_from(v).ok()).collect();
    sizes.ok_or_else(|| OpError::invalid(format!("{values:?} is no shape")))
}

/// `start, start + step, ...` up to `end`, which is not reached; scalars of one element type.
pub(super) struct Range1d;

impl Range1d {
    fn count(start: f64, end: f64, step: f64) -> Result<usize, OpError> {
        let n = ((end - start) / step).ceil();
        if step == 0.0 || !n.is_finite() {
            return Err(OpError::invalid(format!("no range from {start} to {end} by {step}")));
        }
        let n = n.max(0.0) as usize;
        bounded(&[n])?;
        Ok(n)
    }
}

impl OpDef for Range1d {
    fn name(&self) -> &'static str {
        "range_1d"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("end", Domain::Number),
                Param::new("start", Domain::Number),
                Param::new("step", Domain::Number),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let types = [op.tensor("start")?, op.tensor("end")?, op.tensor("step")?];
        if types.iter().any(|t| t.rank() != 0 || t.dtype != types[0].dtype) {
            let [start, end, step] = types;
            return Err(OpError::invalid(format!(
                "start {start}, end {end} and step {step} are not scalars of one type"
            )));
        }
        let dtype = types[0].dtype;
        let constant = |name| match dtype.is_int() {
            _ if op.literal(name).is_none() => Ok(None),
            true => op.int(name).map(|v| v.map(|i| i as f64)),
            false => op.float(name),
        };
        let size = match (constant("start")?, constant("end")?, constant("step")?) {
            (Some(start), Some(end), Some(step)) => Dim::Fixed(Self::count(start, end, step)?),
            _ => Dim::Unknown,
        };
        Ok(vec![TensorType::new(dtype, [size]).into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (start, end, step) = (cx.array("start")?, cx.array("end")?, cx.array("step")?);
        let (n, data) = match (&start.data, &end.data, &step.data) {
            (Data::Int(a), Data::Int(b), Data::Int(s)) => {
                let n = Self::count(a[0] as f64, b[0] as f64, s[0] as f64)?;
                (
                    n,
                    Data::Int(
                        (0..n as i64).map(|i| a[0].wrapping_add(i.wrapping_mul(s[0]))).collect(),
                    ),
                )
            }
            _ => {
                let (a, s) = (start.floats()?[0], step.floats()?[0]);
                let n = Self::count(a, end.floats()?[0], s)?;
                (n, Data::Float((0..n).map(|i| a + i as f64 * s).collect()))
            }
        };
        Ok(vec![Array { dtype: start.dtype, shape: vec![n], data }.into()])
    }
}
