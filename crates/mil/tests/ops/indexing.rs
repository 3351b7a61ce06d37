//! Values and refusals of operations that pick, place, order and draw elements.

use mil::eval::{Array, Data, States};
use mil::{Effect, Literal, OpKind};

use crate::common::{In, f32s, ints, one};
use crate::plain::{Case, Refusal, b, float, i, int, int_list, m, str, v, with, x, yes};

fn scatter(data: Array, indices: Array, updates: Array, mode: &str) -> Vec<(&'static str, In)> {
    vec![
        ("data", data.into()),
        ("indices", indices.into()),
        ("updates", updates.into()),
        ("mode", str(mode)),
    ]
}

fn placed() -> Vec<Case> {
    use OpKind::*;
    let a = || m(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let pairs = |values: &[i64]| ints(&[values.len() / 2, 2], values.iter().copied());
    vec![
        (
            GatherNd,
            with(x(a()), vec![("indices", pairs(&[0, 2, 1, 0]).into())]),
            vec![v(&[3.0, 4.0])],
        ),
        (
            GatherNd,
            with(x(a()), vec![("indices", ints(&[1, 1], [1]).into())]),
            vec![m(1, &[4.0, 5.0, 6.0])],
        ),
        (
            GatherNd,
            with(x(a()), vec![("indices", ints(&[2, 1], [2, 0]).into()), ("batch_dims", int(1))]),
            vec![v(&[3.0, 4.0])],
        ),
        (
            ScatterAlongAxis,
            with(
                scatter(a(), pairs(&[2, 2, 0, 1]), m(2, &[10.0, 20.0, 30.0, 40.0]), "add"),
                vec![("axis", int(1))],
            ),
            vec![m(2, &[1.0, 2.0, 33.0, 34.0, 45.0, 6.0])],
        ),
        (
            ScatterNd,
            scatter(a(), pairs(&[0, 2, 1, 0]), v(&[10.0, 20.0]), "mul"),
            vec![m(2, &[1.0, 2.0, 30.0, 80.0, 5.0, 6.0])],
        ),
        (
            ScatterNd,
            scatter(i(&[1, 2]), ints(&[2, 1], [1, 1]), i(&[5, 7]), "update"),
            vec![i(&[1, 7])],
        ),
    ]
}

fn ordered() -> Vec<Case> {
    use OpKind::*;
    let a = || m(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let axis = |n| ("axis", int(n));
    vec![
        (Cumsum, with(x(a()), vec![axis(1)]), vec![m(2, &[1.0, 3.0, 6.0, 4.0, 9.0, 15.0])]),
        (
            Cumsum,
            with(x(i(&[1, 2, 3])), vec![("exclusive", yes()), ("reverse", yes())]),
            vec![i(&[5, 3, 0])],
        ),
        (Reverse, x(a()), vec![m(2, &[6.0, 5.0, 4.0, 3.0, 2.0, 1.0])]),
        (
            Reverse,
            with(x(a()), vec![("axes", int_list(&[-1]))]),
            vec![m(2, &[3.0, 2.0, 1.0, 6.0, 5.0, 4.0])],
        ),
        (
            ReverseSequence,
            with(x(a()), vec![("lengths", i(&[2, 3]).into()), ("seq_axis", int(1))]),
            vec![m(2, &[2.0, 1.0, 3.0, 6.0, 5.0, 4.0])],
        ),
        (
            SlidingWindows,
            with(x(v(&[1.0, 2.0, 3.0, 4.0])), vec![axis(0), ("size", int(2)), ("stride", int(2))]),
            vec![m(2, &[1.0, 2.0, 3.0, 4.0])],
        ),
        (Argsort, x(v(&[2.0, 9.0, 2.0, 5.0])), vec![i(&[1, 3, 0, 2])]),
        (
            Argsort,
            with(x(m(2, &[1.0, 5.0, 0.0, 7.0])), vec![axis(0), ("ascending", yes())]),
            vec![ints(&[2, 2], [1, 0, 0, 1])],
        ),
    ]
}

fn masked() -> Vec<Case> {
    use OpKind::*;
    let a = || m(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    vec![
        (
            BandPart,
            with(x(a()), vec![("lower", int(0)), ("upper", int(1))]),
            vec![m(2, &[1.0, 2.0, 0.0, 0.0, 5.0, 6.0])],
        ),
        (
            BandPart,
            with(x(a()), vec![("lower", int(-1)), ("upper", int(0))]),
            vec![m(2, &[1.0, 0.0, 0.0, 4.0, 5.0, 0.0])],
        ),
        (NonZero, x(m(2, &[0.0, 1.0, 2.0, 0.0])), vec![ints(&[2, 2], [0, 1, 1, 0])]),
        (NonZero, x(b(&[false, true, true])), vec![ints(&[2, 1], [1, 2])]),
        (
            OneHot,
            vec![("indices", i(&[1, 2, -1]).into()), ("one_hot_vector_size", int(2))],
            vec![ints(&[3, 2], [0, 1, 0, 0, 0, 0])],
        ),
        (
            OneHot,
            vec![
                ("indices", i(&[1, 0, 1]).into()),
                ("one_hot_vector_size", int(2)),
                ("axis", int(0)),
                ("on_value", float(2.0)),
                ("off_value", float(-1.0)),
            ],
            vec![m(2, &[-1.0, 2.0, -1.0, 2.0, -1.0, 2.0])],
        ),
        (
            Flatten2d,
            with(x(f32s(&[2, 1, 2], [1.0, 2.0, 3.0, 4.0])), vec![("axis", int(-1))]),
            vec![m(2, &[1.0, 2.0, 3.0, 4.0])],
        ),
        (Flatten2d, with(x(v(&[1.0])), vec![]), vec![m(1, &[1.0])]),
        (
            FillLike,
            vec![("ref_tensor", a().into()), ("value", int(7))],
            vec![ints(&[2, 3], [7; 6])],
        ),
        (
            ReshapeLike,
            with(
                x(v(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
                vec![
                    ("ref_tensors", In::from(vec![a(), a()])),
                    ("begins", In::Consts(vec![Literal::scalar(1), Literal::scalar(0)])),
                    ("ends", In::Consts(vec![Literal::scalar(0), Literal::scalar(1)])),
                    ("end_masks", In::Consts(vec![Literal::bool(true), Literal::bool(false)])),
                ],
            ),
            vec![m(3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
        ),
    ]
}

pub(crate) fn values() -> Vec<Case> {
    [placed(), ordered(), masked()].into_iter().flatten().collect()
}

pub(crate) fn refusals() -> Vec<Refusal> {
    use OpKind::*;
    let a = || m(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let ax = |name, value| with(x(a()), vec![(name, value)]);
    let shape = || ("shape", int_list(&[2]));
    vec![
        (GatherNd, ax("indices", ints(&[1, 3], [0; 3]).into()), "[1, 3]"),
        (GatherNd, ax("indices", ints(&[1, 2], [0, 3]).into()), "index 3"),
        (ScatterAlongAxis, scatter(a(), ints(&[1, 2], [0, 0]), m(1, &[1.0, 2.0]), "add"), "axis 0"),
        (ScatterNd, scatter(a(), ints(&[1, 1], [0]), v(&[1.0]), "add"), "[1, 3]"),
        (ScatterNd, scatter(a(), ints(&[1, 2], [0, 0]), v(&[1.0]), "xor"), "xor"),
        (Cumsum, ax("axis", int(2)), "axis 2"),
        (Reverse, ax("axes", int_list(&[2])), "axis 2"),
        (ReverseSequence, ax("lengths", i(&[1, 1]).into()), "both 0"),
        (
            ReverseSequence,
            with(ax("lengths", i(&[1, 4]).into()), vec![("seq_axis", int(1))]),
            "[1, 4]",
        ),
        (SlidingWindows, with(ax("axis", int(0)), vec![("size", int(3))]), "size 3"),
        (Argsort, ax("axis", int(-3)), "axis -3"),
        (BandPart, x(v(&[1.0])), "[1]"),
        (NonZero, vec![], "\"x\" is missing"),
        (
            OneHot,
            vec![
                ("indices", i(&[1]).into()),
                ("one_hot_vector_size", int(2)),
                ("on_value", float(2.0)),
            ],
            "int32",
        ),
        (Flatten2d, ax("axis", int(3)), "axis 3"),
        (FillLike, vec![("ref_tensor", a().into()), ("value", int_list(&[1, 2]))], "[2]"),
        (
            ReshapeLike,
            with(
                ax("ref_tensors", a().into()),
                vec![
                    ("begins", int(0)),
                    ("ends", int(1)),
                    ("end_masks", Literal::bool(false).into()),
                ],
            ),
            "[2]",
        ),
        (RandomBernoulli, vec![shape(), ("prob", int(1))], "prob"),
        (RandomNormal, vec![("shape", int_list(&[-2]))], "-2"),
        (RandomUniform, vec![shape(), ("seed", float(1.0))], "seed"),
        (RandomCategorical, with(ax("mode", str("odds")), vec![]), "odds"),
    ]
}

/// The floats that an operation draws.
fn drawn(kind: OpKind, args: Vec<(&'static str, In)>) -> Vec<f64> {
    let op = one(kind, args).unwrap();
    let out = op.run(&mut States::new()).unwrap();
    let main = &op.program.functions["main"];
    let drawing = main.ops.values().find(|op| op.kind == kind).unwrap();
    let view = mil::OpView::new(main, &op.program.weights, drawing);
    assert_eq!(kind.def().effect(&view), Effect::Random);
    let Data::Float(values) = &out[0].data else { panic!("{out:?}") };
    values.clone()
}

/// Random numbers have the distribution asked for, and equal seeds give equal ones.
#[test]
fn distributions() {
    use OpKind::*;
    const N: i32 = 20_000;
    let seeded = |seed: i32, more| with(vec![("shape", int_list(&[N])), ("seed", int(seed))], more);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let uniform =
        |seed| drawn(RandomUniform, seeded(seed, vec![("low", float(-1.0)), ("high", float(3.0))]));
    let values = uniform(5);
    assert!(values.iter().all(|v| (-1.0..3.0).contains(v)));
    assert!((mean(&values) - 1.0).abs() < 0.05);
    assert_eq!(values, uniform(5));
    assert_ne!(values, uniform(6));
    let values = drawn(RandomNormal, seeded(1, vec![("mean", float(2.0)), ("stddev", float(0.5))]));
    let average = mean(&values);
    let deviations: Vec<f64> = values.iter().map(|v| (v - average).powi(2)).collect();
    assert!((average - 2.0).abs() < 0.02 && (mean(&deviations).sqrt() - 0.5).abs() < 0.02);
    let values = drawn(RandomBernoulli, seeded(1, vec![("prob", float(0.25))]));
    assert!(values.iter().all(|&v| v == 0.0 || v == 1.0));
    assert!((mean(&values) - 0.25).abs() < 0.02);
    for (mode, row) in [("probs", [1.0, 0.0, 3.0]), ("logits", [0.0, f64::NEG_INFINITY, 3f64.ln()])]
    {
        let args = vec![("mode", str(mode)), ("size", int(N))];
        let values = drawn(RandomCategorical, with(x(m(1, &row)), args));
        assert!(values.iter().all(|&v| v == 0.0 || v == 2.0));
        assert!((mean(&values) - 1.5).abs() < 0.05, "{mode}");
    }
}
