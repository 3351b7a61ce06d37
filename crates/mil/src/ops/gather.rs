//! Reading and writing elements at given indices.

use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, Data, EvalCx, Value, wrap};
use crate::{OpError, Opset, TensorType, Type};

/// `index` as a place among `size`. Before iOS 17 negative indices count from the end.
fn place(op: &OpView<'_>, index: i64, size: usize) -> Result<usize, OpError> {
    let from_end = index < 0 && op.function.opset < Opset::Ios17;
    let resolved = if from_end { index + size as i64 } else { index };
    usize::try_from(resolved)
        .ok()
        .filter(|&i| i < size)
        .ok_or_else(|| OpError::invalid(format!("index {index} is out of range for size {size}")))
}

fn places(op: &OpView<'_>, indices: &Array, size: usize) -> Result<Vec<usize>, OpError> {
    indices.ints()?.iter().map(|&i| place(op, i, size)).collect()
}

/// Slices of `x` along the constant `axis` (0 by default) at `indices` of any shape `N`: the result
/// is `D[:axis] + N[batch_dims:] + D[axis+1:]` for `x` of shape `D`. The first `batch_dims` (0 by
/// default) axes of `x` and `indices` go together. An index out of range is an error.
pub(super) struct Gather;

impl Gather {
    fn axes(op: &OpView<'_>, x: usize, indices: usize) -> Result<(usize, usize), OpError> {
        let axis = op.axis(op.int("axis")?.unwrap_or(0), x)?;
        let batch = op.int("batch_dims")?.unwrap_or(0);
        let batch = if batch < 0 { batch + indices as i64 } else { batch };
        match usize::try_from(batch) {
            Ok(b) if b <= axis && b <= indices => Ok((axis, b)),
            _ => Err(OpError::invalid(format!("batch_dims {batch} does not fit axis {axis}"))),
        }
    }
}

