//! Activations, norms, softmax, rotation and conversions against their definitions in double precision.

use half::f16;
use rigel_kernels::{
    Activation, Pairing, Rope, activate, add, argmax, gate, layer_norm, mul, narrow, rms_norm,
    rope, scale, softmax, widen,
};

use crate::common::{Random, pools};

/// Lengths with and without whole vectors, and one of several tasks.
const LENGTHS: [usize; 8] = [0, 1, 15, 16, 17, 100, 8192, 20_001];

/// erf by its Maclaurin series near zero and the continued fraction of erfc farther out.
fn erfc(x: f64) -> f64 {
    let a = x.abs();
    let positive = if a < 2.5 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        1.0 - sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let tail = (1..=60).rev().fold(0.0, |f, k| k as f64 / 2.0 / (a + f));
        (-a * a).exp() / ((a + tail) * std::f64::consts::PI.sqrt())
    };
    if x < 0.0 { 2.0 - positive } else { positive }
}

fn naive(act: Activation, x: f32) -> f64 {
    let v = f64::from(x);
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    match act {
        Activation::Silu => v * sigmoid(v),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v);
            v * sigmoid(2.0 * u)
        }
        Activation::GeluErf => v / 2.0 * erfc(-v * std::f64::consts::FRAC_1_SQRT_2),
        Activation::Relu => v.max(0.0),
        Activation::Sigmoid => sigmoid(v),
        Activation::Tanh => v.tanh(),
        Activation::Exp => v.exp(),
    }
}

/// Each function and the relative error it keeps, in units of 2^-24, for arguments from -10 to 10. Where
/// GELU nears zero it is the exponential of a square, whose rounding grows with it.
const ACTIVATIONS: [(Activation, f64); 7] = [
    (Activation::Silu, 6.0),
    (Activation::GeluTanh, 300.0),
    (Activation::GeluErf, 300.0),
    (Activation::Relu, 0.0),
    (Activation::Sigmoid, 8.0),
    (Activation::Tanh, 8.0),
    (Activation::Exp, 6.0),
];

#[test]
fn activations_keep_their_digits() {
    let x: Vec<f32> = (-100_000..=100_000).map(|i| i as f32 * 1e-4).collect();
    for (act, bound) in ACTIVATIONS {
        for pool in pools(2) {
            let mut out = vec![f32::NAN; x.len()];
            activate(&pool, act, &x, &mut out);
            let mut worst = (0.0, 0.0);
            for (x, got) in x.iter().zip(&out) {
                let want = naive(act, *x);
                let error = (f64::from(*got) - want).abs();
                let units = error / want.abs().max(1e-30) * (1 << 24) as f64;
                if error > 1e-30 && units > worst.0 {
                    worst = (units, *x);
                }
            }
            assert!(
                worst.0 <= bound,
                "{act:?} on {:?}: {} units at {}",
                pool.isa(),
                worst.0,
                worst.1
            );
        }
    }
}

#[test]
fn exp_at_its_edges() {
    let x = [88.7, 88.8, f32::INFINITY, -87.5, -103.0, -105.0, f32::NEG_INFINITY, 0.0, f32::NAN];
    for pool in pools(1) {
        let mut out = [0f32; 9];
        activate(&pool, Activation::Exp, &x, &mut out);
        assert!((f64::from(out[0]) / 88.7f32.into_exp() - 1.0).abs() < 1e-6);
        assert_eq!(out[1..3], [f32::INFINITY; 2], "{:?}", pool.isa());
        assert!((f64::from(out[3]) - (-87.5f32).into_exp()).abs() < 2e-45);
        assert!(out[4] > 0.0, "subnormal");
        assert_eq!(out[5..8], [0.0, 0.0, 1.0]);
        assert!(out[8].is_nan());
    }
}

trait IntoExp {
    fn into_exp(self) -> f64;
}

impl IntoExp for f32 {
    fn into_exp(self) -> f64 {
        f64::from(self).exp()
    }
}

#[test]
fn elementwise_at_all_lengths() {
    for n in LENGTHS {
        let mut random = Random::new(n as u64);
        let (a, b) = (random.floats(n), random.floats(n));
        for pool in pools(3) {
            let mut out = vec![f32::NAN; n];
            add(&pool, &a, &b, &mut out);
            assert!((0..n).all(|i| out[i] == a[i] + b[i]));
            mul(&pool, &a, &b, &mut out);
            assert!((0..n).all(|i| out[i] == a[i] * b[i]));
            scale(&pool, &a, 3.0, &mut out);
            assert!((0..n).all(|i| out[i] == a[i] * 3.0));
            gate(&pool, Activation::Silu, &a, &b, &mut out);
            let close = |i: usize| {
                let want = naive(Activation::Silu, a[i]) * f64::from(b[i]);
                (f64::from(out[i]) - want).abs() < 1e-6
            };
            assert!((0..n).all(close));
            let mut halves = vec![f16::NAN; n];
            narrow(&pool, &a, &mut halves);
            assert!((0..n).all(|i| halves[i] == f16::from_f32(a[i])));
            widen(&pool, &halves, &mut out);
            assert!((0..n).all(|i| out[i] == halves[i].to_f32()));
        }
    }
}

