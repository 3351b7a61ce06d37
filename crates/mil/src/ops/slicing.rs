//! Slices of tensors: reading and replacing them.

use super::{Domain, OpDef, OpView, Param};
use crate::eval::{EvalCx, Strided, Value, strides};
use crate::{Dim, OpError, Opset, TensorType, Type};

/// The masks and strides of a slice, all constants.
struct Masks {
    stride: Vec<i64>,
    begin: Vec<bool>,
    end: Vec<bool>,
    squeeze: Vec<bool>,
}

impl Masks {
    fn of(op: &OpView<'_>, rank: usize) -> Result<Self, OpError> {
        let mask = |name| {
            let mask = op.bools(name)?.unwrap_or_else(|| vec![false; rank]);
            if mask.len() != rank {
                return Err(OpError::invalid(format!("{name} {mask:?} does not fit rank {rank}")));
            }
            Ok(mask)
        };
        let stride = op.ints("stride")?.unwrap_or_else(|| vec![1; rank]);
        if stride.len() != rank || stride.contains(&0) {
            return Err(OpError::invalid(format!("stride {stride:?} does not fit rank {rank}")));
        }
        Ok(Masks {
            stride,
            begin: mask("begin_mask")?,
            end: mask("end_mask")?,
            squeeze: mask("squeeze_mask")?,
        })
    }

    /// First element and number of elements along `axis` of `size` elements, as numpy slices.
    fn resolve(
        &self,
        axis: usize,
        begin: i64,
        end: i64,
        size: usize,
    ) -> Result<(usize, usize), OpError> {
        let (n, step) = (size as i64, self.stride[axis]);
        if self.squeeze[axis] {
            let at = if self.begin[axis] { 0 } else { begin };
            let at = if at < 0 { at + n } else { at };
            return match usize::try_from(at) {
                Ok(at) if at < size => Ok((at, 1)),
                _ => Err(OpError::invalid(format!(
                    "begin {begin} is out of range for axis {axis} of size {size}"
                ))),
            };
        }
        let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
        let clamp = |at: i64| (if at < 0 { at + n } else { at }).clamp(low, high);
        let (first, last) = if step > 0 { (0, n) } else { (n - 1, -1) };
        let first = if self.begin[axis] { first } else { clamp(begin) };
        let last = if self.end[axis] { last } else { clamp(end) };
        let span = if step > 0 { last - first } else { first - last };
        let count = span.max(0).unsigned_abs().div_ceil(step.unsigned_abs());
        Ok((if count == 0 { 0 } else { first as usize }, count as usize))
    }

    /// The size of `axis` of the result, as far as it is known.
    fn infer(
        &self,
        axis: usize,
        begin: Option<i64>,
        end: Option<i64>,
        size: &Dim,
    ) -> Result<Dim, OpError> {
        let step = self.stride[axis];
        let known = |mask: bool, v: Option<i64>| if mask { Some(0) } else { v };
        let (b, e) = (known(self.begin[axis], begin), known(self.end[axis], end));
        if let (Some(n), Some(b), Some(e)) = (size.fixed(), b, e) {
            return Ok(Dim::Fixed(self.resolve(axis, b, e, n)?.1));
        }
        let whole = self.begin[axis] || (begin == Some(0) && step > 0);
        Ok(match (begin, end) {
            _ if whole && self.end[axis] && step.unsigned_abs() == 1 => size.clone(),
            // The last `-b` elements, whatever the size (which is at least that).
            (Some(b), _) if b < 0 && !self.begin[axis] && self.end[axis] && step > 0 => {
                Dim::Fixed(b.unsigned_abs().div_ceil(step.unsigned_abs()) as usize)
            }
            _ => Dim::Unknown,
        })
    }
}

