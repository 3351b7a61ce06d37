//! Reading elements at given indices.

use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, EvalCx, Value};
use crate::{Dim, OpError, Opset, TensorType, Type};

/// `index` as a place among `size`. Before iOS 17 negative indices count from the end.
pub(super) fn place(op: &OpView<'_>, index: i64, size: usize) -> Result<usize, OpError> {
    let from_end = index < 0 && op.function.opset < Opset::Ios17;
    let resolved = if from_end { index + size as i64 } else { index };
    usize::try_from(resolved)
        .ok()
        .filter(|&i| i < size)
        .ok_or_else(|| OpError::invalid(format!("index {index} is out of range for size {size}")))
}

pub(super) fn places(op: &OpView<'_>, indices: &Array, size: usize) -> Result<Vec<usize>, OpError> {
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

/// Where the slices begin that index tuples `indices` `[..., K]` pick from an array of `shape`, after
/// `batch` axes that both have: the begins, and the size of a slice.
pub(super) fn slices(
    op: &OpView<'_>,
    shape: &[usize],
    indices: &Array,
    batch: usize,
) -> Result<(Vec<usize>, usize), OpError> {
    let mismatch = || OpError::invalid(format!("indices {:?} do not fit {shape:?}", indices.shape));
    let [outer @ .., depth] = &*indices.shape else { return Err(mismatch()) };
    if batch > outer.len() || batch + depth > shape.len() || outer[..batch] != shape[..batch] {
        return Err(mismatch());
    }
    let indexed = &shape[batch..batch + depth];
    let size: usize = shape[batch + depth..].iter().product();
    let tuples: usize = outer[batch..].iter().product();
    let count: usize = outer.iter().product();
    let values = indices.ints()?;
    let mut begins = Vec::with_capacity(count);
    for i in 0..count {
        let mut at = i / tuples.max(1);
        for (&index, &n) in values[i * depth..(i + 1) * depth].iter().zip(indexed) {
            at = at * n + place(op, index, n)?;
        }
        begins.push(at * size);
    }
    Ok((begins, size))
}

/// The shape of what index tuples `indices` pick from `x`, after `batch` axes that both have.
pub(super) fn slices_shape(
    x: &TensorType,
    indices: &TensorType,
    batch: usize,
) -> Result<Vec<Dim>, OpError> {
    let mismatch = || OpError::invalid(format!("indices {indices} do not fit {x}"));
    let [outer @ .., depth] = &*indices.shape else { return Err(mismatch()) };
    let depth = depth.fixed().ok_or_else(mismatch)?;
    let same_batch = x.shape.iter().zip(outer).take(batch).all(|(a, b)| a.compatible(b));
    if batch > outer.len() || batch + depth > x.rank() || !same_batch {
        return Err(mismatch());
    }
    Ok([outer, &x.shape[batch + depth..]].concat())
}

/// Slices of `x` at the index tuples `indices` `[..., K]`: a tuple picks from the first `K` axes that
/// follow the first `batch_dims` (a constant, 0 by default) ones, which `x` and `indices` have both.
/// The result is `indices[:-1] + x[batch_dims + K:]`. An index out of range is an error.
pub(super) struct GatherNd;

impl GatherNd {
    fn batch(op: &OpView<'_>) -> Result<usize, OpError> {
        let batch = op.int("batch_dims")?.unwrap_or(0);
        usize::try_from(batch)
            .map_err(|_| OpError::invalid(format!("batch_dims {batch} is negative")))
    }
}

impl OpDef for GatherNd {
    fn name(&self) -> &'static str {
        "gather_nd"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("indices", Domain::Int),
                Param::new("batch_dims", Domain::Int).optional().constant(),
                Param::new("validate_indices", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let shape = slices_shape(x, op.tensor("indices")?, Self::batch(op)?)?;
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, indices) = (cx.array("x")?, cx.array("indices")?);
        let batch = Self::batch(&cx.op)?;
        let (begins, size) = slices(&cx.op, &x.shape, &indices, batch)?;
        let (outer, depth) = indices.shape.split_at(indices.shape.len() - 1);
        let shape = [outer, &x.shape[batch + depth[0]..]].concat();
        let elements = begins.into_iter().flat_map(|begin| begin..begin + size);
        Ok(vec![x.pick(shape, elements).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}
