//! Matrix products with weights in any float or block-quantised type.

use std::ops::Range;

use tensor::DType;

use crate::format::is_readable;
use crate::gemm::{Gemm, Out};
use crate::gemv::{Gemv, Input};
use crate::panel::{Left, PANEL, Words, with_rows};
use crate::share::Shared;
use crate::{KernelError, Pool};

/// Up to this many input rows, weights are used as they are decoded; beyond, by way of a block in the
/// cache, whose tiles compute 16 rows even when there are fewer.
const GEMV_ROWS: usize = 8;
/// Weights that one task reads: some microseconds of work.
const TASK_BYTES: usize = 1 << 15;

/// A row-major weight matrix `[rows, cols]` over raw bytes, which need no alignment.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// A view of `bytes` as `[rows, cols]` elements of `dtype`.
    ///
    /// # Errors
    /// When `dtype` is neither `fp32`, `fp16`, `bf16` nor a block format, or the bytes do not fit.
    pub fn new(
        dtype: DType,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, KernelError> {
        if !is_readable(dtype) {
            return Err(KernelError::Unsupported(dtype));
        }
        let expected = dtype.byte_len(cols).and_then(|b| b.checked_mul(rows));
        if expected != Some(bytes.len()) {
            return Err(KernelError::MatrixBytes { dtype, rows, cols, actual: bytes.len() });
        }
        Ok(Matrix { dtype, rows, cols, bytes })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of rows (outputs).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row (inputs).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes a row takes.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of row `row`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.row_bytes()..][..self.row_bytes()]
    }

    /// Row `row` where it lies, if it is of aligned `fp32`.
    pub(crate) fn floats(&self, row: usize) -> Option<&'a [f32]> {
        let bytes = (self.dtype == DType::F32).then(|| self.row(row))?;
        bytemuck::try_cast_slice(bytes).ok()
    }

    /// The rows `range` as a matrix of their own.
    ///
    /// # Panics
    /// When the range leaves the matrix.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let size = self.row_bytes();
        Matrix {
            rows: range.len(),
            bytes: &self.bytes[range.start * size..range.end * size],
            ..*self
        }
    }
}

/// One product of [`matmul_many`].
pub struct Linear<'a> {
    /// Weights `[N, K]`.
    pub weight: Matrix<'a>,
    /// Added to every row of the result: `[N]`.
    pub bias: Option<&'a [f32]>,
    /// The result `[M, N]`, overwritten.
    pub out: &'a mut [f32],
}

/// `out[M, N] = x[M, K] · weight[N, K]ᵀ + bias[N]`; `M` follows from the length of `x`.
///
/// # Panics
/// When a slice does not have the length that its shape says.
pub fn matmul(pool: &Pool, x: &[f32], weight: Matrix<'_>, bias: Option<&[f32]>, out: &mut [f32]) {
    matmul_many(pool, x, &mut [Linear { weight, bias, out }]);
}

/// Several products with the same `x[M, K]` in one go, which saves the threads from meeting between
/// them (queries, keys and values; gate and up projection).
///
/// # Panics
/// When a slice does not have the length that its shape says.
pub fn matmul_many(pool: &Pool, x: &[f32], products: &mut [Linear<'_>]) {
    let Some(k) = products.first().map(|p| p.weight.cols) else { return };
    let m = x.len().checked_div(k).unwrap_or(0);
    assert_eq!(x.len(), m * k, "input is not whole rows of {k}");
    for Linear { weight, bias, out } in products.iter() {
        let n = weight.rows;
        assert_eq!(weight.cols, k, "weights differ in their number of inputs");
        assert_eq!(out.len(), m * n, "output is not [{m}, {n}]");
        assert!(bias.is_none_or(|b| b.len() == n), "bias is not [{n}]");
    }
    if m > GEMV_ROWS && k > 0 {
        with_rows(pool, x, k, Words::of(pool), |right| {
            let tasks = split(
                products,
                |_| PANEL,
                |weight, bias, out, first, stride| {
                    let bias = bias.map(|b| &b[first..]);
                    let out = Out { out, stride, first, turned: true, add: false, bias };
                    Gemm { left: Left::Rows(weight), right, rows: (0, weight.rows), out }
                },
            );
            pool.run(tasks.len(), |i| tasks[i].run(pool));
        });
    } else {
        let input = &Input::new(x, m, k);
        let step = |row_bytes: usize| (TASK_BYTES / row_bytes).next_multiple_of(4).max(4);
        let tasks = split(products, step, |weight, bias, out, first, stride| Gemv {
            input,
            weight,
            bias,
            out,
            first,
            stride,
        });
        pool.run(tasks.len(), |i| pool.isa().run(tasks[i]));
    }
}

/// Tasks of `step` weight rows, which may depend on the bytes of a row: made by `task` from those
/// rows, the bias, the output, the number of the first row, and the number of all.
fn split<'a, T>(
    products: &'a mut [Linear<'_>],
    step: impl Fn(usize) -> usize,
    task: impl Fn(Matrix<'a>, Option<&'a [f32]>, Shared<'a, f32>, usize, usize) -> T,
) -> Vec<T> {
    let mut tasks = Vec::new();
    for Linear { weight, bias, out } in products {
        let (n, out) = (weight.rows, Shared::new(out));
        let step = step(weight.row_bytes().max(1));
        for first in (0..n).step_by(step) {
            let rows = weight.slice(first..n.min(first + step));
            tasks.push(task(rows, *bias, out, first, n));
        }
    }
    tasks
}
