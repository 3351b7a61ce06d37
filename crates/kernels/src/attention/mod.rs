//! Attention of grouped query heads over a key/value cache, and storing into that cache.
//!
//! Two ways, chosen by the number of queries alone: [`few`] splits the context, [`many`] the queries.
//! Both take the softmax as they go (Milakov and Gimelshein's online form), so that no score matrix
//! is kept.

use std::ops::Range;

use tensor::DType;

use crate::Pool;
use crate::arch::{LANES, Simd};
use crate::convert::Narrow;
use crate::scratch::Scratch;
use crate::share::Shared;

mod few;
mod grad;
mod many;

pub use grad::{AttentionGrad, Sequence, attention_grad};

use few::Span;
use many::Block;

/// Stands for "no score yet" where infinity would make the difference of two of them NaN.
const LOWEST: f32 = -1e30;

/// Keys or values of one layer: `[heads, capacity, dim]` of `fp16` or `fp32`.
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a> {
    /// Element type: `F16` or `F32`.
    pub dtype: DType,
    /// Row-major bytes; no alignment needed.
    pub bytes: &'a [u8],
    /// Key/value heads.
    pub heads: usize,
    /// Slots for positions.
    pub capacity: usize,
    /// Elements of one head.
    pub dim: usize,
}

/// [`Cache`], writable.
#[derive(Debug)]
pub struct CacheMut<'a> {
    /// Element type: `F16` or `F32`.
    pub dtype: DType,
    /// Row-major bytes; no alignment needed.
    pub bytes: &'a mut [u8],
    /// Key/value heads.
    pub heads: usize,
    /// Slots for positions.
    pub capacity: usize,
    /// Elements of one head.
    pub dim: usize,
}

/// The inputs of [`attention`].
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Queries `[T, heads, dim]`.
    pub q: &'a [f32],
    /// Query heads, a multiple of the cache's; query head `h` reads cache head
    /// `h / (heads / cache heads)`.
    pub heads: usize,
    /// Keys.
    pub keys: Cache<'a>,
    /// Values; same shape as the keys.
    pub values: Cache<'a>,
    /// For each of the `T` queries the slots it sees. An empty range gives a zero output.
    pub visible: &'a [Range<usize>],
    /// Factor on `q · k`, usually `1 / sqrt(dim)`.
    pub scale: f32,
    /// With `Some(c)` a score `s` (after scaling) becomes `c * tanh(s / c)`.
    pub softcap: Option<f32>,
}

impl<'a> Cache<'a> {
    /// The bytes of one row.
    #[inline(always)]
    fn row(&self, head: usize, slot: usize) -> &'a [u8] {
        let size = self.dim * self.dtype.block_bytes();
        &self.bytes[(head * self.capacity + slot) * size..][..size]
    }
}

/// Elements `16 v..` of a row of a cache, zeros past its end.
#[inline(always)]
fn vector<S: Simd>(s: S, dtype: DType, row: &[u8], v: usize) -> S::V {
    if dtype == DType::F16 {
        match row[v * 32..].first_chunk::<32>() {
            Some(bytes) => s.load_f16(bytes),
            None => s.load_f16(&padded(&row[v * 32..])),
        }
    } else {
        let bytes: &[u8; 64] = match row[v * 64..].first_chunk() {
            Some(bytes) => bytes,
            None => &padded(&row[v * 64..]),
        };
        let mut x = [0f32; LANES];
        for (x, b) in x.iter_mut().zip(bytes.as_chunks().0) {
            *x = f32::from_le_bytes(*b);
        }
        s.load(&x)
    }
}

#[inline(always)]
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

/// `out[T, heads, dim]`: for every query the mean of the visible values, weighted by the softmax of
/// the scores. No score matrix is kept; memory does not grow with the context but for one partial
/// result for every 256 slots of a decoding step.
///
/// # Panics
/// When a slice does not have the length its shape says, a range leaves the cache, or a cache is
/// neither `F16` nor `F32`.
pub fn attention(pool: &Pool, args: &Attention<'_>, out: &mut [f32]) {
    let (dim, heads) = (args.keys.dim, args.heads);
    assert_eq!(args.q.len(), args.visible.len() * heads * dim, "queries are not [T, heads, dim]");
    assert_eq!(out.len(), args.q.len(), "output is not [T, heads, dim]");
    assert_eq!(args.values.dim, dim, "keys and values differ in dim");
    assert_eq!(args.values.heads, args.keys.heads, "keys and values differ in heads");
    assert!(args.keys.heads > 0 && heads.is_multiple_of(args.keys.heads), "groups are not whole");
    for cache in [&args.keys, &args.values] {
        assert!(matches!(cache.dtype, DType::F16 | DType::F32), "a cache of {}", cache.dtype);
        let elements = cache.heads * cache.capacity * dim;
        let size = elements * cache.dtype.block_bytes();
        assert_eq!(cache.bytes.len(), size, "cache is not [heads, capacity, dim]");
        let inside = |r: &Range<usize>| r.is_empty() || r.end <= cache.capacity;
        assert!(args.visible.iter().all(inside), "a range leaves the cache");
    }
    if out.is_empty() {
        return;
    }
    if args.visible.len() * (heads / args.keys.heads) <= FEW {
        attend_few(pool, args, out);
    } else {
        let lanes = args.visible.len() * (heads / args.keys.heads);
        let blocks = lanes.div_ceil(many::LANES_OF_BLOCK);
        let out = Shared::new(out);
        pool.run(args.keys.heads * blocks, |i| {
            pool.isa().run(Block { args, head: i / blocks, block: i % blocks, out });
        });
    }
}

