//! Gradients of elementwise operations of two arguments, and of choice. What was broadcast is summed where
//! the gradient is added up.

use mil::OpKind;

use super::site::{Done, Site};

pub(super) fn add(s: &mut Site<'_, '_, '_>) -> Done {
    let g = s.grad()?;
    s.give("x", g.clone())?;
    s.give("y", g)
}

pub(super) fn sub(s: &mut Site<'_, '_, '_>) -> Done {
    let g = s.grad()?;
    s.give("x", g.clone())?;
    if s.wants("y") {
        let minus = s.e().times(&g, -1.0)?;
        s.give("y", minus)?;
    }
    Ok(())
}

pub(super) fn mul(s: &mut Site<'_, '_, '_>) -> Done {
    let g = s.grad()?;
    for (name, other) in [("x", "y"), ("y", "x")] {
        if s.wants(name) {
            let other = s.arg(other)?;
            let by = s.e().mul(&g, &other)?;
            s.give(name, by)?;
        }
    }
    Ok(())
}

/// By `y` it is `-x / y^2`, that is minus the result divided by `y`.
pub(super) fn real_div(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, y) = (s.grad()?, s.arg("y")?);
    let by_x = s.e().binary(OpKind::RealDiv, &g, &y)?;
    if s.wants("y") {
        let result = s.result(0)?;
        let by_y = s.e().mul(&by_x, &result)?;
        let by_y = s.e().times(&by_y, -1.0)?;
        s.give("y", by_y)?;
    }
    s.give("x", by_x)
}

/// `x - y floor(x / y)`.
pub(super) fn modulo(s: &mut Site<'_, '_, '_>) -> Done {
    let g = s.grad()?;
    s.give("x", g.clone())?;
    if s.wants("y") {
        let (x, y) = (s.arg("x")?, s.arg("y")?);
        let quotient = s.e().binary(OpKind::FloorDiv, &x, &y)?;
        let by_y = s.e().mul(&g, &quotient)?;
        let by_y = s.e().times(&by_y, -1.0)?;
        s.give("y", by_y)?;
    }
    Ok(())
}

/// By the exponent only where the base is positive.
pub(super) fn pow(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, x, y) = (s.grad()?, s.arg("x")?, s.arg("y")?);
    if s.wants("x") {
        let e = &mut s.e();
        let less = e.plus(&y, -1.0)?;
        let power = e.binary(OpKind::Pow, &x, &less)?;
        let slope = e.mul(&y, &power)?;
        let by_x = e.mul(&g, &slope)?;
        s.give("x", by_x)?;
    }
    if s.wants("y") {
        let result = s.result(0)?;
        let e = &mut s.e();
        let log = e.unary(OpKind::Log, &x)?;
        let slope = e.mul(&result, &log)?;
        let by_y = e.mul(&g, &slope)?;
        s.give("y", by_y)?;
    }
    Ok(())
}

pub(super) fn maximum(s: &mut Site<'_, '_, '_>) -> Done {
    extreme(s, OpKind::Greater)
}

pub(super) fn minimum(s: &mut Site<'_, '_, '_>) -> Done {
    extreme(s, OpKind::Less)
}

/// Among equals the result is `y`, and so is the gradient.
fn extreme(s: &mut Site<'_, '_, '_>, x_is_taken: OpKind) -> Done {
    let (g, x, y) = (s.grad()?, s.arg("x")?, s.arg("y")?);
    let e = &mut s.e();
    let zero = e.scalar(e.ty(&g)?.dtype, 0.0)?;
    let taken = e.binary(x_is_taken, &x, &y)?;
    let choice = [("cond", taken.clone()), ("a", g.clone()), ("b", zero.clone())];
    let by_x = e.op(OpKind::Select, choice)?;
    let by_y = e.op(OpKind::Select, [("cond", taken), ("a", zero), ("b", g)])?;
    s.give("x", by_x)?;
    s.give("y", by_y)
}

pub(super) fn select(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, cond) = (s.grad()?, s.arg("cond")?);
    let dtype = s.e().ty(&g)?.dtype;
    for name in ["a", "b"] {
        if s.wants(name) {
            let e = &mut s.e();
            let zero = e.scalar(dtype, 0.0)?;
            let (a, b) = if name == "a" { (g.clone(), zero) } else { (zero, g.clone()) };
            let by = e.op(OpKind::Select, [("cond", cond.clone()), ("a", a), ("b", b)])?;
            s.give(name, by)?;
        }
    }
    Ok(())
}
