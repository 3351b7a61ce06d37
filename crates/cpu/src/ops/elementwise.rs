//! Elementwise operations: two arguments with broadcasting, one argument, selection of a function.

use kernels::{Activation, Pool};
use mil::{OpError, OpKind};

use super::for_each_chunk;
use super::numbers::{IntFunction, integers};
use super::strided::{collapse, strides_in};
use crate::kernel::{Binding, Kernel, Native, RunCx, f32s, f32s_mut};
use crate::op_cx::{Bind, OpCx};

/// Elements of a piece of work.
const PIECE: usize = 1 << 12;

/// A function of two numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Function2 {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
    /// The greater one; NaN if one is.
    Max,
    /// The lesser one; NaN if one is.
    Min,
    /// `a` to the power `b`.
    Pow,
    /// `a / b` rounded down.
    FloorDiv,
    /// What `FloorDiv` leaves; it has the sign of `b`.
    Mod,
}

/// Binds an operation of two arguments: in `fp32`, or of integers.
pub(crate) fn binary(cx: &mut OpCx<'_>, function: Function2) -> Bind<Native> {
    let (dtype, _) = cx.result(0)?;
    if dtype.is_int() {
        let of_integers = match function {
            Function2::Add => IntFunction::Add,
            Function2::Sub => IntFunction::Sub,
            Function2::Mul => IntFunction::Mul,
            Function2::Div => IntFunction::Div,
            Function2::FloorDiv => IntFunction::FloorDiv,
            Function2::Mod => IntFunction::Mod,
            Function2::Max => IntFunction::Max,
            Function2::Min => IntFunction::Min,
            Function2::Pow => return Err("powers of integers".into()),
        };
        return integers(cx, of_integers);
    }
    let (x, y) = (cx.float("x")?, cx.float("y")?);
    let (_, out) = cx.result(0)?;
    let strides = [strides_in(&x.shape, &out), strides_in(&y.shape, &out)];
    let (shape, [a, b]) = collapse(&out, strides);
    let inputs = vec![x, y];
    Ok(match (&shape[..], &a[..], &b[..]) {
        (&[], ..) => Native::floats(Same { function }, inputs),
        (&[_], &[1], &[1]) => Native::floats(Same { function }, inputs),
        _ => Native::floats(Broadcast { function, shape, a, b }, inputs),
    })
}

/// Calls `$run` with the closure that computes `$function`; one loop is compiled for each.
macro_rules! with_function2 {
    ($function:expr, $f:ident => $run:expr) => {
        match $function {
            Function2::Add => {
                let $f = |a: f32, b: f32| a + b;
                $run
            }
            Function2::Sub => {
                let $f = |a: f32, b: f32| a - b;
                $run
            }
            Function2::Mul => {
                let $f = |a: f32, b: f32| a * b;
                $run
            }
            Function2::Div => {
                let $f = |a: f32, b: f32| a / b;
                $run
            }
            Function2::Max => {
                let $f = |a: f32, b: f32| if a.is_nan() || a > b { a } else { b };
                $run
            }
            Function2::Min => {
                let $f = |a: f32, b: f32| if a.is_nan() || a < b { a } else { b };
                $run
            }
            Function2::Pow => {
                let $f = |a: f32, b: f32| match b {
                    2.0 => a * a,
                    _ => f64::from(a).powf(b.into()) as f32,
                };
                $run
            }
            Function2::FloorDiv => {
                let $f = |a: f32, b: f32| (f64::from(a) / f64::from(b)).floor() as f32;
                $run
            }
            Function2::Mod => {
                let $f = |a: f32, b: f32| match a % b {
                    0.0 => 0f32.copysign(b),
                    r if (r < 0.0) != (b < 0.0) => r + b,
                    r => r,
                };
                $run
            }
        }
    };
}

/// Both arguments have the result's shape.
struct Same {
    function: Function2,
}

