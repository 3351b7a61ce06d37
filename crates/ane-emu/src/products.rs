//! Sums of products as the engine holds them.
//!
//! The order of a sum is that of the reduced axis. Published measurements do not tell the order in
//! which the engine's lanes are added, nor at which step it saturates; for sums whose terms stay
//! below the limit together, the order makes no difference to the fixed-point result.

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

/// How a sum of products is held until it is rounded to its type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Sum {
    /// In `f64`.
    Double,
    /// In fixed point: each product is rounded to a multiple of `2^-fraction`, halves away from zero;
    /// a partial sum that reaches `limit` is infinite and stays so.
    Fixed {
        /// Fraction bits, at most 16.
        fraction: u32,
        /// Magnitude of infinity.
        limit: f64,
    },
    /// In `f32`, to which the sums of four products are added; those are rounded to fp16 at each
    /// step. A sum that reaches `limit` is infinite.
    Grouped {
        /// Magnitude of infinity.
        limit: f64,
    },
}

/// The left matrix, row-major.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Left<'a> {
    /// Activations.
    Floats(&'a [f64]),
    /// Weights as they lie in the file.
    Halves(&'a [f16]),
}

impl Left<'_> {
    /// Row `row` of `inner` elements.
    fn row(self, row: usize, inner: usize, out: &mut [f32]) {
        match self {
            Left::Floats(a) => {
                let row = &a[row * inner..][..inner];
                out.iter_mut().zip(row).for_each(|(o, &x)| *o = x as f32);
            }
            Left::Halves(a) => a[row * inner..][..inner].convert_to_f32_slice(out),
        }
    }

    fn double_row(self, row: usize, inner: usize, out: &mut [f64]) {
        match self {
            Left::Floats(a) => out.copy_from_slice(&a[row * inner..][..inner]),
            Left::Halves(a) => a[row * inner..][..inner].convert_to_f64_slice(out),
        }
    }
}

/// Columns that are computed together.
const LANES: usize = 16;

/// Multiplications from which the rows are shared among threads.
const PARALLEL: usize = 1 << 18;

/// `a b` of `a` `[m, k]` and `b` `[k, n]`, row-major: `[m, n]`, not yet rounded to a type. All but
/// [`Sum::Double`] take what they multiply as `f32`, which fp16 numbers are exactly.
pub(crate) fn product(sum: Sum, a: Left<'_>, b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    if n == 0 || m == 0 {
        return out;
    }
    // Whole lanes: columns are padded with zeros.
    let width = n.next_multiple_of(LANES);
    let padded: Vec<f64> = match width == n {
        true => b.to_vec(),
        false => {
            let mut padded = vec![0.0; k * width];
            for (to, from) in padded.chunks_exact_mut(width).zip(b.chunks_exact(n)) {
                to[..n].copy_from_slice(from);
            }
            padded
        }
    };
    let singles: Vec<f32> = match sum {
        Sum::Double => Vec::new(),
        _ => padded.iter().map(|&x| x as f32).collect(),
    };
    let rows_at_a_time = if m * k * n < PARALLEL { m } else { m.div_ceil(64) };
    out.par_chunks_mut(rows_at_a_time * n).enumerate().for_each(|(chunk, out)| {
        let first = chunk * rows_at_a_time;
        match sum {
            Sum::Double => double_rows(a, first, &padded, k, width, n, out),
            Sum::Fixed { fraction, limit } => {
                let scale = (1u32 << fraction) as f32;
                single_rows(a, first, k, n, out, &mut |row, column, out| {
                    row.iter_mut().for_each(|w| *w *= scale);
                    fixed(row, &singles, width, column, limit * f64::from(scale), out);
                    let back = f64::from(scale).recip();
                    out.iter_mut().for_each(|x| *x *= back);
                });
            }
            Sum::Grouped { limit } => {
                single_rows(a, first, k, n, out, &mut |row, column, out| {
                    grouped(row, &singles, width, column, limit, out);
                });
            }
        }
    });
    out
}

fn double_rows(
    a: Left<'_>,
    first: usize,
    b: &[f64],
    k: usize,
    width: usize,
    n: usize,
    out: &mut [f64],
) {
    let mut row = vec![0.0; k];
    for (i, out) in out.chunks_exact_mut(n).enumerate() {
        a.double_row(first + i, k, &mut row);
        for (block, out) in out.chunks_mut(LANES).enumerate() {
            let mut sums = [0.0; LANES];
            pulp::Arch::new()
                .dispatch(|| double_lanes(&row, &b[block * LANES..], width, &mut sums));
            out.copy_from_slice(&sums[..out.len()]);
        }
    }
}

