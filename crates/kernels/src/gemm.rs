//! Products of many rows: what reading a prompt and training spend their time on.
//!
//! `left[rows, k] · right[lanes, k]ᵀ`, where each side may lie either way. The right side is packed once
//! into panels of 32 lanes. A task takes [`PANEL`] rows of the left side, brings [`DEPTH`] numbers of each at
//! a time into a block that stays in the cache, and multiplies it with every panel in tiles that keep
//! their sums in registers. The sums run along `k` in order, whatever the split.

#![allow(clippy::needless_range_loop, reason = "one index runs over several arrays")]

use std::ops::Range;

use crate::Pool;
use crate::arch::{Kernel, LANES, Simd};
use crate::panel::{DEPTH, Left, PANEL, Packed, STRIDE, WIDTH, Words};
use crate::scratch::Scratch;
use crate::share::Shared;

/// Panels of a task at most: their sums stay in the cache beside a block.
const PANELS: usize = 32;

/// Where the products go.
#[derive(Clone, Copy)]
pub(crate) struct Out<'a> {
    /// `[rows, stride]`, or `[lanes, stride]` if `turned`; overwritten, or added to if `add`.
    pub(crate) out: Shared<'a, f32>,
    pub(crate) stride: usize,
    /// The column of the first lane, or of the first row.
    pub(crate) first: usize,
    pub(crate) turned: bool,
    pub(crate) add: bool,
    /// Added to each row's products.
    pub(crate) bias: Option<&'a [f32]>,
}

/// Some rows of the left side with all lanes of the right.
#[derive(Clone, Copy)]
pub(crate) struct Gemm<'a> {
    pub(crate) left: Left<'a>,
    pub(crate) right: &'a Packed<'a>,
    /// The first row and their number, at most [`PANEL`].
    pub(crate) rows: (usize, usize),
    pub(crate) out: Out<'a>,
}

impl Gemm<'_> {
    pub(crate) fn run(&self, pool: &Pool) {
        let (kind, words) = (self.right.kind, self.right.words);
        let depth = self.left.depth();
        let mut scratch = Scratch::new(PANEL * (STRIDE + PANELS * WIDTH));
        let buffer = &mut scratch[..];
        let (block, sums) = buffer.split_at_mut(PANEL * STRIDE);
        let sums = sums.as_chunks_mut::<WIDTH>().0;
        let panels = self.right.lanes.div_ceil(WIDTH);
        for first in (0..panels).step_by(PANELS) {
            let panels = first..panels.min(first + PANELS);
            let sums = &mut sums[..panels.len() * PANEL];
            for k in (0..depth).step_by(DEPTH) {
                let taken = DEPTH.min(depth - k);
                self.left.fill(pool, kind, self.rows, (k, taken), block);
                let tiles = Tiles {
                    panels: &self.right.panels[panels.start * words..panels.end * words],
                    lanes: self.right.lanes - first * WIDTH,
                    words: (words, kind.count(k), kind.count(taken)),
                    block,
                    rows: self.rows.1,
                    fresh: k == 0,
                    sums,
                };
                match kind {
                    Words::Pairs => pool.isa().run_pairs(tiles),
                    Words::Single | Words::Rounded => pool.isa().run(tiles),
                }
            }
            let (lanes, out) = (first * WIDTH..self.right.lanes.min(panels.end * WIDTH), self.out);
            pool.isa().run(Write { sums, lanes, rows: self.rows, out });
        }
    }
}

/// Writes the sums of some panels.
struct Write<'a> {
    sums: &'a [[f32; WIDTH]],
    lanes: Range<usize>,
    rows: (usize, usize),
    out: Out<'a>,
}

impl Kernel for Write<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if self.out.turned { self.turned(s) } else { self.straight() }
    }
}

