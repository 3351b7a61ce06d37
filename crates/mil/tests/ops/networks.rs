//! Values and refusals of the parts of trained networks: activations, normalisation.

use mil::OpKind;

use crate::common::{In, f32s};
use crate::plain::{Case, Refusal, float, i, int, v, with, x};

fn alpha(value: f32) -> (&'static str, In) {
    ("alpha", float(value))
}

fn beta(value: f32) -> (&'static str, In) {
    ("beta", float(value))
}

fn activations() -> Vec<Case> {
    use OpKind::*;
    let three = 3f64.ln();
    let run = || x(v(&[-2.0, 0.5, 8.0]));
    let channels = |values: &[f64]| f32s(&[1, 2, values.len() / 2], values.iter().copied());
    vec![
        (Acos, x(v(&[1.0, -1.0])), vec![v(&[0.0, std::f64::consts::PI])]),
        (Asin, x(v(&[0.0, 1.0])), vec![v(&[0.0, std::f64::consts::FRAC_PI_2])]),
        (Atan, x(v(&[0.0, 1.0])), vec![v(&[0.0, std::f64::consts::FRAC_PI_4])]),
        (Atanh, x(v(&[0.0, 0.5])), vec![v(&[0.0, three / 2.0])]),
        (Cosh, x(v(&[0.0, three])), vec![v(&[1.0, 5.0 / 3.0])]),
        (Sinh, x(v(&[0.0, three])), vec![v(&[0.0, 4.0 / 3.0])]),
        (Relu6, run(), vec![v(&[0.0, 0.5, 6.0])]),
        (Softsign, x(v(&[-1.0, 3.0])), vec![v(&[-0.5, 0.75])]),
        (ClampedRelu, with(run(), vec![alpha(0.5), beta(4.0)]), vec![v(&[-1.0, 0.5, 4.0])]),
        (Elu, with(x(v(&[-three, 2.0])), vec![alpha(1.5)]), vec![v(&[-1.0, 2.0])]),
        (LeakyRelu, with(run(), vec![alpha(0.25)]), vec![v(&[-0.5, 0.5, 8.0])]),
        (LinearActivation, with(run(), vec![alpha(2.0), beta(1.0)]), vec![v(&[-3.0, 2.0, 17.0])]),
        (ScaledTanh, with(x(v(&[three])), vec![alpha(4.0), beta(0.5)]), vec![v(&[2.0])]),
        (SigmoidHard, with(run(), vec![alpha(0.25), beta(0.5)]), vec![v(&[0.0, 0.625, 1.0])]),
        (Threshold, with(run(), vec![alpha(1.0)]), vec![v(&[1.0, 1.0, 8.0])]),
        (Threshold, with(x(i(&[-2, 5])), vec![("alpha", int(1))]), vec![i(&[1, 5])]),
        (ThresholdedRelu, with(run(), vec![alpha(1.0)]), vec![v(&[0.0, 0.0, 8.0])]),
        (
            Prelu,
            with(x(channels(&[-1.0, 1.0, -2.0, 2.0])), vec![("alpha", literal(&[0.5, 0.25]))]),
            vec![channels(&[-0.5, 1.0, -0.5, 2.0])],
        ),
        (
            SoftplusParametric,
            with(
                x(channels(&[0.0, three, 0.0, three])),
                vec![("alpha", literal(&[1.0, 2.0])), ("beta", literal(&[1.0, -1.0]))],
            ),
            vec![channels(&[2f64.ln(), 4f64.ln(), 2.0 * 2f64.ln(), 2.0 * (4.0f64 / 3.0).ln()])],
        ),
        (ReduceLogSum, x(v(&[1.0, 2.0])), vec![f32s(&[], [three])]),
    ]
}

fn literal(values: &[f32]) -> In {
    mil::Literal::vector(values).into()
}

fn normalisation() -> Vec<Case> {
    use OpKind::*;
    let two = |values: &[f64]| f32s(&[1, 2, 2], values.iter().copied());
    let epsilon = |value: f32| ("epsilon", float(value));
    vec![
        (
            BatchNorm,
            with(
                x(two(&[1.0, 3.0, 5.0, 7.0])),
                vec![
                    ("mean", literal(&[1.0, 5.0])),
                    ("variance", literal(&[3.0, 15.0])),
                    ("gamma", literal(&[2.0, 4.0])),
                    ("beta", literal(&[0.0, 1.0])),
                    epsilon(1.0),
                ],
            ),
            vec![two(&[0.0, 2.0, 1.0, 3.0])],
        ),
        (
            InstanceNorm,
            with(
                x(two(&[1.0, 3.0, 0.0, 6.0])),
                vec![("gamma", literal(&[2.0, 6.0])), ("beta", literal(&[1.0, 0.0])), epsilon(0.0)],
            ),
            vec![two(&[-1.0, 3.0, -6.0, 6.0])],
        ),
        (
            L2Norm,
            with(x(two(&[1.0, 1.0, 3.0, 5.0])), vec![epsilon(0.0)]),
            vec![two(&[1.0 / 6.0, 1.0 / 6.0, 0.5, 5.0 / 6.0])],
        ),
        (
            LocalResponseNorm,
            with(
                x(f32s(&[1, 3, 1], [1.0, 2.0, 4.0])),
                vec![("size", int(2)), alpha(2.0), beta(1.0), ("k", float(0.0))],
            ),
            vec![f32s(&[1, 3, 1], [1.0, 2.0 / 5.0, 4.0 / 20.0])],
        ),
    ]
}

pub(crate) fn values() -> Vec<Case> {
    let mut all = activations();
    all.extend(normalisation());
    all
}

pub(crate) fn refusals() -> Vec<Refusal> {
    use OpKind::*;
    let mut all: Vec<Refusal> = Vec::new();
    for kind in [Acos, Asin, Atan, Atanh, Cosh, Sinh, Relu6, Softsign, ReduceLogSum] {
        all.push((kind, x(i(&[1])), "int32"));
    }
    for kind in [Elu, LeakyRelu, ThresholdedRelu] {
        all.push((kind, with(x(v(&[1.0])), vec![("alpha", v(&[1.0]).into())]), "constant"));
    }
    for kind in [LinearActivation, ScaledTanh, SigmoidHard, ClampedRelu] {
        let args = with(x(v(&[1.0])), vec![alpha(1.0), ("beta", literal(&[1.0, 2.0]))]);
        all.push((kind, args, "beta"));
    }
    let channels = || x(f32s(&[1, 3, 1], [1.0, 2.0, 4.0]));
    let pair = |name| (name, literal(&[1.0, 2.0]));
    all.extend([
        (Threshold, with(x(v(&[1.0])), vec![("alpha", int(1))]), "int32"),
        (Prelu, with(channels(), vec![pair("alpha")]), "[2]"),
        (SoftplusParametric, with(channels(), vec![pair("alpha"), pair("beta")]), "[2]"),
        (BatchNorm, with(channels(), vec![pair("mean"), pair("variance")]), "mean"),
        (InstanceNorm, with(channels(), vec![pair("gamma")]), "gamma"),
        (L2Norm, x(v(&[1.0])), "[1]"),
        (LocalResponseNorm, with(channels(), vec![("size", int(0))]), "size"),
    ]);
    all
}