impl Kernel for Same {
    fn in_place(&self) -> &'static [usize] {
        &[0, 1]
    }

    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let (x, y, out) = (f32s(ins[0]), f32s(ins[1]), f32s_mut(outs[0]));
        match (self.function, cx.in_place) {
            (Function2::Add, None) => kernels::add(cx.pool, x, y, out),
            (Function2::Add, Some(0)) => kernels::add_in_place(cx.pool, out, y),
            (Function2::Add, Some(_)) => kernels::add_in_place(cx.pool, out, x),
            (Function2::Mul, None) => kernels::mul(cx.pool, x, y, out),
            (Function2::Mul, Some(0)) => kernels::mul_in_place(cx.pool, out, y),
            (Function2::Mul, Some(_)) => kernels::mul_in_place(cx.pool, out, x),
            (function, None) => with_function2!(function, f => {
                for_each_chunk(cx.pool, out, PIECE, |i, out| {
                    let pairs = x[i * PIECE..].iter().zip(&y[i * PIECE..]);
                    out.iter_mut().zip(pairs).for_each(|(o, (a, b))| *o = f(*a, *b));
                });
            }),
            (function, Some(0)) => with_function2!(function, f => {
                for_each_chunk(cx.pool, out, PIECE, |i, out| {
                    out.iter_mut().zip(&y[i * PIECE..]).for_each(|(o, b)| *o = f(*o, *b));
                });
            }),
            (function, Some(_)) => with_function2!(function, f => {
                for_each_chunk(cx.pool, out, PIECE, |i, out| {
                    out.iter_mut().zip(&x[i * PIECE..]).for_each(|(o, a)| *o = f(*a, *o));
                });
            }),
        }
        Ok(())
    }
}

/// Arguments are repeated along some axes: strides there are 0.
struct Broadcast {
    function: Function2,
    shape: Vec<usize>,
    a: Vec<usize>,
    b: Vec<usize>,
}

impl Kernel for Broadcast {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let (x, y) = (f32s(ins[0]), f32s(ins[1]));
        let last = self.shape.len() - 1;
        let (row, step_a, step_b) = (self.shape[last], self.a[last], self.b[last]);
        with_function2!(self.function, f => {
            for_each_chunk(cx.pool, f32s_mut(outs[0]), row, |r, out| {
                let (mut n, mut i, mut j) = (r, 0, 0);
                for axis in (0..last).rev() {
                    let at = n % self.shape[axis];
                    n /= self.shape[axis];
                    i += at * self.a[axis];
                    j += at * self.b[axis];
                }
                match (step_a, step_b) {
                    (1, 1) => {
                        let pairs = x[i..i + row].iter().zip(&y[j..j + row]);
                        out.iter_mut().zip(pairs).for_each(|(o, (a, b))| *o = f(*a, *b));
                    }
                    (1, 0) => {
                        let b = y[j];
                        out.iter_mut().zip(&x[i..i + row]).for_each(|(o, a)| *o = f(*a, b));
                    }
                    (0, 1) => {
                        let a = x[i];
                        out.iter_mut().zip(&y[j..j + row]).for_each(|(o, b)| *o = f(a, *b));
                    }
                    _ => {
                        for (k, o) in out.iter_mut().enumerate() {
                            *o = f(x[i + k * step_a], y[j + k * step_b]);
                        }
                    }
                }
            });
        });
        Ok(())
    }
}

/// A function of one number that is not an [`Activation`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Function1 {
    /// `|x|`.
    Abs,
    /// Rounded up.
    Ceil,
    /// Rounded down.
    Floor,
    /// Rounded to the nearest integer, ties to even.
    Round,
    /// Cosine.
    Cos,
    /// Sine.
    Sin,
    /// `2^x`.
    Exp2,
    /// Square root.
    Sqrt,
    /// `x²`.
    Square,
    /// `1 / (x + epsilon)`.
    Inverse(f64),
    /// Logarithm of `x + epsilon`.
    Log(f64),
    /// `1 / sqrt(x + epsilon)`.
    Rsqrt(f64),
    /// Confined to a range.
    Clip(f32, f32),
    /// A function in double precision, for what is no bottleneck.
    Wide(fn(f64) -> f64),
    /// As `Wide`, with two constants.
    Parametric(fn(f64, [f64; 2]) -> f64, [f64; 2]),
}

