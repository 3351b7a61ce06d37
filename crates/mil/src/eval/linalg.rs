//! Products of matrices in `f64`.

/// `sum a[i] * b[i]`, in eight partial sums, so that it vectorises.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a_chunks, a_rest) = a.as_chunks::<8>();
    let (b_chunks, b_rest) = b.as_chunks::<8>();
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f64>() + rest
}

/// `a * b^T` for `a` `[m, inner]` and `b` `[n, inner]`: `[m, n]`.
pub(crate) fn matmul_nt(a: &[f64], b: &[f64], [m, inner, n]: [usize; 3]) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    if inner == 0 {
        return out;
    }
    // Each row of `b` is read once for all rows of `a`: weights are larger than activations.
    for (j, row) in b.chunks_exact(inner).enumerate() {
        for (i, x) in a.chunks_exact(inner).enumerate() {
            out[i * n + j] = dot(x, row);
        }
    }
    out
}
