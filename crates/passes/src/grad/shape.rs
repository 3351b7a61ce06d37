//! Gradients of operations that move elements: the gradient moves back.

use mil::{Arg, Emit, OpError, OpKind};

use super::site::{Done, Site};
use super::tape::fixed;

/// Of operations that keep elements and their order.
pub(super) fn reshape(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, shape) = (s.grad()?, s.shape("x")?);
    let by = s.e().reshape(&g, &shape)?;
    s.give("x", by)
}

pub(super) fn transpose(s: &mut Site<'_, '_, '_>) -> Done {
    let rank = s.ty("x")?.rank();
    let perm = s.op.ints("perm")?.unwrap_or_default();
    let mut back = vec![0i32; rank];
    for (to, &from) in perm.iter().enumerate() {
        back[s.op.axis(from, rank)?] = to as i32;
    }
    let g = s.grad()?;
    let by = s.e().transpose(&g, &back)?;
    s.give("x", by)
}

/// `x[begin:end:step]` along `axis`.
fn along(
    e: &mut Emit<'_, '_>,
    x: &Arg,
    axis: usize,
    (begin, end, step): (usize, usize, usize),
) -> Result<Arg, OpError> {
    let rank = e.ty(x)?.rank();
    let at = |value: usize, other: usize| {
        let mut v = vec![other; rank];
        v[axis] = value;
        v
    };
    let mut whole = vec![true; rank];
    whole[axis] = false;
    let (begin, end) = (e.sizes(&at(begin, 0))?, e.sizes(&at(end, 0))?);
    let (stride, mask) = (e.sizes(&at(step, 1))?, e.bools(&whole));
    e.op(
        OpKind::SliceByIndex,
        [
            ("x", x.clone()),
            ("begin", begin),
            ("end", end),
            ("stride", stride),
            ("begin_mask", mask.clone()),
            ("end_mask", mask),
        ],
    )
}

pub(super) fn concat(s: &mut Site<'_, '_, '_>) -> Done {
    let g = s.grad()?;
    let shape = fixed(&s.e().ty(&g)?)?;
    let axis = s.axis("axis", 0, shape.len())?;
    let interleave = s.op.bool_or("interleave", false)?;
    let items = s.items("values")?;
    let mut start = 0;
    for (i, item) in items.iter().enumerate() {
        let size = fixed(&s.e().ty(item)?)?[axis];
        let range = match interleave {
            true => (i, shape[axis], items.len()),
            false => (start, start + size, 1),
        };
        if s.wants_item(item) {
            let by = along(&mut s.e(), &g, axis, range)?;
            s.give_item(item, by)?;
        }
        start += size;
    }
    Ok(())
}

pub(super) fn stack(s: &mut Site<'_, '_, '_>) -> Done {
    let g = s.grad()?;
    let rank = s.e().ty(&g)?.rank();
    let axis = s.axis("axis", 0, rank)?;
    for (i, item) in s.items("values")?.iter().enumerate() {
        if s.wants_item(item) {
            let e = &mut s.e();
            let shape = fixed(&e.ty(item)?)?;
            let by = along(e, &g, axis, (i, i + 1, 1))?;
            let by = e.reshape(&by, &shape)?;
            s.give_item(item, by)?;
        }
    }
    Ok(())
}

/// The parts put together again, zeros where the loss depends on none.
pub(super) fn split(s: &mut Site<'_, '_, '_>) -> Done {
    let ty = s.ty("x")?;
    let axis = s.axis("axis", 0, ty.rank())?;
    let mut parts = Vec::new();
    for i in 0..s.grads.len() {
        let part = match (s.grads[i].clone(), s.output(i)) {
            (Some(grad), _) => grad,
            (None, Some(v)) => {
                let part = s.tape.function.tensor_ty(v).map(fixed).transpose()?;
                s.e().full(ty.dtype, &part.unwrap_or_default(), 0.0)?
            }
            (None, None) => continue,
        };
        parts.push(part);
    }
    let e = &mut s.e();
    let axis = e.int(axis as i32);
    let by = e.op(OpKind::Concat, [("values", Arg::List(parts)), ("axis", axis)])?;
    s.give("x", by)
}

/// The sum over the copies.
pub(super) fn tile(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, shape) = (s.grad()?, s.shape("x")?);
    let reps = s.op.ints("reps")?.unwrap_or_default();
    // Each axis that is repeated as two, of the copies and of the elements.
    let (mut split, mut copies) = (Vec::new(), Vec::new());
    for (&size, &n) in shape.iter().zip(&reps) {
        if n > 1 {
            copies.push(split.len());
            split.push(n as usize);
        }
        split.push(size);
    }
    let e = &mut s.e();
    let mut by = e.reshape(&g, &split)?;
    if !copies.is_empty() {
        by = e.reduce(OpKind::ReduceSum, &by, &copies, false)?;
    }
    let by = e.reshape(&by, &shape)?;
    s.give("x", by)
}

/// What lies inside of the padding, which must be of a constant.
pub(super) fn pad(s: &mut Site<'_, '_, '_>) -> Done {
    let mode = s.op.str("mode")?.unwrap_or("constant");
    if mode != "constant" {
        return Err(OpError::unsupported(format!("no gradient of padding by mode \"{mode}\"")));
    }
    let (mut by, shape) = (s.grad()?, s.shape("x")?);
    let amounts = s.op.ints("pad")?.unwrap_or_default();
    let first = shape.len().saturating_sub(amounts.len() / 2);
    for (axis, pair) in (first..).zip(amounts.chunks_exact(2)) {
        let before = usize::try_from(pair[0]).unwrap_or(0);
        by = along(&mut s.e(), &by, axis, (before, before + shape[axis], 1))?;
    }
    s.give("x", by)
}

/// Of operations that are their own converse up to `names`, the arguments that say what they move.
fn again(s: &mut Site<'_, '_, '_>, kind: OpKind, names: &[&'static str]) -> Done {
    let mut args = s.pass(names)?;
    args.push(("x", s.grad()?));
    let by = s.e().op(kind, args)?;
    s.give("x", by)
}

pub(super) fn reverse(s: &mut Site<'_, '_, '_>) -> Done {
    again(s, OpKind::Reverse, &["axes"])
}

pub(super) fn band_part(s: &mut Site<'_, '_, '_>) -> Done {
    again(s, OpKind::BandPart, &["lower", "upper"])
}