#[inline(always)]
fn double_lanes(row: &[f64], b: &[f64], width: usize, sums: &mut [f64; LANES]) {
    for (i, &w) in row.iter().enumerate() {
        for (sum, &x) in sums.iter_mut().zip(&b[i * width..][..LANES]) {
            *sum += w * x;
        }
    }
}

/// One block of lanes of one row: the row (to be scaled once, hence mutable), the first column, the
/// results.
type Lanes<'a> = &'a mut dyn FnMut(&mut [f32], usize, &mut [f64]);

fn single_rows(a: Left<'_>, first: usize, k: usize, n: usize, out: &mut [f64], lanes: Lanes<'_>) {
    let mut row = vec![0.0f32; k];
    for (i, out) in out.chunks_exact_mut(n).enumerate() {
        for (block, out) in out.chunks_mut(LANES).enumerate() {
            a.row(first + i, k, &mut row);
            lanes(&mut row, block * LANES, out);
        }
    }
}

/// Sums of fixed-point numbers, in units of the last place.
fn fixed(row: &[f32], b: &[f32], width: usize, column: usize, limit: f64, out: &mut [f64]) {
    let (mut sums, mut totals) = ([0.0f64; LANES], [0.0f32; LANES]);
    let b = &b[column..];
    pulp::Arch::new().dispatch(|| fixed_lanes(row, b, width, &mut sums, &mut totals));
    // Totals are sums of magnitudes in `f32`: wrong by less than a thousandth for any length that
    // the engine takes. Below this no partial sum can have reached the limit, in whatever order.
    let safe = (limit * 0.999) as f32;
    for (lane, out) in out.iter_mut().enumerate() {
        let sum =
            if totals[lane] < safe { sums[lane] } else { sticky(row, &b[lane..], width, limit) };
        *out = sum;
    }
}

/// Nearest integer, halves away from zero: exact for products of two fp16 numbers, whose 22 bits
/// leave room for the half.
#[inline(always)]
fn round_half_away(x: f32) -> f32 {
    (x + 0.5f32.copysign(x)).trunc()
}

#[inline(always)]
fn fixed_lanes(
    row: &[f32],
    b: &[f32],
    width: usize,
    sums: &mut [f64; LANES],
    totals: &mut [f32; LANES],
) {
    for (i, &w) in row.iter().enumerate() {
        let x = &b[i * width..][..LANES];
        for lane in 0..LANES {
            let term = round_half_away(w * x[lane]);
            sums[lane] += f64::from(term);
            totals[lane] += term.abs();
        }
    }
}

/// The sum of one lane, step by step, infinite from the step at which it reaches the limit.
fn sticky(row: &[f32], b: &[f32], width: usize, limit: f64) -> f64 {
    let mut sum = 0.0f64;
    for (i, &w) in row.iter().enumerate() {
        let term = f64::from(round_half_away(w * b[i * width]));
        // NaN and infinity decode as large numbers.
        sum += if term.is_nan() { limit } else { term };
        if sum.abs() >= limit {
            return f64::INFINITY.copysign(sum);
        }
    }
    sum
}

fn grouped(row: &[f32], b: &[f32], width: usize, column: usize, limit: f64, out: &mut [f64]) {
    let mut sums = [0.0f32; LANES];
    let b = &b[column..];
    pulp::Arch::new().dispatch(|| grouped_lanes(row, b, width, &mut sums));
    for (out, sum) in out.iter_mut().zip(sums) {
        let sum = f64::from(sum);
        let beyond = sum.is_nan() || sum.abs() >= limit;
        *out = if beyond { f64::INFINITY.copysign(sum) } else { sum };
    }
}

/// Rounds to the 11 bits of fp16's significand (Veltkamp's splitting); exponents are not limited.
#[inline(always)]
fn eleven_bits(x: f32) -> f32 {
    let scaled = x * 8193.0;
    scaled - (scaled - x)
}

