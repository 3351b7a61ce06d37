//! Products of matrices in `f64`.

use super::exact::dot;

/// `a * b^T` for `a` `[m, inner]` and `b` `[n, inner]`: `[m, n]`, plus `bias` `[n]`.
pub(crate) fn matmul_nt(
    a: &[f64],
    b: &[f64],
    bias: Option<&[f64]>,
    [m, inner, n]: [usize; 3],
) -> Vec<f64> {
    let start = |j: usize| bias.map_or(0.0, |b| b[j]);
    if inner == 0 {
        return (0..m * n).map(|at| start(at % n)).collect();
    }
    let mut out = vec![0.0; m * n];
    // Each row of `b` is read once for all rows of `a`: weights are larger than activations.
    for (j, row) in b.chunks_exact(inner).enumerate() {
        for (i, x) in a.chunks_exact(inner).enumerate() {
            out[i * n + j] = dot(start(j), x, row);
        }
    }
    out
}
