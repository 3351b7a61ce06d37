//! Gradients of attention, norm and output layer, products that lie the other way, and chains, on every
//! instruction set against their definitions in double precision.

use proptest::prelude::*;
use rigel_kernels::{
    Activation, AttentionGrad, Chain, ChainFunction, ChainOperand, ChainStep, HeadGrad, HeadLoss,
    Matrix, Pool, Precision, Sequence, activate, attention_grad, chain, head_loss, logits_len,
    matmul, matmul_columns, matmul_turned, rms_norm_grad,
};
use tensor::DType;

use crate::common::{Random, pools};

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Each element within `bound` of the largest magnitude.
fn assert_close(what: &str, got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(1e-6, |m: f64, v| m.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let close = (f64::from(*got) - want).abs() <= bound * largest;
        assert!(close, "{what}: element {i} is {got}, not {want}");
    }
}

fn bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The value of `x` rounded to bfloat16.
fn bf16(x: f32) -> f64 {
    f64::from(half::bf16::from_f32(x).to_f32())
}

/// A pool and how its products round their operands.
type Rounded = (Pool, fn(f32) -> f64);

/// Pools of both precisions on every instruction set.
fn all_pools(threads: usize) -> Vec<Rounded> {
    let single = pools(threads).into_iter().map(|p| (p, f64::from as fn(f32) -> f64));
    let half = pools(threads).into_iter().map(|p| (p.with_precision(Precision::Bf16), bf16 as _));
    single.chain(half).collect()
}

/// `x[m, k] · y[k, n]` by each way that a product can lie.
fn products(m: usize, n: usize, k: usize, seed: u64) {
    let mut random = Random::new(seed);
    let (x, y) = (random.floats(m * k), random.floats(k * n));
    let turn = |x: &[f32], rows: usize, columns: usize| -> Vec<f32> {
        (0..x.len()).map(|i| x[i % rows * columns + i / rows]).collect()
    };
    let (x_turned, y_turned) = (turn(&x, m, k), turn(&y, k, n));
    let before = random.floats(m * n);
    let (x_bytes, y_bytes, yt_bytes) = (bytes(&x), bytes(&y), bytes(&y_turned));
    let matrix = |rows, cols, bytes| Matrix::new(DType::F32, rows, cols, bytes).unwrap();
    for ((one, round), (two, _)) in all_pools(1).into_iter().zip(all_pools(2)) {
        // Few rows are multiplied as they are.
        let round = if m > 8 { round } else { f64::from };
        let mut want = vec![0.0; m * n];
        for (i, want) in want.iter_mut().enumerate() {
            let terms = (0..k).map(|l| round(x[i / n * k + l]) * round(y[l * n + i % n]));
            *want = terms.sum();
        }
        let what = format!("[{m}, {k}] by [{k}, {n}] on {:?} in {:?}", one.isa(), one.precision());
        let compute = |pool: &Pool| {
            let mut outs = [(); 4].map(|()| vec![f32::NAN; m * n]);
            matmul(pool, &x, matrix(n, k, &yt_bytes), None, &mut outs[0]);
            matmul_columns(pool, matrix(m, k, &x_bytes), matrix(k, n, &y_bytes), &mut outs[1]);
            matmul_turned(pool, &x_turned, matrix(k, n, &y_bytes), false, &mut outs[2]);
            outs[3].copy_from_slice(&before);
            matmul_turned(pool, &x_turned, matrix(k, n, &y_bytes), true, &mut outs[3]);
            outs
        };
        let outs = compute(&one);
        let added: Vec<f64> = want.iter().zip(wide(&before)).map(|(a, b)| a + b).collect();
        if m > 8 || one.precision() == Precision::Single {
            for (out, want) in outs.iter().zip([&want, &want, &want, &added]) {
                assert_close(&what, out, want, 4e-6 * (k as f64).sqrt());
            }
        } else {
            assert_close(&what, &outs[0], &want, 1e-5);
            assert_close(&what, &outs[2], &want, 0.02);
        }
        assert_eq!(outs, compute(&two), "{what}");
    }
}

