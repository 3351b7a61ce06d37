//! The operands of tiles: numbers as words, one side in panels of vectors, the other in blocks of rows.
//!
//! A word is a single-precision number, or two bfloat16 numbers that follow each other along the sum, where
//! the processor multiplies and adds such pairs at once. Packing is where numbers are rounded.

use tensor::DType;

use crate::arch::{Kernel, LANES, Simd};
use crate::convert::Decode;
use crate::matmul::Matrix;
use crate::pool::Precision;
use crate::scratch::Scratch;
use crate::share::Shared;
use crate::{Isa, Pool};

/// Lanes of a panel.
pub(crate) const WIDTH: usize = 2 * LANES;
/// Rows of a block, whole tiles on every instruction set.
pub(crate) const PANEL: usize = 48;
/// Numbers of a row of a block: whole blocks of every weight type.
pub(crate) const DEPTH: usize = 256;
/// Distance of the rows of a block; not a power of two, which would crowd few cache sets.
pub(crate) const STRIDE: usize = DEPTH + LANES;

/// What a word holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Words {
    /// A number in single precision.
    Single,
    /// A number rounded to bfloat16, in single precision: for processors without products of pairs.
    Rounded,
    /// Two bfloat16 numbers, the first in the low half.
    Pairs,
}

/// The bits of `x` rounded to bfloat16, ties to even, in the high half; NaN stays NaN.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    let up = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    (if x.is_nan() { bits | 0x0040_0000 } else { up }) & 0xffff_0000
}

impl Words {
    /// The words of products on `pool`.
    pub(crate) fn of(pool: &Pool) -> Self {
        match pool.precision() {
            Precision::Single => Words::Single,
            Precision::Bf16 if pool.isa().has_pairs() => Words::Pairs,
            Precision::Bf16 => Words::Rounded,
        }
    }

    /// Words of `k` numbers.
    pub(crate) fn count(self, k: usize) -> usize {
        if self == Words::Pairs { k.div_ceil(2) } else { k }
    }

    /// Numbers of a word.
    fn numbers(self) -> usize {
        if self == Words::Pairs { 2 } else { 1 }
    }

    /// The words of numbers that follow each other along the sum; [`Isa::pairs_along`] makes pairs.
    #[inline(always)]
    fn along(self, x: &[f32], out: &mut [f32]) {
        let out = &mut out[..x.len()];
        if self == Words::Single {
            return out.copy_from_slice(x);
        }
        out.iter_mut().zip(x).for_each(|(o, x)| *o = f32::from_bits(rounded(*x)));
    }

    /// The words of numbers beside each other; [`Isa::pairs_across`] makes pairs.
    #[inline(always)]
    fn across<const N: usize>(self, x: &[f32; N], out: &mut [f32; N]) {
        *out = *x;
        if self == Words::Rounded {
            out.iter_mut().for_each(|o| *o = f32::from_bits(rounded(*o)));
        }
    }
}

/// One side of a product in panels of vectors: `[panels, words, WIDTH]`, padded with zeros.
pub(crate) struct Packed<'a> {
    /// Lanes that are used.
    pub(crate) lanes: usize,
    /// Words along the sum.
    pub(crate) words: usize,
    pub(crate) kind: Words,
    pub(crate) panels: &'a [[f32; WIDTH]],
}

