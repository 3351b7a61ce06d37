//! Values and refusals of the plain MIL operations: every one has at least one of each.

use std::collections::BTreeSet;

use mil::eval::{Array, Data, States};
use mil::{Literal, OpKind, TensorType};
use tensor::{Bytes, DType, Tensor};

use crate::common::{In, assert_close, f32s, ints, one, refusal};
use crate::{compressed, images, indexing, networks, programs};

/// An operation with arguments, and the results it must have.
pub(crate) type Case = (OpKind, Vec<(&'static str, In)>, Vec<Array>);
/// An operation with arguments that do not fit, and what the refusal must mention.
pub(crate) type Refusal = (OpKind, Vec<(&'static str, In)>, &'static str);

pub(crate) fn v(values: &[f64]) -> Array {
    f32s(&[values.len()], values.iter().copied())
}

pub(crate) fn m(rows: usize, values: &[f64]) -> Array {
    f32s(&[rows, values.len() / rows], values.iter().copied())
}

pub(crate) fn i(values: &[i64]) -> Array {
    ints(&[values.len()], values.iter().copied())
}

pub(crate) fn b(values: &[bool]) -> Array {
    Array { dtype: DType::Bool, shape: vec![values.len()], data: Data::Bool(values.to_vec()) }
}

pub(crate) fn int(n: i32) -> In {
    Literal::scalar(n).into()
}

pub(crate) fn int_list(values: &[i32]) -> In {
    Literal::vector(values).into()
}

pub(crate) fn float(x: f32) -> In {
    Literal::scalar(x).into()
}

pub(crate) fn yes() -> In {
    Literal::bool(true).into()
}

pub(crate) fn str(s: &str) -> In {
    Literal::string(s).into()
}

pub(crate) fn xy(x: Array, y: Array) -> Vec<(&'static str, In)> {
    vec![("x", x.into()), ("y", y.into())]
}

pub(crate) fn x(x: Array) -> Vec<(&'static str, In)> {
    vec![("x", x.into())]
}

pub(crate) fn with(
    mut args: Vec<(&'static str, In)>,
    more: Vec<(&'static str, In)>,
) -> Vec<(&'static str, In)> {
    args.extend(more);
    args
}

/// Asserts that every case gives its results, and returns the operations.
fn check(cases: Vec<Case>) -> BTreeSet<OpKind> {
    let mut seen = BTreeSet::new();
    for (kind, args, expected) in cases {
        let results = one(kind, args)
            .and_then(|op| op.run(&mut States::new()))
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(results.len(), expected.len(), "{kind:?}");
        results.iter().zip(&expected).for_each(|(r, e)| {
            let close = std::panic::catch_unwind(|| assert_close(r, e, 1e-14));
            assert!(close.is_ok(), "{kind:?}: {r:?} for {e:?}");
        });
        seen.insert(kind);
    }
    seen
}

fn elementwise() -> Vec<Case> {
    use OpKind::*;
    let (p, q) = (|| v(&[7.0, -7.0, 3.0]), || v(&[2.0, 2.0, 3.0]));
    let (n, d) = (|| i(&[7, -7, 3]), || i(&[2, 2, 3]));
    let t = |a: &[bool]| b(a);
    let (c, e) = (|| b(&[true, true, false]), || b(&[true, false, false]));
    vec![
        (Add, xy(m(2, &[1.0, 2.0]), v(&[10.0, 20.0])), vec![m(2, &[11.0, 21.0, 12.0, 22.0])]),
        (Add, xy(i(&[i64::from(i32::MAX)]), i(&[1])), vec![i(&[i64::from(i32::MIN)])]),
        (Sub, xy(p(), q()), vec![v(&[5.0, -9.0, 0.0])]),
        (Mul, xy(n(), d()), vec![i(&[14, -14, 9])]),
        (RealDiv, xy(p(), q()), vec![v(&[3.5, -3.5, 1.0])]),
        (RealDiv, xy(n(), d()), vec![i(&[3, -3, 1])]),
        (FloorDiv, xy(p(), q()), vec![v(&[3.0, -4.0, 1.0])]),
        (FloorDiv, xy(n(), d()), vec![i(&[3, -4, 1])]),
        (Mod, xy(p(), q()), vec![v(&[1.0, 1.0, 0.0])]),
        (Mod, xy(n(), i(&[-2, 2, 3])), vec![i(&[-1, 1, 0])]),
        (Pow, xy(p(), q()), vec![v(&[49.0, 49.0, 27.0])]),
        (Pow, xy(n(), d()), vec![i(&[49, 49, 27])]),
        (Maximum, xy(p(), q()), vec![v(&[7.0, 2.0, 3.0])]),
        (Minimum, xy(p(), q()), vec![v(&[2.0, -7.0, 3.0])]),
        (Equal, xy(p(), q()), vec![t(&[false, false, true])]),
        (NotEqual, xy(n(), d()), vec![t(&[true, true, false])]),
        (Less, xy(p(), q()), vec![t(&[false, true, false])]),
        (LessEqual, xy(p(), q()), vec![t(&[false, true, true])]),
        (Greater, xy(n(), d()), vec![t(&[true, false, false])]),
        (GreaterEqual, xy(n(), d()), vec![t(&[true, false, true])]),
        (LogicalAnd, xy(c(), e()), vec![t(&[true, false, false])]),
        (LogicalOr, xy(c(), e()), vec![t(&[true, true, false])]),
        (LogicalXor, xy(c(), e()), vec![t(&[false, true, false])]),
    ]
}

fn unary() -> Vec<Case> {
    use OpKind::*;
    let e = std::f64::consts::E;
    let half_pi = std::f64::consts::FRAC_PI_2;
    let tiny = f64::from(1e-3f32);
    vec![
        (Abs, x(i(&[-3, 4])), vec![i(&[3, 4])]),
        (Ceil, x(v(&[1.2, -1.2])), vec![v(&[2.0, -1.0])]),
        (Cos, x(v(&[0.0, 2.0 * half_pi])), vec![v(&[1.0, -1.0])]),
        (Erf, x(v(&[0.0, 1.0])), vec![v(&[0.0, 0.842_700_792_949_714_9])]),
        (Exp, x(v(&[0.0, 1.0])), vec![v(&[1.0, e])]),
        (Exp2, x(i(&[0, 5])), vec![i(&[1, 32])]),
        (Floor, x(v(&[1.8, -1.2])), vec![v(&[1.0, -2.0])]),
        (Relu, x(v(&[1.5, -2.0])), vec![v(&[1.5, 0.0])]),
        (Round, x(v(&[0.5, 1.5, -2.5])), vec![v(&[0.0, 2.0, -2.0])]),
        (Sigmoid, x(v(&[0.0, 3f64.ln()])), vec![v(&[0.5, 0.75])]),
        (Sign, x(v(&[-2.0, 0.0, 5.0])), vec![v(&[-1.0, 0.0, 1.0])]),
        (Silu, x(v(&[0.0, 3f64.ln()])), vec![v(&[0.0, 0.75 * 3f64.ln()])]),
        (Sin, x(v(&[0.0, half_pi])), vec![v(&[0.0, 1.0])]),
        (Softplus, x(v(&[0.0, -800.0, 800.0])), vec![v(&[2f64.ln(), 0.0, 800.0])]),
        (Sqrt, x(v(&[4.0, 0.25])), vec![v(&[2.0, 0.5])]),
        (Square, x(i(&[-3, 4])), vec![i(&[9, 16])]),
        (Tan, x(v(&[0.0, half_pi / 2.0])), vec![v(&[0.0, 1.0])]),
        (Tanh, x(v(&[0.0, 3f64.ln() / 2.0])), vec![v(&[0.0, 0.5])]),
        // The epsilon that is left out is a number of single precision.
        (Inverse, x(v(&[1.0])), vec![v(&[1.0 / (1.0 + f64::from(1e-4f32))])]),
        (Log, with(x(v(&[e])), vec![("epsilon", float(0.0))]), vec![v(&[1.0])]),
        (
            Rsqrt,
            with(x(v(&[4.0])), vec![("epsilon", float(1e-3))]),
            vec![v(&[1.0 / (4.0 + tiny).sqrt()])],
        ),
        (
            Clip,
            with(x(v(&[-2.0, 0.5, 2.0])), vec![("alpha", float(-1.0)), ("beta", float(1.0))]),
            vec![v(&[-1.0, 0.5, 1.0])],
        ),
        (LogicalNot, x(b(&[true, false])), vec![b(&[false, true])]),
        (Identity, x(v(&[1.0])), vec![v(&[1.0])]),
        (Cast, with(x(v(&[1.9, -1.9])), vec![("dtype", str("int32"))]), vec![i(&[1, -1])]),
        (Cast, with(x(v(&[0.5, 0.0])), vec![("dtype", str("bool"))]), vec![b(&[true, false])]),
        (Cast, with(x(b(&[true])), vec![("dtype", str("fp32"))]), vec![v(&[1.0])]),
        (Gelu, x(v(&[2.0])), vec![v(&[2.0 * 0.977_249_868_051_820_8])]),
        (
            Gelu,
            with(x(v(&[1.0])), vec![("mode", str("SIGMOID_APPROXIMATION"))]),
            vec![v(&[1.0 / (1.0 + (-1.702f64).exp())])],
        ),
        (
            Softmax,
            with(x(m(2, &[0.0, 5.0, 3f64.ln(), 5.0])), vec![("axis", int(0))]),
            vec![m(2, &[0.25, 0.5, 0.75, 0.5])],
        ),
    ]
}

fn reductions() -> Vec<Case> {
    use OpKind::*;
    let a = || m(2, &[1.0, 2.0, -3.0, 4.0, 5.0, 6.0]);
    let rows =
        |more: Vec<(&'static str, In)>| with(x(a()), with(vec![("axes", int_list(&[-1]))], more));
    let keep = || vec![("keep_dims", yes())];
    vec![
        (ReduceL1Norm, rows(vec![]), vec![v(&[6.0, 15.0])]),
        (ReduceL2Norm, x(v(&[3.0, 4.0])), vec![f32s(&[], [5.0])]),
        (ReduceLogSumExp, x(v(&[0.0, 3f64.ln()])), vec![f32s(&[], [4f64.ln()])]),
        (ReduceMax, rows(keep()), vec![m(2, &[2.0, 6.0])]),
        (ReduceMean, rows(vec![]), vec![v(&[0.0, 5.0])]),
        (ReduceMin, rows(vec![]), vec![v(&[-3.0, 4.0])]),
        (ReduceProd, rows(vec![]), vec![v(&[-6.0, 120.0])]),
        (ReduceSum, with(x(a()), vec![("axes", int_list(&[0]))]), vec![v(&[5.0, 7.0, 3.0])]),
        (ReduceSum, x(i(&[1, 2, 3])), vec![ints(&[], [6])]),
        (ReduceSumSquare, rows(vec![]), vec![v(&[14.0, 77.0])]),
        (ReduceArgmax, x(a()), vec![i(&[1, 2])]),
        (ReduceArgmin, with(x(a()), vec![("axis", int(0))]), vec![i(&[0, 0, 0])]),
        (
            LayerNorm,
            with(
                x(m(1, &[1.0, 3.0])),
                vec![
                    ("axes", int_list(&[-1])),
                    ("gamma", v(&[2.0, 3.0]).into()),
                    ("beta", v(&[0.5, 0.0]).into()),
                    ("epsilon", float(3.0)),
                ],
            ),
            vec![m(1, &[-0.5, 1.5])],
        ),
        (
            Topk,
            with(x(m(1, &[3.0, 9.0, 9.0, 1.0])), vec![("k", int(3))]),
            vec![m(1, &[9.0, 9.0, 3.0]), ints(&[1, 3], [1, 2, 0])],
        ),
    ]
}

fn products() -> Vec<Case> {
    use OpKind::*;
    let a = || m(2, &[1.0, 2.0, 3.0, 4.0]);
    let c = || m(2, &[0.0, 1.0, 1.0, 1.0]);
    let image = || f32s(&[1, 1, 4], [1.0, 2.0, 3.0, 4.0]);
    let kernel = || f32s(&[1, 1, 2], [10.0, 1.0]);
    let conv = |more| with(vec![("x", image().into()), ("weight", kernel().into())], more);
    let line = |values: &[f64]| f32s(&[1, 1, values.len()], values.iter().copied());
    let zero = || f32s(&[1, 1, 2], [0.0, 0.0]);
    vec![
        (
            Linear,
            vec![("x", a().into()), ("weight", c().into()), ("bias", v(&[0.5, 0.0]).into())],
            vec![m(2, &[2.5, 3.0, 4.5, 7.0])],
        ),
        (Matmul, xy(a(), c()), vec![m(2, &[2.0, 3.0, 4.0, 7.0])]),
        (
            Matmul,
            with(xy(a(), c()), vec![("transpose_x", yes())]),
            vec![m(2, &[3.0, 4.0, 4.0, 6.0])],
        ),
        (Matmul, xy(v(&[1.0, 1.0]), a()), vec![v(&[4.0, 6.0])]),
        (
            Einsum,
            vec![
                (
                    "values",
                    In::from(vec![f32s(&[1, 1, 2], [3.0, 4.0]), f32s(&[2, 1, 1], [1.0, 10.0])]),
                ),
                ("equation", str("abc, cbd -> abd")),
            ],
            vec![f32s(&[1, 1, 1], [43.0])],
        ),
        (
            ScaledDotProductAttention,
            vec![
                ("query", zero().into()),
                ("key", f32s(&[1, 3, 2], [1.0; 6]).into()),
                ("value", f32s(&[1, 3, 1], [1.0, 3.0, 100.0]).into()),
                ("attn_mask", b(&[true, true, false]).into()),
            ],
            vec![f32s(&[1, 1, 1], [2.0])],
        ),
        (Conv, conv(vec![]), vec![line(&[12.0, 23.0, 34.0])]),
        (Conv, conv(vec![("strides", int_list(&[2]))]), vec![line(&[12.0, 34.0])]),
        (Conv, conv(vec![("dilations", int_list(&[2]))]), vec![line(&[13.0, 24.0])]),
        (Conv, conv(vec![("pad_type", str("same"))]), vec![line(&[12.0, 23.0, 34.0, 40.0])]),
        (Conv, conv(vec![("pad_type", str("same_lower"))]), vec![line(&[1.0, 12.0, 23.0, 34.0])]),
        (
            Conv,
            conv(vec![("pad_type", str("custom")), ("pad", int_list(&[2, 0]))]),
            vec![line(&[0.0, 1.0, 12.0, 23.0, 34.0])],
        ),
        (
            ConstexprBlockwiseShiftScale,
            vec![
                ("data", i(&[1, 2, 3, 4]).into()),
                ("scale", v(&[0.5, 2.0]).into()),
                ("offset", i(&[1, 2]).into()),
            ],
            vec![v(&[0.0, 0.5, 2.0, 4.0])],
        ),
    ]
}

fn indexing() -> Vec<Case> {
    use OpKind::*;
    let a = || m(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let at = |indices: Array, axis: i32| {
        with(x(a()), vec![("indices", indices.into()), ("axis", int(axis))])
    };
    let slice = |begin: &[i32], end: &[i32], more| {
        with(x(a()), with(vec![("begin", int_list(begin)), ("end", int_list(end))], more))
    };
    let scatter = |mode: &str| {
        vec![
            ("data", v(&[1.0, 2.0, 3.0]).into()),
            ("indices", i(&[2, 0, 2]).into()),
            ("updates", v(&[10.0, 20.0, 30.0]).into()),
            ("mode", str(mode)),
        ]
    };
    vec![
        (Gather, at(i(&[2, 0]), 1), vec![m(2, &[3.0, 1.0, 6.0, 4.0])]),
        (
            Gather,
            with(at(ints(&[2, 1], [1, 2]), 1), vec![("batch_dims", int(1))]),
            vec![m(2, &[2.0, 6.0])],
        ),
        (GatherAlongAxis, at(ints(&[2, 1], [2, 0]), 1), vec![m(2, &[3.0, 4.0])]),
        (Scatter, scatter("update"), vec![v(&[20.0, 2.0, 30.0])]),
        (Scatter, scatter("add"), vec![v(&[21.0, 2.0, 43.0])]),
        (Scatter, scatter("max"), vec![v(&[20.0, 2.0, 30.0])]),
        (SliceByIndex, slice(&[0, -2], &[2, 3], vec![]), vec![m(2, &[2.0, 3.0, 5.0, 6.0])]),
        (
            SliceByIndex,
            slice(
                &[1, -1],
                &[0, 0],
                vec![
                    ("stride", int_list(&[1, -2])),
                    ("end_mask", Literal::bool_vector(&[false, true]).into()),
                    ("squeeze_mask", Literal::bool_vector(&[true, false]).into()),
                ],
            ),
            vec![v(&[6.0, 4.0])],
        ),
        (
            SliceUpdate,
            with(slice(&[0, 1], &[2, 2], vec![]), vec![("update", m(2, &[8.0, 9.0]).into())]),
            vec![m(2, &[1.0, 8.0, 3.0, 4.0, 9.0, 6.0])],
        ),
        (
            SliceBySize,
            with(x(a()), vec![("begin", int_list(&[1, 1])), ("size", int_list(&[1, -1]))]),
            vec![m(1, &[5.0, 6.0])],
        ),
        (
            Select,
            vec![
                ("cond", b(&[true, false]).into()),
                ("a", m(2, &[1.0, 2.0]).into()),
                ("b", v(&[8.0, 9.0]).into()),
            ],
            vec![m(2, &[1.0, 9.0, 2.0, 9.0])],
        ),
    ]
}

fn shaping() -> Vec<Case> {
    use OpKind::*;
    let a = || m(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let pair = || In::from(vec![v(&[1.0, 2.0]), v(&[3.0, 4.0])]);
    let pad = |mode: &str| {
        with(x(v(&[1.0, 2.0, 3.0])), vec![("pad", int_list(&[2, 1])), ("mode", str(mode))])
    };
    vec![
        (
            Reshape,
            with(x(a()), vec![("shape", int_list(&[3, -1]))]),
            vec![m(3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
        ),
        (
            Transpose,
            with(x(a()), vec![("perm", int_list(&[1, 0]))]),
            vec![m(3, &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0])],
        ),
        (
            ExpandDims,
            with(x(v(&[1.0])), vec![("axes", int_list(&[0, -1]))]),
            vec![f32s(&[1, 1, 1], [1.0])],
        ),
        (Squeeze, x(f32s(&[1, 2, 1], [1.0, 2.0])), vec![v(&[1.0, 2.0])]),
        (Shape, x(a()), vec![i(&[2, 3])]),
        (Fill, vec![("shape", i(&[2]).into()), ("value", float(1.5))], vec![v(&[1.5, 1.5])]),
        (Range1d, vec![("start", int(2)), ("end", int(7)), ("step", int(2))], vec![i(&[2, 4, 6])]),
        (Concat, vec![("values", pair()), ("axis", int(0))], vec![v(&[1.0, 2.0, 3.0, 4.0])]),
        (
            Concat,
            vec![("values", pair()), ("axis", int(-1)), ("interleave", yes())],
            vec![v(&[1.0, 3.0, 2.0, 4.0])],
        ),
        (
            Split,
            with(x(a()), vec![("split_sizes", int_list(&[1, 2])), ("axis", int(1))]),
            vec![m(2, &[1.0, 4.0]), m(2, &[2.0, 3.0, 5.0, 6.0])],
        ),
        (
            Split,
            with(x(a()), vec![("num_splits", int(2)), ("axis", int(0))]),
            vec![m(1, &[1.0, 2.0, 3.0]), m(1, &[4.0, 5.0, 6.0])],
        ),
        (Stack, vec![("values", pair()), ("axis", int(1))], vec![m(2, &[1.0, 3.0, 2.0, 4.0])]),
        (
            Tile,
            with(x(m(1, &[1.0, 2.0])), vec![("reps", int_list(&[2, 2]))]),
            vec![m(2, &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0])],
        ),
        (Pad, pad("constant"), vec![v(&[0.0, 0.0, 1.0, 2.0, 3.0, 0.0])]),
        (Pad, pad("reflect"), vec![v(&[3.0, 2.0, 1.0, 2.0, 3.0, 2.0])]),
        (Pad, pad("replicate"), vec![v(&[1.0, 1.0, 1.0, 2.0, 3.0, 3.0])]),
    ]
}

#[test]
fn values() {
    use OpKind::*;
    let mut seen = BTreeSet::new();
    for cases in [elementwise(), unary(), reductions(), products(), indexing(), shaping()] {
        seen.extend(check(cases));
    }
    for cases in [images::values(), networks::values(), compressed::values(), indexing::values()] {
        seen.extend(check(cases));
    }
    let missing: Vec<_> = plain().into_iter().filter(|k| !seen.contains(k)).collect();
    let elsewhere = [ReadState, WriteState, ConstexprAffineDequantize, Cond, WhileLoop, MakeList]
        .into_iter()
        .chain([ListLength, ListWrite, ListRead, ListGather, ListScatter, Classify])
        .chain([RandomBernoulli, RandomNormal, RandomUniform, RandomCategorical]);
    let (missing, elsewhere): (BTreeSet<_>, BTreeSet<_>) =
        (missing.into_iter().collect(), elsewhere.collect());
    assert_eq!(missing, elsewhere, "in tests of their own");
}

/// All operations but those of the dialect and constants.
fn plain() -> Vec<OpKind> {
    let plain = |k: &OpKind| *k != OpKind::Const && !k.name().starts_with("llm.");
    mil::ops::OPS.iter().copied().filter(plain).collect()
}

fn state() -> In {
    In::State(TensorType::new(DType::F16, [2usize]))
}

#[test]
fn states_are_read_and_written() {
    let mut data = v(&[1.0, 2.0]);
    data.dtype = DType::F16;
    let write =
        one(OpKind::WriteState, vec![("input", state()), ("data", data.clone().into())]).unwrap();
    let mut states = write.states();
    assert!(write.run(&mut states).unwrap().is_empty());
    let read = one(OpKind::ReadState, vec![("input", state())]).unwrap();
    assert_close(&read.run(&mut states).unwrap()[0], &data, 0.0);
}

#[test]
fn constants() {
    let nibbles = Tensor::new(DType::I4, &[3], Bytes::copy_from(&[0x8f, 0x07])).unwrap();
    let literal = Literal::tensor(nibbles);
    let results = one(OpKind::Cast, vec![("x", literal.into()), ("dtype", str("int32"))]);
    let results = results.unwrap().run(&mut States::new()).unwrap();
    assert_close(&results[0], &i(&[-1, -8, 7]), 0.0);
}

/// Arguments of wrong shapes, types and values, for each kind of operation.
fn refusals() -> Vec<Refusal> {
    use OpKind::*;
    let a = || m(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let mut all: Vec<Refusal> = Vec::new();
    for kind in [
        Add,
        Sub,
        Mul,
        RealDiv,
        FloorDiv,
        Mod,
        Pow,
        Maximum,
        Minimum,
        Equal,
        NotEqual,
        Less,
        LessEqual,
        Greater,
        GreaterEqual,
    ] {
        all.push((kind, xy(a(), v(&[1.0, 2.0])), "[2, 3]"));
        all.push((kind, xy(v(&[1.0]), i(&[1])), "int32"));
    }
    for kind in [LogicalAnd, LogicalOr, LogicalXor] {
        all.push((kind, xy(b(&[true, false]), b(&[true, false, true])), "[3]"));
    }
    for kind in [
        Ceil,
        Cos,
        Erf,
        Exp,
        Floor,
        Relu,
        Round,
        Sigmoid,
        Silu,
        Sin,
        Softplus,
        Sqrt,
        Tan,
        Tanh,
        Inverse,
        Log,
        Rsqrt,
        Gelu,
        Softmax,
        ReduceL2Norm,
        ReduceLogSumExp,
    ] {
        all.push((kind, x(i(&[1])), "int32"));
    }
    for kind in [Abs, Exp2, Sign, Square] {
        all.push((kind, x(b(&[true])), "bool"));
    }
    for kind in
        [ReduceL1Norm, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum, ReduceSumSquare]
    {
        all.push((kind, with(x(a()), vec![("axes", int_list(&[2]))]), "axis 2"));
    }
    for kind in [ReduceArgmax, ReduceArgmin] {
        all.push((kind, with(x(a()), vec![("output_dtype", str("fp16"))]), "fp16"));
    }
    for (kind, k) in [(FloorDiv, 0), (Mod, 0), (RealDiv, 0)] {
        all.push((kind, xy(i(&[1]), i(&[k])), "zero"));
    }
    all.extend(more_refusals());
    all
}

fn more_refusals() -> Vec<Refusal> {
    use OpKind::*;
    let a = || m(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let line = |n: usize| In::from(f32s(&[1, 1, n], vec![0.0; n]));
    let ax = |name, value| with(x(a()), vec![(name, value)]);
    let pair = || In::from(vec![v(&[1.0, 2.0]), v(&[3.0])]);
    let bounds = |end: &[i32]| vec![("begin", int_list(&[0, 0])), ("end", int_list(end))];
    let scatter = |n: usize| {
        vec![
            ("data", v(&[1.0, 2.0]).into()),
            ("indices", i(&[5]).into()),
            ("updates", f32s(&[n], vec![0.0; n]).into()),
        ]
    };
    vec![
        (Clip, with(x(a()), vec![("alpha", float(1.0)), ("beta", float(1.0))]), "alpha"),
        (LogicalNot, x(a()), "fp32"),
        (Identity, vec![], "\"x\" is missing"),
        (Cast, ax("dtype", str("float")), "float"),
        (LayerNorm, ax("gamma", v(&[1.0, 2.0]).into()), "[2]"),
        (Topk, ax("k", int(4)), "k 4"),
        (Linear, with(x(a()), vec![("weight", a().into()), ("bias", a().into())]), "bias"),
        (Matmul, xy(a(), a()), "[2, 3]"),
        (
            ScaledDotProductAttention,
            vec![("query", line(2)), ("key", line(3)), ("value", line(3))],
            "[1, 1, 3]",
        ),
        (Conv, vec![("x", line(2)), ("weight", line(3))], "[1, 1, 3]"),
        (Einsum, vec![("values", pair()), ("equation", str("ab,bc->ac"))], "ab,bc->ac"),
        (Einsum, vec![("values", pair()), ("equation", str("chw,whr->chr"))], "[1]"),
        (
            ConstexprBlockwiseShiftScale,
            vec![("data", i(&[1, 2, 3]).into()), ("scale", v(&[1.0, 2.0]).into())],
            "[3]",
        ),
        (Gather, ax("indices", i(&[2]).into()), "index 2"),
        (GatherAlongAxis, ax("indices", i(&[0]).into()), "[1]"),
        (Scatter, scatter(1), "index 5"),
        (Scatter, scatter(2), "[2]"),
        (
            SliceByIndex,
            with(x(a()), vec![("begin", int_list(&[0])), ("end", int_list(&[1]))]),
            "[1]",
        ),
        (SliceUpdate, with(with(x(a()), bounds(&[1, 1])), vec![("update", a().into())]), "[1, 1]"),
        (
            SliceBySize,
            with(x(a()), vec![("begin", int_list(&[0, 2])), ("size", int_list(&[1, 2]))]),
            "size 3",
        ),
        (
            Select,
            vec![("cond", b(&[true]).into()), ("a", v(&[1.0]).into()), ("b", i(&[1]).into())],
            "int32",
        ),
        (Reshape, ax("shape", int_list(&[4, -1])), "[2, 3]"),
        (Transpose, ax("perm", int_list(&[0, 0])), "perm"),
        (ExpandDims, ax("axes", int_list(&[4])), "axis 4"),
        (Squeeze, ax("axes", int_list(&[0])), "[2, 3]"),
        (Shape, vec![], "\"x\" is missing"),
        (Fill, vec![("shape", i(&[1]).into()), ("value", Literal::vector(&[1f32]).into())], "[1]"),
        (Range1d, vec![("start", int(0)), ("end", int(1)), ("step", int(0))], "by 0"),
        (Concat, vec![("values", In::from(vec![v(&[1.0]), a()])), ("axis", int(0))], "[2, 3]"),
        (Split, ax("axis", int(1)), "num_splits"),
        (Split, with(ax("axis", int(1)), vec![("num_splits", int(2))]), "2 equal parts"),
        (Stack, vec![("values", pair()), ("axis", int(0))], "[1]"),
        (Tile, ax("reps", int_list(&[1])), "[1]"),
        (Pad, ax("pad", int_list(&[1, 1, 1, 1, 1, 1])), "[2, 3]"),
        (ReadState, vec![("input", a().into())], "input"),
        (WriteState, vec![("input", state()), ("data", v(&[1.0, 2.0]).into())], "fp16"),
    ]
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let mut seen = BTreeSet::new();
    let all = [
        refusals(),
        images::refusals(),
        networks::refusals(),
        compressed::refusals(),
        indexing::refusals(),
    ];
    for (kind, args, mention) in all.into_iter().flatten() {
        let text = refusal(kind, args);
        assert!(text.contains(mention), "{text:?} does not mention {mention:?}");
        seen.insert(kind);
    }
    seen.extend(programs::REFUSED);
    let missing: Vec<_> = plain().into_iter().filter(|k| !seen.contains(k)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Sizes and strides at the ends of their ranges are refused or harmless, never a crash.
#[test]
fn absurd_sizes_are_refused() {
    use OpKind::*;
    const BIG: i64 = i64::MAX / 2;
    let long = |values: &[i64]| In::from(Literal::vector(values));
    let run = |values: &[i64]| In::from(Array { dtype: DType::I64, ..i(values) });
    for (kind, args) in [
        (Fill, vec![("shape", run(&[BIG, BIG]))]),
        (Fill, vec![("shape", run(&[BIG]))]),
        (Tile, with(x(v(&[1.0, 2.0])), vec![("reps", run(&[BIG]))])),
        (Pad, with(x(v(&[1.0])), vec![("pad", run(&[BIG, BIG]))])),
        (
            Range1d,
            vec![
                ("start", Literal::scalar(0i64).into()),
                ("end", Literal::scalar(BIG).into()),
                ("step", Literal::scalar(1i64).into()),
            ],
        ),
    ] {
        let text = refusal(kind, args);
        assert!(text.contains("limit: "), "{text}");
    }
    let stride = || ("stride", long(&[i64::MIN]));
    let slice =
        with(x(v(&[1.0, 2.0])), vec![("begin", long(&[1])), ("end", long(&[i64::MIN])), stride()]);
    check(vec![(SliceByIndex, slice, vec![v(&[2.0])])]);
    let conv = vec![
        ("x", f32s(&[1, 1, 2], [0.0; 2]).into()),
        ("weight", f32s(&[1, 1, 2], [0.0; 2]).into()),
        ("dilations", long(&[BIG])),
    ];
    refusal(Conv, conv);
}
