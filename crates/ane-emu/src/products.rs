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

/// Columns that are computed together where there are as many: enough sums at a time to hide the
/// latency of each.
const WIDE: usize = 64;

/// Rows that are copied at a time.
const MOST_ROWS: usize = 64;

/// Multiplications from which the rows are shared among threads.
const PARALLEL: usize = 1 << 18;

/// `a b` of `a` `[m, k]` and `b` `[k, n]`, row-major: `[m, n]`, not yet rounded to a type. All but
/// [`Sum::Double`] take what they multiply as `f32`, which fp16 numbers are exactly.
pub(crate) fn product(sum: Sum, a: Left<'_>, b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    if n == 0 || m == 0 {
        return out;
    }
    // Several rows at a time, for which a block of columns stays in the cache; not so many that their own
    // copies leave it.
    let parts = if m * k * n < PARALLEL { 1 } else { 4 * rayon::current_num_threads() };
    let rows_at_a_time = m.div_ceil(parts).min(MOST_ROWS);
    let chunks = out.par_chunks_mut(rows_at_a_time * n).enumerate();
    if sum == Sum::Double {
        let b = Columns::new(b, k, n);
        chunks.for_each(|(i, out)| double_rows(a, i * rows_at_a_time, &b, out));
        return out;
    }
    let b = Columns::<f32>::new(b, k, n);
    let largest = b.largest();
    chunks.for_each(|(i, out)| {
        let rows = Rows::new(a, i * rows_at_a_time, k, out.len() / n);
        match sum {
            Sum::Fixed { fraction, limit } => {
                let scale = (1u32 << fraction) as f32;
                let back = f64::from(scale).recip();
                let rows = rows.scaled(scale);
                fixed_rows(&rows, &b, &largest, limit * f64::from(scale), out);
                out.iter_mut().for_each(|x| *x *= back);
            }
            Sum::Grouped { limit } => grouped_rows(&rows, &b, limit, out),
            Sum::Double => {}
        }
    });
    out
}

/// The right matrix, its columns padded with zeros to whole lanes.
struct Columns<T> {
    values: Vec<T>,
    /// Columns, and with the padding.
    n: usize,
    width: usize,
}

impl<T: FromDouble> Columns<T> {
    fn new(b: &[f64], k: usize, n: usize) -> Self {
        let width = n.next_multiple_of(LANES);
        let mut values = vec![T::from_double(0.0); k * width];
        for (to, from) in values.chunks_exact_mut(width).zip(b.chunks_exact(n)) {
            to.iter_mut().zip(from).for_each(|(to, &x)| *to = T::from_double(x));
        }
        Columns { values, n, width }
    }
}

impl Columns<f32> {
    /// The largest magnitude in each block of lanes; NaN if there is one.
    fn largest(&self) -> Vec<f32> {
        let mut largest = vec![0.0f32; self.width / LANES];
        for row in self.values.chunks_exact(self.width) {
            for (largest, block) in largest.iter_mut().zip(row.chunks_exact(LANES)) {
                for x in block {
                    // What is no number must not be passed over, as `max` would.
                    *largest = if x.abs() > *largest || x.is_nan() { x.abs() } else { *largest };
                }
            }
        }
        largest
    }
}

/// A float that arithmetic is done in.
trait FromDouble: Copy {
    fn from_double(x: f64) -> Self;
}

impl FromDouble for f32 {
    fn from_double(x: f64) -> f32 {
        x as f32
    }
}

impl FromDouble for f64 {
    fn from_double(x: f64) -> f64 {
        x
    }
}

/// Some rows of the left matrix.
struct Rows {
    values: Vec<f32>,
    k: usize,
    count: usize,
}

impl Rows {
    fn new(a: Left<'_>, first: usize, k: usize, count: usize) -> Self {
        let mut values = vec![0.0; k * count];
        for (i, row) in values.chunks_exact_mut(k.max(1)).enumerate() {
            a.row(first + i, k, row);
        }
        Rows { values, k, count }
    }

    fn scaled(mut self, scale: f32) -> Self {
        self.values.iter_mut().for_each(|w| *w *= scale);
        self
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.k..][..self.k]
    }
}

fn double_rows(a: Left<'_>, first: usize, b: &Columns<f64>, out: &mut [f64]) {
    let k = b.values.len() / b.width;
    let mut row = vec![0.0; k];
    for (i, out) in out.chunks_exact_mut(b.n).enumerate() {
        a.double_row(first + i, k, &mut row);
        for (block, out) in out.chunks_mut(LANES).enumerate() {
            let mut sums = [0.0; LANES];
            let columns = b.values.get(block * LANES..).unwrap_or_default();
            let block = Block { row: &row[..], b: columns, width: b.width };
            pulp::Arch::new().dispatch(Doubles { block, sums: &mut sums });
            out.copy_from_slice(&sums[..out.len()]);
        }
    }
}

#[inline(always)]
fn double_lanes(block: Block<'_, f64>, sums: &mut [f64; LANES]) {
    let Block { row, b, width } = block;
    for (i, &w) in row.iter().enumerate() {
        for (sum, &x) in sums.iter_mut().zip(&b[i * width..][..LANES]) {
            *sum += w * x;
        }
    }
}