/// Makes each panel of `lanes` by `fill`, which is given its number, and calls `work` with the result.
fn with_panels(
    pool: &Pool,
    lanes: usize,
    words: usize,
    kind: Words,
    fill: impl Fn(usize, &mut [[f32; WIDTH]]) + Sync,
    work: impl FnOnce(&Packed<'_>),
) {
    let count = lanes.div_ceil(WIDTH);
    let mut scratch = Scratch::new(count * words * WIDTH);
    let buffer = &mut scratch[..];
    let shared = Shared::new(buffer);
    pool.run(count, |p| {
        // SAFETY: a panel belongs to one task.
        let panel = unsafe { shared.slice(p * words * WIDTH..(p + 1) * words * WIDTH) };
        fill(p, panel.as_chunks_mut().0);
    });
    work(&Packed { lanes, words, kind, panels: buffer.as_chunks().0 });
}

/// Packs `x[lanes, k]`, whose rows become lanes.
pub(crate) fn with_rows(
    pool: &Pool,
    x: &[f32],
    k: usize,
    kind: Words,
    work: impl FnOnce(&Packed<'_>),
) {
    let lanes = x.len() / k;
    let fill = |p: usize, out: &mut [[f32; WIDTH]]| {
        let x = &x[p * WIDTH * k..lanes.min((p + 1) * WIDTH) * k];
        pool.isa().run(Turn { isa: pool.isa(), x, k, kind, out });
    };
    with_panels(pool, lanes, kind.count(k), kind, fill, work);
}

/// Packs the columns `first..first + lanes` of `y[k, _]`, of `fp32`, `fp16` or `bf16`, as lanes.
pub(crate) fn with_columns(
    pool: &Pool,
    y: Matrix<'_>,
    first: usize,
    lanes: usize,
    kind: Words,
    work: impl FnOnce(&Packed<'_>),
) {
    let fill = |p: usize, out: &mut [[f32; WIDTH]]| {
        let count = WIDTH.min(lanes - p * WIDTH);
        let (isa, first) = (pool.isa(), first + p * WIDTH);
        isa.run(Side { isa, y, first, count, kind, out });
    };
    with_panels(pool, lanes, kind.count(y.rows()), kind, fill, work);
}

/// Words of a row that are brought to lanes at a time.
const TURNED: usize = 128;

/// Up to [`WIDTH`] rows of `k` numbers to lanes.
struct Turn<'a> {
    isa: Isa,
    x: &'a [f32],
    k: usize,
    kind: Words,
    out: &'a mut [[f32; WIDTH]],
}

impl Kernel for Turn<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let numbers = TURNED * self.kind.numbers();
        let mut rows = [[0f32; TURNED]; LANES];
        for (block, out) in self.out.chunks_mut(TURNED).enumerate() {
            let columns = block * numbers..self.k.min((block + 1) * numbers);
            for half in 0..2 {
                let mut x = self.x.chunks_exact(self.k).skip(half * LANES);
                for row in &mut rows {
                    let Some(x) = x.next().map(|x| &x[columns.clone()]) else {
                        row.fill(0.0);
                        continue;
                    };
                    let (words, rest) = row.split_at_mut(out.len());
                    rest.fill(0.0);
                    match self.kind {
                        Words::Pairs => self.isa.pairs_along(x, words),
                        Words::Single | Words::Rounded => self.kind.along(x, words),
                    }
                }
                for (v, out) in out.chunks_mut(LANES).enumerate() {
                    let mut vectors = [s.splat(0.0); LANES];
                    for (vector, row) in vectors.iter_mut().zip(&rows) {
                        *vector = s.load(&row.as_chunks().0[v]);
                    }
                    for (out, v) in out.iter_mut().zip(s.transpose(vectors)) {
                        s.store(v, &mut out.as_chunks_mut().0[half]);
                    }
                }
            }
        }
    }
}

/// Up to [`WIDTH`] columns of a matrix.
struct Side<'a> {
    isa: Isa,
    y: Matrix<'a>,
    first: usize,
    count: usize,
    kind: Words,
    out: &'a mut [[f32; WIDTH]],
}

impl Kernel for Side<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let step = self.kind.numbers();
        let mut rows = [[0f32; WIDTH]; 2];
        for (i, out) in std::mem::take(&mut self.out).iter_mut().enumerate() {
            for (k, row) in (i * step..).zip(&mut rows[..step]) {
                self.row(s, k, row);
            }
            let [now, next] = &rows;
            match self.kind {
                Words::Pairs => self.isa.pairs_across(now, next, out),
                Words::Single | Words::Rounded => self.kind.across(now, out),
            }
        }
    }
}

impl Side<'_> {
    /// Row `k`, or zeros past the end.
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, k: usize, out: &mut [f32; WIDTH]) {
        if k >= self.y.rows() {
            *out = [0.0; WIDTH];
            return;
        }
        let width = self.y.dtype().block_bytes();
        let bytes = &self.y.row(k)[self.first * width..][..self.count * width];
        numbers(s, self.y.dtype(), bytes, out);
    }
}

/// The numbers of a whole-byte type at `bytes`, and zeros after them.
#[inline(always)]
pub(crate) fn numbers<S: Simd>(s: S, dtype: DType, bytes: &[u8], out: &mut [f32; WIDTH]) {
    let mut padded = [0u8; WIDTH * size_of::<f32>()];
    let whole: &[u8] = if bytes.len() == WIDTH * dtype.block_bytes() {
        bytes
    } else {
        padded[..bytes.len()].copy_from_slice(bytes);
        &padded
    };
    if dtype == DType::F32 {
        for (o, b) in out.iter_mut().zip(whole.as_chunks().0) {
            *o = f32::from_le_bytes(*b);
        }
        return;
    }
    for (o, b) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(whole.as_chunks().0) {
        let v = if dtype == DType::F16 { s.load_f16(b) } else { s.load_bf16(b) };
        s.store(v, o);
    }
}

