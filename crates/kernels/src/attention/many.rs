//! Attention of many queries, as in reading a prompt: lanes hold queries, so that both products are
//! tiles of [`crate::gemm`] and the softmax needs no sums across lanes.

#![allow(clippy::needless_range_loop, reason = "one index runs over several arrays")]

use std::ops::Range;

use super::{Attention, Cache, LOWEST, vector};
use crate::arch::{Kernel, LANES, Simd};
use crate::gemm::Tile;
use crate::math::{Map, SoftCap, exp};
use crate::panel::{PANEL, WIDTH};
use crate::scratch::Scratch;
use crate::share::Shared;

/// Queries of a block: lane `i` of block `b` is number `b * 32 + i` in the order (position, head of
/// the group).
pub(super) const LANES_OF_BLOCK: usize = WIDTH;
/// Slots taken at a time, whole tiles on every instruction set.
const SLOTS: usize = PANEL;

/// One block of queries of one cache head.
pub(super) struct Block<'a> {
    pub(super) args: &'a Attention<'a>,
    pub(super) head: usize,
    pub(super) block: usize,
    /// `[T, heads, dim]`.
    pub(super) out: Shared<'a, f32>,
}

/// What runs along with the slots, one value a lane.
struct Softmax<V> {
    /// First and last visible slot (exclusive).
    start: [V; 2],
    end: [V; 2],
    max: [V; 2],
    sum: [V; 2],
}

impl Kernel for Block<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let keys = &self.args.keys;
        // Rows of values are tiled too, so both dimensions count in whole vectors and tiles.
        let rows = keys.dim.next_multiple_of(S::TILE);
        let stride = rows.next_multiple_of(LANES);
        let mut scratch = Scratch::new((keys.dim + rows + SLOTS) * WIDTH + SLOTS * stride);
        let buffer = &mut scratch[..];
        let (lanes, cache) = buffer.split_at_mut((keys.dim + rows + SLOTS) * WIDTH);
        let lanes = lanes.as_chunks_mut::<WIDTH>().0;
        let (queries, rest) = lanes.split_at_mut(keys.dim);
        let (sums, scores) = rest.split_at_mut(rows);
        cache.fill(0.0);
        sums.fill([0.0; WIDTH]);
        let (mut softmax, slots) = self.start(s, queries);
        for first in slots.clone().step_by(SLOTS) {
            let taken = first..slots.end.min(first + SLOTS);
            copy_rows(s, keys, self.head, taken.clone(), cache, stride);
            for (slot, scores) in scores.chunks_mut(S::TILE).enumerate() {
                let w = &cache[slot * S::TILE * stride..];
                let sums = scores;
                s.tile(Tile { x: queries, w, row: stride, column: 1, fresh: true, sums }, 2);
            }
            let scores = &mut scores[..taken.len()];
            let shrink = softmax.weights(s, self.args, first, scores);
            for sums in sums.iter_mut() {
                for (sum, shrink) in sums.as_chunks_mut().0.iter_mut().zip(shrink) {
                    s.store(s.mul(s.load(sum), shrink), sum);
                }
            }
            copy_rows(s, &self.args.values, self.head, taken, cache, stride);
            for (row, sums) in sums.chunks_mut(S::TILE).enumerate() {
                let w = &cache[row * S::TILE..];
                s.tile(Tile { x: scores, w, row: 1, column: stride, fresh: false, sums }, 2);
            }
        }
        self.write(s, &softmax, &sums[..keys.dim]);
    }
}

