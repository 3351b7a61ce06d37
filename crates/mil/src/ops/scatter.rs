//! Writing elements at given indices.

use super::gather::{place, places, slices, slices_shape};
use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, Data, EvalCx, Value, wrap};
use crate::{OpError, TensorType, Type};

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

    /// `data` with its elements at `targets` combined with those of `updates`, in order.
    fn apply(
        &self,
        data: &Array,
        targets: impl Iterator<Item = usize>,
        updates: &Array,
    ) -> Result<Array, OpError> {
        let mut out = data.clone();
        match (&mut out.data, &updates.data) {
            (Data::Float(v), Data::Float(u)) => {
                targets.zip(u).for_each(|(i, &x)| v[i] = (self.float)(v[i], x));
            }
            (Data::Int(v), Data::Int(u)) => {
                for (i, &x) in targets.zip(u) {
                    let result = (self.int)(v[i], x);
                    let result = result.ok_or_else(|| OpError::invalid("division by zero"))?;
                    v[i] = wrap(data.dtype, result);
                }
            }
            _ => return Err(OpError::invalid("data and updates are of different kinds")),
        }
        Ok(out)
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
        Ok(vec![combine.apply(&data, targets, &updates)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `data` with its elements along the constant `axis` (0 by default) at `indices` combined with
/// `updates`: `indices` and `updates` have one shape, which differs from `data`'s along `axis` only.
/// `mode` and order as of `scatter`. An index out of range is an error.
pub(super) struct ScatterAlongAxis;

impl OpDef for ScatterAlongAxis {
    fn name(&self) -> &'static str {
        "scatter_along_axis"
    }

    fn params(&self) -> &'static [Param] {
        Scatter.params()
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (data, indices) = (op.tensor("data")?, op.tensor("indices")?);
        let updates = op.tensor("updates")?;
        let axis = op.axis(op.int("axis")?.unwrap_or(0), data.rank())?;
        Combine::of(op)?;
        let needed = TensorType { dtype: data.dtype, shape: indices.shape.clone() };
        let mut along = data.clone();
        if indices.rank() == data.rank() {
            along.shape[axis] = indices.shape[axis].clone();
        }
        if !updates.compatible(&needed) || !along.compatible(&needed) {
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
        let mut along = data.shape.clone();
        along[axis] = indices.shape.get(axis).copied().unwrap_or(0);
        if indices.shape != along || updates.shape != along {
            return Err(OpError::invalid(format!(
                "updates {:?} at indices {:?} do not fit data {:?}",
                updates.shape, indices.shape, data.shape
            )));
        }
        let (size, count) = (data.shape[axis], along[axis]);
        let inner: usize = data.shape[axis + 1..].iter().product();
        let mut targets = Vec::with_capacity(indices.len());
        for (n, &index) in indices.ints()?.iter().enumerate() {
            let outer = n / (count * inner).max(1);
            targets.push((outer * size + place(&cx.op, index, size)?) * inner + n % inner);
        }
        Ok(vec![combine.apply(&data, targets.into_iter(), &updates)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `data` with its slices at the index tuples `indices` `[..., K]` combined with `updates`, which has
/// the shape `indices[:-1] + data[K:]`. `mode` and order as of `scatter`. An index out of range is an
/// error.
pub(super) struct ScatterNd;

impl OpDef for ScatterNd {
    fn name(&self) -> &'static str {
        "scatter_nd"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("data", Domain::Number),
                Param::new("indices", Domain::Int),
                Param::new("updates", Domain::Number),
                Param::new("mode", Domain::Str).optional().constant(),
                Param::new("validate_indices", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (data, updates) = (op.tensor("data")?, op.tensor("updates")?);
        Combine::of(op)?;
        let shape = slices_shape(data, op.tensor("indices")?, 0)?;
        let needed = TensorType { dtype: data.dtype, shape };
        if !updates.compatible(&needed) {
            return Err(OpError::invalid(format!("updates {updates} are not {needed}")));
        }
        Ok(vec![data.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (data, indices) = (cx.array("data")?, cx.array("indices")?);
        let (updates, combine) = (cx.array("updates")?, Combine::of(&cx.op)?);
        let (begins, size) = slices(&cx.op, &data.shape, &indices, 0)?;
        if updates.len() != begins.len() * size {
            return Err(OpError::invalid(format!(
                "updates {:?} do not fit data {:?}",
                updates.shape, data.shape
            )));
        }
        let targets = begins.into_iter().flat_map(|begin| begin..begin + size);
        Ok(vec![combine.apply(&data, targets, &updates)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}
