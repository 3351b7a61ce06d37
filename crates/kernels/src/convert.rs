//! Between number types: half precision, decoding of any weight type, gathering table rows.

use half::f16;

use crate::arch::{Kernel, LANES, Simd};
use crate::format::{Format, Sink, with_format};
use crate::share::{Shared, chunks, row_chunks};
use crate::{KernelError, Matrix, Pool};

/// `out = x` as single precision.
///
/// # Panics
/// When lengths differ.
pub fn widen(pool: &Pool, x: &[f16], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths differ");
    let out = Shared::new(out);
    chunks(pool, x.len(), |range| {
        // SAFETY: the ranges of different tasks do not overlap.
        let out = unsafe { out.slice(range.clone()) };
        pool.isa().run(Widen { x: &x[range], out });
    });
}

/// `out = x` as half precision, rounded to nearest even.
///
/// # Panics
/// When lengths differ.
pub fn narrow(pool: &Pool, x: &[f32], out: &mut [f16]) {
    assert_eq!(x.len(), out.len(), "lengths differ");
    let out = Shared::new(out);
    chunks(pool, x.len(), |range| {
        // SAFETY: the ranges of different tasks do not overlap.
        let out = unsafe { out.slice(range.clone()) };
        pool.isa().run(Narrow { x: &x[range], out: bytemuck::cast_slice_mut(out) });
    });
}

/// All elements of `matrix`, row by row, as single precision.
///
/// # Panics
/// When `out` is not `[rows, cols]`.
pub fn decode(pool: &Pool, matrix: Matrix<'_>, out: &mut [f32]) {
    let cols = matrix.cols();
    assert_eq!(out.len(), matrix.rows() * cols, "output is not [rows, cols]");
    let out = Shared::new(out);
    row_chunks(pool, out.len(), cols.max(1), |range| {
        for row in range {
            // SAFETY: a row belongs to one task.
            let out = unsafe { out.slice(row * cols..(row + 1) * cols) };
            pool.isa().run(Decode { matrix, row, first: 0, out });
        }
    });
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
    assert_eq!(out.len(), indices.len() * table.cols(), "output is not [indices, cols]");
    let rows = table.rows();
    for (position, (&index, out)) in
        indices.iter().zip(out.chunks_exact_mut(table.cols().max(1))).enumerate()
    {
        let row = usize::try_from(index).ok().filter(|&r| r < rows);
        let row = row.ok_or(KernelError::RowIndex { position, index, rows })?;
        pool.isa().run(Decode { matrix: table, row, first: 0, out });
    }
    Ok(())
}

struct Widen<'a> {
    x: &'a [f16],
    out: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, x_rest) = bytemuck::cast_slice(self.x).as_chunks();
        let (out, out_rest) = self.out.as_chunks_mut();
        x.iter().zip(out).for_each(|(x, out)| s.store(s.load_f16(x), out));
        let x_rest: &[f16] = bytemuck::cast_slice(x_rest);
        x_rest.iter().zip(out_rest).for_each(|(x, out)| *out = x.to_f32());
    }
}

/// To half precision, as bytes; also used for rows of a cache.
pub(crate) struct Narrow<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) out: &'a mut [u8],
}

impl Kernel for Narrow<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, x_rest) = self.x.as_chunks();
        let (out, out_rest) = self.out.as_chunks_mut();
        x.iter().zip(out).for_each(|(x, out)| s.store_f16(s.load(x), out));
        let pairs = out_rest.as_chunks_mut().0;
        x_rest.iter().zip(pairs).for_each(|(x, out)| *out = f16::from_f32(*x).to_le_bytes());
    }
}

/// The elements of one row from `first`, which starts a block, as far as `out` goes.
///
/// What `out` takes past the end of the row is zero.
pub(crate) struct Decode<'a> {
    pub(crate) matrix: Matrix<'a>,
    pub(crate) row: usize,
    pub(crate) first: usize,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Decode<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_format!(self.matrix.dtype(), F, BYTES => self.read::<S, F, BYTES>(s), else ());
    }
}

impl Decode<'_> {
    #[inline(always)]
    fn read<S: Simd, F: Format<B>, const B: usize>(self, s: S) {
        let dtype = self.matrix.dtype();
        let start = self.first / dtype.block_len() * dtype.block_bytes();
        let (blocks, rest) = self.matrix.row(self.row)[start..].as_chunks::<B>();
        let mut store = Store { s, out: self.out };
        for block in blocks {
            if store.out.is_empty() {
                return;
            }
            F::read(s, block, &mut store);
        }
        if !rest.is_empty() && !store.out.is_empty() {
            let mut block = [0; B];
            block[..rest.len()].copy_from_slice(rest);
            F::read(s, &block, &mut store);
        }
        store.out.fill(0.0);
    }
}

/// Writes what it takes until its slice is full.
struct Store<'a, S> {
    s: S,
    out: &'a mut [f32],
}

impl<S: Simd> Sink<S> for Store<'_, S> {
    #[inline(always)]
    fn scaled(&mut self, q: [S::V; 2], scale: f32, min: Option<f32>) {
        let s = self.s;
        let w = [s.mul(q[0], s.splat(scale)), s.mul(q[1], s.splat(scale))];
        match min {
            Some(min) => self.values([s.add(w[0], s.splat(min)), s.add(w[1], s.splat(min))]),
            None => self.values(w),
        }
    }

    #[inline(always)]
    fn values(&mut self, w: [S::V; 2]) {
        for w in w {
            let out = std::mem::take(&mut self.out);
            let (now, later) = out.split_at_mut(LANES.min(out.len()));
            if let Some(now) = now.first_chunk_mut::<LANES>() {
                self.s.store(w, now);
            } else {
                let mut last = [0f32; LANES];
                self.s.store(w, &mut last);
                now.copy_from_slice(&last[..now.len()]);
            }
            self.out = later;
        }
    }
}
