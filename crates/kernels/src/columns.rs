//! Products whose right side lies in columns: convolutions, products of computed matrices, gradients.
//!
//! `out[r, p] = Σ_k weight[r, k] * right[k, p] + bias[r]`, where a [`Source`] gives the right side in
//! the panels that [`crate::gemm`] works on: as it lies, or as a convolution gathers it. A task packs
//! as many panels as stay in the cache and takes all or some of the weight rows past them. The sums
//! run over `k` in order, whatever the split.

use std::ops::Range;

use tensor::DType;

use crate::Pool;
use crate::arch::{Kernel, LANES, Simd};
use crate::convert::Decode;
use crate::gemm::{Gemm, Out, Tiles};
use crate::matmul::{Matrix, matmul};
use crate::panel::{
    DEPTH, Left, PANEL, Packed, STRIDE, WIDTH, Words, numbers, with_columns, with_rows,
};
use crate::scratch::Scratch;
use crate::share::Shared;

/// Bytes of the packed right side that a task keeps in the cache.
const PACKED_BYTES: usize = 1 << 20;
/// Bytes of a packed right side that all tasks share.
const PACKED_LANES_BYTES: usize = 1 << 23;
/// Panels of a task at most: enough to make decoding the weights cheap.
const PANELS: usize = 8;
/// Weight rows of a task at least, in panels, so that packing is cheap beside them.
const ROW_PANELS: usize = 4;
/// Up to this many columns the weights are read in place, once for all.
const FEW: usize = 8;
/// Up to this many weight rows, a matrix on the right is read in place, once for all.
const FEW_ROWS: usize = 4;

/// A right side `[depth, columns]`.
pub(crate) trait Source: Sync {
    /// Number of columns.
    fn columns(&self) -> usize;

    /// All elements of the columns from `first` on, at most [`WIDTH`] of them, `out[k][p]`; what
    /// exceeds them is zero.
    fn fill<S: Simd>(&self, s: S, first: usize, out: &mut [[f32; WIDTH]]);
}

/// `out[M, N] = x[M, K] · y[K, N]`.
///
/// # Panics
/// When a slice does not have the length that its shape says, or `y` is not of `fp32`, `fp16` or `bf16`.
pub fn matmul_columns(pool: &Pool, x: Matrix<'_>, y: Matrix<'_>, out: &mut [f32]) {
    let (m, k, n) = (x.rows(), x.cols(), y.cols());
    assert_eq!(y.rows(), k, "the matrices do not go together");
    assert_eq!(out.len(), m * n, "output is not [{m}, {n}]");
    assert!(is_plain(y.dtype()), "columns of {}", y.dtype());
    if k == 0 {
        return out.fill(0.0);
    }
    if m <= FEW_ROWS && x.dtype() == DType::F32 {
        let out = Shared::new(out);
        let step = 4 * LANES;
        pool.run(n.div_ceil(step), |i| {
            let columns = i * step..n.min((i + 1) * step);
            for row in 0..m {
                let at = row * n;
                // SAFETY: the columns of a task are its own.
                let out = unsafe { out.slice(at + columns.start..at + columns.end) };
                pool.isa().run(RowTimes { x: x.row(row), y, first: columns.start, out });
            }
        });
        return;
    }
    columns(pool, x, y, false, out);
}

/// [`matmul_columns`] of many rows, or that added to `out`.
pub(crate) fn columns(pool: &Pool, x: Matrix<'_>, y: Matrix<'_>, add: bool, out: &mut [f32]) {
    let (m, k, n) = (x.rows(), x.cols(), y.cols());
    if y.dtype() == DType::F32
        && x.dtype() == DType::F32
        && n >= m
        && let (Ok(x), Ok(y)) =
            (bytemuck::try_cast_slice(x.bytes()), bytemuck::try_cast_slice(y.bytes()))
    {
        // The greater side makes the tasks.
        return tasks(pool, Left::Columns { x: y, rows: n }, n, Right::Rows { x, k }, add, out);
    }
    tasks(pool, Left::Rows(x), m, Right::Columns(y), add, out);
}

