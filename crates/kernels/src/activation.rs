//! Activation functions, plain and gated.

use crate::Pool;
use crate::arch::{Kernel, LANES, Simd};
use crate::math::{Map, erfc, exp, sigmoid, tanh, update};
use crate::share::{Shared, chunks};

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
    let x = Shared::new(x);
    chunks(pool, x.len(), |range| {
        // SAFETY: the ranges of different tasks do not overlap.
        let x = unsafe { x.slice(range) };
        pool.isa().run(Apply { act, x, up: None });
    });
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
    assert_eq!(gate.len(), up.len(), "lengths differ");
    let gate = Shared::new(gate);
    chunks(pool, up.len(), |range| {
        // SAFETY: the ranges of different tasks do not overlap.
        let x = unsafe { gate.slice(range.clone()) };
        pool.isa().run(Apply { act, x, up: Some(&up[range]) });
    });
}

pub(crate) struct Apply<'a> {
    pub(crate) act: Activation,
    pub(crate) x: &'a mut [f32],
    pub(crate) up: Option<&'a [f32]>,
}

impl Kernel for Apply<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match self.act {
            Activation::Silu => self.each(s, &Silu),
            Activation::GeluTanh => self.each(s, &GeluTanh),
            Activation::GeluErf => self.each(s, &GeluErf),
            Activation::Relu => self.each(s, &Relu),
            Activation::Sigmoid => self.each(s, &Sigmoid),
            Activation::Tanh => self.each(s, &Tanh),
            Activation::Exp => self.each(s, &Exp),
        }
    }
}

impl Apply<'_> {
    #[inline(always)]
    fn each<S: Simd>(&mut self, s: S, f: &impl Map) {
        let Some(up) = self.up else { return update(s, self.x, f) };
        let (x, x_rest) = self.x.as_chunks_mut::<LANES>();
        let (up, up_rest) = up.as_chunks::<LANES>();
        for (x, up) in x.iter_mut().zip(up) {
            s.store(s.mul(f.of(s, s.load(x)), s.load(up)), x);
        }
        update(s, x_rest, f);
        x_rest.iter_mut().zip(up_rest).for_each(|(x, up)| *x *= up);
    }
}

/// Declares the function of each [`Activation`].
macro_rules! functions {
    ($($name:ident($s:ident, $v:ident) $body:block)*) => {$(
        struct $name;

        impl Map for $name {
            #[inline(always)]
            fn of<S: Simd>(&self, $s: S, $v: S::V) -> S::V $body
        }
    )*};
}

functions! {
    Silu(s, v) {
        s.div(v, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), v))))
    }
    GeluTanh(s, v) {
        // (1 + tanh u) / 2 is the sigmoid of 2u, which keeps its digits where tanh nears -1.
        let cubic = s.fma(s.mul(v, v), s.splat(0.044_715), s.splat(1.0));
        let u2 = s.mul(s.mul(v, s.splat(1.595_769)), cubic);
        s.mul(v, sigmoid(s, u2))
    }
    GeluErf(s, v) {
        let (zero, one) = (s.splat(0.0), s.splat(1.0));
        let z = s.mul(v, s.splat(std::f32::consts::FRAC_1_SQRT_2));
        let tail = s.mul(s.splat(0.5), erfc(s, s.max(s.sub(zero, z), z)));
        s.mul(v, s.if_less(v, zero, tail, s.sub(one, tail)))
    }
    Relu(s, v) {
        // NaN passes.
        s.max(s.splat(0.0), v)
    }
    Sigmoid(s, v) {
        sigmoid(s, v)
    }
    Tanh(s, v) {
        tanh(s, v)
    }
    Exp(s, v) {
        exp(s, v)
    }
}
