//! Products of a few rows with weights that are read in place: what decoding spends its time on.
//!
//! The weights stream through once. Up to four weight rows are in flight to hide the latency of the
//! additions, and up to four input rows share what was decoded. The minimum of formats that have one
//! (`w = q * scale + min`) is taken out of the sum over a group of 32: `scale * Σ q x + min * Σ x`,
//! with `Σ x` computed once per product.

use crate::arch::{Kernel, LANES, Simd};
use crate::format::{Format, Sink, with_format};
use crate::matmul::Matrix;
use crate::share::Shared;

/// Elements that share a scale in most formats; rows of the input are padded to whole groups.
pub(crate) const GROUP: usize = 32;

/// How far ahead weights are asked for, in bytes. Several rows at a time are no pattern that the
/// processor's own prefetching keeps up with.
const AHEAD: usize = 4096;

/// Input rows in whole groups, and the sum of each group.
pub(crate) struct Input {
    pub(crate) rows: usize,
    groups: usize,
    x: Vec<[f32; GROUP]>,
    sums: Vec<f32>,
}

impl Input {
    /// Takes `rows` rows of `k` elements.
    pub(crate) fn new(x: &[f32], rows: usize, k: usize) -> Self {
        let groups = k.div_ceil(GROUP);
        let mut padded = vec![[0f32; GROUP]; rows * groups];
        for (padded, x) in padded.chunks_mut(groups.max(1)).zip(x.chunks_exact(k.max(1))) {
            padded.as_flattened_mut()[..k].copy_from_slice(x);
        }
        let sums = padded.iter().map(|g| g.iter().sum()).collect();
        Input { rows, groups, x: padded, sums }
    }
}

/// Products with weight rows of which the first is column `first` of an output `[M, stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Gemv<'a> {
    pub(crate) input: &'a Input,
    pub(crate) weight: Matrix<'a>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) out: Shared<'a, f32>,
    pub(crate) first: usize,
    pub(crate) stride: usize,
}

impl Kernel for Gemv<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_format!(self.weight.dtype(), F, BYTES => self.rows::<S, F, BYTES>(s), else ());
    }
}

impl Gemv<'_> {
    #[inline(always)]
    fn rows<S: Simd, F: Format<B>, const B: usize>(&self, s: S) {
        let n = self.weight.rows();
        let mut m = 0;
        while m < self.input.rows {
            let left = self.input.rows - m;
            let mut row = 0;
            // Several weight rows at a time as long as they and their sums fit the registers.
            if left == 1 {
                while row + 4 <= n {
                    self.block::<S, F, B, 1, 4>(s, m, row);
                    row += 4;
                }
            }
            while row < n {
                match left {
                    1 => self.block::<S, F, B, 1, 1>(s, m, row),
                    2 => self.block::<S, F, B, 2, 1>(s, m, row),
                    3 => self.block::<S, F, B, 3, 1>(s, m, row),
                    _ => self.block::<S, F, B, 4, 1>(s, m, row),
                }
                row += 1;
            }
            m += left.min(4);
        }
    }

    /// Input rows from `m` times weight rows from `row`.
    #[inline(always)]
    fn block<S: Simd, F: Format<B>, const B: usize, const M: usize, const R: usize>(
        &self,
        s: S,
        m: usize,
        row: usize,
    ) {
        let groups = self.input.groups;
        let x = std::array::from_fn(|i| &self.input.x[(m + i) * groups..][..groups]);
        let sums = std::array::from_fn(|i| &self.input.sums[(m + i) * groups..][..groups]);
        let dot = Dot { s, x, sums, at: 0, sum: [[s.splat(0.0); 2]; M], minima: [0.0; M] };
        let mut dots = [dot; R];
        let rows: [_; R] = std::array::from_fn(|r| self.weight.row(row + r).as_chunks::<B>());
        let blocks = rows[0].0.len();
        let whole: [&[[u8; B]]; R] = std::array::from_fn(|r| &rows[r].0[..blocks]);
        for b in 0..blocks {
            for (row, dot) in whole.iter().zip(&mut dots) {
                s.prefetch(row[b].as_ptr().wrapping_add(AHEAD));
                F::read(s, &row[b], dot);
            }
        }
        for ((_, rest), dot) in rows.iter().zip(&mut dots) {
            if !rest.is_empty() {
                let mut block = [0; B];
                block[..rest.len()].copy_from_slice(rest);
                F::read(s, &block, dot);
            }
        }
        for i in 0..M {
            let at = (m + i) * self.stride + self.first + row;
            // SAFETY: an output element belongs to the one task that has its weight row.
            let out = unsafe { self.out.slice(at..at + R) };
            for r in 0..R {
                let dot = s.sum(s.add(dots[r].sum[i][0], dots[r].sum[i][1])) + dots[r].minima[i];
                out[r] = dot + self.bias.map_or(0.0, |b| b[self.first + row + r]);
            }
        }
    }
}

/// The running products of one weight row with `M` input rows.
#[derive(Clone, Copy)]
struct Dot<'a, S: Simd, const M: usize> {
    s: S,
    x: [&'a [[f32; GROUP]]; M],
    sums: [&'a [f32]; M],
    at: usize,
    sum: [[S::V; 2]; M],
    minima: [f32; M],
}

/// The two vectors of a group.
#[inline(always)]
pub(crate) fn halves(group: &[f32; GROUP]) -> (&[f32; LANES], &[f32; LANES]) {
    match (group.first_chunk(), group.last_chunk()) {
        (Some(a), Some(b)) => (a, b),
        _ => unreachable!("a group has two vectors"),
    }
}

impl<S: Simd, const M: usize> Sink<S> for Dot<'_, S, M> {
    #[inline(always)]
    fn scaled(&mut self, q: [S::V; 2], scale: f32, min: Option<f32>) {
        let s = self.s;
        for i in 0..M {
            let (x0, x1) = halves(&self.x[i][self.at]);
            let sum = s.fma(q[1], s.load(x1), s.mul(q[0], s.load(x0)));
            self.sum[i][0] = s.fma(s.splat(scale), sum, self.sum[i][0]);
            if let Some(min) = min {
                self.minima[i] += min * self.sums[i][self.at];
            }
        }
        self.at += 1;
    }

    #[inline(always)]
    fn values(&mut self, w: [S::V; 2]) {
        let s = self.s;
        for i in 0..M {
            let (x0, x1) = halves(&self.x[i][self.at]);
            self.sum[i][0] = s.fma(w[0], s.load(x0), self.sum[i][0]);
            self.sum[i][1] = s.fma(w[1], s.load(x1), self.sum[i][1]);
        }
        self.at += 1;
    }
}