#[test]
fn products_of_sizes_at_the_edges() {
    for (i, (m, n, k)) in
        [(9, 1, 1), (1, 33, 5), (48, 32, 256), (49, 33, 257), (100, 1100, 70), (1030, 40, 513)]
            .into_iter()
            .enumerate()
    {
        products(m, n, k, i as u64);
    }
}

struct AttentionCase {
    batch: usize,
    t: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    softcap: Option<f32>,
    /// Documents of random lengths, and rows in random order.
    mixed: bool,
}

fn sequences(case: &AttentionCase, random: &mut Random) -> Vec<Sequence> {
    let one = |random: &mut Random| {
        let mut order: Vec<usize> = (0..case.t).collect();
        let mut first = 0;
        let mut visible = vec![0..0; case.t];
        for slot in 0..case.t {
            if case.mixed {
                order.swap(slot, slot + random.bits() as usize % (case.t - slot));
                if random.bits().is_multiple_of(9) {
                    first = slot;
                }
            }
            // A query may see nothing.
            let seen =
                if case.mixed && random.bits().is_multiple_of(20) { 0..0 } else { first..slot + 1 };
            visible[order[slot]] = seen;
        }
        Sequence { order, visible }
    };
    (0..case.batch).map(|_| one(random)).collect()
}