impl Write<'_> {
    fn bias(&self, row: usize) -> f32 {
        self.out.bias.map_or(0.0, |b| b[self.rows.0 + row])
    }

    #[inline(always)]
    fn straight(&self) {
        for row in 0..self.rows.1 {
            let bias = self.bias(row);
            let at = (self.rows.0 + row) * self.out.stride + self.out.first;
            // SAFETY: an output element belongs to the one task that has its row.
            let out = unsafe { self.out.out.slice(at + self.lanes.start..at + self.lanes.end) };
            for (out, sums) in out.chunks_mut(WIDTH).zip(self.sums.chunks(PANEL)) {
                let sums = out.iter_mut().zip(&sums[row]);
                if self.out.add {
                    sums.for_each(|(o, sum)| *o += sum + bias);
                } else {
                    sums.for_each(|(o, sum)| *o = sum + bias);
                }
            }
        }
    }

    #[inline(always)]
    fn turned<S: Simd>(&self, s: S) {
        let mut bias = [0f32; PANEL];
        (0..self.rows.1).for_each(|row| bias[row] = self.bias(row));
        // Made once: every vector is overwritten, and clearing it each time took 1 % of a training step's samples.
        let mut columns = [[0f32; PANEL]; LANES];
        for (half, lane) in self.lanes.clone().step_by(LANES).enumerate() {
            let sums = &self.sums[half / 2 * PANEL..][..PANEL];
            for block in 0..PANEL / LANES {
                let mut rows = [s.splat(0.0); LANES];
                for (row, sums) in rows.iter_mut().zip(&sums[block * LANES..]) {
                    *row = s.load(vector(sums, half % 2));
                }
                for (column, v) in columns.iter_mut().zip(s.transpose(rows)) {
                    s.store(v, &mut column.as_chunks_mut().0[block]);
                }
            }
            for (lane, column) in (lane..self.lanes.end).zip(&columns) {
                let at = lane * self.out.stride + self.out.first + self.rows.0;
                // SAFETY: an output element belongs to the one task that has its row.
                let out = unsafe { self.out.out.slice(at..at + self.rows.1) };
                let sums = out.iter_mut().zip(column.iter().zip(&bias));
                if self.out.add {
                    sums.for_each(|(o, (sum, bias))| *o += sum + bias);
                } else {
                    sums.for_each(|(o, (sum, bias))| *o = sum + bias);
                }
            }
        }
    }
}

/// All tiles of a block: `sums[panels, PANEL, WIDTH] += block · panels`, or `=` if they are fresh.
pub(crate) struct Tiles<'a> {
    pub(crate) panels: &'a [[f32; WIDTH]],
    /// Lanes that are used.
    pub(crate) lanes: usize,
    /// Words of a panel, the first that is taken, and how many are.
    pub(crate) words: (usize, usize, usize),
    /// Words `[PANEL, STRIDE]`.
    pub(crate) block: &'a [f32],
    pub(crate) rows: usize,
    /// As in [`Tile`].
    pub(crate) fresh: bool,
    pub(crate) sums: &'a mut [[f32; WIDTH]],
}

impl Tiles<'_> {
    /// The tiles of `size` rows, each with the number of vectors of its lanes that are used.
    #[inline(always)]
    pub(crate) fn each(&mut self, size: usize) -> impl Iterator<Item = (Tile<'_>, usize)> {
        let ((words, first, count), fresh) = (self.words, self.fresh);
        let (panels, lanes, block, rows) = (self.panels, self.lanes, self.block, self.rows);
        self.sums.chunks_mut(PANEL).enumerate().flat_map(move |(p, sums)| {
            let x = &panels[p * words + first..][..count];
            let vectors = (lanes - p * WIDTH).div_ceil(LANES).min(2);
            sums.chunks_mut(size).zip((0..rows).step_by(size)).map(move |(sums, r)| {
                let w = &block[r * STRIDE..];
                (Tile { x, w, row: STRIDE, column: 1, fresh, sums }, vectors)
            })
        })
    }
}

impl Kernel for Tiles<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for (tile, vectors) in self.each(S::TILE) {
            s.tile(tile, vectors);
        }
    }
}

/// The operands of `sums[r][m] += Σ_k w[r * row + k * column] * x[k][m]`, for [`Simd::TILE`] rows `r`.
pub(crate) struct Tile<'a> {
    pub(crate) x: &'a [[f32; WIDTH]],
    pub(crate) w: &'a [f32],
    pub(crate) row: usize,
    pub(crate) column: usize,
    /// What the sums hold is overwritten.
    pub(crate) fresh: bool,
    pub(crate) sums: &'a mut [[f32; WIDTH]],
}

impl Tile<'_> {
    /// `R` rows and `V` vectors of columns from vector `first` on.
    #[inline(always)]
    pub(crate) fn add<S: Simd, const R: usize, const V: usize>(&mut self, s: S, first: usize) {
        let Some(last) = self.x.len().checked_sub(1) else {
            if self.fresh {
                self.sums[..R].fill([0.0; WIDTH]);
            }
            return;
        };
        assert!((R - 1) * self.row + last * self.column < self.w.len(), "weights are too short");
        let out = &mut self.sums[..R];
        let mut sums = [[s.splat(0.0); V]; R];
        if !self.fresh {
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = s.load(vector(&out[r], first + v));
                }
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
