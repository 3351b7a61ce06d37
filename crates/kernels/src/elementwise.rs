//! Sums, products and scaling of whole slices, and the index of the greatest element.

use crate::Pool;

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
    let _ = pool;
    assert_eq!(a.len(), b.len(), "lengths differ");
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
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
    let _ = pool;
    assert_eq!(a.len(), b.len(), "lengths differ");
    a.iter_mut().zip(b).for_each(|(a, b)| *a *= b);
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
    let _ = pool;
    x.iter_mut().for_each(|v| *v *= factor);
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
