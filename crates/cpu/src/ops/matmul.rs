//! Products of two computed tensors.

use std::borrow::Cow;

use kernels::{Matrix, Pool};
use mil::{Arg, ErrorKind, OpError, OpKind};
use tensor::DType;

use super::for_each_item;
use super::strided::{Walk, row_major, strides_in};
use crate::kernel::{Kernel, Native, Operand, RunCx, f32s, f32s_mut};
use crate::op_cx::{Bind, OpCx, fixed};

/// Binds `matmul` of tensors of at least two axes, with broadcasting over the axes before those.
pub(crate) fn matmul(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x = cx.float("x")?;
    let (_, out) = cx.result(0)?;
    let right = Matrices::stored(cx, "y", &out)?;
    if x.shape.len() < 2 || right.operand.shape.len() < 2 {
        return Err("a vector".into());
    }
    let turned = cx.view.bool_or("transpose_x", false)?;
    let columns = !cx.view.bool_or("transpose_y", false)?;
    let left = Matrices::new(x, &out);
    let k = if turned { left.rows } else { left.cols };
    if k == 0 {
        return Err("rows without elements".into());
    }
    let turn = turned.then(|| Walk::new(0, &[left.cols, left.rows], vec![1, left.cols], 4));
    let turn = turn.transpose()?;
    let inputs = vec![left.operand.clone(), right.operand.clone()];
    let size = out[out.len() - 2] * out[out.len() - 1];
    let (left, right) = (left.places(), right.places());
    Ok(Native::floats(Matmul { left, right, turn, columns, size }, inputs))
}

/// An operand of matrices in its last two axes.
pub(super) struct Matrices {
    pub(super) operand: Operand,
    /// Of a matrix, as stored.
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Sizes and steps, in matrices, of the axes that together number the results' matrices.
    axes: Vec<(usize, usize)>,
}

/// How the matrices of an operand lie.
pub(super) struct MatrixPlaces {
    dtype: DType,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Number of matrices.
    count: usize,
    axes: Vec<(usize, usize)>,
}

impl Matrices {
    /// `operand`, whose axes before the last two broadcast to those of `out`.
    pub(super) fn new(operand: Operand, out: &[usize]) -> Self {
        let (lead, last) = operand.shape.split_at(operand.shape.len().saturating_sub(2));
        let batch = &out[..out.len().saturating_sub(2)];
        let axes = batch.iter().copied().zip(strides_in(lead, batch)).collect();
        let (rows, cols) = match *last {
            [rows, cols] => (rows, cols),
            _ => (1, last.iter().product()),
        };
        Matrices { rows, cols, axes, operand }
    }

    /// The argument `name` in the precision that it is stored in: a conversion of half precision to
    /// single is looked through, and so is the repetition of heads for grouped queries.
    pub(super) fn stored(cx: &mut OpCx<'_>, name: &str, out: &[usize]) -> Bind<Self> {
        let arg = as_stored(cx, cx.view.required(name)?);
        if let Some((heads, times, shape)) = repeated(cx, arg) {
            let mut operand = cx.floats_of(as_stored(cx, heads), name)?;
            operand.shape = vec![shape[0], shape[1], shape[2], shape[3]];
            let mut of_heads = Matrices::new(operand, &[shape[0], shape[1], 1, 1]);
            of_heads.axes.push((times, 0));
            return Ok(of_heads);
        }
        Ok(Matrices::new(cx.floats_of(arg, name)?, out))
    }

    pub(super) fn places(&self) -> MatrixPlaces {
        let Matrices { operand, rows, cols, axes } = self;
        let count = operand.len().checked_div(rows * cols).unwrap_or(0);
        MatrixPlaces { dtype: operand.dtype, rows: *rows, cols: *cols, count, axes: axes.clone() }
    }
}

impl MatrixPlaces {
    /// All matrices as one, one below the other.
    pub(super) fn over<'a>(&self, bytes: &'a [u8]) -> Result<Matrix<'a>, OpError> {
        Matrix::new(self.dtype, self.count * self.rows, self.cols, bytes)
            .map_err(|e| OpError { kind: ErrorKind::Bug, message: e.to_string() })
    }

    /// The number of the matrix that goes into the result's matrix `n`.
    pub(super) fn of(&self, mut n: usize) -> usize {
        let mut at = 0;
        for (size, step) in self.axes.iter().rev() {
            at += n % size * step;
            n /= size;
        }
        at
    }
}

/// `arg` before it was converted from half to single precision, if it was.
fn as_stored<'a>(cx: &OpCx<'a>, arg: &'a Arg) -> &'a Arg {
    let function = cx.view.function;
    let Some((id, _)) = cx.maker(arg) else { return arg };
    let op = &function.ops[id];
    let dtype = |arg: &Arg| match arg {
        Arg::Value(v) => function.tensor_ty(*v).map(|t| t.dtype),
        _ => None,
    };
    match op.arg("x") {
        Some(x)
            if op.kind == OpKind::Cast
                && dtype(x) == Some(DType::F16)
                && dtype(arg) == Some(DType::F32) =>
        {
            x
        }
        _ => arg,
    }
}

