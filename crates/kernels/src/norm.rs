//! Kernels over whole rows: RMS norm, layer norm, softmax.

use crate::Pool;
use crate::arch::{Kernel, Simd};
use crate::math::{ExpBelow, fold, greatest, update};
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
        let squares = fold(s, self.x, 0.0, s.splat(0.0), |sum, v| s.fma(v, v, sum));
        let r = 1.0 / (s.sum(squares) / self.x.len() as f32 + self.eps).sqrt();
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
        let mean = s.sum(fold(s, self.x, 0.0, s.splat(0.0), |sum, v| s.add(sum, v))) / n;
        self.out.iter_mut().zip(self.x).for_each(|(o, x)| *o = x - mean);
        let squares = fold(s, self.out, 0.0, s.splat(0.0), |sum, v| s.fma(v, v, sum));
        let r = 1.0 / (s.sum(squares) / n + self.eps).sqrt();
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
        let sum = s.sum(fold(s, self.out, 0.0, s.splat(0.0), |sum, v| s.add(sum, v)));
        self.out.iter_mut().for_each(|o| *o /= sum);
    }
}

fn check(x: &[f32], weight: Option<&[f32]>, dim: usize, out: &[f32]) {
    assert!(dim > 0 && x.len().is_multiple_of(dim), "input is not whole rows of {dim}");
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    assert!(weight.is_none_or(|w| w.len() == dim), "weight is not [{dim}]");
}
