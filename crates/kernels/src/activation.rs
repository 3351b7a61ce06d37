//! Activation functions, plain and gated.

use crate::Pool;

/// A function applied to each element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in the tanh form: `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x³)))`.
    GeluTanh,
    /// GELU by definition: `x/2 * (1 + erf(x / sqrt(2)))`.
    GeluErf,
    /// `max(x, 0)`.
    Relu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `e^x`.
    Exp,
}

/// `out = act(x)`.
///
/// # Panics
/// When lengths differ.
pub fn activate(pool: &Pool, act: Activation, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths differ");
    out.copy_from_slice(x);
    activate_in_place(pool, act, out);
}

/// `x = act(x)`.
pub fn activate_in_place(pool: &Pool, act: Activation, x: &mut [f32]) {
    let _ = pool;
    x.iter_mut().for_each(|v| *v = naive(act, *v));
}

/// `out = act(gate) * up`.
///
/// # Panics
/// When lengths differ.
pub fn gate(pool: &Pool, act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!(gate.len(), out.len(), "lengths differ");
    out.copy_from_slice(gate);
    gate_in_place(pool, act, out, up);
}

/// `gate = act(gate) * up`.
///
/// # Panics
/// When lengths differ.
pub fn gate_in_place(pool: &Pool, act: Activation, gate: &mut [f32], up: &[f32]) {
    let _ = pool;
    assert_eq!(gate.len(), up.len(), "lengths differ");
    gate.iter_mut().zip(up).for_each(|(g, u)| *g = naive(act, *g) * u);
}

/// The definition, in double precision.
fn naive(act: Activation, x: f32) -> f32 {
    let v = f64::from(x);
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    (match act {
        Activation::Silu => v * sigmoid(v),
        Activation::GeluTanh => {
            v / 2.0
                * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v)).tanh())
        }
        Activation::GeluErf => v / 2.0 * (1.0 + erf(v * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::Relu => v.max(0.0),
        Activation::Sigmoid => sigmoid(v),
        Activation::Tanh => v.tanh(),
        Activation::Exp => v.exp(),
    }) as f32
}

/// erf by its Maclaurin series near zero and the continued fraction of erfc farther out.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 2.5 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let tail = (1..=60).rev().fold(0.0, |f, k| k as f64 / 2.0 / (a + f));
    let erfc = (-a * a).exp() / ((a + tail) * std::f64::consts::PI.sqrt());
    (1.0 - erfc).copysign(x)
}
