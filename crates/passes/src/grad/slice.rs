//! Gradients of slices: written into zeros, or read.

use mil::{Arg, Emit, OpError, OpKind};

use super::site::{Done, Site};

/// A slice of constant bounds, no axis of it squeezed.
struct Slice {
    begin: Vec<i32>,
    end: Vec<i32>,
    stride: Vec<i32>,
    begin_mask: Vec<bool>,
    end_mask: Vec<bool>,
    /// Which axes the result lacks.
    squeezed: Vec<bool>,
}

impl Slice {
    /// The slice that `slice_by_index` or `slice_update` has of a tensor of `shape`.
    fn of(s: &Site<'_, '_, '_>, shape: &[usize]) -> Result<Self, OpError> {
        let rank = shape.len();
        let small = |n: i64| n.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        let ints = |name| -> Result<Vec<i32>, OpError> {
            Ok(s.op.ints(name)?.unwrap_or_else(|| vec![1; rank]).into_iter().map(small).collect())
        };
        let mask = |name| -> Result<Vec<bool>, OpError> {
            Ok(s.op.bools(name)?.unwrap_or_else(|| vec![false; rank]))
        };
        let mut slice = Slice {
            begin: ints("begin")?,
            end: ints("end")?,
            stride: ints("stride")?,
            begin_mask: mask("begin_mask")?,
            end_mask: mask("end_mask")?,
            squeezed: mask("squeeze_mask")?,
        };
        for axis in (0..rank).filter(|&a| slice.squeezed[a]) {
            let at = if slice.begin_mask[axis] { 0 } else { slice.begin[axis] };
            let at = if at < 0 { at + shape[axis] as i32 } else { at };
            (slice.begin[axis], slice.end[axis], slice.stride[axis]) = (at, at + 1, 1);
            (slice.begin_mask[axis], slice.end_mask[axis]) = (false, false);
        }
        Ok(slice)
    }

    fn args(&self, e: &mut Emit<'_, '_>) -> Vec<(&'static str, Arg)> {
        vec![
            ("begin", e.ints(&self.begin)),
            ("end", e.ints(&self.end)),
            ("stride", e.ints(&self.stride)),
            ("begin_mask", e.bools(&self.begin_mask)),
            ("end_mask", e.bools(&self.end_mask)),
        ]
    }

    /// `x` with this slice replaced by `update`, squeezed or not.
    fn write(&self, e: &mut Emit<'_, '_>, x: Arg, update: &Arg) -> Result<Arg, OpError> {
        let sizes = super::tape::fixed(&e.ty(update)?)?;
        let mut rest = sizes.into_iter();
        let whole: Vec<usize> = self
            .squeezed
            .iter()
            .map(|&squeezed| if squeezed { 1 } else { rest.next().unwrap_or(1) })
            .collect();
        let update = e.reshape(update, &whole)?;
        let mut args = self.args(e);
        args.extend([("x", x), ("update", update)]);
        e.op(OpKind::SliceUpdate, args)
    }
}

pub(super) fn by_index(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, shape) = (s.grad()?, s.shape("x")?);
    let slice = Slice::of(s, &shape)?;
    let dtype = s.ty("x")?.dtype;
    let e = &mut s.e();
    let zeros = e.full(dtype, &shape, 0.0)?;
    let by = slice.write(e, zeros, &g)?;
    s.give("x", by)
}

pub(super) fn by_size(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, shape) = (s.grad()?, s.shape("x")?);
    let begin = s.op.ints("begin")?.unwrap_or_default();
    let sizes = super::tape::fixed(&s.e().ty(&g)?)?;
    let rank = shape.len();
    let begin: Vec<i32> = begin
        .iter()
        .zip(&shape)
        .map(|(&at, &n)| (if at < 0 { at + n as i64 } else { at }) as i32)
        .collect();
    let end = begin.iter().zip(&sizes).map(|(&at, &n)| at + n as i32).collect();
    let none = vec![false; rank];
    let slice = Slice {
        begin,
        end,
        stride: vec![1; rank],
        begin_mask: none.clone(),
        end_mask: none.clone(),
        squeezed: none,
    };
    let dtype = s.ty("x")?.dtype;
    let e = &mut s.e();
    let zeros = e.full(dtype, &shape, 0.0)?;
    let by = slice.write(e, zeros, &g)?;
    s.give("x", by)
}

/// By `x` it is zero in the slice; by `update` it is the slice.
pub(super) fn update(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, shape, update) = (s.grad()?, s.shape("x")?, s.shape("update")?);
    let slice = Slice::of(s, &shape)?;
    let dtype = s.ty("x")?.dtype;
    if s.wants("x") {
        let e = &mut s.e();
        let zeros = e.full(dtype, &update, 0.0)?;
        let by_x = slice.write(e, g.clone(), &zeros)?;
        s.give("x", by_x)?;
    }
    if s.wants("update") {
        let e = &mut s.e();
        let mut args = slice.args(e);
        args.push(("x", g));
        let read = e.op(OpKind::SliceByIndex, args)?;
        let by_update = e.reshape(&read, &update)?;
        s.give("update", by_update)?;
    }
    Ok(())
}