/// Binds a function of one `fp32` argument.
pub(crate) fn unary(cx: &mut OpCx<'_>, function: Function1) -> Bind<Native> {
    Ok(Native::floats(Unary { function }, vec![cx.float("x")?]))
}

/// Binds `inverse`, `log` or `rsqrt`, whose `epsilon` is added to `x`; `default` if it is not given.
pub(crate) fn with_epsilon(cx: &mut OpCx<'_>, function: fn(f64) -> Function1) -> Bind<Native> {
    let epsilon = cx.view.float("epsilon")?.or(cx.view.kind.default_epsilon());
    unary(cx, function(epsilon.unwrap_or(0.0)))
}

/// -1, 0 or 1; zeros keep their sign.
pub(crate) fn sign(x: f64) -> f64 {
    if x == 0.0 { x } else { x.signum() }
}

/// `log(1 + e^x)`.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Binds an activation with the constants `alpha`, and `beta` if it has one.
pub(crate) fn parametric(cx: &mut OpCx<'_>) -> Bind<Native> {
    let constant = |name| cx.view.float(name).map(Option::unwrap_or_default);
    let by = [constant("alpha")?, constant("beta")?];
    let function: fn(f64, [f64; 2]) -> f64 = match cx.op.kind {
        OpKind::ClampedRelu => |x, [alpha, beta]| {
            let y = if x < 0.0 { alpha * x } else { x };
            if y > beta { beta } else { y }
        },
        OpKind::Elu => |x, [alpha, _]| if x < 0.0 { alpha * x.exp_m1() } else { x },
        OpKind::LeakyRelu => |x, [alpha, _]| if x < 0.0 { alpha * x } else { x },
        OpKind::LinearActivation => |x, [alpha, beta]| alpha * x + beta,
        OpKind::ScaledTanh => |x, [alpha, beta]| alpha * (beta * x).tanh(),
        OpKind::SigmoidHard => |x, [alpha, beta]| (alpha * x + beta).clamp(0.0, 1.0),
        OpKind::Threshold => |x, [alpha, _]| if x < alpha { alpha } else { x },
        OpKind::ThresholdedRelu => |x, [alpha, _]| if x < alpha { 0.0 } else { x },
        other => return Err(format!("{other:?} has no such constants").into()),
    };
    unary(cx, Function1::Parametric(function, by))
}

/// Binds `prelu` and `softplus_parametric`, whose constants are those of the channel.
pub(crate) fn by_channel(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x = cx.float("x")?;
    let values = |cx: &mut OpCx<'_>, name| -> Bind<Vec<f32>> {
        let tensor = cx.const_float(name)?;
        Ok(tensor.as_slice::<f32>().map_err(|e| e.to_string())?.to_vec())
    };
    let alpha = values(cx, "alpha")?;
    let beta = match cx.op.kind {
        OpKind::Prelu => None,
        _ => Some(values(cx, "beta")?),
    };
    let inner = x.shape.get(2..).map_or(1, |s| s.iter().product());
    Ok(Native::floats(ByChannel { inner, alpha, beta }, vec![x]))
}

/// `x` or, below zero, `alpha * x`; with `beta`, `alpha * softplus(beta * x)`.
struct ByChannel {
    /// Elements of a channel of an image.
    inner: usize,
    alpha: Vec<f32>,
    beta: Option<Vec<f32>>,
}

impl Kernel for ByChannel {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let x = f32s(ins[0]);
        for_each_chunk(cx.pool, f32s_mut(outs[0]), self.inner, |i, out| {
            let c = i % self.alpha.len();
            let alpha = self.alpha[c];
            let x = out.iter_mut().zip(&x[i * self.inner..]);
            match &self.beta {
                None => x.for_each(|(o, &v)| *o = if v < 0.0 { alpha * v } else { v }),
                Some(beta) => {
                    let (alpha, beta) = (f64::from(alpha), f64::from(beta[c]));
                    x.for_each(|(o, &v)| *o = (alpha * softplus(beta * f64::from(v))) as f32);
                }
            }
        });
        Ok(())
    }
}

