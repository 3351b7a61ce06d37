//! The gradient of attention by queries, keys and values.
//!
//! A task has one key/value head of one sequence. It takes 32 queries at a time as lanes, computes their
//! weights again, and adds what they contribute; all five products are tiles of [`crate::gemm`]. The
//! scores of 32 queries are all that is kept of the `T * T`.

use std::ops::Range;

use super::LOWEST;
use crate::Pool;
use crate::arch::{Kernel, LANES, Simd};
use crate::gemm::Tile;
use crate::math::{Map, SoftCap, exp};
use crate::panel::WIDTH;
use crate::scratch::Scratch;
use crate::share::Shared;

/// Which rows of a sequence a query sees.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// The row of each slot: an order in which what a query sees is a range.
    pub order: Vec<usize>,
    /// For each query the slots it sees.
    pub visible: Vec<Range<usize>>,
}

/// The inputs of [`attention_grad`]. All sequences have `T` rows.
#[derive(Clone, Copy, Debug)]
pub struct AttentionGrad<'a> {
    /// Queries `[B, T, heads, dim]`.
    pub q: &'a [f32],
    /// Keys `[B, T, kv_heads, dim]`.
    pub keys: &'a [f32],
    /// Values, as keys.
    pub values: &'a [f32],
    /// The derivative by the result, as queries.
    pub grad: &'a [f32],
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// What is seen in each of the `B` sequences.
    pub sequences: &'a [Sequence],
    /// As in [`super::Attention`].
    pub scale: f32,
    /// As in [`super::Attention`].
    pub softcap: Option<f32>,
}

/// The derivatives by queries, keys and values, each of its shape.
///
/// # Panics
/// When a slice does not have the length its shape says, or a range leaves its sequence.
pub fn attention_grad(pool: &Pool, args: &AttentionGrad<'_>, by: [&mut [f32]; 3]) {
    let &AttentionGrad { heads, kv_heads, dim, sequences, .. } = args;
    let t = sequences.first().map_or(0, |s| s.order.len());
    assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "groups are not whole");
    let (queries, keys) = (sequences.len() * t * heads * dim, sequences.len() * t * kv_heads * dim);
    let [q, k, v] = by;
    for (len, expected) in [
        (args.q.len(), queries),
        (args.grad.len(), queries),
        (q.len(), queries),
        (args.keys.len(), keys),
        (args.values.len(), keys),
        (k.len(), keys),
        (v.len(), keys),
    ] {
        assert_eq!(len, expected, "an operand is not [B, T, heads, dim]");
    }
    for s in sequences {
        assert!(s.order.len() == t && s.visible.len() == t, "sequences differ in length");
        assert!(s.order.iter().all(|&row| row < t), "a slot has no row");
        assert!(
            s.visible.iter().all(|r| r.is_empty() || r.end <= t),
            "a range leaves the sequence"
        );
    }
    if queries == 0 {
        return;
    }
    let by = [Shared::new(q), Shared::new(k), Shared::new(v)];
    pool.run(sequences.len() * kv_heads, |i| {
        pool.isa().run(Head { args, sequence: i / kv_heads, head: i % kv_heads, t, by });
    });
}

/// A key/value head of a sequence.
struct Head<'a> {
    args: &'a AttentionGrad<'a>,
    sequence: usize,
    head: usize,
    t: usize,
    by: [Shared<'a, f32>; 3],
}

/// What a block of queries works on; `[_, WIDTH]` holds lanes.
struct Lanes<'a> {
    /// Queries and derivatives by the result `[dim, WIDTH]`.
    q: &'a mut [[f32; WIDTH]],
    g: &'a mut [[f32; WIDTH]],
    /// The same with lanes as rows: `[panels of dim, lanes, WIDTH]`.
    q_rows: &'a mut [[f32; WIDTH]],
    g_rows: &'a mut [[f32; WIDTH]],
    /// Scores, then weights `[slots, WIDTH]`.
    p: &'a mut [[f32; WIDTH]],
    /// The derivatives by weights, then by products `[slots, WIDTH]`.
    d: &'a mut [[f32; WIDTH]],
    /// What the cap multiplies derivatives by `[slots, WIDTH]`; empty without.
    slopes: &'a mut [[f32; WIDTH]],
    /// The derivative by queries `[rows, WIDTH]`.
    by_q: &'a mut [[f32; WIDTH]],
    /// First and last visible slot (exclusive) of each lane.
    start: [f32; WIDTH],
    end: [f32; WIDTH],
}

/// Takes `n` panel columns off the front of `rest`.
fn take<'a>(rest: &mut &'a mut [[f32; WIDTH]], n: usize) -> &'a mut [[f32; WIDTH]] {
    let (now, later) = std::mem::take(rest).split_at_mut(n);
    *rest = later;
    now
}