impl OpDef for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("indices", Domain::Int),
                Param::new("axis", Domain::Int).optional().constant(),
                Param::new("batch_dims", Domain::Int).optional().constant(),
                Param::new("validate_indices", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, indices) = (op.tensor("x")?, op.tensor("indices")?);
        let (axis, batch) = Self::axes(op, x.rank(), indices.rank())
            .map_err(|e| OpError::invalid(format!("x {x}, indices {indices}: {e}")))?;
        if !x.shape.iter().zip(&indices.shape).take(batch).all(|(a, b)| a.compatible(b)) {
            return Err(OpError::invalid(format!("x {x} and indices {indices} differ in batch")));
        }
        let shape = [&x.shape[..axis], &indices.shape[batch..], &x.shape[axis + 1..]].concat();
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, indices) = (cx.array("x")?, cx.array("indices")?);
        let (axis, batch) = Self::axes(&cx.op, x.shape.len(), indices.shape.len())?;
        let size = x.shape[axis];
        let at = places(&cx.op, &indices, size)?;
        let product = |s: &[usize]| s.iter().product::<usize>();
        let (outer, between) = (product(&x.shape[..batch]), product(&x.shape[batch..axis]));
        let (inner, count) = (product(&x.shape[axis + 1..]), product(&indices.shape[batch..]));
        if at.len() != outer * count {
            return Err(OpError::invalid(format!(
                "x {:?} and indices {:?} differ in batch",
                x.shape, indices.shape
            )));
        }
        let shape = [&x.shape[..axis], &indices.shape[batch..], &x.shape[axis + 1..]].concat();
        let starts = (0..outer * between).flat_map(|row| {
            let at = &at[row / between.max(1) * count..][..count];
            at.iter().map(move |i| (row * size + i) * inner)
        });
        let elements = starts.flat_map(|start| start..start + inner);
        Ok(vec![x.pick(shape, elements).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// Elements of `x` along the constant `axis` (0 by default) at `indices`, which have `x`'s rank and
/// the result's shape. An index out of range is an error.
pub(super) struct GatherAlongAxis;

impl OpDef for GatherAlongAxis {
    fn name(&self) -> &'static str {
        "gather_along_axis"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("indices", Domain::Int),
                Param::new("axis", Domain::Int).optional().constant(),
                Param::new("validate_indices", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, indices) = (op.tensor("x")?, op.tensor("indices")?);
        let axis = op.axis(op.int("axis")?.unwrap_or(0), x.rank())?;
        let fits = x.rank() == indices.rank()
            && (0..x.rank()).all(|i| i == axis || x.shape[i].compatible(&indices.shape[i]));
        if !fits {
            return Err(OpError::invalid(format!("indices {indices} do not fit x {x}")));
        }
        Ok(vec![TensorType { dtype: x.dtype, shape: indices.shape.clone() }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, indices) = (cx.array("x")?, cx.array("indices")?);
        let axis = cx.op.axis(cx.op.int("axis")?.unwrap_or(0), x.shape.len())?;
        let mut expected = indices.shape.clone();
        if let Some(along) = expected.get_mut(axis) {
            *along = x.shape[axis];
        }
        if expected != x.shape {
            return Err(OpError::invalid(format!(
                "indices {:?} do not fit x {:?}",
                indices.shape, x.shape
            )));
        }
        let (size, count) = (x.shape[axis], indices.shape[axis]);
        let inner: usize = x.shape[axis + 1..].iter().product();
        let at = places(&cx.op, &indices, size)?;
        let sources = at.iter().enumerate().map(|(n, i)| {
            let outer = n / (count * inner).max(1);
            (outer * size + i) * inner + n % inner.max(1)
        });
        Ok(vec![x.pick(indices.shape.clone(), sources).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `data` with slices along the constant `axis` (0 by default) at `indices` `[C]` combined with
/// `updates` (`data`'s shape with `C` at `axis`), by the constant `mode`: `add` (default), `sub`,
/// `mul`, `div`, `max`, `min`, or `update`, which replaces. Repeated indices act in order. An index
/// out of range is an error.
pub(super) struct Scatter;

/// How floats and integers are combined.
struct Combine {
    float: fn(f64, f64) -> f64,
    int: fn(i64, i64) -> Option<i64>,
}

impl Combine {
    fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        let new = |float, int| Ok(Combine { float, int });
        match op.str("mode")?.unwrap_or("add") {
            "update" => new(|_, b| b, |_, b| Some(b)),
            "add" => new(|a, b| a + b, |a, b| Some(a.wrapping_add(b))),
            "sub" => new(|a, b| a - b, |a, b| Some(a.wrapping_sub(b))),
            "mul" => new(|a, b| a * b, |a, b| Some(a.wrapping_mul(b))),
            "div" => new(|a, b| a / b, i64::checked_div),
            "max" => new(f64::max, |a, b| Some(a.max(b))),
            "min" => new(f64::min, |a, b| Some(a.min(b))),
            other => Err(OpError::invalid(format!("mode \"{other}\" is unknown"))),
        }
    }
}

impl OpDef for Scatter {
    fn name(&self) -> &'static str {
        "scatter"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("data", Domain::Number),
                Param::new("indices", Domain::Int),
                Param::new("updates", Domain::Number),
                Param::new("axis", Domain::Int).optional().constant(),
                Param::new("mode", Domain::Str).optional().constant(),
                Param::new("validate_indices", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (data, indices) = (op.tensor("data")?, op.tensor("indices")?);
        let updates = op.tensor("updates")?;
        let axis = op.axis(op.int("axis")?.unwrap_or(0), data.rank())?;
        Combine::of(op)?;
        let mut expected = data.clone();
        if indices.rank() == 1 {
            expected.shape[axis] = indices.shape[0].clone();
        }
        if indices.rank() != 1 || !updates.compatible(&expected) {
            return Err(OpError::invalid(format!(
                "updates {updates} at indices {indices} do not fit data {data} along axis {axis}"
            )));
        }
        Ok(vec![data.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (data, indices) = (cx.array("data")?, cx.array("indices")?);
        let updates = cx.array("updates")?;
        let axis = cx.op.axis(cx.op.int("axis")?.unwrap_or(0), data.shape.len())?;
        let combine = Combine::of(&cx.op)?;
        let (size, inner) = (data.shape[axis], data.shape[axis + 1..].iter().product::<usize>());
        let at = places(&cx.op, &indices, size)?;
        let outer: usize = data.shape[..axis].iter().product();
        if updates.len() != outer * at.len() * inner {
            return Err(OpError::invalid(format!(
                "updates {:?} do not fit data {:?}",
                updates.shape, data.shape
            )));
        }
        let targets = (0..outer).flat_map(|o| {
            at.iter().flat_map(move |i| {
                let start = (o * size + i) * inner;
                start..start + inner
            })
        });
        let mut out = (*data).clone();
        match (&mut out.data, &updates.data) {
            (Data::Float(v), Data::Float(u)) => {
                targets.zip(u).for_each(|(i, &x)| v[i] = (combine.float)(v[i], x));
            }
            (Data::Int(v), Data::Int(u)) => {
                for (i, &x) in targets.zip(u) {
                    let result = (combine.int)(v[i], x);
                    let result = result.ok_or_else(|| OpError::invalid("division by zero"))?;
                    v[i] = wrap(data.dtype, result);
                }
            }
            _ => return Err(OpError::invalid("data and updates are of different kinds")),
        }
        Ok(vec![out.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}
