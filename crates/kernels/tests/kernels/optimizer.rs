//! Updates and norms against double precision, alike on all instruction sets and threads.

use rigel_kernels::{Adamw, Pool, Sgd, adamw, add_scaled_in_place, sgd, sum_of_squares};

use crate::common::{Random, pools};

/// More than a chunk, and no multiple of a vector.
const LEN: usize = 20_011;

/// Pools whose results must be equal to the bit.
fn all_pools() -> Vec<Pool> {
    pools(1).into_iter().chain(pools(3)).collect()
}

fn close(found: &[f32], expected: impl Iterator<Item = f64>, what: &str) {
    for (i, (&f, e)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(f) - e).abs();
        assert!(error <= 1e-6 * (1.0 + e.abs()), "{what} {i}: {f} is not {e}");
    }
}

#[test]
fn adamw_moves_weights_and_moments() {
    let mut random = Random::new(1);
    let [w, g, m] = [(); 3].map(|()| random.floats(LEN));
    let v: Vec<f32> = random.floats(LEN).iter().map(|x| x * x).collect();
    let step = Adamw {
        gradient_scale: 0.5,
        keep: 0.999,
        beta1: 0.9,
        beta2: 0.95,
        step_size: 0.01,
        correction: 0.3,
        epsilon: 1e-8,
    };
    let mut first: Option<[Vec<f32>; 3]> = None;
    for pool in all_pools() {
        let (mut w2, mut m2, mut v2) = (w.clone(), m.clone(), v.clone());
        adamw(&pool, step, &mut w2, &g, &mut m2, &mut v2);
        let moment = |i: usize| 0.9 * f64::from(m[i]) + 0.1 * 0.5 * f64::from(g[i]);
        let square = |i: usize| 0.95 * f64::from(v[i]) + 0.05 * (0.5 * f64::from(g[i])).powi(2);
        close(&m2, (0..LEN).map(moment), "first moment");
        close(&v2, (0..LEN).map(square), "second moment");
        let weight =
            |i: usize| 0.999 * f64::from(w[i]) - 0.01 * moment(i) / (square(i).sqrt() / 0.3 + 1e-8);
        close(&w2, (0..LEN).map(weight), "weight");
        let found = [w2, m2, v2];
        assert!(*first.get_or_insert_with(|| found.clone()) == found, "{:?}", pool.isa());
    }
}

#[test]
fn gradient_descent_with_and_without_velocity() {
    let mut random = Random::new(2);
    let [w, g, v] = [(); 3].map(|()| random.floats(LEN));
    let plain = Sgd {
        gradient_scale: 0.5,
        weight_decay: 0.01,
        momentum: 0.0,
        nesterov: false,
        learning_rate: 0.1,
    };
    let slope = |i: usize| 0.5 * f64::from(g[i]) + 0.01 * f64::from(w[i]);
    let moved = |i: usize, by: f64| f64::from(w[i]) - 0.1 * by;
    let speed = |i: usize| 0.9 * f64::from(v[i]) + slope(i);
    let mut first: Option<Vec<Vec<f32>>> = None;
    for pool in all_pools() {
        let mut found = vec![w.clone(), w.clone(), v.clone(), w.clone(), v.clone()];
        sgd(&pool, plain, &mut found[0], &g, None);
        close(&found[0], (0..LEN).map(|i| moved(i, slope(i))), "plain");
        for (nesterov, at) in [(false, 1), (true, 3)] {
            let step = Sgd { momentum: 0.9, nesterov, ..plain };
            let [w2, v2] = &mut found[at..at + 2] else { unreachable!() };
            sgd(&pool, step, w2, &g, Some(v2));
            close(v2, (0..LEN).map(speed), "velocity");
            let by = |i: usize| if nesterov { slope(i) + 0.9 * speed(i) } else { speed(i) };
            close(w2, (0..LEN).map(|i| moved(i, by(i))), "weight");
        }
        assert!(*first.get_or_insert_with(|| found.clone()) == found, "{:?}", pool.isa());
    }
}

#[test]
fn norms_and_sums() {
    let mut random = Random::new(3);
    let [x, y] = [(); 2].map(|()| random.floats(LEN));
    let expected: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
    let mut first = None;
    for pool in all_pools() {
        let found = sum_of_squares(&pool, &x);
        assert!((found - expected).abs() < 1e-6 * expected, "{found} is not {expected}");
        assert_eq!(*first.get_or_insert(found), found, "{:?}", pool.isa());
        assert_eq!(sum_of_squares(&pool, &[]), 0.0);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = x.clone();
            x[LEN - 1] = bad;
            assert!(!sum_of_squares(&pool, &x).is_finite());
        }
        let mut sum = x.clone();
        add_scaled_in_place(&pool, &mut sum, &y, 3.0);
        let exact = x.iter().zip(&y).map(|(&a, &b)| f64::from(a) + 3.0 * f64::from(b));
        close(&sum, exact, "sum");
    }
}