impl Kernel for Head<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let AttentionGrad { keys, values, dim, softcap, .. } = *self.args;
        let slots = self.t.next_multiple_of(S::TILE);
        let rows = dim.next_multiple_of(S::TILE);
        let stride = rows.next_multiple_of(LANES);
        let panels = dim.div_ceil(WIDTH);
        let capped = if softcap.is_some() { slots } else { 0 };
        let lanes = 2 * dim + 2 * panels * WIDTH + 2 * slots + capped + rows + 2 * panels * slots;
        let mut scratch = Scratch::new(2 * slots * stride + lanes * WIDTH);
        let (copies, rest) = scratch.split_at_mut(2 * slots * stride);
        copies.fill(0.0);
        let (k, v) = copies.split_at_mut(slots * stride);
        self.copy(keys, k, stride);
        self.copy(values, v, stride);
        let mut rest = &mut rest.as_chunks_mut::<WIDTH>().0[..lanes];
        let by_k = take(&mut rest, panels * slots);
        let by_v = take(&mut rest, panels * slots);
        by_k.fill([0.0; WIDTH]);
        by_v.fill([0.0; WIDTH]);
        let mut l = Lanes {
            q: take(&mut rest, dim),
            g: take(&mut rest, dim),
            q_rows: take(&mut rest, panels * WIDTH),
            g_rows: take(&mut rest, panels * WIDTH),
            p: take(&mut rest, slots),
            d: take(&mut rest, slots),
            slopes: take(&mut rest, capped),
            by_q: take(&mut rest, rows),
            start: [0.0; WIDTH],
            end: [0.0; WIDTH],
        };
        let queries = self.t * (self.args.heads / self.args.kv_heads);
        for first in (0..queries).step_by(WIDTH) {
            let lanes = first..queries.min(first + WIDTH);
            let seen = self.load(lanes.clone(), &mut l);
            // Whole tiles; what of them no query sees has no weight.
            let seen = seen.start / S::TILE * S::TILE..seen.end;
            let whole = seen.start..seen.end.next_multiple_of(S::TILE);
            for (x, w, out) in [(&*l.q, &*k, &mut *l.p), (&*l.g, &*v, &mut *l.d)] {
                for slot in seen.clone().step_by(S::TILE) {
                    let (w, sums) = (&w[slot * stride..], &mut out[slot..]);
                    s.tile(Tile { x, w, row: stride, column: 1, fresh: true, sums }, 2);
                }
            }
            self.weights(s, seen.clone(), &mut l);
            l.p[seen.end..whole.end].fill([0.0; WIDTH]);
            l.d[seen.end..whole.end].fill([0.0; WIDTH]);
            for row in (0..rows).step_by(S::TILE) {
                let (w, sums) = (&k[seen.start * stride + row..], &mut l.by_q[row..]);
                let x = &l.d[seen.clone()];
                s.tile(Tile { x, w, row: 1, column: stride, fresh: true, sums }, 2);
            }
            self.write_queries(lanes, l.by_q);
            for (x, w, by) in [(&*l.g_rows, &*l.p, &mut *by_v), (&*l.q_rows, &*l.d, &mut *by_k)] {
                for (panel, (x, by)) in x.chunks(WIDTH).zip(by.chunks_mut(slots)).enumerate() {
                    let vectors = (dim - panel * WIDTH).div_ceil(LANES).min(2);
                    for slot in seen.clone().step_by(S::TILE) {
                        let (w, sums) = (w[slot..].as_flattened(), &mut by[slot..]);
                        s.tile(Tile { x, w, row: WIDTH, column: 1, fresh: false, sums }, vectors);
                    }
                }
            }
        }
        self.write_slots(by_k, self.by[1], slots);
        self.write_slots(by_v, self.by[2], slots);
    }
}