/// The other side of a product.
#[derive(Clone, Copy)]
pub(crate) enum Left<'a> {
    /// A matrix `[rows, k]`.
    Rows(Matrix<'a>),
    /// A matrix `[k, rows]`.
    Columns {
        /// Row-major.
        x: &'a [f32],
        /// Its number of columns.
        rows: usize,
    },
}

impl Left<'_> {
    /// Numbers along the sum.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Left::Rows(matrix) => matrix.cols(),
            Left::Columns { x, rows } => x.len().checked_div(*rows).unwrap_or(0),
        }
    }

    /// Fills a block with the words of `count` rows from `first`, and of `depth` numbers from `k`; those of
    /// a row are [`STRIDE`] after those of the row before.
    pub(crate) fn fill(
        &self,
        pool: &Pool,
        kind: Words,
        (first, count): (usize, usize),
        (k, depth): (usize, usize),
        block: &mut [f32],
    ) {
        let isa = pool.isa();
        match *self {
            Left::Rows(matrix) => {
                let mut plain = [0f32; DEPTH];
                for (row, out) in (first..first + count).zip(block.chunks_mut(STRIDE)) {
                    let out = &mut out[..kind.count(depth)];
                    let x = match matrix.floats(row) {
                        Some(x) => &x[k..k + depth],
                        None if kind == Words::Single => {
                            isa.run(Decode { matrix, row, first: k, out });
                            continue;
                        }
                        None => {
                            let out = &mut plain[..depth];
                            isa.run(Decode { matrix, row, first: k, out });
                            &plain[..depth]
                        }
                    };
                    match kind {
                        Words::Pairs => isa.pairs_along(x, out),
                        Words::Single => out.copy_from_slice(x),
                        Words::Rounded => isa.run(Along { x, out }),
                    }
                }
            }
            Left::Columns { x, rows } => {
                let x = &x[k * rows..(k + depth) * rows];
                isa.run(Across { isa, x, rows, first, count, kind, out: block });
            }
        }
    }
}

/// Rounds what follows each other along the sum.
struct Along<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Along<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        Words::Rounded.along(self.x, self.out);
    }
}

/// Columns `first..first + count` of `x[k, rows]`, as rows of a block.
struct Across<'a> {
    isa: Isa,
    x: &'a [f32],
    rows: usize,
    first: usize,
    count: usize,
    kind: Words,
    out: &'a mut [f32],
}

impl Kernel for Across<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (mut now, mut next) = ([0f32; PANEL], [0f32; PANEL]);
        let step = self.kind.numbers();
        let mut words = [[0f32; PANEL]; LANES];
        for (w, x) in self.x.chunks(LANES * step * self.rows).enumerate() {
            for (x, out) in x.chunks(step * self.rows).zip(&mut words) {
                let mut rows = x.chunks_exact(self.rows).map(|r| &r[self.first..][..self.count]);
                let (x, y) = (rows.next().unwrap_or_default(), rows.next().unwrap_or_default());
                let x = whole(x, &mut now);
                match self.kind {
                    Words::Pairs => self.isa.pairs_across(x, whole(y, &mut next), out),
                    Words::Single | Words::Rounded => self.kind.across(x, out),
                }
            }
            // Of the last words, those past the end are of an earlier block, and not read.
            for (part, out) in self.out.chunks_mut(LANES * STRIDE).enumerate() {
                let mut vectors = [s.splat(0.0); LANES];
                for (vector, row) in vectors.iter_mut().zip(&words) {
                    *vector = s.load(&row.as_chunks().0[part]);
                }
                for (out, v) in out.chunks_mut(STRIDE).zip(s.transpose(vectors)) {
                    s.store(v, &mut out.as_chunks_mut().0[w]);
                }
            }
        }
    }
}

/// `x`, brought to whole length in `padded` if it is shorter.
#[inline(always)]
fn whole<'a>(x: &'a [f32], padded: &'a mut [f32; PANEL]) -> &'a [f32; PANEL] {
    if let Some(x) = x.first_chunk() {
        return x;
    }
    padded[..x.len()].copy_from_slice(x);
    padded[x.len()..].fill(0.0);
    padded
}
