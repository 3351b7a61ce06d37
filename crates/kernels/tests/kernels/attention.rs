//! Attention on every instruction set against the definition in double precision.

use std::ops::Range;

use half::f16;
use proptest::prelude::*;
use rigel_kernels::{Attention, Cache, CacheMut, Pool, attention, store_cache};
use tensor::DType;

use crate::common::{Random, pools};

struct Case {
    dtype: DType,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    capacity: usize,
    visible: Vec<Range<usize>>,
    softcap: Option<f32>,
}

/// Rows `[heads, capacity, dim]` as bytes of a cache that starts at an odd offset.
fn bytes(dtype: DType, rows: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0];
    for v in rows {
        match dtype {
            DType::F16 => bytes.extend(f16::from_f32(*v).to_le_bytes()),
            _ => bytes.extend(v.to_le_bytes()),
        }
    }
    bytes
}

/// The definition.
fn naive(case: &Case, q: &[f32], keys: &[f32], values: &[f32], scale: f32) -> Vec<f64> {
    let (dim, group) = (case.dim, case.heads / case.kv_heads);
    let mut out = Vec::new();
    for (t, visible) in case.visible.iter().enumerate() {
        for h in 0..case.heads {
            let q = &q[(t * case.heads + h) * dim..][..dim];
            let row = |rows: &[f32], slot: usize| -> Vec<f64> {
                let at = (h / group * case.capacity + slot) * dim;
                rows[at..at + dim].iter().map(|v| f64::from(*v)).collect()
            };
            let scores: Vec<f64> = visible
                .clone()
                .map(|slot| {
                    let k = row(keys, slot);
                    let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum();
                    let s = f64::from(scale) * dot;
                    case.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            let mut mean = vec![0.0; dim];
            for (slot, s) in visible.clone().zip(scores) {
                let p = (s - max).exp() / sum;
                mean.iter_mut().zip(row(values, slot)).for_each(|(m, v)| *m += p * v);
            }
            out.extend(mean);
        }
    }
    out
}

fn check(case: &Case, seed: u64) {
    let mut random = Random::new(seed);
    let n = case.kv_heads * case.capacity * case.dim;
    let round = |v: &f32| match case.dtype {
        DType::F16 => f16::from_f32(*v).to_f32(),
        _ => *v,
    };
    let keys: Vec<f32> = random.floats(n).iter().map(round).collect();
    let values: Vec<f32> = random.floats(n).iter().map(round).collect();
    // Large enough that the softmax is far from uniform.
    let q: Vec<f32> =
        random.floats(case.visible.len() * case.heads * case.dim).iter().map(|v| v * 6.0).collect();
    let scale = 1.0 / (case.dim as f32).sqrt();
    let expected = naive(case, &q, &keys, &values, scale);
    let (keys, values) = (bytes(case.dtype, &keys), bytes(case.dtype, &values));
    let cache = |bytes| Cache {
        dtype: case.dtype,
        bytes,
        heads: case.kv_heads,
        capacity: case.capacity,
        dim: case.dim,
    };
    let args = Attention {
        q: &q,
        heads: case.heads,
        keys: cache(&keys[1..]),
        values: cache(&values[1..]),
        visible: &case.visible,
        scale,
        softcap: case.softcap,
    };
    for (one, three) in pools(1).iter().zip(pools(3)) {
        let mut out = vec![f32::NAN; q.len()];
        attention(one, &args, &mut out);
        for (i, (got, want)) in out.iter().zip(&expected).enumerate() {
            let close = (f64::from(*got) - want).abs() < 1e-5;
            assert!(close, "element {i} is {got}, not {want} on {:?}", one.isa());
        }
        let mut again = vec![f32::NAN; q.len()];
        attention(&three, &args, &mut again);
        assert_eq!(out, again, "on {:?}", one.isa());
    }
}

#[test]
fn a_long_context_and_windows() {
    for (queries, softcap) in [(1, None), (3, Some(5.0)), (40, None), (37, Some(5.0))] {
        for dtype in [DType::F16, DType::F32] {
            let capacity = 700;
            let causal = (0..queries).map(|t| 0..capacity - queries + t + 1).collect();
            let window: Vec<Range<usize>> =
                (0..queries).map(|t| 300 + t..capacity - queries + t + 1).collect();
            for visible in [causal, window] {
                let case =
                    Case { dtype, heads: 6, kv_heads: 2, dim: 64, capacity, visible, softcap };
                check(&case, 5);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_shape(
        half: bool,
        group in 1usize..6,
        kv_heads in 1usize..4,
        dim in 1usize..70,
        capacity in 1usize..120,
        queries in 0usize..14,
        capped: bool,
        seed: u64,
    ) {
        let mut random = Random::new(seed ^ 99);
        // Any ranges, empty ones among them.
        let mut slot = || (random.bits() % (capacity as u64 + 1)) as usize;
        let visible = (0..queries).map(|_| slot()..slot()).collect();
        let case = Case {
            dtype: if half { DType::F16 } else { DType::F32 },
            heads: group * kv_heads,
            kv_heads,
            dim,
            capacity,
            visible,
            softcap: capped.then_some(2.0),
        };
        check(&case, seed);
    }
}

#[test]
fn rows_go_to_their_slots() {
    let mut random = Random::new(1);
    let (heads, dim, capacity) = (2, 19, 5);
    let rows = random.floats(2 * heads * dim);
    for dtype in [DType::F16, DType::F32] {
        for pool in pools(2) {
            let mut buffer = bytes(dtype, &vec![0.0; heads * capacity * dim]);
            let bytes = &mut buffer[1..];
            store_cache(
                &pool,
                &rows,
                &[4, 1],
                &mut CacheMut { dtype, bytes, heads, capacity, dim },
            );
            let mut stored = vec![0f32; heads * capacity * dim];
            assert!(tensor::dequantize(dtype, &buffer[1..], &mut stored));
            for (i, v) in stored.iter().enumerate() {
                let (h, slot, d) = (i / dim / capacity, i / dim % capacity, i % dim);
                let want = match slot {
                    4 => rows[h * dim + d],
                    1 => rows[(heads + h) * dim + d],
                    _ => 0.0,
                };
                let want = if dtype == DType::F16 { f16::from_f32(want).to_f32() } else { want };
                assert_eq!(*v, want);
            }
        }
    }
}

#[test]
#[should_panic(expected = "a range leaves the cache")]
fn a_range_must_stay_in_the_cache() {
    let case = |bytes| Cache { dtype: DType::F32, bytes, heads: 1, capacity: 1, dim: 1 };
    let args = Attention {
        q: &[1.0],
        heads: 1,
        keys: case(&[0; 4]),
        values: case(&[0; 4]),
        visible: &[Range { start: 0, end: 2 }],
        scale: 1.0,
        softcap: None,
    };
    attention(&Pool::new(1), &args, &mut [0.0]);
}