impl Head<'_> {
    /// Copies the rows of this head in the order of slots, `stride` elements apart.
    #[inline(always)]
    fn copy(&self, x: &[f32], out: &mut [f32], stride: usize) {
        let AttentionGrad { kv_heads, dim, sequences, .. } = *self.args;
        for (&row, out) in sequences[self.sequence].order.iter().zip(out.chunks_mut(stride)) {
            let at = ((self.sequence * self.t + row) * kv_heads + self.head) * dim;
            out[..dim].copy_from_slice(&x[at..][..dim]);
        }
    }

    /// Position and offset in queries of lane `i` of all.
    #[inline(always)]
    fn query(&self, i: usize) -> (usize, usize) {
        let AttentionGrad { heads, kv_heads, dim, .. } = *self.args;
        let group = heads / kv_heads;
        let (t, r) = (i / group, i % group);
        (t, ((self.sequence * self.t + t) * heads + self.head * group + r) * dim)
    }

    /// Brings queries to lanes; the slots that any of them sees.
    #[inline(always)]
    fn load(&self, lanes: Range<usize>, l: &mut Lanes<'_>) -> Range<usize> {
        let dim = self.args.dim;
        let (mut first, mut past) = (usize::MAX, 0);
        for all in [&mut *l.q, &mut *l.g, &mut *l.q_rows, &mut *l.g_rows] {
            all.fill([0.0; WIDTH]);
        }
        (l.start, l.end) = ([0.0; WIDTH], [0.0; WIDTH]);
        for (lane, i) in lanes.enumerate() {
            let (t, at) = self.query(i);
            let both = [
                (self.args.q, &mut *l.q, &mut *l.q_rows),
                (self.args.grad, &mut *l.g, &mut *l.g_rows),
            ];
            for (x, columns, rows) in both {
                let x = &x[at..][..dim];
                columns.iter_mut().zip(x).for_each(|(column, x)| column[lane] = *x);
                for (panel, x) in x.chunks(WIDTH).enumerate() {
                    rows[panel * WIDTH + lane][..x.len()].copy_from_slice(x);
                }
            }
            let seen = &self.args.sequences[self.sequence].visible[t];
            if !seen.is_empty() {
                // Slot numbers below 2^24 are exact in single precision.
                (l.start[lane], l.end[lane]) = (seen.start as f32, seen.end as f32);
                (first, past) = (first.min(seen.start), past.max(seen.end));
            }
        }
        first.min(past)..past
    }

    /// Turns scores into weights, and the derivatives by them into those by `q · k`.
    #[inline(always)]
    fn weights<S: Simd>(&self, s: S, seen: Range<usize>, l: &mut Lanes<'_>) {
        let (zero, one) = (s.splat(0.0), s.splat(1.0));
        let (hidden, scale) = (s.splat(f32::NEG_INFINITY), s.splat(self.args.scale));
        for half in 0..2 {
            let lanes = |x: &[f32; WIDTH]| s.load(&x.as_chunks().0[half]);
            let (start, end) = (lanes(&l.start), lanes(&l.end));
            let mut max = s.splat(LOWEST);
            for slot in seen.clone() {
                let mut v = s.mul(lanes(&l.p[slot]), scale);
                if let Some(cap) = self.args.softcap {
                    v = SoftCap { cap }.of(s, v);
                    let share = s.mul(v, s.splat(1.0 / cap));
                    let slope = s.sub(one, s.mul(share, share));
                    s.store(slope, &mut l.slopes[slot].as_chunks_mut().0[half]);
                }
                let at = s.splat(slot as f32);
                v = s.if_less(at, start, hidden, v);
                v = s.if_less(at, end, v, hidden);
                max = s.max(v, max);
                s.store(v, &mut l.p[slot].as_chunks_mut().0[half]);
            }
            let (mut sum, mut mean) = (zero, zero);
            for slot in seen.clone() {
                let weight = exp(s, s.sub(lanes(&l.p[slot]), max));
                sum = s.add(sum, weight);
                mean = s.fma(weight, lanes(&l.d[slot]), mean);
                s.store(weight, &mut l.p[slot].as_chunks_mut().0[half]);
            }
            // Zero where nothing is visible; NaN passes.
            let inverse = s.if_less(s.sub(zero, sum), zero, s.div(one, sum), sum);
            let mean = s.mul(mean, inverse);
            for slot in seen.clone() {
                let weight = s.mul(lanes(&l.p[slot]), inverse);
                let mut d = s.mul(s.mul(weight, s.sub(lanes(&l.d[slot]), mean)), scale);
                if self.args.softcap.is_some() {
                    d = s.mul(d, lanes(&l.slopes[slot]));
                }
                s.store(weight, &mut l.p[slot].as_chunks_mut().0[half]);
                s.store(d, &mut l.d[slot].as_chunks_mut().0[half]);
            }
        }
    }

    #[inline(always)]
    fn write_queries(&self, lanes: Range<usize>, by: &[[f32; WIDTH]]) {
        for (lane, i) in lanes.enumerate() {
            let (_, at) = self.query(i);
            // SAFETY: a query head at a position belongs to one task.
            let out = unsafe { self.by[0].slice(at..at + self.args.dim) };
            out.iter_mut().zip(by).for_each(|(o, by)| *o = by[lane]);
        }
    }

    /// Writes `by[panels of dim, slots, WIDTH]` to the rows of the slots.
    #[inline(always)]
    fn write_slots(&self, by: &[[f32; WIDTH]], out: Shared<'_, f32>, slots: usize) {
        let AttentionGrad { kv_heads, dim, sequences, .. } = *self.args;
        for (slot, &row) in sequences[self.sequence].order.iter().enumerate() {
            let at = ((self.sequence * self.t + row) * kv_heads + self.head) * dim;
            // SAFETY: a head at a row belongs to one task, and each row is of one slot.
            let out = unsafe { out.slice(at..at + dim) };
            for (panel, out) in out.chunks_mut(WIDTH).enumerate() {
                out.copy_from_slice(&by[panel * slots + slot][..out.len()]);
            }
        }
    }
}
