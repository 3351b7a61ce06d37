//! Values and refusals of the parts of trained networks: activations, normalisation, recurrent layers.

use mil::OpKind;
use mil::eval::Array;

use crate::common::{In, f32s};
use crate::plain::{Case, Refusal, float, i, int, str, v, with, x, yes};

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

/// A recurrent layer of one unit over the steps 1, 2 of one feature, all weights 1, with `gates`.
fn layer(gates: usize, more: Vec<(&'static str, In)>) -> Vec<(&'static str, In)> {
    let ones = || matrix(gates, &vec![1.0; gates]);
    let steps = f32s(&[2, 1, 1], [1.0, 2.0]);
    let args = vec![("initial_h", f32s(&[1, 1], [0.0]).into())];
    let args = with(with(x(steps), args), more);
    with(args, vec![("weight_ih", ones()), ("weight_hh", ones())])
}

/// A constant matrix.
fn matrix(rows: usize, values: &[f32]) -> In {
    let tensor = tensor::Tensor::from_slice(&[rows, values.len() / rows], values).unwrap();
    mil::Literal::tensor(tensor).into()
}

fn recurrent() -> Vec<Case> {
    use OpKind::*;
    let steps = |values: &[f64]| f32s(&[values.len(), 1, 1], values.iter().copied());
    let last = |x: f64| f32s(&[1, 1], [x]);
    let linear = || ("activation", str("linear"));
    let sequence = || ("output_sequence", yes());
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // h = o + z * (h - o) for gates r and z of the same sum and o = x + r * h + 1/2, or, behind the
    // reset gate, o = x + 1/4 + r * (h + 1/2).
    let gru = |h: f64, x: f64, after: bool| {
        let gate = sigmoid(x + h);
        let new = if after { x + 0.25 + gate * (h + 0.5) } else { x + 0.5 + gate * h };
        (1.0 - gate) * new + gate * h
    };
    let after = gru(gru(0.0, 1.0, true), 2.0, true);
    let (first, forward) = (gru(0.0, 1.0, false), gru(gru(0.0, 1.0, false), 2.0, false));
    let lstm = |(h, c): (f64, f64), x: f64| {
        let gate = sigmoid(x + h);
        let c = gate * c + gate * (x + h);
        (gate * c.tanh(), c)
    };
    let (one, back_one) = (lstm((0.0, 0.5), 1.0), lstm((0.0, 0.0), 2.0));
    let (two, back_two) = (lstm(one, 2.0), lstm(back_one, 1.0));
    let pair = |a: f64, b: f64| f32s(&[1, 2], [a, b]);
    let swapped = |after: bool| {
        let mut swap = [0.0; 12];
        (swap[5], swap[6]) = (1.0, 1.0);
        let args = vec![
            ("initial_h", pair(2.0, 4.0).into()),
            ("weight_ih", matrix(6, &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0])),
            ("weight_hh", matrix(6, &swap)),
            ("reset_after", mil::Literal::bool(after).into()),
            linear(),
        ];
        with(x(steps(&[3f64.ln()])), args)
    };
    let cell = || ("cell_activation", str("linear"));
    let both = |h: Array, c: Array, more| {
        let args = vec![("initial_h", h.into()), ("initial_c", c.into()), cell()];
        let ones = || matrix(4, &[1.0; 4]);
        let args = with(args, vec![("weight_ih", ones()), ("weight_hh", ones())]);
        with(with(x(steps(&[1.0, 2.0])), args), more)
    };
    vec![
        (Rnn, layer(1, vec![linear(), sequence()]), vec![steps(&[1.0, 3.0]), last(3.0)]),
        (
            Rnn,
            layer(1, vec![linear(), ("direction", str("reverse")), ("bias", literal(&[0.5]))]),
            vec![steps(&[4.0]), last(4.0)],
        ),
        (
            Gru,
            layer(3, vec![linear(), sequence(), ("bias", literal(&[0.0, 0.5, 0.0]))]),
            vec![steps(&[first, forward]), last(forward)],
        ),
        (
            Gru,
            layer(
                3,
                vec![
                    linear(),
                    ("bias", literal(&[0.0, 0.5, 0.0])),
                    ("input_bias", literal(&[0.0, 0.25, 0.0])),
                    ("reset_after", yes()),
                ],
            ),
            vec![steps(&[after]), last(after)],
        ),
        // Two units that see each other, their reset gates 1/2 and 3/4, the others 1/2.
        (Gru, swapped(false), vec![f32s(&[1, 1, 2], [2.5, 2.5]), pair(2.5, 2.5)]),
        (Gru, swapped(true), vec![f32s(&[1, 1, 2], [2.0, 2.75]), pair(2.0, 2.75)]),
        (
            Lstm,
            both(last(0.0), last(0.5), vec![sequence()]),
            vec![steps(&[one.0, two.0]), last(two.0), last(two.1)],
        ),
        (
            Lstm,
            both(
                pair(0.0, 0.0),
                pair(0.5, 0.0),
                vec![
                    ("direction", str("bidirectional")),
                    ("weight_ih_back", matrix(4, &[1.0; 4])),
                    ("weight_hh_back", matrix(4, &[1.0; 4])),
                    sequence(),
                ],
            ),
            vec![
                f32s(&[2, 1, 2], [one.0, back_two.0, two.0, back_one.0]),
                pair(two.0, back_two.0),
                pair(two.1, back_two.1),
            ],
        ),
        // What the gates get is confined: with a bound of 0 all are 1/2 and nothing is new.
        (
            Lstm,
            both(last(0.0), last(4.0), vec![("clip", float(0.0)), linear()]),
            vec![steps(&[0.5]), last(0.5), last(1.0)],
        ),
        // Peepholes open input and forget gates to the old and the output gate to the new state.
        (
            Lstm,
            with(
                x(steps(&[0.0])),
                vec![
                    ("initial_h", last(0.0).into()),
                    ("initial_c", last(2.0).into()),
                    ("weight_ih", matrix(4, &[0.0; 4])),
                    ("weight_hh", matrix(4, &[0.0; 4])),
                    ("peephole", literal(&[1.0, 0.5, 2.0])),
                    linear(),
                ],
            ),
            {
                let c = 2.0 * sigmoid(1.0);
                let h = c * sigmoid(2.0 * c);
                vec![steps(&[h]), last(h), last(c)]
            },
        ),
    ]
}

pub(crate) fn values() -> Vec<Case> {
    let mut all = activations();
    all.extend(normalisation());
    all.extend(recurrent());
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
        (Rnn, layer(2, vec![]), "weights"),
        (Rnn, layer(1, vec![("direction", str("bidirectional"))]), "bidirectional"),
        (Gru, layer(3, vec![("activation", str("swish"))]), "swish"),
        (Gru, layer(3, vec![("bias", literal(&[1.0]))]), "bias"),
        (Gru, layer(3, vec![("input_bias", literal(&[1.0]))]), "input_bias"),
        (Lstm, layer(4, vec![]), "\"initial_c\" is missing"),
        (
            Lstm,
            layer(4, vec![("initial_c", f32s(&[1, 2], [0.0; 2]).into())]),
            "initial_c is tensor<fp32, [1, 2]>",
        ),
    ]);
    all
}
