//! Kernels over whole rows: RMS norm, layer norm, softmax.

use crate::Pool;

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
    let _ = pool;
    check(x, weight, dim, out);
    for (x, out) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
        let mean = x.iter().map(|v| v * v).sum::<f32>() / dim as f32;
        let r = 1.0 / (mean + eps).sqrt();
        for i in 0..dim {
            out[i] = x[i] * r * weight.map_or(1.0, |w| w[i]);
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
    let _ = pool;
    check(x, weight, dim, out);
    check(x, bias, dim, out);
    for (x, out) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
        let mean = x.iter().sum::<f32>() / dim as f32;
        let var = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / dim as f32;
        let r = 1.0 / (var + eps).sqrt();
        for i in 0..dim {
            out[i] = (x[i] - mean) * r * weight.map_or(1.0, |w| w[i]) + bias.map_or(0.0, |b| b[i]);
        }
    }
}

/// The softmax of every row of `dim` elements.
///
/// # Panics
/// When `x` is not whole rows, or a length differs.
pub fn softmax(pool: &Pool, x: &[f32], dim: usize, out: &mut [f32]) {
    let _ = pool;
    check(x, None, dim, out);
    for (x, out) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for i in 0..dim {
            out[i] = (x[i] - max).exp();
        }
        let sum: f32 = out.iter().sum();
        out.iter_mut().for_each(|o| *o /= sum);
    }
}

fn check(x: &[f32], weight: Option<&[f32]>, dim: usize, out: &[f32]) {
    assert!(dim > 0 && x.len().is_multiple_of(dim), "input is not whole rows of {dim}");
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    assert!(weight.is_none_or(|w| w.len() == dim), "weight is not [{dim}]");
}