fn check_attention(case: &AttentionCase, seed: u64) {
    let &AttentionCase { batch, t, heads, kv_heads, dim, softcap, .. } = case;
    let mut random = Random::new(seed);
    let (queries, rows) = (batch * t * heads * dim, batch * t * kv_heads * dim);
    let q: Vec<f32> = random.floats(queries).iter().map(|v| v * 3.0).collect();
    let (keys, values, grad) = (random.floats(rows), random.floats(rows), random.floats(queries));
    let sequences = sequences(case, &mut random);
    let scale = 1.0 / (dim as f32).sqrt();
    let [wq, wk, wv, wg] = [&q, &keys, &values, &grad].map(|x| wide(x));
    let mut want = [vec![0.0; queries], vec![0.0; rows], vec![0.0; rows]];
    for i in 0..batch * t * heads {
        let (b, n, h) = (i / heads / t, i / heads % t, i % heads);
        let sequence = &sequences[b];
        let row = |slot: usize| {
            ((b * t + sequence.order[slot]) * kv_heads + h / (heads / kv_heads)) * dim
        };
        let (q, g) = (&wq[i * dim..][..dim], &wg[i * dim..][..dim]);
        let seen: Vec<usize> = sequence.visible[n].clone().map(row).collect();
        let cap = softcap.map(f64::from);
        let scores: Vec<f64> = seen
            .iter()
            .map(|&at| {
                let s = f64::from(scale) * dot(q, &wk[at..][..dim]);
                cap.map_or(s, |c| c * (s / c).tanh())
            })
            .collect();
        let sum: f64 = scores.iter().map(|s| s.exp()).sum();
        let by: Vec<f64> = seen.iter().map(|&at| dot(g, &wv[at..][..dim])).collect();
        let weights: Vec<f64> = scores.iter().map(|s| s.exp() / sum).collect();
        let mean = dot(&weights, &by);
        for (j, &at) in seen.iter().enumerate() {
            let slope = cap.map_or(1.0, |c| 1.0 - (scores[j] / c).powi(2));
            let d = weights[j] * (by[j] - mean) * slope * f64::from(scale);
            for e in 0..dim {
                want[0][i * dim + e] += d * wk[at + e];
                want[1][at + e] += d * q[e];
                want[2][at + e] += weights[j] * g[e];
            }
        }
    }
    let args = AttentionGrad {
        q: &q,
        keys: &keys,
        values: &values,
        grad: &grad,
        heads,
        kv_heads,
        dim,
        sequences: &sequences,
        scale,
        softcap,
    };
    for (one, three) in pools(1).iter().zip(pools(3)) {
        let compute = |pool: &Pool| {
            let mut by = [vec![f32::NAN; queries], vec![f32::NAN; rows], vec![f32::NAN; rows]];
            attention_grad(pool, &args, by.each_mut().map(|v| &mut v[..]));
            by
        };
        let by = compute(one);
        for (name, (by, want)) in ["query", "key", "value"].into_iter().zip(by.iter().zip(&want)) {
            assert_close(&format!("{name} on {:?}", one.isa()), by, want, 2e-5);
        }
        assert_eq!(by, compute(&three), "on {:?}", one.isa());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() })]

    #[test]
    fn products_of_any_shape(m in 1usize..120, n in 1usize..120, k in 1usize..600, seed: u64) {
        products(m, n, k, seed);
    }

    #[test]
    fn attention_of_any_shape(
        batch in 1usize..3,
        t in 1usize..70,
        kv_heads in 1usize..3,
        group in 1usize..4,
        dim in 1usize..70,
        softcap in prop::sample::select(vec![None, Some(2.0)]),
        mixed: bool,
        seed: u64,
    ) {
        let heads = kv_heads * group;
        check_attention(&AttentionCase { batch, t, heads, kv_heads, dim, softcap, mixed }, seed);
    }

    #[test]
    fn norms_of_any_shape(rows in 0usize..80, dim in 1usize..70, seed: u64) {
        let mut random = Random::new(seed);
        let (x, w, g) = (random.floats(rows * dim), random.floats(dim), random.floats(rows * dim));
        let (mut want, mut want_w) = (Vec::new(), vec![0.0; dim]);
        for (x, g) in wide(&x).chunks(dim).zip(wide(&g).chunks(dim)) {
            let r = 1.0 / (dot(x, x) / dim as f64 + 1e-3).sqrt();
            let u: Vec<f64> = g.iter().zip(wide(&w)).map(|(g, w)| g * w).collect();
            let mean = dot(&u, x) * r / dim as f64;
            for i in 0..dim {
                want.push(r * (u[i] - x[i] * r * mean));
                want_w[i] += g[i] * x[i] * r;
            }
        }
        for (one, two) in pools(1).iter().zip(pools(2)) {
            let compute = |pool: &Pool| {
                let (mut by, mut by_w) = (vec![f32::NAN; rows * dim], vec![f32::NAN; dim]);
                rms_norm_grad(pool, (&x, &w, &g), 1e-3, &mut by, &mut by_w);
                (by, by_w)
            };
            let (by, by_w) = compute(one);
            assert_close("input", &by, &want, 1e-5);
            assert_close("weight", &by_w, &want_w, 1e-5);
            assert_eq!((by, by_w), compute(&two));
        }
    }

    #[test]
    fn losses_of_any_shape(
        rows in 1usize..70,
        vocab in prop::sample::select(vec![2usize, 7, 100, 2064, 2065]),
        d in prop::sample::select(vec![1usize, 32, 40]),
        kind in prop::sample::select(vec![DType::F32, DType::Bf16, DType::Q8_0]),
        softcap in prop::sample::select(vec![None, Some(3.0)]),
        biased: bool,
        seed: u64,
    ) {
        let kind = if d.is_multiple_of(32) { kind } else { DType::F32 };
        check_loss(rows, (vocab, d), kind, softcap, biased, seed);
    }
}