/// The constant integers `name`, one an axis; `None` if they are not constant.
fn bounds(op: &OpView<'_>, name: &str, rank: usize) -> Result<Option<Vec<i64>>, OpError> {
    let ty = op.tensor(name)?;
    if ty.rank() != 1 || !ty.shape[0].compatible(&Dim::Fixed(rank)) {
        return Err(OpError::invalid(format!("{name} {ty} does not fit rank {rank}")));
    }
    if op.literal(name).is_some() { op.ints(name) } else { Ok(None) }
}

/// The shape of slice `begin` to `end` of `x`, and which of its axes are squeezed.
fn slice_shape(op: &OpView<'_>, x: &TensorType) -> Result<(Vec<Dim>, Vec<bool>), OpError> {
    let rank = x.rank();
    let masks = Masks::of(op, rank)?;
    let (begin, end) = (bounds(op, "begin", rank)?, bounds(op, "end", rank)?);
    let at = |v: &Option<Vec<i64>>, i: usize| v.as_ref().map(|v| v[i]);
    let shape = x.shape.iter().enumerate();
    let shape = shape
        .map(|(i, size)| masks.infer(i, at(&begin, i), at(&end, i), size))
        .collect::<Result<_, _>>()
        .map_err(|e| OpError::invalid(format!("x {x}: {e}")))?;
    Ok((shape, masks.squeeze))
}

fn squeezed<T: Clone>(shape: &[T], squeeze: &[bool]) -> Vec<T> {
    shape.iter().zip(squeeze).filter(|(_, s)| !**s).map(|(d, _)| d.clone()).collect()
}

/// The shape (squeezed) and elements of slice `begin` to `end` of an array of `shape`.
fn slice_elements(cx: &EvalCx<'_, '_>, shape: &[usize]) -> Result<(Vec<usize>, Strided), OpError> {
    let rank = shape.len();
    let masks = Masks::of(&cx.op, rank)?;
    let (begin, end) = (cx.array("begin")?, cx.array("end")?);
    let (begin, end) = (begin.ints()?, end.ints()?);
    if begin.len() != rank || end.len() != rank {
        return Err(OpError::invalid(format!("begin or end does not fit shape {shape:?}")));
    }
    let steps = strides(shape);
    let (mut sizes, mut view, mut offset) = (Vec::new(), Vec::new(), 0);
    for axis in 0..rank {
        let (first, count) = masks.resolve(axis, begin[axis], end[axis], shape[axis])?;
        sizes.push(count);
        // A step that is never taken may be any number.
        view.push(if count > 1 { steps[axis] * masks.stride[axis] as isize } else { 0 });
        offset += first as isize * steps[axis];
    }
    let elements = Strided::new(&sizes, &view, offset);
    Ok((squeezed(&sizes, &masks.squeeze), elements))
}

/// `x[begin:end:stride]` on every axis, as numpy slices. Constants: `stride` (1 by default),
/// `begin_mask` and `end_mask` (where set, from the start or to the end), `squeeze_mask` (where set,
/// only the element `begin`, and the axis goes).
pub(super) struct SliceByIndex;