#[test]
fn every_half_widens_exactly() {
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    for pool in pools(1) {
        let mut out = vec![0f32; halves.len()];
        widen(&pool, &halves, &mut out);
        let same = |(h, o): (&f16, &f32)| h.to_f32() == *o || (h.is_nan() && o.is_nan());
        assert!(halves.iter().zip(&out).all(same), "{:?}", pool.isa());
    }
}

fn close(got: &[f32], want: impl IntoIterator<Item = f64>, what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (f64::from(*got) - want).abs() < 4e-6 * (1.0 + want.abs()),
            "{what}: element {i} is {got}, not {want}"
        );
    }
}

#[test]
fn norms_and_softmax() {
    for (rows, dim) in [(1, 1), (3, 17), (5, 576), (40, 333)] {
        let mut random = Random::new(dim as u64);
        let x = random.floats(rows * dim);
        let (weight, bias) = (random.floats(dim), random.floats(dim));
        for pool in pools(2) {
            let mut out = vec![f32::NAN; rows * dim];
            rms_norm(&pool, &x, Some(&weight), 1e-5, dim, &mut out);
            let row = |r: usize| x[r * dim..][..dim].iter().map(|v| f64::from(*v));
            let wide = |v: &f32| f64::from(*v);
            for r in 0..rows {
                let mean = row(r).map(|v| v * v).sum::<f64>() / dim as f64;
                let want = row(r).zip(&weight).map(|(v, w)| v / (mean + 1e-5).sqrt() * wide(w));
                close(&out[r * dim..][..dim], want, "rms_norm");
            }
            layer_norm(&pool, &x, Some(&weight), Some(&bias), 1e-5, dim, &mut out);
            for r in 0..rows {
                let mean = row(r).sum::<f64>() / dim as f64;
                let var = row(r).map(|v| (v - mean).powi(2)).sum::<f64>() / dim as f64;
                let want = row(r)
                    .zip(weight.iter().zip(&bias))
                    .map(|(v, (w, b))| (v - mean) / (var + 1e-5).sqrt() * wide(w) + wide(b));
                close(&out[r * dim..][..dim], want, "layer_norm");
            }
            softmax(&pool, &x, dim, &mut out);
            for r in 0..rows {
                let sum = row(r).map(f64::exp).sum::<f64>();
                close(&out[r * dim..][..dim], row(r).map(|v| v.exp() / sum), "softmax");
            }
        }
    }
}

#[test]
fn rotation_of_both_pairings() {
    let (t, heads, dim, half) = (3, 2, 50, 20);
    let mut random = Random::new(4);
    let (x, angles) = (random.floats(t * heads * dim), random.floats(t * half));
    let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
    for pairing in [Pairing::Adjacent, Pairing::Half] {
        for pool in pools(2) {
            let mut out = vec![f32::NAN; x.len()];
            rope(&pool, &Rope { pairing, heads, dim, cos: &cos, sin: &sin }, &x, &mut out);
            for i in 0..x.len() {
                let (d, t) = (i % dim, i / dim / heads);
                let (pair, other, sign) = match pairing {
                    _ if d >= 2 * half => (0, i, 0.0),
                    Pairing::Adjacent if d % 2 == 0 => (d / 2, i + 1, -1.0),
                    Pairing::Adjacent => (d / 2, i - 1, 1.0),
                    Pairing::Half if d < half => (d, i + half, -1.0),
                    Pairing::Half => (d - half, i - half, 1.0),
                };
                let (c, s) = (cos[t * half + pair], sin[t * half + pair]);
                let want = if sign == 0.0 { x[i] } else { x[i] * c + sign * x[other] * s };
                assert!((out[i] - want).abs() < 1e-6, "{pairing:?} element {i}");
            }
        }
    }
}

#[test]
fn argmax_takes_the_first_and_no_nan() {
    assert_eq!(argmax(&[]), None);
    assert_eq!(argmax(&[f32::NAN]), None);
    assert_eq!(argmax(&[f32::NAN, 1.0, 3.0, f32::NAN, 3.0]), Some(2));
    assert_eq!(argmax(&[f32::NEG_INFINITY]), Some(0));
}
