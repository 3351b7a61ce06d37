//! Gradients of reductions, softmax and running sums. A reduced axis comes back with size 1 and is repeated
//! where the gradient is added up.

use mil::{Arg, Emit, OpError, OpKind};

use super::site::{Done, Site};

/// The axes that are reduced.
fn axes(s: &Site<'_, '_, '_>) -> Result<Vec<usize>, OpError> {
    let rank = s.ty("x")?.rank();
    match s.op.ints("axes")? {
        None => Ok((0..rank).collect()),
        Some(axes) => axes.into_iter().map(|a| s.op.axis(a, rank)).collect(),
    }
}

/// The shape of the result with the reduced axes kept.
fn kept(s: &Site<'_, '_, '_>) -> Result<Vec<usize>, OpError> {
    let (mut shape, axes) = (s.shape("x")?, axes(s)?);
    axes.into_iter().for_each(|a| shape[a] = 1);
    Ok(shape)
}

/// The derivative by the result with the reduced axes kept.
fn grad(s: &mut Site<'_, '_, '_>) -> Result<Arg, OpError> {
    let (g, shape) = (s.grad()?, kept(s)?);
    s.e().reshape(&g, &shape)
}

/// The result with the reduced axes kept.
fn result(s: &mut Site<'_, '_, '_>) -> Result<Arg, OpError> {
    let (y, shape) = (s.result(0)?, kept(s)?);
    s.e().reshape(&y, &shape)
}

pub(super) fn sum(s: &mut Site<'_, '_, '_>) -> Done {
    let g = grad(s)?;
    s.give("x", g)
}

pub(super) fn mean(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, shape) = (grad(s)?, s.shape("x")?);
    let n: usize = axes(s)?.into_iter().map(|a| shape[a]).product();
    let share = s.e().times(&g, 1.0 / n as f64)?;
    s.give("x", share)
}

/// Of a reduction whose derivative is `slope(x, y)` with the result `y`.
fn sloped(
    s: &mut Site<'_, '_, '_>,
    slope: impl FnOnce(&mut Emit<'_, '_>, &Arg, &Arg) -> Result<Arg, OpError>,
) -> Done {
    let (g, x, y) = (grad(s)?, s.arg("x")?, result(s)?);
    let e = &mut s.e();
    let slope = slope(e, &x, &y)?;
    let by = e.mul(&g, &slope)?;
    s.give("x", by)
}

/// Equal extremes share the gradient.
pub(super) fn extreme(s: &mut Site<'_, '_, '_>) -> Done {
    let axes = axes(s)?;
    sloped(s, |e, x, y| {
        let dtype = e.ty(x)?.dtype;
        let same = e.binary(OpKind::Equal, x, y)?;
        let same = e.cast(same, dtype)?;
        let count = e.reduce(OpKind::ReduceSum, &same, &axes, true)?;
        e.binary(OpKind::RealDiv, &same, &count)
    })
}

pub(super) fn log_sum_exp(s: &mut Site<'_, '_, '_>) -> Done {
    sloped(s, |e, x, y| {
        let less = e.sub(x, y)?;
        e.unary(OpKind::Exp, &less)
    })
}

pub(super) fn log_sum(s: &mut Site<'_, '_, '_>) -> Done {
    sloped(s, |e, _, y| {
        let minus = e.times(y, -1.0)?;
        e.unary(OpKind::Exp, &minus)
    })
}

pub(super) fn sum_square(s: &mut Site<'_, '_, '_>) -> Done {
    sloped(s, |e, x, _| e.times(x, 2.0))
}

pub(super) fn norm_1(s: &mut Site<'_, '_, '_>) -> Done {
    sloped(s, |e, x, _| e.unary(OpKind::Sign, x))
}

pub(super) fn norm_2(s: &mut Site<'_, '_, '_>) -> Done {
    sloped(s, |e, x, y| e.binary(OpKind::RealDiv, x, y))
}

/// `y (g - sum(g y))`.
pub(super) fn softmax(s: &mut Site<'_, '_, '_>) -> Done {
    let axis = s.axis("axis", -1, s.ty("x")?.rank())?;
    let (g, y) = (s.grad()?, s.result(0)?);
    let e = &mut s.e();
    let product = e.mul(&g, &y)?;
    let sum = e.reduce(OpKind::ReduceSum, &product, &[axis], true)?;
    let share = e.mul(&y, &sum)?;
    let by = e.sub(&product, &share)?;
    s.give("x", by)
}

/// The running sum from the other end.
pub(super) fn cumsum(s: &mut Site<'_, '_, '_>) -> Done {
    let reverse = s.op.bool_or("reverse", false)?;
    let mut args = s.pass(&["axis", "exclusive"])?;
    args.push(("x", s.grad()?));
    let e = &mut s.e();
    args.push(("reverse", e.bool(!reverse)));
    let by = e.op(OpKind::Cumsum, args)?;
    s.give("x", by)
}
