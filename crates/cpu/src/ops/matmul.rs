//! Products of two computed tensors.

use kernels::Matrix;
use mil::{ErrorKind, OpError};
use tensor::DType;

use super::strided::{Walk, row_major, strides_in};
use crate::kernel::{Kernel, Native, Operand, RunCx, f32s, f32s_mut};
use crate::op_cx::{Bind, OpCx};

/// Binds `matmul` of tensors of at least two axes, with broadcasting over the axes before those.
pub(crate) fn matmul(cx: &mut OpCx<'_>) -> Bind<Native> {
    let (x, y) = (cx.float("x")?, cx.float("y")?);
    let (_, out) = cx.result(0)?;
    if x.shape.len() < 2 || y.shape.len() < 2 {
        return Err("a vector".into());
    }
    // The kernel multiplies rows with rows: `x` as [M, K] and `y` as [N, K].
    let left = Side::new(&x, &out, cx.view.bool_or("transpose_x", false)?)?;
    let right = Side::new(&y, &out, !cx.view.bool_or("transpose_y", false)?)?;
    let (m, k, n) = (left.rows, left.cols, right.rows);
    if k == 0 {
        return Err("rows without elements".into());
    }
    let scratch = [left.scratch(), right.scratch()];
    let batch = out[..out.len() - 2].to_vec();
    let kernel = Matmul { batch, left, right, m, k, n };
    Ok(Native::floats(kernel, vec![x, y]).with_scratch(&scratch))
}

/// One argument.
struct Side {
    /// Rows as the kernel sees them.
    rows: usize,
    cols: usize,
    /// Strides over the batch axes of the result, in elements.
    strides: Vec<usize>,
    /// The copy to rows, if it lies in columns.
    turn: Option<Walk>,
}

impl Side {
    fn new(x: &Operand, out: &[usize], turned: bool) -> Bind<Self> {
        let (lead, last) = x.shape.split_at(x.shape.len() - 2);
        let batch = &out[..out.len() - 2];
        let (rows, cols) = if turned { (last[1], last[0]) } else { (last[0], last[1]) };
        let walk = || Walk::new(0, &[rows, cols], vec![1, rows], size_of::<f32>());
        let turn = turned.then(walk).transpose()?;
        let own = row_major(&x.shape);
        let size = last[0] * last[1];
        let strides = strides_in(lead, batch);
        debug_assert!(lead.is_empty() || own[lead.len() - 1] == size);
        let strides = strides.into_iter().map(|s| s * size).collect();
        Ok(Side { rows, cols, strides, turn })
    }

    fn scratch(&self) -> usize {
        if self.turn.is_some() { self.rows * self.cols } else { 0 }
    }

    /// The rows of batch item `n`.
    fn rows<'a>(
        &self,
        cx: &RunCx<'_>,
        batch: &[usize],
        mut n: usize,
        x: &'a [u8],
        scratch: &'a mut [u8],
    ) -> &'a [u8] {
        let mut at = 0;
        for (size, stride) in batch.iter().zip(&self.strides).rev() {
            at += n % size * stride;
            n /= size;
        }
        let item = &x[at * size_of::<f32>()..][..self.rows * self.cols * size_of::<f32>()];
        match &self.turn {
            None => item,
            Some(walk) => {
                walk.copy(cx.pool, item, scratch);
                scratch
            }
        }
    }
}

struct Matmul {
    batch: Vec<usize>,
    left: Side,
    right: Side,
    m: usize,
    k: usize,
    n: usize,
}

impl Kernel for Matmul {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let [out, left, right] = outs else { return Ok(()) };
        let (m, n) = (self.m, self.n);
        for (i, out) in f32s_mut(out).chunks_exact_mut((m * n).max(1)).enumerate() {
            let x = self.left.rows(cx, &self.batch, i, ins[0], left);
            let y = self.right.rows(cx, &self.batch, i, ins[1], right);
            let weight = Matrix::new(DType::F32, n, self.k, y)
                .map_err(|e| OpError { kind: ErrorKind::Bug, message: e.to_string() })?;
            kernels::matmul(cx.pool, f32s(x), weight, None, out);
        }
        Ok(())
    }
}
