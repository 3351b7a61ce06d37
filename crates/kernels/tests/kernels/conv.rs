//! Convolution, pooling and products with columns against sums in double precision.

use proptest::prelude::*;
use rigel_kernels::{Axis, Conv, Matrix, Pooling, conv, matmul_columns, pool_windows};
use tensor::{DType, dequantize};

use crate::common::{Random, pools};

/// An axis with as many outputs as windows fit.
fn axis() -> impl Strategy<Value = Axis> {
    (1..20usize, 1..4usize, 0..3usize, 1..4usize, 1..3usize).prop_map(
        |(size, kernel, before, stride, dilation)| {
            let span = (kernel - 1) * dilation;
            let size = size.max((span + 1).saturating_sub(before));
            let out = (size + 2 * before - span - 1) / stride + 1;
            Axis { size, kernel, out, before, stride, dilation }
        },
    )
}

/// The elements that each output sees, with their places in the kernel.
fn seen(axes: &[Axis; 3]) -> Vec<Vec<(usize, usize)>> {
    let [d, h, w] = axes;
    let element = |a: &Axis, o: usize, k: usize| {
        (o * a.stride + k * a.dilation).checked_sub(a.before).filter(|&e| e < a.size)
    };
    let mut all = Vec::new();
    for o in 0..d.out * h.out * w.out {
        let (od, oh, ow) = (o / (h.out * w.out), o / w.out % h.out, o % w.out);
        let mut mine = Vec::new();
        for k in 0..d.kernel * h.kernel * w.kernel {
            let (kd, kh, kw) = (k / (h.kernel * w.kernel), k / w.kernel % h.kernel, k % w.kernel);
            if let (Some(i), Some(j), Some(l)) =
                (element(d, od, kd), element(h, oh, kh), element(w, ow, kw))
            {
                mine.push((k, (i * h.size + j) * w.size + l));
            }
        }
        all.push(mine);
    }
    all
}

fn close(got: f32, want: f64, size: f64) -> bool {
    (f64::from(got) - want).abs() <= size * 2e-6 + 1e-12
}

fn check_conv(args: &Conv, dtype: DType, biased: bool, seed: u64) {
    let Conv { batch, groups, inputs, outputs, axes } = *args;
    let product = |f: fn(&Axis) -> usize| axes.iter().map(f).product::<usize>();
    let (source, plane, taps) = (product(|a| a.size), product(|a| a.out), product(|a| a.kernel));
    let mut random = Random::new(seed);
    let x = random.floats(batch * groups * inputs * source);
    let (rows, cols) = (groups * outputs, inputs * taps);
    let bytes = random.weights(dtype, rows * cols);
    let mut w = vec![0f32; rows * cols];
    assert!(dequantize(dtype, &bytes, &mut w));
    let bias = biased.then(|| random.floats(rows));
    let seen = seen(&axes);
    let mut expected = Vec::new();
    for i in 0..batch * rows {
        let (image, channel) = (i / rows, i % rows);
        for mine in &seen {
            let mut sum = bias.as_ref().map_or(0.0, |b| f64::from(b[channel]));
            let mut size = sum.abs();
            for c in 0..inputs {
                let from = ((image * groups + channel / outputs) * inputs + c) * source;
                for &(k, at) in mine {
                    let t = f64::from(x[from + at]) * f64::from(w[channel * cols + c * taps + k]);
                    sum += t;
                    size += t.abs();
                }
            }
            expected.push((sum, size));
        }
    }
    let weight = Matrix::new(dtype, rows, cols, &bytes).unwrap();
    for (one, two) in pools(1).iter().zip(pools(2)) {
        let mut out = vec![f32::NAN; batch * rows * plane];
        conv(one, args, &x, weight, bias.as_deref(), &mut out);
        for (i, (got, (want, size))) in out.iter().zip(&expected).enumerate() {
            assert!(close(*got, *want, *size), "{:?} {args:?} at {i}: {got} {want}", one.isa());
        }
        let mut again = vec![f32::NAN; out.len()];
        conv(&two, args, &x, weight, bias.as_deref(), &mut again);
        assert_eq!(out.map_bits(), again.map_bits(), "{args:?}");
    }
}

/// Bits, so that equality is of them.
trait Bits {
    fn map_bits(&self) -> Vec<u32>;
}