fn check_loss(
    rows: usize,
    (vocab, d): (usize, usize),
    kind: DType,
    softcap: Option<f32>,
    biased: bool,
    seed: u64,
) {
    let mut random = Random::new(seed);
    let (x, bytes) = (random.floats(rows * d), random.weights(kind, vocab * d));
    let weight = Matrix::new(kind, vocab, d, &bytes).unwrap();
    let mut plain = vec![0f32; vocab * d];
    assert!(tensor::dequantize(kind, &bytes, &mut plain));
    let bias = biased.then(|| random.floats(vocab));
    let targets: Vec<i32> =
        (0..rows).map(|_| (random.bits() % (vocab as u64 + 1)) as i32 - 1).collect();
    let (wx, ww) = (wide(&x), wide(&plain));
    let count = targets.iter().filter(|&&t| t >= 0).count().max(1) as f64;
    let mut loss = 0.0;
    let (mut by_x, mut by_w, mut by_b) =
        (vec![0.0; rows * d], vec![0.0; vocab * d], vec![0.0; vocab]);
    for (row, &target) in targets.iter().enumerate() {
        let Ok(target) = usize::try_from(target) else { continue };
        let x = &wx[row * d..][..d];
        let logits: Vec<f64> = (0..vocab)
            .map(|v| {
                let z = dot(x, &ww[v * d..][..d]) + bias.as_ref().map_or(0.0, |b| f64::from(b[v]));
                softcap.map_or(z, |c| f64::from(c) * (z / f64::from(c)).tanh())
            })
            .collect();
        let max = logits.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = logits.iter().map(|z| (z - max).exp()).sum();
        loss += (max + sum.ln() - logits[target]) / count;
        for (v, z) in logits.iter().enumerate() {
            let slope = softcap.map_or(1.0, |c| 1.0 - (z / f64::from(c)).powi(2));
            let hit = f64::from(u8::from(v == target));
            let by = ((z - max).exp() / sum - hit) * slope * 1.5 / count;
            by_b[v] += by;
            for i in 0..d {
                by_x[row * d + i] += by * ww[v * d + i];
                by_w[v * d + i] += by * x[i];
            }
        }
    }
    let args = HeadLoss { x: &x, weight, bias: bias.as_deref(), targets: &targets, softcap };
    for (one, two) in pools(1).iter().zip(pools(2)) {
        let compute = |pool: &Pool| {
            let mut logits = vec![f32::NAN; logits_len(rows, vocab)];
            let mut by =
                [vec![f32::NAN; rows * d], vec![f32::NAN; vocab * d], vec![f32::NAN; vocab]];
            let [x, weight, bias] = by.each_mut().map(|v| &mut v[..]);
            let grad = HeadGrad { factor: 1.5, x, weight: Some(weight), bias: Some(bias) };
            let loss = head_loss(pool, &args, &mut logits, Some(grad)).unwrap();
            assert_eq!(loss, head_loss(pool, &args, &mut logits, None).unwrap());
            (loss, by)
        };
        let (got, by) = compute(one);
        assert!((f64::from(got) - loss).abs() < 1e-5 * (1.0 + loss), "{got}, not {loss}");
        for (by, want) in by.iter().zip([&by_x, &by_w, &by_b]) {
            assert_close(&format!("{kind} on {:?}", one.isa()), by, want, 3e-5);
        }
        assert_eq!((got, by), compute(&two));
    }
}

#[test]
fn rows_that_do_not_fit_together_go_one_after_another() {
    // More logits than exist at a time.
    assert!(logits_len(700, 49_000) < 700 * 49_000);
    check_loss(700, (49_000, 1), DType::F32, None, true, 5);
}

#[test]
fn a_target_past_the_vocabulary() {
    let weight = Matrix::new(DType::F32, 2, 1, &[0; 8]).unwrap();
    let args = HeadLoss { x: &[0.0; 2], weight, bias: None, targets: &[-1, 2], softcap: None };
    let mut logits = vec![0.0; logits_len(2, 2)];
    let error = head_loss(&Pool::new(1), &args, &mut logits, None).unwrap_err();
    assert_eq!(error.to_string(), "target 2 of row 1 is not in the vocabulary of 2");
}

#[test]
fn without_rows_gradients_are_zero() {
    let weight = Matrix::new(DType::F32, 2, 1, &[0; 8]).unwrap();
    let args = HeadLoss { x: &[], weight, bias: None, targets: &[], softcap: None };
    let (mut w, mut b) = ([f32::NAN; 2], [f32::NAN; 2]);
    let grad = HeadGrad { factor: 1.0, x: &mut [], weight: Some(&mut w), bias: Some(&mut b) };
    assert_eq!(head_loss(&Pool::new(1), &args, &mut [], Some(grad)).unwrap(), 0.0);
    assert_eq!((w, b), ([0.0; 2], [0.0; 2]));
}