/// `out[M, N] = x[K, M]ᵀ · y[K, N]`, or that is added to it.
///
/// # Panics
/// As [`matmul_columns`].
pub fn matmul_turned(pool: &Pool, x: &[f32], y: Matrix<'_>, add: bool, out: &mut [f32]) {
    let (k, n) = (y.rows(), y.cols());
    let m = x.len().checked_div(k).unwrap_or(0);
    assert_eq!(x.len(), m * k, "the matrices do not go together");
    assert_eq!(out.len(), m * n, "output is not [{m}, {n}]");
    assert!(is_plain(y.dtype()), "columns of {}", y.dtype());
    if k == 0 {
        if !add {
            out.fill(0.0);
        }
        return;
    }
    tasks(pool, Left::Columns { x, rows: m }, m, Right::Columns(y), add, out);
}

/// Types whose numbers can be taken from the middle of a row.
fn is_plain(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// A right side that is packed for all tasks.
enum Right<'a> {
    /// `[lanes, k]`; the output then is `[lanes, rows]`.
    Rows { x: &'a [f32], k: usize },
    /// `[k, lanes]`; the output is `[rows, lanes]`.
    Columns(Matrix<'a>),
}

/// The products of all `rows` of the left side with the right one.
fn tasks(pool: &Pool, left: Left<'_>, rows: usize, right: Right<'_>, add: bool, out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    let turned = matches!(right, Right::Rows { .. });
    let lanes = out.len() / rows;
    let out = Shared::new(out);
    let run = |right: &Packed<'_>, first: usize| {
        pool.run(rows.div_ceil(PANEL), |i| {
            let stride = if turned { rows } else { lanes };
            let taken = (i * PANEL, PANEL.min(rows - i * PANEL));
            let out = Out { out, stride, first, turned, add, bias: None };
            Gemm { left, right, rows: taken, out }.run(pool);
        });
    };
    let kind = Words::of(pool);
    match right {
        Right::Rows { x, k } => with_rows(pool, x, k, kind, |right| run(right, 0)),
        Right::Columns(y) => {
            // Some lanes at a time, so that what is packed stays in a cache.
            let panel_bytes = kind.count(y.rows()) * WIDTH * size_of::<f32>();
            let step = (PACKED_LANES_BYTES / panel_bytes.max(1)).max(1) * WIDTH;
            for first in (0..lanes).step_by(step) {
                let count = step.min(lanes - first);
                with_columns(pool, y, first, count, kind, |right| run(right, first));
            }
        }
    }
}

/// One row times some columns of a matrix, which is read in place.
struct RowTimes<'a> {
    /// `fp32` in bytes.
    x: &'a [u8],
    y: Matrix<'a>,
    first: usize,
    /// At most four vectors.
    out: &'a mut [f32],
}

impl Kernel for RowTimes<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.y.dtype().block_bytes();
        let count = self.out.len();
        let mut sums = [s.splat(0.0); 4];
        let mut row = [0f32; WIDTH];
        for (k, x) in self.x.as_chunks().0.iter().enumerate() {
            let x = s.splat(f32::from_le_bytes(*x));
            let bytes = &self.y.row(k)[self.first * width..][..count * width];
            for (sums, bytes) in
                sums.as_chunks_mut::<2>().0.iter_mut().zip(bytes.chunks(WIDTH * width))
            {
                numbers(s, self.y.dtype(), bytes, &mut row);
                for (sum, v) in sums.iter_mut().zip(row.as_chunks().0) {
                    *sum = s.fma(x, s.load(v), *sum);
                }
            }
        }
        let mut all = [[0f32; LANES]; 4];
        all.iter_mut().zip(sums).for_each(|(o, v)| s.store(v, o));
        self.out.copy_from_slice(&all.as_flattened()[..count]);
    }
}

/// `out[rows, columns] = weight[rows, depth] · right + bias`.
pub(crate) fn product<R: Source>(
    pool: &Pool,
    weight: Matrix<'_>,
    right: &R,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let (rows, depth, columns) = (weight.rows(), weight.cols(), right.columns());
    if columns == 0 || rows == 0 {
        return;
    }
    if depth == 0 {
        let rows = out.chunks_exact_mut(columns).enumerate();
        return rows.for_each(|(row, out)| out.fill(bias.map_or(0.0, |b| b[row])));
    }
    if columns <= FEW {
        return few(pool, weight, right, bias, out);
    }
    let panel_bytes = depth * WIDTH * size_of::<f32>();
    let panels = (PACKED_BYTES / panel_bytes).clamp(1, PANELS) * WIDTH;
    let row_step = ROW_PANELS * PANEL;
    let chunks = columns.div_ceil(panels);
    let parts = rows.div_ceil(row_step);
    let out = Shared::new(out);
    pool.run(chunks * parts, |i| {
        let (chunk, part) = (i / parts, i % parts);
        let task = Task {
            weight,
            right,
            bias,
            columns: chunk * panels..columns.min((chunk + 1) * panels),
            rows: part * row_step..rows.min((part + 1) * row_step),
            out,
        };
        pool.isa().run(task);
    });
}

