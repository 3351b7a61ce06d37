//! Products of many rows: what reading a prompt spends its time on.
//!
//! The input is packed once per product into panels of 32 rows, transposed, so that a vector holds
//! one column of 16 input rows. A task takes [`PANEL`] weight rows, decodes [`DEPTH`] columns of them
//! at a time into a block that stays in the cache, and multiplies it with every input panel in tiles
//! that keep their sums in registers. The sums run over the columns in order, whatever the split.

#![allow(clippy::needless_range_loop, reason = "one index runs over several arrays")]

use crate::arch::{Kernel, LANES, Simd};
use crate::convert::Decode;
use crate::matmul::Matrix;
use crate::scratch::Scratch;
use crate::share::Shared;
use crate::{Isa, Pool};

/// Input rows of a panel.
pub(crate) const WIDTH: usize = 2 * LANES;
/// Weight rows of a task, whole tiles on every instruction set.
pub(crate) const PANEL: usize = 48;
/// Columns decoded at a time: whole blocks of every weight type.
pub(crate) const DEPTH: usize = 256;
/// Distance of the rows of the decoded block; not a power of two, which would crowd few cache sets.
pub(crate) const STRIDE: usize = DEPTH + LANES;

/// Input rows in transposed panels: `[panels, columns, WIDTH]`, padded with zeros.
pub(crate) struct Packed<'a> {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) panels: &'a [[f32; WIDTH]],
}

/// Packs `x[rows, k]` and calls `work` with the result.
pub(crate) fn with_packed(
    pool: &Pool,
    x: &[f32],
    rows: usize,
    k: usize,
    work: impl FnOnce(&Packed<'_>),
) {
    let count = rows.div_ceil(WIDTH);
    let mut scratch = Scratch::new(count * k * WIDTH);
    let buffer = &mut scratch[..];
    let shared = Shared::new(buffer);
    pool.run(count, |p| {
        // SAFETY: a panel belongs to one task.
        let panel = unsafe { shared.slice(p * k * WIDTH..(p + 1) * k * WIDTH) };
        let panel = panel.as_chunks_mut::<WIDTH>().0;
        let x = &x[p * WIDTH * k..rows.min((p + 1) * WIDTH) * k];
        // Some columns at a time, so that the lines written to stay in the cache.
        for (block, panel) in panel.chunks_mut(LANES).enumerate() {
            panel.fill([0.0; WIDTH]);
            for (m, x) in x.chunks_exact(k).enumerate() {
                let x = &x[block * LANES..][..panel.len()];
                panel.iter_mut().zip(x).for_each(|(column, x)| column[m] = *x);
            }
        }
    });
    work(&Packed { rows, columns: k, panels: buffer.as_chunks().0 });
}

/// Products of all input rows with up to [`PANEL`] weight rows, of which the first is column `first`
/// of an output `[M, stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Gemm<'a> {
    pub(crate) input: &'a Packed<'a>,
    pub(crate) weight: Matrix<'a>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) out: Shared<'a, f32>,
    pub(crate) first: usize,
    pub(crate) stride: usize,
}

impl Gemm<'_> {
    pub(crate) fn run(&self, isa: Isa) {
        let panels = self.input.rows.div_ceil(WIDTH);
        let mut scratch = Scratch::new(PANEL * (STRIDE + panels * WIDTH));
        let buffer = &mut scratch[..];
        let (block, sums) = buffer.split_at_mut(PANEL * STRIDE);
        let sums = sums.as_chunks_mut::<WIDTH>().0;
        sums.fill([0.0; WIDTH]);
        for first in (0..self.input.columns).step_by(DEPTH) {
            let depth = DEPTH.min(self.input.columns - first);
            for (row, out) in block.chunks_mut(STRIDE).enumerate().take(self.weight.rows()) {
                let out = &mut out[..depth];
                isa.run(Decode { matrix: self.weight, row, first, out });
            }
            isa.run(Tiles {
                input: self.input,
                columns: (first, depth),
                block,
                rows: self.weight.rows(),
                sums,
            });
        }
        self.write(sums);
    }

    /// Transposes the sums into the output.
    fn write(&self, sums: &[[f32; WIDTH]]) {
        let n = self.weight.rows();
        for m in 0..self.input.rows {
            let at = m * self.stride + self.first;
            // SAFETY: an output element belongs to the one task that has its weight row.
            let out = unsafe { self.out.slice(at..at + n) };
            let sums = &sums[m / WIDTH * PANEL..][..n];
            match self.bias {
                Some(bias) => {
                    let bias = &bias[self.first..][..n];
                    for ((out, sum), bias) in out.iter_mut().zip(sums).zip(bias) {
                        *out = sum[m % WIDTH] + bias;
                    }
                }
                None => out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum[m % WIDTH]),
            }
        }
    }
}

/// All tiles of a decoded block: `sums[panels, PANEL, WIDTH] += block · input`.
pub(crate) struct Tiles<'a> {
    pub(crate) input: &'a Packed<'a>,
    /// The first column and their number.
    pub(crate) columns: (usize, usize),
    pub(crate) block: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) sums: &'a mut [[f32; WIDTH]],
}

impl Kernel for Tiles<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (first, depth) = self.columns;
        for (p, sums) in self.sums.chunks_mut(PANEL).enumerate() {
            let x = &self.input.panels[p * self.input.columns + first..][..depth];
            let vectors = (self.input.rows - p * WIDTH).div_ceil(LANES).min(2);
            for row in (0..self.rows).step_by(S::TILE) {
                let (w, sums) = (&self.block[row * STRIDE..], &mut sums[row..]);
                s.tile(Tile { x, w, row: STRIDE, column: 1, sums }, vectors);
            }
        }
    }
}

/// The operands of `sums[r][m] += Σ_k w[r * row + k * column] * x[k][m]`, for [`Simd::TILE`] rows `r`.
pub(crate) struct Tile<'a> {
    pub(crate) x: &'a [[f32; WIDTH]],
    pub(crate) w: &'a [f32],
    pub(crate) row: usize,
    pub(crate) column: usize,
    pub(crate) sums: &'a mut [[f32; WIDTH]],
}

impl Tile<'_> {
    /// `R` rows and `V` vectors of columns from vector `first` on.
    #[inline(always)]
    pub(crate) fn add<S: Simd, const R: usize, const V: usize>(&mut self, s: S, first: usize) {
        let Some(last) = self.x.len().checked_sub(1) else { return };
        assert!((R - 1) * self.row + last * self.column < self.w.len(), "weights are too short");
        let out = &mut self.sums[..R];
        let mut sums = [[s.splat(0.0); V]; R];
        for r in 0..R {
            for v in 0..V {
                sums[r][v] = s.load(vector(&out[r], first + v));
            }
        }
        for (k, x) in self.x.iter().enumerate() {
            let mut columns = [s.splat(0.0); V];
            for v in 0..V {
                columns[v] = s.load(vector(x, first + v));
            }
            for r in 0..R {
                // SAFETY: `r < R` and `k <= last`, so the index is at most the one asserted above.
                let w = unsafe { *self.w.get_unchecked(r * self.row + k * self.column) };
                let w = s.splat(w);
                for v in 0..V {
                    sums[r][v] = s.fma(w, columns[v], sums[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                if let Some(out) = out[r].as_chunks_mut::<LANES>().0.get_mut(first + v) {
                    s.store(sums[r][v], out);
                }
            }
        }
    }
}

/// Vector `v` of a panel's column.
#[inline(always)]
fn vector(x: &[f32; WIDTH], v: usize) -> &[f32; LANES] {
    &x.as_chunks().0[v]
}
