//! Vector forms of exp and what follows from it, and loops over slices of any length.

use crate::arch::{LANES, Simd};

/// `e^v` to about one unit in the last place, over the whole range: subnormals, 0 and infinity too.
///
/// Cody and Waite's reduction to `|r| <= ln(2)/2`, then a polynomial (Cephes `expf`).
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, v: S::V) -> S::V {
    // Beyond these bounds the result is 0 or infinity; NaN passes.
    let v = s.min(s.splat(89.0), s.max(s.splat(-104.0), v));
    let n = s.round(s.mul(v, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-0.693_359_4), v);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        p = s.fma(p, r, s.splat(c));
    }
    let y = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    // In two steps, because 2^n alone may leave the range.
    let half = s.round(s.mul(n, s.splat(0.5)));
    s.scale_by_power(s.scale_by_power(y, half), s.sub(n, half))
}

/// `1 / (1 + e^-v)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, v: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), v))))
}

/// The hyperbolic tangent: by a polynomial (Cephes `tanhf`) near zero, by exp elsewhere.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, v: S::V) -> S::V {
    let (zero, one) = (s.splat(0.0), s.splat(1.0));
    let a = s.max(v, s.sub(zero, v));
    let z = s.mul(v, v);
    let mut p = s.splat(-5.704_988_6e-3);
    for c in [2.063_909e-2, -5.373_971_6e-2, 0.133_314_42, -0.333_332_8] {
        p = s.fma(p, z, s.splat(c));
    }
    let near = s.fma(s.mul(p, z), v, v);
    let far = s.sub(one, s.div(s.splat(2.0), s.add(exp(s, s.add(a, a)), one)));
    let far = s.if_less(v, zero, s.sub(zero, far), far);
    s.if_less(s.splat(0.625), a, far, near)
}

/// `erfc(z)` for `z >= 0` with a relative error near 1.2e-7 (Numerical Recipes' Chebyshev fit).
#[inline(always)]
pub(crate) fn erfc<S: Simd>(s: S, z: S::V) -> S::V {
    let t = s.div(s.splat(1.0), s.fma(z, s.splat(0.5), s.splat(1.0)));
    let mut p = s.splat(0.170_872_77);
    for c in [
        -0.822_152_23,
        1.488_515_9,
        -1.135_204,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_7,
        -1.265_512_2,
    ] {
        p = s.fma(p, t, s.splat(c));
    }
    s.mul(t, exp(s, s.sub(p, s.mul(z, z))))
}

/// A function of each element.
///
/// Not a closure: the body of a closure that the compiler does not inline is compiled without the
/// instruction set of the kernel it stands in, and every operation in it becomes a call.
pub(crate) trait Map {
    fn of<S: Simd>(&self, s: S, v: S::V) -> S::V;
}

/// `x = f(x)`, 16 at a time, the last ones padded with zeros.
#[inline(always)]
pub(crate) fn update<S: Simd>(s: S, x: &mut [f32], f: &impl Map) {
    let (whole, rest) = x.as_chunks_mut::<LANES>();
    for x in whole {
        s.store(f.of(s, s.load(x)), x);
    }
    if !rest.is_empty() {
        let mut padded = [0f32; LANES];
        padded[..rest.len()].copy_from_slice(rest);
        s.store(f.of(s, s.load(&padded)), &mut padded);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

/// A step of a fold; no closure, as a [`Map`].
pub(crate) trait Fold {
    fn of<S: Simd>(&self, s: S, sum: S::V, v: S::V) -> S::V;
}

/// Folds `x` into a vector, 16 at a time, the last ones padded with `pad`.
#[inline(always)]
pub(crate) fn fold<S: Simd>(s: S, x: &[f32], pad: f32, start: S::V, f: &impl Fold) -> S::V {
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut sum = start;
    for x in whole {
        sum = f.of(s, sum, s.load(x));
    }
    if !rest.is_empty() {
        let mut padded = [pad; LANES];
        padded[..rest.len()].copy_from_slice(rest);
        sum = f.of(s, sum, s.load(&padded));
    }
    sum
}

struct Sum;

impl Fold for Sum {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, sum: S::V, v: S::V) -> S::V {
        s.add(sum, v)
    }
}

/// The sum of all elements.
#[inline(always)]
pub(crate) fn sum<S: Simd>(s: S, x: &[f32]) -> f32 {
    s.sum(fold(s, x, 0.0, s.splat(0.0), &Sum))
}

struct SumOfSquares;

impl Fold for SumOfSquares {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, sum: S::V, v: S::V) -> S::V {
        s.fma(v, v, sum)
    }
}

/// The sum of the squares of all elements.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    s.sum(fold(s, x, 0.0, s.splat(0.0), &SumOfSquares))
}

/// `cap * tanh(x / cap)`, which keeps numbers between `-cap` and `cap`.
pub(crate) struct SoftCap {
    pub(crate) cap: f32,
}

impl Map for SoftCap {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, v: S::V) -> S::V {
        s.mul(s.splat(self.cap), tanh(s, s.mul(v, s.splat(1.0 / self.cap))))
    }
}

/// `e^(x - max)`: the weights of a softmax before they are divided by their sum.
pub(crate) struct ExpBelow {
    pub(crate) max: f32,
}

impl Map for ExpBelow {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, v: S::V) -> S::V {
        exp(s, s.sub(v, s.splat(self.max)))
    }
}

impl Fold for ExpBelow {
    /// Adds what the map makes of `v`.
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, sum: S::V, v: S::V) -> S::V {
        s.add(sum, Map::of(self, s, v))
    }
}

/// `Σ e^(x - max)`.
#[inline(always)]
pub(crate) fn sum_of_exp<S: Simd>(s: S, x: &[f32], max: f32) -> f32 {
    s.sum(fold(s, x, f32::NEG_INFINITY, s.splat(0.0), &ExpBelow { max }))
}

struct Greatest;

impl Fold for Greatest {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, sum: S::V, v: S::V) -> S::V {
        s.max(v, sum)
    }
}

/// The greatest element; NaN never wins.
#[inline(always)]
pub(crate) fn greatest<S: Simd>(s: S, x: &[f32]) -> f32 {
    let lowest = f32::NEG_INFINITY;
    let mut out = [0f32; LANES];
    s.store(fold(s, x, lowest, s.splat(lowest), &Greatest), &mut out);
    out.into_iter().fold(lowest, f32::max)
}