impl OpDef for SliceByIndex {
    fn name(&self) -> &'static str {
        "slice_by_index"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("begin", Domain::Int),
                Param::new("end", Domain::Int),
                Param::new("stride", Domain::Int).optional().constant(),
                Param::new("begin_mask", Domain::Bool).optional().constant(),
                Param::new("end_mask", Domain::Bool).optional().constant(),
                Param::new("squeeze_mask", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let (shape, squeeze) = slice_shape(op, x)?;
        Ok(vec![TensorType { dtype: x.dtype, shape: squeezed(&shape, &squeeze) }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let (shape, elements) = slice_elements(cx, &x.shape)?;
        Ok(vec![x.pick(shape, elements).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `x` with its slice, as of [`SliceByIndex`], replaced by `update`, which has the slice's shape and
/// at least one axis.
pub(super) struct SliceUpdate;

impl OpDef for SliceUpdate {
    fn name(&self) -> &'static str {
        "slice_update"
    }

    fn opset(&self) -> Opset {
        Opset::Ios18
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("update", Domain::Any),
                Param::new("begin", Domain::Int),
                Param::new("end", Domain::Int),
                Param::new("stride", Domain::Int).optional().constant(),
                Param::new("begin_mask", Domain::Bool).optional().constant(),
                Param::new("end_mask", Domain::Bool).optional().constant(),
                Param::new("squeeze_mask", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, update) = (op.tensor("x")?, op.tensor("update")?);
        let (shape, squeeze) = slice_shape(op, x)?;
        let slice = TensorType { dtype: x.dtype, shape: squeezed(&shape, &squeeze) };
        if update.rank() == 0 || !update.compatible(&slice) {
            return Err(OpError::invalid(format!(
                "update {update} does not fit the slice {slice} of x {x}"
            )));
        }
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, update) = (cx.array("x")?, cx.array("update")?);
        let (shape, elements) = slice_elements(cx, &x.shape)?;
        if update.shape != shape {
            return Err(OpError::invalid(format!(
                "update {:?} does not fit the slice {shape:?} of x {:?}",
                update.shape, x.shape
            )));
        }
        let mut out = (*x).clone();
        out.data.put(elements, &update.data)?;
        Ok(vec![out.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `size[i]` elements of `x` from `begin[i]` on, on every axis; a size of -1 means all that follow.
pub(super) struct SliceBySize;

impl SliceBySize {
    /// First element and number of elements along an axis of `n`.
    fn resolve(begin: i64, size: i64, n: usize) -> Result<(usize, usize), OpError> {
        let first = if begin < 0 { begin + n as i64 } else { begin };
        let bad = || OpError::invalid(format!("{size} from {begin} on exceed an axis of size {n}"));
        let first = usize::try_from(first).ok().filter(|&f| f <= n).ok_or_else(bad)?;
        let count = match usize::try_from(size) {
            Ok(count) => count,
            Err(_) if size == -1 => n - first,
            Err(_) => return Err(bad()),
        };
        if count > n - first { Err(bad()) } else { Ok((first, count)) }
    }
}

impl OpDef for SliceBySize {
    fn name(&self) -> &'static str {
        "slice_by_size"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("begin", Domain::Int),
                Param::new("size", Domain::Int),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let begin = bounds(op, "begin", x.rank())?;
        let size = bounds(op, "size", x.rank())?;
        let mut shape = Vec::with_capacity(x.rank());
        for (i, n) in x.shape.iter().enumerate() {
            let (b, s) = (begin.as_ref().map(|v| v[i]), size.as_ref().map(|v| v[i]));
            shape.push(match (n.fixed(), b, s) {
                (Some(n), Some(b), Some(s)) => Self::resolve(b, s, n)
                    .map(|(_, count)| Dim::Fixed(count))
                    .map_err(|e| OpError::invalid(format!("x {x}: {e}")))?,
                (_, _, Some(s)) if s >= 0 => Dim::Fixed(s as usize),
                (None, Some(0), Some(-1)) => n.clone(),
                _ => Dim::Unknown,
            });
        }
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, begin, size) = (cx.array("x")?, cx.array("begin")?, cx.array("size")?);
        let (begin, size) = (begin.ints()?, size.ints()?);
        if begin.len() != x.shape.len() || size.len() != x.shape.len() {
            return Err(OpError::invalid(format!("begin or size does not fit x {:?}", x.shape)));
        }
        let steps = strides(&x.shape);
        let (mut shape, mut offset) = (Vec::new(), 0);
        for ((&n, step), (&b, &s)) in x.shape.iter().zip(&steps).zip(begin.iter().zip(size)) {
            let (first, count) = Self::resolve(b, s, n)?;
            shape.push(count);
            offset += first as isize * step;
        }
        let view = Strided::new(&shape, &steps, offset);
        Ok(vec![x.pick(shape, view).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}