impl Bits for Vec<f32> {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|v| v.to_bits()).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn convolutions(
        (batch, groups, inputs) in (1..3usize, 1..4usize, 1..6usize),
        outputs in prop::sample::select(vec![1usize, 2, 7, 8, 9, 50]),
        axes in prop_oneof![
            axis().prop_map(|w| [SINGLE, SINGLE, w]),
            (axis(), axis()).prop_map(|(h, w)| [SINGLE, h, w]),
            (axis(), axis(), axis()).prop_map(|(d, h, w)| [shorter(d), h, w]),
        ],
        half in any::<bool>(),
        biased in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let dtype = if half { DType::F16 } else { DType::F32 };
        check_conv(&Conv { batch, groups, inputs, outputs, axes }, dtype, biased, seed);
    }

    #[test]
    fn pooled_windows(
        planes in 1..4usize,
        axes in (axis(), axis()).prop_map(|(h, w)| [SINGLE, h, w]),
        seed in any::<u64>(),
    ) {
        let source: usize = axes.iter().map(|a| a.size).product();
        let seen = seen(&axes);
        let x = Random::new(seed).floats(planes * source);
        for (one, two) in pools(1).iter().zip(pools(2)) {
            for pooling in [Pooling::Max, Pooling::Sum, Pooling::SumSquare] {
                let mut out = vec![f32::NAN; planes * seen.len()];
                pool_windows(one, pooling, &axes, &x, &mut out);
                let mut again = out.clone();
                pool_windows(&two, pooling, &axes, &x, &mut again);
                prop_assert_eq!(out.map_bits(), again.map_bits());
                for (i, got) in out.iter().enumerate() {
                    let plane = &x[i / seen.len() * source..];
                    let mine = seen[i % seen.len()].iter().map(|&(_, at)| f64::from(plane[at]));
                    let want = match pooling {
                        Pooling::Max => mine.fold(f64::NEG_INFINITY, f64::max),
                        Pooling::Sum => mine.sum(),
                        Pooling::SumSquare => mine.map(|v| v * v).sum(),
                    };
                    prop_assert!(f64::from(*got) == want || close(*got, want, 9.0), "{got} {want}");
                }
            }
        }
    }

    #[test]
    fn products_with_columns(
        m in prop::sample::select(vec![1usize, 2, 4, 5, 33, 200]),
        k in prop::sample::select(vec![0usize, 1, 15, 64, 300]),
        n in prop::sample::select(vec![0usize, 1, 8, 9, 31, 64, 65, 300]),
        dtype in prop::sample::select(vec![DType::F32, DType::F16, DType::Bf16]),
        seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let (a, bytes) = (random.weights(DType::F32, m * k), random.weights(dtype, k * n));
        let (mut x, mut y) = (vec![0f32; m * k], vec![0f32; k * n]);
        prop_assert!(dequantize(DType::F32, &a, &mut x) && dequantize(dtype, &bytes, &mut y));
        let left = Matrix::new(DType::F32, m, k, &a).unwrap();
        let right = Matrix::new(dtype, k, n, &bytes).unwrap();
        for (one, two) in pools(1).iter().zip(pools(2)) {
            let mut out = vec![f32::NAN; m * n];
            matmul_columns(one, left, right, &mut out);
            for (i, got) in out.iter().enumerate() {
                let terms = (0..k).map(|l| f64::from(x[i / n * k + l]) * f64::from(y[l * n + i % n]));
                let size: f64 = terms.clone().map(f64::abs).sum();
                prop_assert!(close(*got, terms.sum(), size), "{:?} {m} {k} {n} at {i}", one.isa());
            }
            let mut again = vec![f32::NAN; out.len()];
            matmul_columns(&two, left, right, &mut again);
            prop_assert_eq!(out.map_bits(), again.map_bits());
        }
    }
}

const SINGLE: Axis = Axis { size: 1, kernel: 1, out: 1, before: 0, stride: 1, dilation: 1 };

/// A short axis, so that volumes stay small.
fn shorter(mut axis: Axis) -> Axis {
    let span = (axis.kernel - 1) * axis.dilation;
    axis.size = axis.size.min(4).max((span + 1).saturating_sub(axis.before));
    axis.out = (axis.size + 2 * axis.before - span - 1) / axis.stride + 1;
    axis
}

#[test]
fn a_pointwise_convolution_of_many_elements() {
    let line = |size| Axis { size, kernel: 1, out: size, ..SINGLE };
    for (inputs, outputs, width) in [(300, 200, 700), (64, 3, 100), (700, 40, 1), (20, 9, 8)] {
        let axes = [SINGLE, SINGLE, line(width)];
        check_conv(&Conv { batch: 1, groups: 1, inputs, outputs, axes }, DType::F16, true, 3);
    }
}
