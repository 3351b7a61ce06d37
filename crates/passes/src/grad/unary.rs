//! Gradients of elementwise functions of one argument: the derivative times that by the result.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, PI};

use mil::{Arg, Emit, OpError, OpKind};

use super::site::{Done, Site};

type Value = Result<Arg, OpError>;

/// The derivative is `slope(x)`.
fn by_argument(
    s: &mut Site<'_, '_, '_>,
    slope: impl FnOnce(&mut Emit<'_, '_>, &Arg) -> Value,
) -> Done {
    let (g, x) = (s.grad()?, s.arg("x")?);
    let e = &mut s.e();
    let slope = slope(e, &x)?;
    let by = e.mul(&g, &slope)?;
    s.give("x", by)
}

/// The derivative is `slope(y)` of the result `y`.
fn by_result(
    s: &mut Site<'_, '_, '_>,
    slope: impl FnOnce(&mut Emit<'_, '_>, &Arg) -> Value,
) -> Done {
    let (g, y) = (s.grad()?, s.result(0)?);
    let e = &mut s.e();
    let slope = slope(e, &y)?;
    let by = e.mul(&g, &slope)?;
    s.give("x", by)
}

/// `1 - x`.
fn rest(e: &mut Emit<'_, '_>, x: &Arg) -> Value {
    let one = e.scalar(e.ty(x)?.dtype, 1.0)?;
    e.sub(&one, x)
}

/// `numerator / x`.
fn quotient(e: &mut Emit<'_, '_>, numerator: f64, x: &Arg) -> Value {
    let numerator = e.scalar(e.ty(x)?.dtype, numerator)?;
    e.binary(OpKind::RealDiv, &numerator, x)
}

/// 1 where `x` is between the bounds, else 0.
fn between(e: &mut Emit<'_, '_>, x: &Arg, low: f64, high: f64) -> Value {
    let dtype = e.ty(x)?.dtype;
    let (low, high) = (e.scalar(dtype, low)?, e.scalar(dtype, high)?);
    let above = e.binary(OpKind::Greater, x, &low)?;
    let below = e.binary(OpKind::Less, x, &high)?;
    let both = e.binary(OpKind::LogicalAnd, &above, &below)?;
    e.cast(both, dtype)
}

macro_rules! derivatives {
    ($by:ident: $($name:ident = |$e:ident, $x:ident| $slope:expr;)*) => {
        $(pub(super) fn $name(s: &mut Site<'_, '_, '_>) -> Done {
            $by(s, |$e, $x| $slope)
        })*
    };
}

derivatives! { by_argument:
    abs = |e, x| e.unary(OpKind::Sign, x);
    acos = |e, x| { let y = arc(e, x)?; e.times(&y, -1.0) };
    asin = |e, x| arc(e, x);
    atan = |e, x| { let y = e.mul(x, x)?; let y = e.plus(&y, 1.0)?; quotient(e, 1.0, &y) };
    atanh = |e, x| { let y = e.mul(x, x)?; let y = rest(e, &y)?; quotient(e, 1.0, &y) };
    cos = |e, x| { let y = e.unary(OpKind::Sin, x)?; e.times(&y, -1.0) };
    cosh = |e, x| e.unary(OpKind::Sinh, x);
    erf = |e, x| { let y = bell(e, x, -1.0)?; e.times(&y, FRAC_2_SQRT_PI) };
    relu = |e, x| between(e, x, 0.0, f64::INFINITY);
    relu6 = |e, x| between(e, x, 0.0, 6.0);
    silu = |e, x| {
        let share = e.unary(OpKind::Sigmoid, x)?;
        let rest = rest(e, &share)?;
        let inner = e.mul(x, &rest)?;
        let inner = e.plus(&inner, 1.0)?;
        e.mul(&share, &inner)
    };
    sin = |e, x| e.unary(OpKind::Cos, x);
    sinh = |e, x| e.unary(OpKind::Cosh, x);
    softplus = |e, x| e.unary(OpKind::Sigmoid, x);
    softsign = |e, x| {
        let y = e.unary(OpKind::Abs, x)?;
        let y = e.plus(&y, 1.0)?;
        let y = e.mul(&y, &y)?;
        quotient(e, 1.0, &y)
    };
    square = |e, x| e.times(x, 2.0);
}

