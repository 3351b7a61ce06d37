//! Kernels over whole rows: RMS norm and its gradient, layer norm, softmax.

use crate::Pool;
use crate::arch::{Kernel, LANES, Simd};
use crate::math::{ExpBelow, greatest, sum, sum_of_squares, update};
use crate::scratch::Scratch;
use crate::share::{Shared, row_chunks};

/// `out = x / sqrt(mean(x²) + eps) * weight` for every row of `dim` elements.
///
/// # Panics
/// When `x` is not whole rows, or a length differs.
pub fn rms_norm(
    pool: &Pool,
    x: &[f32],
    weight: Option<&[f32]>,
    eps: f32,
    dim: usize,
    out: &mut [f32],
) {
    check(x, weight, dim, out);
    rows(pool, x, out, dim, |x, out| pool.isa().run(RmsNorm { x, weight, eps, out }));
}

/// Rows whose contributions to the gradient by a weight are added up by one task, whatever the threads.
const SUMMED_ROWS: usize = 32;

/// The gradient of [`rms_norm`] with a weight: with `r = 1 / sqrt(mean(x²) + eps)` and
/// `u = grad * weight`, `by_x = r * (u - x * r * mean(u * x * r))` for every row of `dim` elements, and
/// `by_weight` is the sum of `grad * x * r` over all rows.
///
/// # Panics
/// When `x` is not whole rows, or a length differs.
pub fn rms_norm_grad(
    pool: &Pool,
    (x, weight, grad): (&[f32], &[f32], &[f32]),
    eps: f32,
    by_x: &mut [f32],
    by_weight: &mut [f32],
) {
    let dim = weight.len();
    check(x, Some(weight), dim, by_x);
    assert_eq!(grad.len(), x.len(), "gradient and input differ in length");
    assert_eq!(by_weight.len(), dim, "the gradient by the weight is not [{dim}]");
    let size = SUMMED_ROWS * dim;
    let parts = x.len().div_ceil(size);
    let mut scratch = Scratch::new(parts * dim);
    let (sums, out) = (Shared::new(&mut scratch), Shared::new(by_x));
    pool.run(parts, |i| {
        let rows = i * size..x.len().min((i + 1) * size);
        // SAFETY: a task has rows of its own, and their sum.
        let (sum, out) = unsafe { (sums.slice(i * dim..(i + 1) * dim), out.slice(rows.clone())) };
        let (x, grad) = (&x[rows.clone()], &grad[rows]);
        pool.isa().run(RmsNormGrad { x, weight, grad, eps, out, sum });
    });
    by_weight.fill(0.0);
    for sum in scratch.chunks_exact(dim) {
        by_weight.iter_mut().zip(sum).for_each(|(o, sum)| *o += sum);
    }
}

/// Some rows, and the sum of what they contribute to the gradient by the weight.
struct RmsNormGrad<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    grad: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
    sum: &'a mut [f32],
}

impl Kernel for RmsNormGrad<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dim = self.weight.len();
        self.sum.fill(0.0);
        let rows = self.x.chunks_exact(dim).zip(self.grad.chunks_exact(dim));
        for ((x, grad), out) in rows.zip(self.out.chunks_exact_mut(dim)) {
            let r = 1.0 / (sum_of_squares(s, x) / dim as f32 + self.eps).sqrt();
            out.iter_mut().zip(grad.iter().zip(self.weight)).for_each(|(o, (g, w))| *o = g * w);
            let (whole, rest) = out.as_chunks::<LANES>();
            let (x_whole, x_rest) = x.as_chunks::<LANES>();
            let mut dot = s.splat(0.0);
            for (u, x) in whole.iter().zip(x_whole) {
                dot = s.fma(s.load(u), s.load(x), dot);
            }
            let rest: f32 = rest.iter().zip(x_rest).map(|(u, x)| u * x).sum();
            let mean = (s.sum(dot) + rest) * r / dim as f32;
            out.iter_mut().zip(x).for_each(|(o, x)| *o = r * (*o - x * r * mean));
            let sums = self.sum.iter_mut().zip(grad.iter().zip(x));
            sums.for_each(|(sum, (g, x))| *sum += g * (x * r));
        }
    }
}

/// `out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias` for every row of `dim` elements.
///
/// # Panics
/// When `x` is not whole rows, or a length differs.
pub fn layer_norm(
    pool: &Pool,
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
    dim: usize,
    out: &mut [f32],
) {
    check(x, weight, dim, out);
    check(x, bias, dim, out);
    rows(pool, x, out, dim, |x, out| {
        pool.isa().run(LayerNorm { x, weight, bias, eps, out });
    });
}

/// The softmax of every row of `dim` elements.
///
/// # Panics
/// When `x` is not whole rows, or a length differs.
pub fn softmax(pool: &Pool, x: &[f32], dim: usize, out: &mut [f32]) {
    check(x, None, dim, out);
    rows(pool, x, out, dim, |x, out| pool.isa().run(Softmax { x, out }));
}

/// Calls `work` with each row of `x` and of `out`.
fn rows(
    pool: &Pool,
    x: &[f32],
    out: &mut [f32],
    dim: usize,
    work: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    let out = Shared::new(out);
    row_chunks(pool, x.len(), dim, |range| {
        for row in range {
            let at = row * dim..(row + 1) * dim;
            // SAFETY: a row belongs to one task.
            let out = unsafe { out.slice(at.clone()) };
            work(&x[at], out);
        }
    });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: Option<&'a [f32]>,
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let r = 1.0 / (sum_of_squares(s, self.x) / self.x.len() as f32 + self.eps).sqrt();
        self.out.iter_mut().zip(self.x).for_each(|(o, x)| *o = x * r);
        if let Some(weight) = self.weight {
            self.out.iter_mut().zip(weight).for_each(|(o, w)| *o *= w);
        }
    }
}

struct LayerNorm<'a> {
    x: &'a [f32],
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for LayerNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.x.len() as f32;
        let mean = sum(s, self.x) / n;
        self.out.iter_mut().zip(self.x).for_each(|(o, x)| *o = x - mean);
        let r = 1.0 / (sum_of_squares(s, self.out) / n + self.eps).sqrt();
        self.out.iter_mut().for_each(|o| *o *= r);
        if let Some(weight) = self.weight {
            self.out.iter_mut().zip(weight).for_each(|(o, w)| *o *= w);
        }
        if let Some(bias) = self.bias {
            self.out.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
    }
}

struct Softmax<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.out.copy_from_slice(self.x);
        update(s, self.out, &ExpBelow { max: greatest(s, self.x) });
        let sum = sum(s, self.out);
        self.out.iter_mut().for_each(|o| *o /= sum);
    }
}

fn check(x: &[f32], weight: Option<&[f32]>, dim: usize, out: &[f32]) {
    assert!(dim > 0 && x.len().is_multiple_of(dim), "input is not whole rows of {dim}");
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    assert!(weight.is_none_or(|w| w.len() == dim), "weight is not [{dim}]");
}