#[inline(always)]
fn grouped_lanes(row: &[f32], b: &[f32], width: usize, sums: &mut [f32; LANES]) {
    for (group, weights) in row.chunks(4).enumerate() {
        let mut partial = [0.0f32; LANES];
        for (i, &w) in weights.iter().enumerate() {
            let x = &b[(group * 4 + i) * width..][..LANES];
            for lane in 0..LANES {
                partial[lane] = eleven_bits(partial[lane] + w * x[lane]);
            }
        }
        for lane in 0..LANES {
            sums[lane] += partial[lane];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED: Sum = Sum::Fixed { fraction: 16, limit: 32768.0 };
    const GROUPED: Sum = Sum::Grouped { limit: 32758.8 };

    fn one(sum: Sum, a: &[f64], b: &[f64]) -> f64 {
        product(sum, Left::Floats(a), b, [1, a.len(), 1])[0]
    }

    #[test]
    fn small_products_are_lost_and_halves_round_away() {
        let ulp = (-16f64).exp2();
        assert_eq!(one(FIXED, &[(-8f64).exp2()], &[(-9f64).exp2()]), ulp);
        assert_eq!(one(FIXED, &[-(-8f64).exp2()], &[(-9f64).exp2()]), -ulp);
        assert_eq!(one(FIXED, &[(-9f64).exp2(); 1000], &[(-9f64).exp2(); 1000]), 0.0);
        assert_eq!(one(FIXED, &[1.5 * (-8f64).exp2()], &[(-8f64).exp2()]), 2.0 * ulp);
    }

    #[test]
    fn a_sum_that_reaches_the_limit_stays_infinite() {
        assert_eq!(one(FIXED, &[181.0, 1.0], &[181.0, 6.0]), 32767.0);
        assert_eq!(one(FIXED, &[181.0, 1.0], &[181.0, 7.0]), f64::INFINITY);
        assert_eq!(one(FIXED, &[200.0, 200.0], &[200.0, -200.0]), f64::INFINITY);
        assert_eq!(one(FIXED, &[-200.0, 200.0], &[200.0, 200.0]), f64::NEG_INFINITY);
        // In another order the same terms stay below: the magnitudes' total alone decides nothing.
        assert_eq!(one(FIXED, &[150.0, -150.0, 150.0], &[150.0, 150.0, 150.0]), 22500.0);
        assert_eq!(one(FIXED, &[f64::INFINITY], &[1.0]), f64::INFINITY);
        assert_eq!(one(FIXED, &[f64::NAN], &[1.0]), f64::INFINITY);
    }

    /// The measurement of the M1's accumulator: 4096 and 1024 ones make 5116 (the nearest fp16
    /// number to 5117).
    #[test]
    fn groups_of_four_lose_what_fp16_cannot_hold() {
        let ones = [4096.0].into_iter().chain([1.0; 1024]).collect::<Vec<_>>();
        assert_eq!(one(GROUPED, &ones, &vec![1.0; ones.len()]), 5117.0);
        assert_eq!(f16::from_f64(5117.0), f16::from_f64(5116.0));
        assert_eq!(one(GROUPED, &[200.0; 4], &[200.0; 4]), f64::INFINITY);
        assert_eq!(one(GROUPED, &[1.0, -1.0], &[4000.0, 4000.0]), 0.0);
    }

    /// Against the same sum in integers, one lane at a time, for sizes that do not fill the lanes.
    #[test]
    fn lanes_agree_with_integers() {
        let mut rng = fastrand::Rng::with_seed(7);
        for (m, k, n) in [(1, 1, 1), (3, 5, 2), (4, 33, 17), (70, 64, 64)] {
            let mut numbers = |len: usize| -> Vec<f64> {
                (0..len).map(|_| f16::from_f64(rng.f64() * 4.0 - 2.0).to_f64()).collect()
            };
            let (a, b) = (numbers(m * k), numbers(k * n));
            let halves: Vec<f16> = a.iter().map(|&x| f16::from_f64(x)).collect();
            let got = product(FIXED, Left::Halves(&halves), &b, [m, k, n]);
            let exact = product(Sum::Double, Left::Floats(&a), &b, [m, k, n]);
            for i in 0..m {
                for j in 0..n {
                    let terms = (0..k).map(|l| a[i * k + l] * b[l * n + j] * 65536.0);
                    let sum: i64 = terms.map(|t| t.round() as i64).sum();
                    assert_eq!(got[i * n + j], sum as f64 / 65536.0);
                    assert!((exact[i * n + j] - got[i * n + j]).abs() <= k as f64 / 131072.0);
                }
            }
        }
    }
}