derivatives! { by_result:
    exp = |_e, y| Ok(y.clone());
    exp2 = |e, y| e.times(y, LN_2);
    sigmoid = |e, y| { let rest = rest(e, y)?; e.mul(y, &rest) };
    sqrt = |e, y| quotient(e, 0.5, y);
    tan = |e, y| { let square = e.mul(y, y)?; e.plus(&square, 1.0) };
    tanh = |e, y| { let square = e.mul(y, y)?; rest(e, &square) };
    inverse = |e, y| { let square = e.mul(y, y)?; e.times(&square, -1.0) };
    rsqrt = |e, y| { let cube = e.mul(y, y)?; let cube = e.mul(&cube, y)?; e.times(&cube, -0.5) };
}

/// `1 / sqrt(1 - x^2)`.
fn arc(e: &mut Emit<'_, '_>, x: &Arg) -> Value {
    let square = e.mul(x, x)?;
    let rest = rest(e, &square)?;
    let root = e.unary(OpKind::Sqrt, &rest)?;
    quotient(e, 1.0, &root)
}

/// `exp(factor x^2)`.
fn bell(e: &mut Emit<'_, '_>, x: &Arg, factor: f64) -> Value {
    let square = e.mul(x, x)?;
    let exponent = e.times(&square, factor)?;
    e.unary(OpKind::Exp, &exponent)
}

/// Of `log(x + epsilon)`.
pub(super) fn log(s: &mut Site<'_, '_, '_>) -> Done {
    let epsilon = s.op.float("epsilon")?.or(OpKind::Log.default_epsilon()).unwrap_or(0.0);
    by_argument(s, |e, x| {
        let sum = e.plus(x, epsilon)?;
        quotient(e, 1.0, &sum)
    })
}

pub(super) fn clip(s: &mut Site<'_, '_, '_>) -> Done {
    let low = s.op.float("alpha")?.unwrap_or(f64::NEG_INFINITY);
    let high = s.op.float("beta")?.unwrap_or(f64::INFINITY);
    by_argument(s, |e, x| between(e, x, low, high))
}

/// Between float types.
pub(super) fn cast(s: &mut Site<'_, '_, '_>) -> Done {
    let g = s.grad()?;
    s.give("x", g)
}

/// With the share `p` of `x`, `x p` has the derivative `p + x p'`.
pub(super) fn gelu(s: &mut Site<'_, '_, '_>) -> Done {
    match s.op.str("mode")?.unwrap_or("EXACT") {
        "EXACT" => by_argument(s, |e, x| {
            let inner = e.times(x, FRAC_1_SQRT_2)?;
            let erf = e.unary(OpKind::Erf, &inner)?;
            let sum = e.plus(&erf, 1.0)?;
            let share = e.times(&sum, 0.5)?;
            let density = bell(e, x, -0.5)?;
            let density = e.times(&density, FRAC_1_SQRT_2 * FRAC_2_SQRT_PI / 2.0)?;
            let change = e.mul(x, &density)?;
            e.add(&share, &change)
        }),
        // x / 2 (1 + tanh(u)) is x sigmoid(2 u).
        "TANH_APPROXIMATION" => by_argument(s, |e, x| {
            let factor = 2.0 * (2.0 / PI).sqrt();
            let square = e.mul(x, x)?;
            let inner = e.times(&square, 0.044_715 * factor)?;
            let inner = e.plus(&inner, factor)?;
            let argument = e.mul(x, &inner)?;
            let slope = e.times(&square, 3.0 * 0.044_715 * factor)?;
            let slope = e.plus(&slope, factor)?;
            gated(e, x, &argument, &slope)
        }),
        _ => by_argument(s, |e, x| {
            let argument = e.times(x, 1.702)?;
            let slope = e.scalar(e.ty(x)?.dtype, 1.702)?;
            gated(e, x, &argument, &slope)
        }),
    }
}

/// The derivative of `x sigmoid(argument)`, where that of `argument` is `slope`.
fn gated(e: &mut Emit<'_, '_>, x: &Arg, argument: &Arg, slope: &Arg) -> Value {
    let share = e.unary(OpKind::Sigmoid, argument)?;
    let rest = rest(e, &share)?;
    let inner = e.mul(x, slope)?;
    let inner = e.mul(&inner, &rest)?;
    let inner = e.plus(&inner, 1.0)?;
    e.mul(&share, &inner)
}