/// Binds `clip`.
pub(crate) fn clip(cx: &mut OpCx<'_>) -> Bind<Native> {
    let bound = |name| cx.view.float(name);
    let (Some(low), Some(high)) = (bound("alpha")?, bound("beta")?) else {
        return Err("no bounds".into());
    };
    unary(cx, Function1::Clip(low as f32, high as f32))
}

struct Unary {
    function: Function1,
}

impl Unary {
    fn apply(self, pool: &Pool, out: &mut [f32]) {
        let each = |f: &(dyn Fn(f32) -> f32 + Sync), out: &mut [f32]| {
            for_each_chunk(pool, out, PIECE, |_, part| part.iter_mut().for_each(|v| *v = f(*v)));
        };
        match self.function {
            Function1::Abs => each(&f32::abs, out),
            Function1::Ceil => each(&f32::ceil, out),
            Function1::Floor => each(&f32::floor, out),
            Function1::Round => each(&f32::round_ties_even, out),
            Function1::Cos => each(&f32::cos, out),
            Function1::Sin => each(&f32::sin, out),
            Function1::Exp2 => each(&f32::exp2, out),
            Function1::Sqrt => each(&f32::sqrt, out),
            Function1::Square => each(&|v| v * v, out),
            // In double precision: beside zero the result is that of epsilon, which a single may not hold.
            Function1::Inverse(epsilon) => each(&|v| (f64::from(v) + epsilon).recip() as f32, out),
            Function1::Log(epsilon) => each(&|v| (f64::from(v) + epsilon).ln() as f32, out),
            Function1::Rsqrt(epsilon) => {
                each(&|v| (f64::from(v) + epsilon).sqrt().recip() as f32, out);
            }
            Function1::Wide(f) => each(&|v| f(v.into()) as f32, out),
            Function1::Parametric(f, by) => each(&|v| f(v.into(), by) as f32, out),
            // NaN passes.
            Function1::Clip(low, high) => each(
                &|v| match v {
                    _ if v < low => low,
                    _ if v > high => high,
                    _ => v,
                },
                out,
            ),
        }
    }
}

impl Kernel for Unary {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let out = f32s_mut(outs[0]);
        if cx.in_place.is_none() {
            out.copy_from_slice(f32s(ins[0]));
        }
        Unary { function: self.function }.apply(cx.pool, out);
        Ok(())
    }
}

/// Binds an activation function.
pub(crate) fn activation(cx: &mut OpCx<'_>, function: Activation) -> Bind<Native> {
    Ok(Native::floats(Activate { function }, vec![cx.float("x")?]))
}

/// Binds `gelu`.
pub(crate) fn gelu(cx: &mut OpCx<'_>) -> Bind<Native> {
    match cx.view.str("mode")? {
        None | Some("EXACT") => activation(cx, Activation::GeluErf),
        Some("TANH_APPROXIMATION") => activation(cx, Activation::GeluTanh),
        Some("SIGMOID_APPROXIMATION") => {
            unary(cx, Function1::Wide(|x| x / (1.0 + (-1.702 * x).exp())))
        }
        Some(mode) => Err(format!("mode {mode}").into()),
    }
}

struct Activate {
    function: Activation,
}

impl Kernel for Activate {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let out = f32s_mut(outs[0]);
        match cx.in_place {
            Some(_) => kernels::activate_in_place(cx.pool, self.function, out),
            None => kernels::activate(cx.pool, self.function, f32s(ins[0]), out),
        }
        Ok(())
    }
}

/// Binds an operation that hands its argument on unchanged.
pub(crate) fn pass_on(cx: &mut OpCx<'_>) -> Bind<Binding> {
    Ok(Binding::View { of: cx.get("x")?, offsets: vec![0] })
}