/// One row, and the matrix from a block of lanes on.
#[derive(Clone, Copy)]
struct Block<'a, T> {
    row: &'a [T],
    b: &'a [T],
    width: usize,
}

/// [`double_lanes`] by the processor's widest vectors. A closure would not be inlined where those are
/// allowed; hence these structures.
struct Doubles<'a> {
    block: Block<'a, f64>,
    sums: &'a mut [f64; LANES],
}

impl pulp::WithSimd for Doubles<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        double_lanes(self.block, self.sums);
    }
}

/// [`small_lanes`] by the processor's widest vectors.
struct Small<'a, const N: usize> {
    block: Block<'a, f32>,
    group: usize,
    sums: &'a mut [f64; WIDE],
}

impl<const N: usize> pulp::WithSimd for Small<'_, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        small_lanes::<N>(self.block, self.group, self.sums);
    }
}

/// [`fixed_lanes`] by the processor's widest vectors.
struct Fixed<'a> {
    block: Block<'a, f32>,
    sums: &'a mut [f64; LANES],
    totals: &'a mut [f32; LANES],
}

impl pulp::WithSimd for Fixed<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        fixed_lanes(self.block, self.sums, self.totals);
    }
}

/// [`grouped_lanes`] by the processor's widest vectors.
struct Grouped<'a, const N: usize> {
    block: Block<'a, f32>,
    sums: &'a mut [f32; WIDE],
}

impl<const N: usize> pulp::WithSimd for Grouped<'_, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        grouped_lanes::<N>(self.block, self.sums);
    }
}

/// Calls `f` with the first column of each block and its width, [`WIDE`] or [`LANES`].
fn for_each_block(width: usize, mut f: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at < width {
        let size = if at + WIDE <= width { WIDE } else { LANES };
        f(at, size);
        at += size;
    }
}

/// Sums of fixed-point numbers, in units of the last place.
fn fixed_rows(rows: &Rows, b: &Columns<f32>, largest: &[f32], limit: f64, out: &mut [f64]) {
    // The bounds are sums in `f32`, wrong by at most 2^-24 a term: 0.2 % for the longest sums that the
    // engine takes. Below this no partial sum can have reached the limit, in whatever order.
    let safe = (limit * 0.995) as f32;
    let bounds: Vec<[f32; 2]> = (0..rows.count).map(|i| sum_and_most(rows.row(i))).collect();
    for_each_block(b.width, |at, size| {
        let block = &largest[at / LANES..(at + size) / LANES];
        let any = block.iter().fold(0.0f32, |m, &x| if x > m || x.is_nan() { x } else { m });
        for (i, [sum, most]) in bounds.iter().enumerate() {
            let row = rows.row(i);
            let columns = b.values.get(at..).unwrap_or_default();
            let mut sums = [0.0; WIDE];
            // Whole numbers below 2^24 add up exactly in `f32`, this many at a time.
            let group = ((1 << 24) as f32 / (most * any + 1.0)) as usize;
            if sum * any < safe && group >= 4 {
                let (arch, block) = (pulp::Arch::new(), Block { row, b: columns, width: b.width });
                match size {
                    WIDE => arch.dispatch(Small::<WIDE> { block, group, sums: &mut sums }),
                    _ => arch.dispatch(Small::<LANES> { block, group, sums: &mut sums }),
                }
            } else {
                for (lane, sums) in sums[..size].chunks_exact_mut(LANES).enumerate() {
                    fixed(
                        row,
                        columns.get(lane * LANES..).unwrap_or_default(),
                        b.width,
                        safe,
                        limit,
                        sums,
                    );
                }
            }
            let size = size.min(b.n - at);
            out[i * b.n + at..][..size].copy_from_slice(&sums[..size]);
        }
    });
}

/// The sum of magnitudes and the largest; lane by lane, for which no addition waits for the one before.
fn sum_and_most(row: &[f32]) -> [f32; 2] {
    let (mut sums, mut most) = ([0.0f32; LANES], [0.0f32; LANES]);
    for part in row.chunks(LANES) {
        for ((sum, most), w) in sums.iter_mut().zip(&mut most).zip(part) {
            *sum += w.abs();
            *most = most.max(w.abs());
        }
    }
    [sums.iter().sum(), most.iter().fold(0.0, |a, &b| a.max(b))]
}

/// One row by one block of lanes whose terms may be large.
fn fixed(row: &[f32], b: &[f32], width: usize, safe: f32, limit: f64, out: &mut [f64]) {
    let (mut sums, mut totals) = ([0.0f64; LANES], [0.0f32; LANES]);
    let block = Block { row, b, width };
    pulp::Arch::new().dispatch(Fixed { block, sums: &mut sums, totals: &mut totals });
    for (lane, out) in out.iter_mut().enumerate() {
        *out = if totals[lane] < safe { sums[lane] } else { sticky(row, &b[lane..], width, limit) };
    }
}

