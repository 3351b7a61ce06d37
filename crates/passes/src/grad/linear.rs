//! Gradients of products of matrices: linear layers, `matmul`, convolutions with kernels of one element.

use mil::{Arg, Emit, OpError, OpKind};

use super::site::{Done, Site};
use super::tape::fixed;

/// `y = x W^T + b`: by `x` it is `g W`, by `W` `g^T x`, by `b` the sum of `g` over all rows.
pub(super) fn linear(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, shape) = (s.grad()?, s.shape("x")?);
    let (out, inner) = match s.shape("weight")?[..] {
        [out, inner] => (out, inner),
        _ => return Err(OpError::invalid("the weight is no matrix")),
    };
    let rows: usize = shape.iter().rev().skip(1).product();
    let g = s.e().reshape(&g, &[rows, out])?;
    if s.wants("x") {
        let weight = s.arg("weight")?;
        let e = &mut s.e();
        let weight = plain(e, weight, &g)?;
        let by_x = e.matmul(&g, &weight, [false, false])?;
        let by_x = e.reshape(&by_x, &shape)?;
        s.give("x", by_x)?;
    }
    if s.wants("weight") {
        let x = s.arg("x")?;
        let e = &mut s.e();
        let x = e.reshape(&x, &[rows, inner])?;
        let by_weight = e.matmul(&g, &x, [true, false])?;
        s.give("weight", by_weight)?;
    }
    if s.wants("bias") {
        let by_bias = s.e().reduce(OpKind::ReduceSum, &g, &[0], false)?;
        s.give("bias", by_bias)?;
    }
    Ok(())
}

/// A weight in any storage format as floats of the type of `like`.
fn plain(e: &mut Emit<'_, '_>, weight: Arg, like: &Arg) -> Result<Arg, OpError> {
    let dtype = e.ty(like)?.dtype;
    if !e.ty(&weight)?.dtype.is_block_quantized() {
        return e.cast(weight, dtype);
    }
    let name = e.str(dtype.name());
    e.op(OpKind::LlmDequantize, [("x", weight), ("dtype", name)])
}

/// With `C = A B`: by `A` it is `G B^T`, by `B` `A^T G`, where `A` and `B` are the arguments, transposed or
/// not.
pub(super) fn matmul(s: &mut Site<'_, '_, '_>) -> Done {
    let tx = s.op.bool_or("transpose_x", false)?;
    let ty = s.op.bool_or("transpose_y", false)?;
    let (shape_x, shape_y) = (s.shape("x")?, s.shape("y")?);
    let (g, x, y) = (s.grad()?, s.arg("x")?, s.arg("y")?);
    // A vector is a matrix of one row, or of one column.
    let matrix_x = if shape_x.len() == 1 { vec![1, shape_x[0]] } else { shape_x.clone() };
    let matrix_y = if shape_y.len() == 1 { vec![shape_y[0], 1] } else { shape_y.clone() };
    let e = &mut s.e();
    let mut shape_g = fixed(&e.ty(&g)?)?;
    if shape_y.len() == 1 {
        shape_g.push(1);
    }
    if shape_x.len() == 1 {
        let rank = shape_g.len();
        shape_g.insert(rank - 1, 1);
    }
    let g = e.reshape(&g, &shape_g)?;
    let (x, y) = (e.reshape(&x, &matrix_x)?, e.reshape(&y, &matrix_y)?);
    if s.wants("x") {
        let by_x = match tx {
            false => s.e().matmul(&g, &y, [false, !ty])?,
            true => s.e().matmul(&y, &g, [ty, true])?,
        };
        give_matrix(s, "x", by_x, &matrix_x)?;
    }
    if s.wants("y") {
        let by_y = match ty {
            false => s.e().matmul(&x, &g, [!tx, false])?,
            true => s.e().matmul(&g, &x, [true, tx])?,
        };
        give_matrix(s, "y", by_y, &matrix_y)?;
    }
    Ok(())
}

/// Gives what may still have axes that the matrix was broadcast along.
fn give_matrix(s: &mut Site<'_, '_, '_>, name: &str, by: Arg, matrix: &[usize]) -> Done {
    let shape = s.shape(name)?;
    let by = super::tape::fit(&mut s.e(), by, matrix)?;
    let by = s.e().reshape(&by, &shape)?;
    s.give(name, by)
}

/// A convolution with a kernel of one element, which is a linear layer over channels: `y = W x + b` for
/// each place.
pub(super) fn conv(s: &mut Site<'_, '_, '_>) -> Done {
    let (g, x_shape, w_shape) = (s.grad()?, s.shape("x")?, s.shape("weight")?);
    let all = |name: &str, value: i64| -> Result<bool, OpError> {
        Ok(s.op.ints(name)?.is_none_or(|v| v.iter().all(|&n| n == value)))
    };
    let unpadded = s.op.str("pad_type")?.unwrap_or("valid") != "custom" || all("pad", 0)?;
    let pointwise = w_shape[2..].iter().all(|&k| k == 1);
    if !pointwise || !unpadded || !all("strides", 1)? || !all("groups", 1)? {
        return Err(OpError::unsupported(format!(
            "no gradient of a convolution with a kernel {:?}, strides, padding or groups; only with \
             one of one element",
            &w_shape[2..]
        )));
    }
    let (n, inner, out) = (x_shape[0], x_shape[1], w_shape[0]);
    let places: usize = x_shape[2..].iter().product();
    let g = s.e().reshape(&g, &[n, out, places])?;
    if s.wants("x") {
        let weight = s.arg("weight")?;
        let e = &mut s.e();
        let weight = e.reshape(&weight, &[out, inner])?;
        let by_x = e.matmul(&weight, &g, [true, false])?;
        let by_x = e.reshape(&by_x, &x_shape)?;
        s.give("x", by_x)?;
    }
    if s.wants("weight") {
        let x = s.arg("x")?;
        let e = &mut s.e();
        let x = e.reshape(&x, &[n, inner, places])?;
        let by_weight = e.matmul(&g, &x, [false, true])?;
        let by_weight = e.reduce(OpKind::ReduceSum, &by_weight, &[0], false)?;
        let by_weight = e.reshape(&by_weight, &w_shape)?;
        s.give("weight", by_weight)?;
    }
    if s.wants("bias") {
        let by_bias = s.e().reduce(OpKind::ReduceSum, &g, &[0, 2], false)?;
        s.give("bias", by_bias)?;
    }
    Ok(())
}
