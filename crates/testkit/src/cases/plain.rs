//! Cases of plain MIL operations that language models are made of.

use mil::{Arg, Literal, OpKind, ValueId};
use tensor::DType;

use crate::{Case, CaseBuilder, case};

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = UNARY.iter().map(|&(kind, low)| unary(kind, low)).collect();
    cases.extend(BINARY.iter().map(|&kind| binary(kind)));
    cases.extend(REDUCTIONS.iter().map(|&kind| reduction(kind)));
    cases.extend(forms());
    cases
}

/// Operations of one argument, and the least value that they are tried with.
const UNARY: &[(OpKind, f32)] = &[
    (OpKind::Abs, -2.0),
    (OpKind::Cos, -2.0),
    (OpKind::Erf, -2.0),
    (OpKind::Exp, -2.0),
    (OpKind::Gelu, -2.0),
    (OpKind::Log, 0.1),
    (OpKind::Relu, -2.0),
    (OpKind::Rsqrt, 0.1),
    (OpKind::Sigmoid, -2.0),
    (OpKind::Silu, -2.0),
    (OpKind::Sin, -2.0),
    (OpKind::Softmax, -2.0),
    (OpKind::Sqrt, 0.1),
    (OpKind::Square, -2.0),
    (OpKind::Tanh, -2.0),
];

const BINARY: &[OpKind] =
    &[OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::RealDiv, OpKind::Maximum, OpKind::Minimum];

const REDUCTIONS: &[OpKind] =
    &[OpKind::ReduceMax, OpKind::ReduceMean, OpKind::ReduceMin, OpKind::ReduceSum];

fn unary(kind: OpKind, low: f32) -> Case {
    case(kind.name(), |c| {
        let x = c.float_in("x", &[2, 3, 8], low, 2.0);
        Ok(vec![c.f.op(kind).arg("x", x).name("y").result()?])
    })
}

fn binary(kind: OpKind) -> Case {
    case(kind.name(), |c| {
        let (x, y) = (c.float("x", &[2, 3, 4]), c.float_in("y", &[3, 1], 0.5, 2.0));
        let same = c.f.op(kind).arg("x", x).arg("y", x).name("same").result()?;
        let column = c.f.op(kind).arg("x", x).arg("y", y).name("column").result()?;
        let half = Literal::scalar(0.5f32);
        Ok(vec![same, column, c.f.op(kind).arg("x", x).arg("y", half).name("scalar").result()?])
    })
}

fn reduction(kind: OpKind) -> Case {
    case(kind.name(), |c| {
        let x = c.float("x", &[2, 3, 4]);
        let last = c.f.op(kind).arg("x", x).arg("axes", Literal::vector(&[-1i32]));
        let last = last.arg("keep_dims", Literal::bool(true)).name("last").result()?;
        let outer = c.f.op(kind).arg("x", x).arg("axes", Literal::vector(&[0i32, 1]));
        Ok(vec![last, outer.arg("keep_dims", Literal::bool(false)).name("outer").result()?])
    })
}

/// `kind` of `x` `[2, 3, 4]` with these further arguments.
fn of_x(name: &str, kind: OpKind, args: &[(&str, Literal)]) -> Case {
    case(name, |c| {
        let x = c.float("x", &[2, 3, 4]);
        let op = c.f.op(kind).arg("x", x).name("y");
        args.iter().fold(op, |op, (name, literal)| op.arg(name, literal.clone())).results()
    })
}

fn forms() -> Vec<Case> {
    let ints = |v: &[i32]| Literal::vector(v);
    let int = |n: i32| Literal::scalar(n);
    vec![
        of_x("softmax_axis_1", OpKind::Softmax, &[("axis", int(1))]),
        of_x("gelu_tanh", OpKind::Gelu, &[("mode", Literal::string("TANH_APPROXIMATION"))]),
        of_x("reshape", OpKind::Reshape, &[("shape", ints(&[3, -1]))]),
        of_x("reshape_keep", OpKind::Reshape, &[("shape", ints(&[0, 4, -1]))]),
        of_x("transpose", OpKind::Transpose, &[("perm", ints(&[2, 0, 1]))]),
        of_x("expand_dims", OpKind::ExpandDims, &[("axes", ints(&[0, -1]))]),
        of_x("split", OpKind::Split, &[("split_sizes", ints(&[1, 3])), ("axis", int(-1))]),
        of_x("split_even", OpKind::Split, &[("num_splits", int(2)), ("axis", int(0))]),
        of_x("tile", OpKind::Tile, &[("reps", ints(&[1, 2, 1]))]),
        of_x(
            "slice_by_index",
            OpKind::SliceByIndex,
            &[
                ("begin", ints(&[0, -1, 1])),
                ("end", ints(&[2, 0, 4])),
                ("end_mask", Literal::bool_vector(&[true, true, false])),
                ("squeeze_mask", Literal::bool_vector(&[false, true, false])),
            ],
        ),
        of_x(
            "slice_by_size",
            OpKind::SliceBySize,
            &[("begin", ints(&[0, 1, 2])), ("size", ints(&[2, 2, -1]))],
        ),
        case("layer_norm", |c| {
            let x = c.float("x", &[2, 3, 8]);
            let gamma = c.weight("gamma", DType::F32, &[8])?;
            let beta = c.weight("beta", DType::F32, &[8])?;
            let op = c.f.op(OpKind::LayerNorm).arg("x", x).arg("axes", Literal::vector(&[-1i32]));
            let op = op.arg("gamma", gamma).arg("beta", beta);
            Ok(vec![op.arg("epsilon", Literal::scalar(1e-5f32)).name("y").result()?])
        }),
        case("linear", |c| {
            let (x, w) = (c.float("x", &[2, 3, 8]), c.weight("w", DType::F32, &[5, 8])?);
            let bias = c.weight("bias", DType::F32, &[5])?;
            let op = c.f.op(OpKind::Linear).arg("x", x).arg("weight", w).arg("bias", bias);
            Ok(vec![op.name("y").result()?])
        }),
        case("matmul", |c| {
            let (x, y) = (c.float("x", &[2, 3, 8]), c.float("y", &[2, 5, 8]));
            let op = c.f.op(OpKind::Matmul).arg("x", x).arg("y", y);
            Ok(vec![op.arg("transpose_y", Literal::bool(true)).name("y").result()?])
        }),
        case("concat", |c| joined(c, OpKind::Concat)),
        case("stack", |c| joined(c, OpKind::Stack)),
        case("gather", |c| {
            let (x, indices) = (c.float("x", &[4, 3]), c.ints("indices", &[2, 2], &[3, 0, 0, 1]));
            let op = c.f.op(OpKind::Gather).arg("x", x).arg("indices", indices);
            Ok(vec![op.arg("axis", Literal::scalar(0i32)).name("y").result()?])
        }),
        case("select", |c| {
            let (a, b) = (c.float("a", &[2, 3]), c.float("b", &[2, 3]));
            let cond = c.f.op(OpKind::Greater).arg("x", a).arg("y", b).name("greater").result()?;
            let op = c.f.op(OpKind::Select).arg("cond", cond).arg("a", a).arg("b", b);
            Ok(vec![op.name("y").result()?])
        }),
    ]
}

fn joined(c: &mut CaseBuilder<'_>, kind: OpKind) -> mil::Result<Vec<ValueId>> {
    let (a, b) = (c.float("a", &[2, 3]), c.float("b", &[2, 3]));
    let op = c.f.op(kind).arg("values", Arg::from(vec![a, b]));
    Ok(vec![op.arg("axis", Literal::scalar(1i32)).name("joined").result()?])
}
