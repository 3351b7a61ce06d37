//! Pairs of bfloat16 with AVX-512: made of single precision, and tiles of their dot products, which do twice
//! the work of single precision in the same time.

#![allow(clippy::needless_range_loop, reason = "one index runs over several arrays")]

use std::arch::x86_64::*;

use super::LANES;
use crate::gemm::{Tile, Tiles};
use crate::panel::STRIDE;

/// The words of numbers that follow each other: `out[i]` is `x[2 i]` and `x[2 i + 1]`, or zero past the end.
///
/// # Safety
/// The processor must have AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn along(x: &[f32], out: &mut [f32]) {
    let (whole, rest) = x.as_chunks::<{ 2 * LANES }>();
    let (words, out) = out.as_chunks_mut::<LANES>();
    for (x, words) in whole.iter().zip(&mut *words) {
        store(convert(x), words);
    }
    if !rest.is_empty() {
        let (mut last, mut made) = ([0f32; 2 * LANES], [0f32; LANES]);
        last[..rest.len()].copy_from_slice(rest);
        store(convert(&last), &mut made);
        let out = words.get_mut(whole.len()).map_or(out, |words| &mut words[..]);
        let count = out.len().min(rest.len().div_ceil(2));
        out[..count].copy_from_slice(&made[..count]);
    }
}

/// The words of numbers beside each other: `out[i]` is `x[i]` and `next[i]`.
///
/// # Safety
/// The processor must have AVX-512 F, BW and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn across(x: &[f32], next: &[f32], out: &mut [f32]) {
    // Word i is numbers i and 16 + i of the 32.
    let words: [i32; LANES] = std::array::from_fn(|i| ((16 + i) << 16 | i) as i32);
    // SAFETY: 64 bytes are readable.
    let order = unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
    let both = x.as_chunks::<LANES>().0.iter().zip(next.as_chunks::<LANES>().0);
    for ((x, next), out) in both.zip(out.as_chunks_mut::<LANES>().0) {
        store(_mm512_permutexvar_epi16(order, convert_two(next, x)), out);
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn convert(x: &[f32; 2 * LANES]) -> __m512i {
    match x.as_chunks::<LANES>().0 {
        [low, high] => convert_two(high, low),
        _ => unreachable!("two vectors"),
    }
}

/// `low`, then `high`, as bfloat16.
#[target_feature(enable = "avx512f,avx512bf16")]
fn convert_two(high: &[f32; LANES], low: &[f32; LANES]) -> __m512i {
    // SAFETY: 16 numbers are readable in each, and all are 64 bytes of which every pattern is valid.
    unsafe {
        let [high, low] = [high, low].map(|x| _mm512_loadu_ps(x.as_ptr()));
        std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low))
    }
}

#[target_feature(enable = "avx512f")]
fn store(words: __m512i, out: &mut [f32; LANES]) {
    // SAFETY: 64 bytes are writable.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), words) }
}

/// Rows of a tile: 24 of 32 registers hold sums.
const ROWS: usize = 12;

/// # Safety
/// The processor must have AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn run(mut tiles: Tiles<'_>) {
    for (tile, vectors) in tiles.each(ROWS) {
        if vectors == 2 { add::<2>(tile) } else { add::<1>(tile) }
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn add<const V: usize>(tile: Tile<'_>) {
    let Some(last) = tile.x.len().checked_sub(1) else { unreachable!("nothing to multiply") };
    assert!((ROWS - 1) * STRIDE + last < tile.w.len(), "weights are too short");
    let out = &mut tile.sums[..ROWS];
    let mut sums = [[_mm512_setzero_ps(); V]; ROWS];
    if !tile.fresh {
        for r in 0..ROWS {
            for v in 0..V {
                // SAFETY: a row of sums has two vectors, and `V` is at most 2.
                sums[r][v] = unsafe { _mm512_loadu_ps(out[r].as_ptr().add(v * LANES)) };
            }
        }
    }
    for (k, x) in tile.x.iter().enumerate() {
        let mut columns = [_mm512_setzero_ps(); V];
        for v in 0..V {
            // SAFETY: as above.
            columns[v] = unsafe { _mm512_loadu_ps(x.as_ptr().add(v * LANES)) };
        }
        for r in 0..ROWS {
            // SAFETY: `r < ROWS` and `k <= last`, so the index is at most the one asserted above.
            let w = _mm512_set1_ps(unsafe { *tile.w.get_unchecked(r * STRIDE + k) });
            for v in 0..V {
                // SAFETY: both are 64 bytes of which every pattern is valid.
                let [w, x] =
                    unsafe { [w, columns[v]].map(|v| std::mem::transmute::<__m512, __m512bh>(v)) };
                sums[r][v] = _mm512_dpbf16_ps(sums[r][v], w, x);
            }
        }
    }
    for r in 0..ROWS {
        for v in 0..V {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(out[r].as_mut_ptr().add(v * LANES), sums[r][v]) };
        }
    }
}
