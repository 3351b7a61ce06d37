//! Between number types: half precision, decoding of any weight type, gathering table rows.

use half::f16;
use tensor::{DType, dequantize};

use crate::{KernelError, Matrix, Pool};

/// `out = x` as single precision.
///
/// # Panics
/// When lengths differ.
pub fn widen(pool: &Pool, x: &[f16], out: &mut [f32]) {
    let _ = pool;
    assert_eq!(x.len(), out.len(), "lengths differ");
    x.iter().zip(out).for_each(|(x, o)| *o = x.to_f32());
}

/// `out = x` as half precision, rounded to nearest even.
///
/// # Panics
/// When lengths differ.
pub fn narrow(pool: &Pool, x: &[f32], out: &mut [f16]) {
    let _ = pool;
    assert_eq!(x.len(), out.len(), "lengths differ");
    x.iter().zip(out).for_each(|(x, o)| *o = f16::from_f32(*x));
}

/// All elements of `matrix`, row by row, as single precision.
///
/// # Panics
/// When `out` is not `[rows, cols]`.
pub fn decode(pool: &Pool, matrix: Matrix<'_>, out: &mut [f32]) {
    let _ = pool;
    assert_eq!(out.len(), matrix.rows() * matrix.cols(), "output is not [rows, cols]");
    for (i, out) in out.chunks_exact_mut(matrix.cols().max(1)).enumerate() {
        decode_row(matrix.dtype(), matrix.row(i), out);
    }
}

/// The rows `indices` of `table`, one after another, as single precision (token embedding).
///
/// # Errors
/// When an index is negative or past the table.
///
/// # Panics
/// When `out` is not `[indices, cols]`.
pub fn gather(
    pool: &Pool,
    table: Matrix<'_>,
    indices: &[i32],
    out: &mut [f32],
) -> Result<(), KernelError> {
    let _ = pool;
    assert_eq!(out.len(), indices.len() * table.cols(), "output is not [indices, cols]");
    let rows = table.rows();
    for (position, (&index, out)) in
        indices.iter().zip(out.chunks_exact_mut(table.cols().max(1))).enumerate()
    {
        let row = usize::try_from(index).ok().filter(|&r| r < rows);
        let row = row.ok_or(KernelError::RowIndex { position, index, rows })?;
        decode_row(table.dtype(), table.row(row), out);
    }
    Ok(())
}

fn decode_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert!(dequantize(dtype, bytes, out), "a matrix only holds decodable types");
}