/// If `arg` `[B, G * R, S, D]` is `[B, G, S, D]` with each head `R` times in a row: the latter, `R`,
/// and its sizes.
fn repeated<'a>(cx: &OpCx<'a>, arg: &'a Arg) -> Option<(&'a Arg, usize, [usize; 4])> {
    let function = cx.view.function;
    let made = |arg: &'a Arg, kinds: &[OpKind]| {
        let op = &function.ops[cx.maker(arg)?.0];
        if kinds.contains(&op.kind) { op.arg("x") } else { None }
    };
    let shape = |arg: &Arg| match arg {
        Arg::Value(v) => Some(fixed(function.ty(*v)).ok()?.1),
        _ => None,
    };
    let tiled = made(arg, &[OpKind::Reshape])?;
    let expanded = made(tiled, &[OpKind::Tile])?;
    let heads = made(expanded, &[OpKind::ExpandDims, OpKind::Reshape])?;
    let [b, h, s, d] = shape(arg)?[..] else { return None };
    let [tb, g, r, ts, td] = shape(tiled)?[..] else { return None };
    let fits = [tb, ts, td] == [b, s, d] && g * r == h && shape(expanded)? == [b, g, 1, s, d];
    fits.then_some((heads, r, [b, g, s, d]))
}

struct Matmul {
    left: MatrixPlaces,
    right: MatrixPlaces,
    /// The copy of a left matrix to rows, if it lies in columns.
    turn: Option<Walk>,
    /// Whether right matrices are `[K, N]`, not `[N, K]`.
    columns: bool,
    /// Elements of a result's matrix.
    size: usize,
}

impl Kernel for Matmul {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let right = self.right.over(ins[1])?;
        let (x, size) = (f32s(ins[0]), self.left.rows * self.left.cols);
        for_each_item(cx.pool, f32s_mut(outs[0]), self.size, |n, out| {
            let x = &x[self.left.of(n) * size..][..size];
            if self.turn.is_some() && self.columns {
                let first = self.right.of(n) * self.right.rows;
                let right = right.slice(first..first + self.right.rows);
                return kernels::matmul_turned(cx.pool, x, right, false, out);
            }
            let x = match &self.turn {
                None => Cow::Borrowed(x),
                Some(walk) => {
                    let mut rows = vec![0f32; size];
                    walk.copy(
                        cx.pool,
                        bytemuck::cast_slice(x),
                        bytemuck::cast_slice_mut(&mut rows),
                    );
                    Cow::Owned(rows)
                }
            };
            let first = self.right.of(n) * self.right.rows;
            multiply(cx.pool, &x, right.slice(first..first + self.right.rows), self.columns, out);
        });
        Ok(())
    }
}

/// `out[M, N] = x[M, K] · y`, where `y` is `[K, N]` if it lies in `columns`, else `[N, K]`.
pub(super) fn multiply(pool: &Pool, x: &[f32], y: Matrix<'_>, columns: bool, out: &mut [f32]) {
    if !columns {
        return kernels::matmul(pool, x, y, None, out);
    }
    let rows = x.len().checked_div(y.rows()).unwrap_or(0);
    match Matrix::new(DType::F32, rows, y.rows(), bytemuck::cast_slice(x)) {
        Ok(x) => kernels::matmul_columns(pool, x, y, out),
        // Single precision of as many bytes always is a matrix.
        Err(_) => out.fill(f32::NAN),
    }
}

/// Binds `einsum`, both of whose equations sum over the last axis of the first operand, which is the
/// one before the middle of the second: `nchw,nwhu->nchu`, also without `n`.
pub(crate) fn einsum(cx: &mut OpCx<'_>) -> Bind<Native> {
    let values = cx.list("values")?;
    let [x, y] = <[Operand; 2]>::try_from(values).map_err(|_| "not two values")?;
    let (x, y) = (cx.as_float(x, "values")?, cx.as_float(y, "values")?);
    let four = |shape: &[usize]| -> Bind<[usize; 4]> {
        match *shape {
            [a, b, c, d] => Ok([a, b, c, d]),
            [b, c, d] => Ok([1, b, c, d]),
            _ => Err("operands of another rank".into()),
        }
    };
    let ([n, c, h, w], [.., u]) = (four(&x.shape)?, four(&y.shape)?);
    if w == 0 {
        return Err("rows without elements".into());
    }
    // The two middle axes change places, so that matrices lie behind one another.
    let swap = |[a, b, c, d]: [usize; 4]| {
        let own = row_major(&[a, b, c, d]);
        Walk::new(0, &[a, c, b, d], vec![own[0], own[2], own[1], own[3]], size_of::<f32>())
    };
    let walks = [swap([n, c, h, w])?, swap([n, w, h, u])?, swap([n, h, c, u])?];
    let scratch = [x.len(), y.len(), n * h * c * u];
    let kernel = Einsum { walks, matrices: n * h, rows: c, inner: w, columns: u };
    Ok(Native::floats(kernel, vec![x, y]).with_scratch(&scratch))
}

struct Einsum {
    /// Of both operands to matrices, and of those to the result.
    walks: [Walk; 3],
    matrices: usize,
    rows: usize,
    inner: usize,
    columns: usize,
}

impl Kernel for Einsum {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let [out, x, y, z] = outs else { return Ok(()) };
        self.walks[0].copy(cx.pool, ins[0], x);
        self.walks[1].copy(cx.pool, ins[1], y);
        let right = Matrix::new(DType::F32, self.matrices * self.inner, self.columns, y)
            .map_err(|e| OpError { kind: ErrorKind::Bug, message: e.to_string() })?;
        let (x, size) = (f32s(x), self.rows * self.inner);
        for_each_item(cx.pool, f32s_mut(z), self.rows * self.columns, |n, out| {
            let right = right.slice(n * self.inner..(n + 1) * self.inner);
            multiply(cx.pool, &x[n * size..][..size], right, true, out);
        });
        self.walks[2].copy(cx.pool, z, out);
        Ok(())
    }
}