/// Tokens that a bias forbids, more of them than are looked at together.
#[test]
fn forbidden_tokens() {
    let (vocab, allowed) = (5000, 4000);
    let weight = vec![0u8; vocab * 4];
    let weight = Matrix::new(DType::F32, vocab, 1, &weight).unwrap();
    let mut bias = vec![0f32; vocab];
    bias[..allowed].fill(f32::NEG_INFINITY);
    let args = HeadLoss { x: &[1.0], weight, bias: Some(&bias), targets: &[4500], softcap: None };
    let expected = ((vocab - allowed) as f32).ln();
    for pool in pools(1) {
        let mut logits = vec![0.0; logits_len(1, vocab)];
        let (mut x, mut b) = ([0f32], vec![0f32; vocab]);
        let grad = HeadGrad { factor: 1.0, x: &mut x, weight: None, bias: Some(&mut b) };
        let loss = head_loss(&pool, &args, &mut logits, Some(grad)).unwrap();
        assert!((loss - expected).abs() < 1e-5, "{loss} on {:?}", pool.isa());
        assert!(b[..allowed].iter().all(|&b| b == 0.0) && (b[4500] + 0.999).abs() < 1e-5);
    }
}

#[test]
fn rounding_keeps_what_is_no_number() {
    for pool in pools(1) {
        let pool = pool.with_precision(Precision::Bf16);
        let mut out = [0f32; 9];
        let x =
            [f32::from_bits(0x7fff_ffff), f32::INFINITY, 1.0, f32::MAX, 0.0, 1.0, 1.0, 1.0, 1.0];
        matmul(&pool, &x, Matrix::new(DType::F32, 1, 1, &bytes(&[1.0])).unwrap(), None, &mut out);
        assert!(out[0].is_nan() && out[1] == f32::INFINITY && out[2] == 1.0);
        assert_eq!(out[3], f32::INFINITY, "too large for bfloat16");
    }
}

/// `silu(x) * (1 - x / y)`, whose parts are outputs too.
#[test]
fn chains() {
    let step = |function, a, b| ChainStep { function, operands: [a, b] };
    let (x, y) = (ChainOperand::Input(0), ChainOperand::Input(1));
    let steps = vec![
        step(ChainFunction::Div, x, y),
        step(ChainFunction::Sub, ChainOperand::Number(0), ChainOperand::Step(0)),
        step(ChainFunction::Of(Activation::Silu), x, x),
        step(ChainFunction::Mul, ChainOperand::Step(2), ChainOperand::Step(1)),
        step(ChainFunction::Add, ChainOperand::Step(3), ChainOperand::Number(1)),
    ];
    let program = Chain { steps, numbers: vec![1.0, 0.5], outputs: vec![4, 2] };
    for len in [1, 511, 512, 513, 20_001] {
        let mut random = Random::new(len as u64);
        let (x, y) = (random.floats(len), random.floats(len));
        for pool in pools(2) {
            let mut silu = vec![0f32; len];
            activate(&pool, Activation::Silu, &x, &mut silu);
            let parts = silu.iter().zip(x.iter().zip(&y));
            let want: Vec<f32> = parts.map(|(s, (x, y))| s * (1.0 - x / y) + 0.5).collect();
            let (mut a, mut b) = (vec![0f32; len], vec![0f32; len]);
            chain(&pool, &program, &[&x, &y], None, &mut [&mut a, &mut b]);
            assert!(a == want && b == silu, "{len} on {:?}", pool.isa());
            let mut a = y.clone();
            chain(&pool, &program, &[&x, &[]], Some(1), &mut [&mut a, &mut b]);
            assert!(a == want && b == silu, "{len} in place on {:?}", pool.isa());
        }
    }
}