/// One row by one block of lanes, `group` of whose terms stay below 2^24 together.
#[inline(always)]
fn small_lanes<const N: usize>(block: Block<'_, f32>, group: usize, out: &mut [f64; WIDE]) {
    let Block { row, b, width } = block;
    let mut sums = [0.0f64; N];
    for (g, weights) in row.chunks(group).enumerate() {
        let mut partial = [0.0f32; N];
        for (i, &w) in weights.iter().enumerate() {
            let x = &b[(g * group + i) * width..][..N];
            for lane in 0..N {
                partial[lane] += round_half_away(w * x[lane]);
            }
        }
        for lane in 0..N {
            sums[lane] += f64::from(partial[lane]);
        }
    }
    out[..N].copy_from_slice(&sums);
}

/// Nearest integer, halves away from zero: exact for products of two fp16 numbers, whose 22 bits
/// leave room for the half.
#[inline(always)]
fn round_half_away(x: f32) -> f32 {
    (x + 0.5f32.copysign(x)).trunc()
}

#[inline(always)]
fn fixed_lanes(block: Block<'_, f32>, sums: &mut [f64; LANES], totals: &mut [f32; LANES]) {
    let Block { row, b, width } = block;
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

fn grouped_rows(rows: &Rows, b: &Columns<f32>, limit: f64, out: &mut [f64]) {
    for_each_block(b.width, |at, size| {
        for i in 0..rows.count {
            let columns = b.values.get(at..).unwrap_or_default();
            let mut sums = [0.0f32; WIDE];
            let (arch, block) =
                (pulp::Arch::new(), Block { row: rows.row(i), b: columns, width: b.width });
            match size {
                WIDE => arch.dispatch(Grouped::<WIDE> { block, sums: &mut sums }),
                _ => arch.dispatch(Grouped::<LANES> { block, sums: &mut sums }),
            }
            let size = size.min(b.n - at);
            for (out, sum) in out[i * b.n + at..][..size].iter_mut().zip(sums) {
                let sum = f64::from(sum);
                // NaN counts as a large number, whatever its sign bit says.
                *out = match sum.is_nan() {
                    true => f64::INFINITY,
                    false if sum.abs() >= limit => f64::INFINITY.copysign(sum),
                    false => sum,
                };
            }
        }
    });
}

/// Rounds to the 11 bits of fp16's significand (Veltkamp's splitting); exponents are not limited.
#[inline(always)]
fn eleven_bits(x: f32) -> f32 {
    let scaled = x * 8193.0;
    let short = scaled - (scaled - x);
    if x.is_finite() { short } else { x }
}

#[inline(always)]
fn grouped_lanes<const N: usize>(block: Block<'_, f32>, out: &mut [f32; WIDE]) {
    let Block { row, b, width } = block;
    let mut sums = [0.0f32; N];
    for (group, weights) in row.chunks(4).enumerate() {
        let mut partial = [0.0f32; N];
        for (i, &w) in weights.iter().enumerate() {
            let x = &b[(group * 4 + i) * width..][..N];
            for lane in 0..N {
                partial[lane] = eleven_bits(partial[lane] + w * x[lane]);
            }
        }
        for lane in 0..N {
            sums[lane] += partial[lane];
        }
    }
    out[..N].copy_from_slice(&sums);
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

    /// One column of a wide block that saturates, and one that holds no number, leave the others alone.
    #[test]
    fn columns_saturate_by_themselves() {
        let mut b = vec![1.0; 2 * 70];
        (b[66], b[70 + 66], b[3]) = (200.0, 200.0, f64::NAN);
        for sum in [FIXED, GROUPED] {
            let got = product(sum, Left::Floats(&[200.0, 100.0]), &b, [1, 2, 70]);
            for (i, x) in got.into_iter().enumerate() {
                let wanted = if matches!(i, 3 | 66) { f64::INFINITY } else { 300.0 };
                assert_eq!(x, wanted, "column {i}");
            }
        }
    }

    /// The measurement of the M1's accumulator: 4096 and 1024 ones make 5116 (the nearest fp16
    /// number to 5117).
    #[test]
    fn groups_of_four_lose_what_fp16_cannot_hold() {
        let ones = [4096.0].into_iter().chain([1.0; 1024]).collect::<Vec<_>>();
        assert_eq!(one(GROUPED, &ones, &vec![1.0; ones.len()]), 5117.0);
        assert_eq!(f16::from_f64(5117.0), f16::from_f64(5116.0));
        assert_eq!(one(GROUPED, &[200.0; 4], &[200.0; 4]), f64::INFINITY);
        assert_eq!(one(GROUPED, &[f64::INFINITY], &[1.0]), f64::INFINITY);
        assert_eq!(one(GROUPED, &[f64::INFINITY], &[-1.0]), f64::NEG_INFINITY);
        assert_eq!(one(GROUPED, &[1.0, -1.0], &[4000.0, 4000.0]), 0.0);
    }

    /// Against the same sum in integers, one lane at a time, for sizes that do not fill the lanes.
    #[test]
    fn lanes_agree_with_integers() {
        let mut rng = fastrand::Rng::with_seed(7);
        for (m, k, n) in [(1, 1, 1), (3, 5, 2), (4, 33, 17), (70, 64, 64), (5, 200, 150)] {
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
