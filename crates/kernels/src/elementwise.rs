//! Sums, products and scaling of whole slices, and the index of the greatest element.

use crate::Pool;
use crate::arch::{Kernel, Simd};
use crate::share::{Shared, chunks};

/// `out = a + b`.
///
/// # Panics
/// When lengths differ.
pub fn add(pool: &Pool, a: &[f32], b: &[f32], out: &mut [f32]) {
    assert_eq!(a.len(), out.len(), "lengths differ");
    out.copy_from_slice(a);
    add_in_place(pool, out, b);
}

/// `a += b`.
///
/// # Panics
/// When lengths differ.
pub fn add_in_place(pool: &Pool, a: &mut [f32], b: &[f32]) {
    zip(pool, a, b, |a, b| a + b);
}

/// `out = a * b`.
///
/// # Panics
/// When lengths differ.
pub fn mul(pool: &Pool, a: &[f32], b: &[f32], out: &mut [f32]) {
    assert_eq!(a.len(), out.len(), "lengths differ");
    out.copy_from_slice(a);
    mul_in_place(pool, out, b);
}

/// `a *= b`.
///
/// # Panics
/// When lengths differ.
pub fn mul_in_place(pool: &Pool, a: &mut [f32], b: &[f32]) {
    zip(pool, a, b, |a, b| a * b);
}

/// `out = factor * x`.
///
/// # Panics
/// When lengths differ.
pub fn scale(pool: &Pool, x: &[f32], factor: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths differ");
    out.copy_from_slice(x);
    scale_in_place(pool, out, factor);
}

/// `x *= factor`.
pub fn scale_in_place(pool: &Pool, x: &mut [f32], factor: f32) {
    let x = Shared::new(x);
    chunks(pool, x.len(), |range| {
        // SAFETY: the ranges of different tasks do not overlap.
        let x = unsafe { x.slice(range) };
        pool.isa().run(Scale { x, factor });
    });
}

/// `a += factor * b`.
///
/// # Panics
/// When lengths differ.
pub fn add_scaled_in_place(pool: &Pool, a: &mut [f32], b: &[f32], factor: f32) {
    zip(pool, a, b, |a, b| a + factor * b);
}

/// `a = f(a, b)`.
fn zip(pool: &Pool, a: &mut [f32], b: &[f32], f: impl Fn(f32, f32) -> f32 + Copy + Sync) {
    assert_eq!(a.len(), b.len(), "lengths differ");
    let a = Shared::new(a);
    chunks(pool, b.len(), |range| {
        // SAFETY: the ranges of different tasks do not overlap.
        let a = unsafe { a.slice(range.clone()) };
        pool.isa().run(Zip { a, b: &b[range], f });
    });
}

// The compiler turns these loops into vector instructions where a kernel enables them.

struct Zip<'a, F> {
    a: &'a mut [f32],
    b: &'a [f32],
    f: F,
}

impl<F: Fn(f32, f32) -> f32> Kernel for Zip<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.a.iter_mut().zip(self.b).for_each(|(a, b)| *a = (self.f)(*a, *b));
    }
}

struct Scale<'a> {
    x: &'a mut [f32],
    factor: f32,
}

impl Kernel for Scale<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.x.iter_mut().for_each(|v| *v *= self.factor);
    }
}

/// The index of the greatest element, the first one among equals; NaN never wins. `None` when there
/// is no element but NaN.
pub fn argmax(x: &[f32]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (i, v) in x.iter().enumerate() {
        if !v.is_nan() && best.is_none_or(|b| *v > x[b]) {
            best = Some(i);
        }
    }
    best
}