/// Queries of one cache head below which lanes hold elements of a head rather than queries.
const FEW: usize = 8;
/// Slots of a partial result.
const SPAN: usize = 256;

/// Partial results for spans of the context, then their sum in order.
fn attend_few(pool: &Pool, args: &Attention<'_>, out: &mut [f32]) {
    let (dim, heads, kv_heads) = (args.keys.dim, args.heads, args.keys.heads);
    let group = heads / kv_heads;
    let start = args.visible.iter().filter(|r| !r.is_empty()).map(|r| r.start).min().unwrap_or(0);
    let end = args.visible.iter().filter(|r| !r.is_empty()).map(|r| r.end).max().unwrap_or(start);
    let spans = (end - start).div_ceil(SPAN);
    let queries = args.visible.len();
    // Maximum, sum and weighted values of each query head, span by span.
    let size = 2 + dim;
    let mut scratch = Scratch::new(spans * queries * heads * size);
    let partial = &mut scratch[..];
    let shared = Shared::new(partial);
    pool.run(spans * queries * kv_heads, |i| {
        let (head, i) = (i % kv_heads, i / kv_heads);
        let (t, span) = (i % queries, i / queries);
        let at = ((span * queries + t) * heads + head * group) * size;
        // SAFETY: each task has its own (span, query, cache head).
        let out = unsafe { shared.slice(at..at + group * size) };
        let from = start + span * SPAN;
        let seen = &args.visible[t];
        let slots = from.max(seen.start)..(from + SPAN).min(seen.end);
        pool.isa().run(Span { args, head, t, slots, out });
    });
    for (row, out) in out.chunks_exact_mut(dim).enumerate() {
        let parts = || partial.chunks_exact(size).skip(row).step_by(queries * heads);
        let max = parts().map(|p| p[0]).fold(f32::NEG_INFINITY, f32::max);
        out.fill(0.0);
        let mut sum = 0.0;
        for part in parts().filter(|p| p[1] > 0.0 || p[1].is_nan()) {
            let factor = (part[0] - max).exp();
            sum += factor * part[1];
            out.iter_mut().zip(&part[2..]).for_each(|(o, v)| *o += factor * v);
        }
        if sum != 0.0 {
            out.iter_mut().for_each(|o| *o /= sum);
        }
    }
}

/// Below this many numbers the threads are not worth waking to store them.
const WORTH_THREADS: usize = 1 << 15;

/// Writes `rows[T, heads, dim]` into the cache: row `t` goes to slot `slots[t]`.
///
/// # Panics
/// When a slice does not have the length its shape says, a slot is not in the cache, or the cache is
/// neither `F16` nor `F32`.
pub fn store_cache(pool: &Pool, rows: &[f32], slots: &[usize], cache: &mut CacheMut<'_>) {
    let (heads, dim, capacity) = (cache.heads, cache.dim, cache.capacity);
    assert_eq!(rows.len(), slots.len() * heads * dim, "rows are not [T, heads, dim]");
    assert!(matches!(cache.dtype, DType::F16 | DType::F32), "a cache of {}", cache.dtype);
    let size = dim * cache.dtype.block_bytes();
    for &slot in slots {
        assert!(slot < capacity, "slot {slot} of {capacity}");
    }
    let dtype = cache.dtype;
    let shared = Shared::new(cache.bytes);
    // Several rows may go to one slot, but heads lie apart.
    let store = |h: usize| {
        for (t, slot) in slots.iter().enumerate() {
            let row = &rows[(t * heads + h) * dim..][..dim];
            let at = (h * capacity + slot) * size;
            // SAFETY: a head belongs to one task.
            let out = unsafe { shared.slice(at..at + size) };
            match dtype {
                DType::F32 => {
                    let out = out.as_chunks_mut().0;
                    out.iter_mut().zip(row).for_each(|(out, v)| *out = v.to_le_bytes());
                }
                _ => pool.isa().run(Narrow { x: row, out }),
            }
        }
    };
    if rows.len() < WORTH_THREADS {
        (0..heads).for_each(store);
    } else {
        pool.run(heads, store);
    }
}
