//! Along one axis: running sums, reversal, windows, sorting.

use std::cmp::Ordering;

use tensor::DType;

use super::reduction::axes;
use super::{Domain, OpDef, OpView, Param};
use crate::eval::exact::Sum;
use crate::eval::{Array, Data, EvalCx, Strided, Value, bounded, strides, wrap};
use crate::{Dim, OpError, TensorType, Type};

/// The constant axis `name` of argument `x`, `default` if it is not given.
fn axis(op: &OpView<'_>, name: &str, default: i64, rank: usize) -> Result<usize, OpError> {
    op.axis(op.int(name)?.unwrap_or(default), rank)
}

/// The flat indices of each row along `axis`, in order.
fn rows(shape: &[usize], axis: usize) -> impl Iterator<Item = impl Iterator<Item = usize> + Clone> {
    let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let outer: usize = shape[..axis].iter().product();
    (0..outer * inner).map(move |row| {
        let start = row / inner * size * inner + row % inner;
        (0..size).map(move |i| start + i * inner)
    })
}

/// Running sums of `x` along the constant `axis` (0 by default). Constants, false by default:
/// `exclusive` leaves the element itself out, `reverse` sums from the end.
pub(super) struct Cumsum;

impl OpDef for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Number),
                Param::new("axis", Domain::Int).optional().constant(),
                Param::new("exclusive", Domain::Bool).optional().constant(),
                Param::new("reverse", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        axis(op, "axis", 0, x.rank())?;
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let axis = axis(&cx.op, "axis", 0, x.shape.len())?;
        let exclusive = cx.op.bool_or("exclusive", false)?;
        let reverse = cx.op.bool_or("reverse", false)?;
        let mut out = (*x).clone();
        for row in rows(&x.shape, axis) {
            let mut places: Vec<usize> = row.collect();
            if reverse {
                places.reverse();
            }
            match &mut out.data {
                Data::Float(v) => {
                    let mut sum = Sum::default();
                    for at in places {
                        let before = sum;
                        sum.add(v[at]);
                        v[at] = if exclusive { before } else { sum }.value();
                    }
                }
                Data::Int(v) => {
                    let mut sum = 0i64;
                    for at in places {
                        let next = wrap(x.dtype, sum.wrapping_add(v[at]));
                        v[at] = if exclusive { sum } else { next };
                        sum = next;
                    }
                }
                _ => return Err(OpError::invalid("x is not of numbers")),
            }
        }
        Ok(vec![out.into()])
    }
}

/// `x` with the order of its elements reversed along the constant `axes`, all by default.
pub(super) struct Reverse;