impl Block<'_> {
    /// The (position, offset in `q` and `out`) of each lane.
    #[inline(always)]
    fn queries(&self) -> impl Iterator<Item = (usize, usize)> {
        let Attention { heads, keys, visible, .. } = *self.args;
        let group = heads / keys.heads;
        let first = self.block * WIDTH;
        let head = self.head;
        (first..(visible.len() * group).min(first + WIDTH)).map(move |i| {
            let (t, r) = (i / group, i % group);
            (t, (t * heads + head * group + r) * keys.dim)
        })
    }

    /// Packs the queries as `[dim, WIDTH]`; also gives the slots that any of them sees.
    #[inline(always)]
    fn start<S: Simd>(&self, s: S, packed: &mut [[f32; WIDTH]]) -> (Softmax<S::V>, Range<usize>) {
        packed.fill([0.0; WIDTH]);
        let (mut start, mut end) = ([0f32; WIDTH], [0f32; WIDTH]);
        let (mut first, mut past) = (usize::MAX, 0);
        for (lane, (t, at)) in self.queries().enumerate() {
            let q = &self.args.q[at..][..packed.len()];
            packed.iter_mut().zip(q).for_each(|(packed, q)| packed[lane] = *q);
            let seen = &self.args.visible[t];
            if !seen.is_empty() {
                (start[lane], end[lane]) = (seen.start as f32, seen.end as f32);
                (first, past) = (first.min(seen.start), past.max(seen.end));
            }
        }
        let load = |x: &[f32; WIDTH]| {
            let x = x.as_chunks().0;
            [s.load(&x[0]), s.load(&x[1])]
        };
        let softmax = Softmax {
            start: load(&start),
            end: load(&end),
            max: [s.splat(LOWEST); 2],
            sum: [s.splat(0.0); 2],
        };
        (softmax, first.min(past)..past)
    }

    #[inline(always)]
    fn write<S: Simd>(&self, s: S, softmax: &Softmax<S::V>, sums: &[[f32; WIDTH]]) {
        let mut factors = [[0f32; LANES]; 2];
        for (factors, sum) in factors.iter_mut().zip(softmax.sum) {
            let zero = s.splat(0.0);
            // Zero where nothing is visible; NaN passes.
            let inverse = s.div(s.splat(1.0), sum);
            s.store(s.if_less(s.sub(zero, sum), zero, inverse, sum), factors);
        }
        let factors = factors.as_flattened();
        for (lane, (_, at)) in self.queries().enumerate() {
            // SAFETY: a query head at a position belongs to one task.
            let out = unsafe { self.out.slice(at..at + sums.len()) };
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum[lane] * factors[lane]);
        }
    }
}

impl<V: Copy> Softmax<V> {
    /// Turns `scores` of the slots from `first` on into weights relative to the greatest score so
    /// far. Returns by what the sums until now must shrink.
    #[inline(always)]
    fn weights<S: Simd<V = V>>(
        &mut self,
        s: S,
        args: &Attention<'_>,
        first: usize,
        scores: &mut [[f32; WIDTH]],
    ) -> [V; 2] {
        let hidden = s.splat(f32::NEG_INFINITY);
        let scale = s.splat(args.scale);
        let mut shrink = [s.splat(0.0); 2];
        for half in 0..2 {
            let mut max = self.max[half];
            for (slot, scores) in (first..).zip(scores.iter_mut()) {
                let score = &mut scores.as_chunks_mut().0[half];
                let mut v = s.mul(s.load(score), scale);
                if let Some(cap) = args.softcap {
                    v = SoftCap { cap }.of(s, v);
                }
                // Slot numbers below 2^24 are exact in single precision.
                let slot = s.splat(slot as f32);
                v = s.if_less(slot, self.start[half], hidden, v);
                v = s.if_less(slot, self.end[half], v, hidden);
                max = s.max(v, max);
                s.store(v, score);
            }
            shrink[half] = exp(s, s.sub(self.max[half], max));
            let mut sum = s.mul(self.sum[half], shrink[half]);
            for scores in scores.iter_mut() {
                let score = &mut scores.as_chunks_mut().0[half];
                let weight = exp(s, s.sub(s.load(score), max));
                sum = s.add(sum, weight);
                s.store(weight, score);
            }
            (self.max[half], self.sum[half]) = (max, sum);
        }
        shrink
    }
}

/// Rows `slots` of a cache as single precision, `stride` elements apart.
#[inline(always)]
fn copy_rows<S: Simd>(
    s: S,
    cache: &Cache<'_>,
    head: usize,
    slots: Range<usize>,
    out: &mut [f32],
    stride: usize,
) {
    for (slot, out) in slots.zip(out.chunks_exact_mut(stride)) {
        let row = cache.row(head, slot);
        let vectors = cache.dim.div_ceil(LANES);
        for (v, out) in out.as_chunks_mut().0.iter_mut().enumerate().take(vectors) {
            s.store(vector(s, cache.dtype, row, v), out);
        }
    }
}
