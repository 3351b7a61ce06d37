//! Attention of a few queries, as in decoding: lanes hold the elements of a head.

#![allow(clippy::needless_range_loop, reason = "one index runs over several arrays")]

use std::ops::Range;

use super::{Attention, SPAN, vector};
use crate::arch::{Kernel, LANES, Simd};
use crate::math::{ExpBelow, SoftCap, greatest, sum, update};
use crate::scratch::Scratch;

/// The group of query heads of cache head `head` at query `t` over the visible ones of `slots`, at
/// most [`SPAN`]. Writes `[group, 2 + dim]`: the greatest score, the sum of weights relative to it,
/// and the sum of values times weights.
pub(super) struct Span<'a> {
    pub(super) args: &'a Attention<'a>,
    pub(super) head: usize,
    pub(super) t: usize,
    pub(super) slots: Range<usize>,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Span<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let group = self.args.heads / self.args.keys.heads;
        if self.slots.is_empty() {
            self.out.fill(0.0);
            // A maximum that no score goes below.
            let size = self.out.len() / group;
            self.out.iter_mut().step_by(size).for_each(|max| *max = f32::NEG_INFINITY);
            return;
        }
        let mut first = 0;
        while first < group {
            match group - first {
                1 => self.heads::<S, 1>(s, first),
                2 => self.heads::<S, 2>(s, first),
                3 => self.heads::<S, 3>(s, first),
                _ => self.heads::<S, 4>(s, first),
            }
            first += 4;
        }
    }
}

impl Span<'_> {
    /// `R` query heads from `first` of the group on, which share what is read of the cache.
    #[inline(always)]
    fn heads<S: Simd, const R: usize>(&mut self, s: S, first: usize) {
        let Attention { q, heads, keys, values, scale, softcap, .. } = *self.args;
        let (dim, group) = (keys.dim, heads / keys.heads);
        let vectors = dim.div_ceil(LANES);
        let count = self.slots.len();
        let mut scratch = Scratch::new(R * (vectors * LANES + SPAN));
        let buffer = &mut scratch[..];
        let (queries, scores) = buffer.split_at_mut(R * vectors * LANES);
        queries.fill(0.0);
        for (r, padded) in queries.chunks_exact_mut(vectors * LANES).enumerate() {
            let at = (self.t * heads + self.head * group + first + r) * dim;
            padded[..dim].copy_from_slice(&q[at..at + dim]);
        }
        let queries: [&[[f32; LANES]]; R] = std::array::from_fn(|r| {
            queries[r * vectors * LANES..(r + 1) * vectors * LANES].as_chunks().0
        });
        for (i, slot) in self.slots.clone().enumerate() {
            let row = keys.row(self.head, slot);
            let mut dots = [s.splat(0.0); R];
            for v in 0..vectors {
                let k = vector(s, keys.dtype, row, v);
                for r in 0..R {
                    dots[r] = s.fma(k, s.load(&queries[r][v]), dots[r]);
                }
            }
            for r in 0..R {
                scores[r * SPAN + i] = scale * s.sum(dots[r]);
            }
        }
        let size = 2 + dim;
        let out = &mut self.out[first * size..(first + R) * size];
        for (scores, out) in scores.chunks_exact_mut(SPAN).zip(out.chunks_exact_mut(size)) {
            let scores = &mut scores[..count];
            if let Some(cap) = softcap {
                update(s, scores, &SoftCap { cap });
            }
            let max = greatest(s, scores);
            update(s, scores, &ExpBelow { max });
            out[0] = max;
            out[1] = sum(s, scores);
        }
        for v in 0..vectors {
            let mut sums = [s.splat(0.0); R];
            for (i, slot) in self.slots.clone().enumerate() {
                let value = vector(s, values.dtype, values.row(self.head, slot), v);
                for r in 0..R {
                    sums[r] = s.fma(value, s.splat(scores[r * SPAN + i]), sums[r]);
                }
            }
            for r in 0..R {
                let mut lanes = [0f32; LANES];
                s.store(sums[r], &mut lanes);
                let out = &mut out[r * size + 2..(r + 1) * size][v * LANES..];
                let n = out.len().min(LANES);
                out[..n].copy_from_slice(&lanes[..n]);
            }
        }
    }
}