impl OpDef for Reverse {
    fn name(&self) -> &'static str {
        "reverse"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any), Param::new("axes", Domain::Int).optional().constant()] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        axes(op, x.rank())?;
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let mut steps = strides(&x.shape);
        let mut start = 0;
        for axis in axes(&cx.op, x.shape.len())? {
            start += steps[axis] * (x.shape[axis] as isize - 1);
            steps[axis] = -steps[axis];
        }
        let indices = Strided::new(&x.shape, &steps, start);
        Ok(vec![x.pick(x.shape.clone(), indices).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `x` with the first `lengths[b]` elements along the constant `seq_axis` reversed, `b` being the place
/// along the constant `batch_axis`, whose size `lengths` has. Both axes are 0 by default and must
/// differ.
pub(super) struct ReverseSequence;

impl ReverseSequence {
    fn axes(op: &OpView<'_>, rank: usize) -> Result<(usize, usize), OpError> {
        let (sequence, batch) = (axis(op, "seq_axis", 0, rank)?, axis(op, "batch_axis", 0, rank)?);
        if sequence == batch {
            return Err(OpError::invalid(format!("seq_axis and batch_axis are both {batch}")));
        }
        Ok((sequence, batch))
    }
}

impl OpDef for ReverseSequence {
    fn name(&self) -> &'static str {
        "reverse_sequence"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("lengths", Domain::Int),
                Param::new("seq_axis", Domain::Int).optional().constant(),
                Param::new("batch_axis", Domain::Int).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, lengths) = (op.tensor("x")?, op.tensor("lengths")?);
        let (_, batch) = Self::axes(op, x.rank())?;
        if lengths.rank() != 1 || !lengths.shape[0].compatible(&x.shape[batch]) {
            return Err(OpError::invalid(format!(
                "lengths {lengths} do not fit axis {batch} of x {x}"
            )));
        }
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, lengths) = (cx.array("x")?, cx.array("lengths")?);
        let (sequence, batch) = Self::axes(&cx.op, x.shape.len())?;
        let lengths = lengths.ints()?;
        let size = x.shape[sequence];
        let fits = |&n: &i64| usize::try_from(n).is_ok_and(|n| n <= size);
        if lengths.len() != x.shape[batch] || !lengths.iter().all(fits) {
            return Err(OpError::invalid(format!(
                "lengths {lengths:?} do not fit x {:?}",
                x.shape
            )));
        }
        let inner = |axis: usize| x.shape[axis + 1..].iter().product::<usize>();
        let (step, batch_step) = (inner(sequence), inner(batch));
        let source = |i: usize| {
            let at = i / step % size;
            let length = lengths[i / batch_step % x.shape[batch]] as usize;
            if at < length { i + (length - 1 - at) * step - at * step } else { i }
        };
        Ok(vec![x.pick(x.shape.clone(), (0..x.len()).map(source)).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// Windows of `size` elements of `x` along the constant `axis`, `stride` (1 by default) apart: the
/// axis becomes two, of the windows and of their elements.
pub(super) struct SlidingWindows;

impl SlidingWindows {
    /// The axis, the size of a window and the stride.
    fn options(op: &OpView<'_>, rank: usize) -> Result<(usize, usize, usize), OpError> {
        let axis = axis(op, "axis", 0, rank)?;
        let size = super::windows::sizes(op, "size", 1, 1, 1)?[0];
        Ok((axis, size, super::windows::sizes(op, "stride", 1, 1, 1)?[0]))
    }

    fn count(n: usize, size: usize, stride: usize) -> Result<usize, OpError> {
        let span = n.checked_sub(size);
        let span = span.ok_or_else(|| {
            OpError::invalid(format!("a window of size {size} over {n} elements"))
        })?;
        Ok(span / stride + 1)
    }
}

impl OpDef for SlidingWindows {
    fn name(&self) -> &'static str {
        "sliding_windows"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("axis", Domain::Int).constant(),
                Param::new("size", Domain::Int).constant(),
                Param::new("stride", Domain::Int).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let (axis, size, stride) = Self::options(op, x.rank())?;
        let mut shape = x.shape.clone();
        shape[axis] = match x.shape[axis].fixed() {
            Some(n) => Dim::Fixed(Self::count(n, size, stride)?),
            None => Dim::Unknown,
        };
        shape.insert(axis + 1, Dim::Fixed(size));
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let (axis, size, stride) = Self::options(&cx.op, x.shape.len())?;
        let (mut shape, mut steps) = (x.shape.clone(), strides(&x.shape));
        shape[axis] = Self::count(x.shape[axis], size, stride)?;
        shape.insert(axis + 1, size);
        let step = steps[axis];
        steps[axis] = step * stride as isize;
        steps.insert(axis + 1, step);
        bounded(&shape)?;
        let indices = Strided::new(&shape, &steps, 0);
        Ok(vec![x.pick(shape, indices).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The order of two elements: of floats the total one, where NaN is greatest.
pub(super) fn order(data: &Data, a: usize, b: usize) -> Ordering {
    match data {
        Data::Float(v) => v[a].partial_cmp(&v[b]).unwrap_or_else(|| v[a].total_cmp(&v[b])),
        Data::Int(v) => v[a].cmp(&v[b]),
        _ => Ordering::Equal,
    }
}

/// The indices, `int32`, that sort `x` along the constant `axis` (the last by default): greatest
/// first, or least first if the constant `ascending` (false by default) holds. Equals keep their
/// order.
pub(super) struct Argsort;

impl OpDef for Argsort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Number),
                Param::new("axis", Domain::Int).optional().constant(),
                Param::new("ascending", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        axis(op, "axis", -1, x.rank())?;
        Ok(vec![TensorType { dtype: DType::I32, shape: x.shape.clone() }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let axis = axis(&cx.op, "axis", -1, x.shape.len())?;
        let ascending = cx.op.bool_or("ascending", false)?;
        let mut out = vec![0i64; x.len()];
        for row in rows(&x.shape, axis) {
            let places: Vec<usize> = row.collect();
            let mut ranks: Vec<usize> = (0..places.len()).collect();
            ranks.sort_by(|&a, &b| {
                let order = order(&x.data, places[a], places[b]);
                if ascending { order } else { order.reverse() }
            });
            places.iter().zip(ranks).for_each(|(&at, rank)| out[at] = rank as i64);
        }
        let (dtype, shape) = (DType::I32, x.shape.clone());
        Ok(vec![Array { dtype, shape, data: Data::Int(out) }.into()])
    }

    /// One an element.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        super::elements(results)
    }
}
