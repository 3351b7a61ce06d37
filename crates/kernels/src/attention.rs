//! Attention of grouped query heads over a key/value cache, and storing into that cache.

use std::ops::Range;

use half::f16;
use tensor::{DType, dequantize};

use crate::Pool;

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

/// `out[T, heads, dim]`: for every query the mean of the visible values, weighted by the softmax of
/// the scores. No score matrix is kept; memory does not grow with the context.
///
/// # Panics
/// When a slice does not have the length its shape says, a range leaves the cache, or a cache is
/// neither `F16` nor `F32`.
pub fn attention(pool: &Pool, args: &Attention<'_>, out: &mut [f32]) {
    let _ = pool;
    let (dim, heads) = (args.keys.dim, args.heads);
    let group = heads / args.keys.heads;
    assert_eq!(args.q.len(), args.visible.len() * heads * dim, "queries are not [T, heads, dim]");
    assert_eq!(out.len(), args.q.len(), "output is not [T, heads, dim]");
    let mut row = vec![0f32; dim];
    for (t, visible) in args.visible.iter().enumerate() {
        for h in 0..heads {
            let at = (t * heads + h) * dim;
            let read = |cache: &Cache<'_>, slot: usize, row: &mut [f32]| {
                let size = cache.dtype.block_bytes();
                let start = (h / group * cache.capacity + slot) * dim * size;
                assert!(
                    dequantize(cache.dtype, &cache.bytes[start..][..dim * size], row),
                    "cache type"
                );
            };
            let q = &args.q[at..][..dim];
            let mut scores = Vec::new();
            for slot in visible.clone() {
                read(&args.keys, slot, &mut row);
                let s = args.scale * q.iter().zip(&row).map(|(a, b)| a * b).sum::<f32>();
                scores.push(args.softcap.map_or(s, |c| c * (s / c).tanh()));
            }
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = scores.iter().map(|s| (s - max).exp()).sum();
            let out = &mut out[at..][..dim];
            out.fill(0.0);
            for (slot, s) in visible.clone().zip(scores) {
                read(&args.values, slot, &mut row);
                let p = (s - max).exp() / sum;
                out.iter_mut().zip(&row).for_each(|(o, v)| *o += p * v);
            }
        }
    }
}

/// Writes `rows[T, heads, dim]` into the cache: row `t` goes to slot `slots[t]`.
///
/// # Panics
/// When a slice does not have the length its shape says, a slot is not in the cache, or the cache is
/// neither `F16` nor `F32`.
pub fn store_cache(pool: &Pool, rows: &[f32], slots: &[usize], cache: &mut CacheMut<'_>) {
    let _ = pool;
    let (heads, dim, capacity) = (cache.heads, cache.dim, cache.capacity);
    assert_eq!(rows.len(), slots.len() * heads * dim, "rows are not [T, heads, dim]");
    for (t, &slot) in slots.iter().enumerate() {
        assert!(slot < capacity, "slot {slot} of {capacity}");
        for h in 0..heads {
            let row = &rows[(t * heads + h) * dim..][..dim];
            let at = (h * capacity + slot) * dim;
            for (i, &v) in row.iter().enumerate() {
                match cache.dtype {
                    DType::F32 => {
                        cache.bytes[(at + i) * 4..][..4].copy_from_slice(&v.to_le_bytes())
                    }
                    DType::F16 => cache.bytes[(at + i) * 2..][..2]
                        .copy_from_slice(&f16::from_f32(v).to_le_bytes()),
                    other => panic!("a cache of {other}"),
                }
            }
        }
    }
}
