//! The update of parameters from their gradients, each tensor in one pass, and the norm of gradients.
//!
//! An update reads and writes every operand once, since memory bounds it: what the gradient is multiplied by
//! (clipping, loss scale, accumulation) is folded in. No fused multiply-add is used, so that all
//! instruction sets agree to the bit.

use crate::Pool;
use crate::arch::{Kernel, LANES, Simd};
use crate::share::{Shared, chunks};

/// The numbers of one AdamW step (Loshchilov & Hutter, arXiv:1711.05101, algorithm 2), `t` counting from 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Adamw {
    /// What the gradient is multiplied by first.
    pub gradient_scale: f32,
    /// What a weight is multiplied by: 1 - learning rate * weight decay.
    pub keep: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Learning rate / (1 - beta1^t).
    pub step_size: f32,
    /// sqrt(1 - beta2^t).
    pub correction: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
}

/// Updates weights `w` and moments `m` and `v` by the gradient `g`.
///
/// # Panics
/// When lengths differ.
pub fn adamw(pool: &Pool, step: Adamw, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    assert!([w.len(), m.len(), v.len()] == [g.len(); 3], "lengths differ");
    let (w, m, v) = (Shared::new(w), Shared::new(m), Shared::new(v));
    chunks(pool, g.len(), |range| {
        // SAFETY: the ranges of different tasks do not overlap.
        let w = unsafe { w.slice(range.clone()) };
        // SAFETY: as above.
        let m = unsafe { m.slice(range.clone()) };
        // SAFETY: as above.
        let v = unsafe { v.slice(range.clone()) };
        pool.isa().run(AdamwChunk { step, w, g: &g[range], m, v });
    });
}

/// The numbers of one step of stochastic gradient descent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sgd {
    /// What the gradient is multiplied by first.
    pub gradient_scale: f32,
    /// This part of the weight is added to the gradient.
    pub weight_decay: f32,
    /// What the velocity keeps.
    pub momentum: f32,
    /// Whether the step looks ahead along the velocity (Nesterov).
    pub nesterov: bool,
    /// What the step is multiplied by.
    pub learning_rate: f32,
}

/// Updates weights `w` and, if there is one, the velocity by the gradient `g`.
///
/// # Panics
/// When lengths differ.
pub fn sgd(pool: &Pool, step: Sgd, w: &mut [f32], g: &[f32], velocity: Option<&mut [f32]>) {
    let velocity = velocity.map(|v| {
        assert_eq!(v.len(), g.len(), "lengths differ");
        Shared::new(v)
    });
    assert_eq!(w.len(), g.len(), "lengths differ");
    let w = Shared::new(w);
    chunks(pool, g.len(), |range| {
        // SAFETY: the ranges of different tasks do not overlap.
        let w = unsafe { w.slice(range.clone()) };
        // SAFETY: as above.
        let v = velocity.as_ref().map(|v| unsafe { v.slice(range.clone()) });
        pool.isa().run(SgdChunk { step, w, g: &g[range], v });
    });
}

/// Elements whose squares are added in single precision; sums of these are added in double precision.
const BLOCK: usize = 1 << 12;

/// The sum of the squares of `x`; not finite if an element or a square is not.
pub fn sum_of_squares(pool: &Pool, x: &[f32]) -> f64 {
    let mut sums = vec![0f64; x.len().div_ceil(BLOCK)];
    let shared = Shared::new(&mut sums);
    pool.run(x.len().div_ceil(BLOCK), |i| {
        let block = &x[i * BLOCK..x.len().min((i + 1) * BLOCK)];
        // SAFETY: each task has its own element.
        let sum = unsafe { shared.slice(i..i + 1) };
        sum[0] = pool.isa().run(SquaresChunk { x: block });
    });
    sums.iter().sum()
}

// The compiler turns these loops into vector instructions where a kernel enables them.

struct AdamwChunk<'a> {
    step: Adamw,
    w: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
}

impl Kernel for AdamwChunk<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Adamw { gradient_scale, keep, beta1, beta2, step_size, correction, epsilon } =
            self.step;
        let moments = self.m.iter_mut().zip(self.v);
        for ((w, g), (m, v)) in self.w.iter_mut().zip(self.g).zip(moments) {
            let g = g * gradient_scale;
            *m += (1.0 - beta1) * (g - *m);
            *v = *v * beta2 + (1.0 - beta2) * g * g;
            *w = *w * keep - step_size * (*m / (v.sqrt() / correction + epsilon));
        }
    }
}

struct SgdChunk<'a> {
    step: Sgd,
    w: &'a mut [f32],
    g: &'a [f32],
    v: Option<&'a mut [f32]>,
}

impl Kernel for SgdChunk<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Sgd { gradient_scale, weight_decay, momentum, nesterov, learning_rate } = self.step;
        let of = |g: f32, w: f32| g * gradient_scale + weight_decay * w;
        match self.v {
            None => {
                self.w.iter_mut().zip(self.g).for_each(|(w, g)| *w -= learning_rate * of(*g, *w))
            }
            Some(v) => {
                for ((w, g), v) in self.w.iter_mut().zip(self.g).zip(v) {
                    let g = of(*g, *w);
                    *v = momentum * *v + g;
                    let step = if nesterov { g + momentum * *v } else { *v };
                    *w -= learning_rate * step;
                }
            }
        }
    }
}

struct SquaresChunk<'a> {
    x: &'a [f32],
}

impl Kernel for SquaresChunk<'_> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        let (vectors, rest) = self.x.as_chunks::<LANES>();
        let mut sums = [0f32; LANES];
        for vector in vectors {
            sums.iter_mut().zip(vector).for_each(|(s, x)| *s += x * x);
        }
        let all = sums.iter().map(|&s| f64::from(s)).sum::<f64>();
        all + rest.iter().map(|&x| f64::from(x * x)).sum::<f64>()
    }
}