/// Some rows of the weight times some columns of the right side.
struct Task<'a, R> {
    weight: Matrix<'a>,
    right: &'a R,
    bias: Option<&'a [f32]>,
    columns: Range<usize>,
    rows: Range<usize>,
    out: Shared<'a, f32>,
}

impl<R: Source> Kernel for Task<'_, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let depth = self.weight.cols();
        let panels = self.columns.len().div_ceil(WIDTH);
        let lanes = panels * (depth + PANEL) * WIDTH;
        let mut scratch = Scratch::new(lanes + PANEL * STRIDE);
        let buffer = &mut scratch[..];
        let (lanes, block) = buffer.split_at_mut(lanes);
        let (packed, sums) = lanes.as_chunks_mut::<WIDTH>().0.split_at_mut(panels * depth);
        for (p, packed) in packed.chunks_exact_mut(depth).enumerate() {
            self.right.fill(s, self.columns.start + p * WIDTH, packed);
        }
        for first in self.rows.clone().step_by(PANEL) {
            let rows = first..self.rows.end.min(first + PANEL);
            for k in (0..depth).step_by(DEPTH) {
                let taken = DEPTH.min(depth - k);
                for (row, out) in rows.clone().zip(block.chunks_mut(STRIDE)) {
                    let out = &mut out[..taken];
                    Decode { matrix: self.weight, row, first: k, out }.run(s);
                }
                let rows = rows.len();
                let (lanes, words) = (self.columns.len(), (depth, k, taken));
                let panels = &packed[..];
                Tiles { panels, lanes, words, block, rows, fresh: k == 0, sums }.run(s);
            }
            self.write(rows, sums);
        }
    }
}

impl<R: Source> Task<'_, R> {
    #[inline(always)]
    fn write(&self, rows: Range<usize>, sums: &[[f32; WIDTH]]) {
        for (i, row) in rows.enumerate() {
            let bias = self.bias.map_or(0.0, |b| b[row]);
            let start = row * self.right.columns();
            let at = start + self.columns.start..start + self.columns.end;
            // SAFETY: rows and columns of a task are its own.
            let out = unsafe { self.out.slice(at) };
            for (out, sums) in out.chunks_mut(WIDTH).zip(sums.chunks(PANEL)) {
                out.iter_mut().zip(&sums[i]).for_each(|(o, sum)| *o = sum + bias);
            }
        }
    }
}

/// As [`product`] for few columns: these become rows, and the weights stream through once.
fn few<R: Source>(
    pool: &Pool,
    weight: Matrix<'_>,
    right: &R,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let (rows, depth, columns) = (weight.rows(), weight.cols(), right.columns());
    let mut scratch = Scratch::new(depth * WIDTH + columns * (depth + rows));
    let buffer = &mut scratch[..];
    let (panel, rest) = buffer.split_at_mut(depth * WIDTH);
    let (x, y) = rest.split_at_mut(columns * depth);
    let panel = panel.as_chunks_mut::<WIDTH>().0;
    pool.isa().run(Fill { right, out: panel });
    for (p, x) in x.chunks_exact_mut(depth).enumerate() {
        x.iter_mut().zip(&*panel).for_each(|(x, lanes)| *x = lanes[p]);
    }
    matmul(pool, x, weight, bias, y);
    for (p, y) in y.chunks_exact(rows).enumerate() {
        out[p..].iter_mut().step_by(columns).zip(y).for_each(|(o, y)| *o = *y);
    }
}

/// The first panel of a right side.
struct Fill<'a, R> {
    right: &'a R,
    out: &'a mut [[f32; WIDTH]],
}

impl<R: Source> Kernel for Fill<'_, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.right.fill(s, 0, self.out);
    }
}
