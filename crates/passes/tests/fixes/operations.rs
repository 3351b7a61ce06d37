//! Fixes of single operations.

use ane_model::Fix;
use mil::{Arg, FunctionBuilder, Literal, OpKind, TensorType, ValueId};
use proptest::prelude::*;
use tensor::DType;

use crate::harness::{ORDER, Subject, around, constants, literal, weight};

const TYPES: [DType; 3] = [DType::F16, DType::F32, DType::F64];

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..6usize, 1..5)
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(&TYPES[..])
}

fn input(f: &mut FunctionBuilder<'_>, dtype: DType, shape: &[usize]) -> ValueId {
    f.input("x", TensorType::new(dtype, shape.iter().copied()))
}

/// A function of one operation `kind` on each element, with others around it.
fn elementwise(
    chip: &str,
    kind: OpKind,
    (shape, dtype): (&[usize], DType),
    [before, after]: [usize; 2],
    args: &[(&str, Literal)],
) -> Subject {
    Subject::new(chip, |f| {
        let x = input(f, dtype, shape);
        let mut x = around(f, x, before)?;
        if matches!(kind, OpKind::Rsqrt | OpKind::Log | OpKind::Inverse) {
            // Far from zero, where these have no values.
            let square = f.op(OpKind::Mul).arg("x", x).arg("y", x).result()?;
            let some = f.constant("some", literal(dtype, "some", &[1], 0.0));
            let some = f.op(OpKind::Exp).arg("x", some).result()?;
            x = f.op(OpKind::Add).arg("x", square).arg("y", some).result()?;
        }
        let args: Vec<(&str, Arg)> = args
            .iter()
            .map(|(name, literal)| (*name, f.constant(name, literal.clone()).into()))
            .collect();
        let op = f.op(kind).arg("x", x).name("fixed_op");
        let op = args.into_iter().fold(op, |op, (name, arg)| op.arg(name, arg));
        let y = op.result()?;
        let z = around(f, y, after)?;
        Ok(if z == y { vec![y] } else { vec![z, y] })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn silu(shape in shapes(), dtype in dtypes(), seeds in [0..1000usize, 0..1000usize]) {
        let subject = elementwise("m4", OpKind::Silu, (&shape, dtype), seeds, &[]);
        let proof = subject.prove(Fix::Silu, ORDER);
        prop_assert!(proof.is_ok(), "{proof:?}");
    }

    #[test]
    fn gelu(shape in shapes(), dtype in dtypes(), seeds in [0..1000usize, 0..1000usize], mode in 0..4usize) {
        let modes = ["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"];
        let mode = modes.get(mode).map(|m| ("mode", Literal::string(*m)));
        let args: Vec<_> = mode.into_iter().collect();
        let subject = elementwise("m4", OpKind::Gelu, (&shape, dtype), seeds, &args);
        let proof = subject.prove(Fix::Gelu, constants(dtype));
        prop_assert!(proof.is_ok(), "{proof:?}");
    }

    #[test]
    fn rsqrt(
        shape in shapes(),
        dtype in dtypes(),
        seeds in [0..1000usize, 0..1000usize],
        epsilon in 0..3usize,
        chip in prop::sample::select(vec!["m1", "m4"]),
    ) {
        let epsilon = [None, Some(1e-12f32), Some(0.01)][epsilon];
        let args: Vec<_> = epsilon.map(|e| ("epsilon", Literal::scalar(e))).into_iter().collect();
        let subject = elementwise(chip, OpKind::Rsqrt, (&shape, dtype), seeds, &args);
        let proof = subject.prove(Fix::Rsqrt, constants(dtype));
        prop_assert!(proof.is_ok(), "{proof:?}");
    }

    #[test]
    fn root_of_a_sum(shape in shapes(), dtype in dtypes(), after in 0..1000usize, inverse in any::<bool>()) {
        let subject = Subject::new("m4", |f| {
            let x = input(f, dtype, &shape);
            let axes = f.constant("axes", Literal::vector(&[0i32]));
            let keep = f.constant("keep", Literal::bool(true));
            let op = f.op(OpKind::ReduceSumSquare).arg("x", x).arg("axes", axes);
            let sum = op.arg("keep_dims", keep).result()?;
            let root = if inverse {
                let epsilon = f.constant("epsilon", Literal::scalar(0.5f32));
                f.op(OpKind::Rsqrt).arg("x", sum).arg("epsilon", epsilon).result()?
            } else {
                f.op(OpKind::Sqrt).arg("x", sum).result()?
            };
            Ok(vec![around(f, root, after)?])
        });
        let kind = if inverse { Fix::Rsqrt } else { Fix::Root };
        let proof = subject.prove(kind, constants(dtype));
        prop_assert!(proof.is_ok(), "{proof:?}");
    }

    #[test]
    fn epsilon(
        shape in shapes(),
        dtype in dtypes(),
        seeds in [0..1000usize, 0..1000usize],
        kind in prop::sample::select(vec![OpKind::Log, OpKind::Inverse]),
    ) {
        let subject = elementwise("m4", kind, (&shape, dtype), seeds, &[]);
        let proof = subject.prove(Fix::Epsilon, ORDER);
        prop_assert!(proof.is_ok(), "{proof:?}");
    }

    #[test]
    fn attention(
        sizes in [1..3usize, 1..4, 1..6, 1..6, 1..6, 1..6],
        rank in 3..5usize,
        dtype in dtypes(),
        after in 0..1000usize,
    ) {
        let [batch, heads, queries, keys, width, values] = sizes;
        let subject = Subject::new("m4", |f| {
            let shape = |rows, width| {
                let all = [batch, heads, rows, width];
                TensorType::new(dtype, all[4 - rank..].to_vec())
            };
            let q = f.input("query", shape(queries, width));
            let k = f.input("key", shape(keys, width));
            let v = f.input("value", shape(keys, values));
            let mask = f.input("mask", TensorType::new(dtype, [queries, keys]));
            let op = f.op(OpKind::ScaledDotProductAttention).arg("query", q).arg("key", k);
            let y = op.arg("value", v).arg("attn_mask", mask).result()?;
            Ok(vec![around(f, y, after)?])
        });
        let proof = subject.prove(Fix::Attention, constants(dtype));
        prop_assert!(proof.is_ok(), "{proof:?}");
    }

    #[test]
    fn named_constants(
        rows in 1..5usize,
        inner in 1..5usize,
        dtype in dtypes(),
        axis in -2..2i32,
        flags in [any::<bool>(), any::<bool>()],
        nested in any::<bool>(),
    ) {
        let subject = Subject::new("m4", |f| {
            let shape = if flags[0] { [inner, rows] } else { [rows, inner] };
            let x = input(f, dtype, &shape);
            let y = weight(f, dtype, "w", &if flags[1] { [3, inner] } else { [inner, 3] }, 1.0);
            let product = |f: &mut FunctionBuilder<'_>| {
                let op = f.op(OpKind::Matmul).arg("x", x).arg("y", y);
                let op = op.arg("transpose_x", Literal::bool(flags[0]));
                let made = op.arg("transpose_y", Literal::bool(flags[1])).result()?;
                f.op(OpKind::Softmax).arg("x", made).arg("axis", Literal::scalar(axis)).result()
            };
            if !nested {
                return Ok(vec![product(f)?]);
            }
            let yes = f.constant("yes", Literal::bool(true));
            let blocks = [f.block(&[], |f, _| Ok(vec![product(f)?]))?, f.block(&[], |f, _| Ok(vec![product(f)?]))?];
            let [a, b] = blocks;
            Ok(vec![f.op(OpKind::Cond).arg("pred", yes).block(a).block(b).result()?])
        });
        let proof = subject.prove(Fix::NamedConstants, ORDER);
        prop_assert!(proof.is_ok(), "{proof:?}");
    }
}

#[test]
fn einsum_and_the_dialect_are_written_out() {
    for dtype in TYPES {
        let mut subject = Subject::new("m4", |f| {
            let x = input(f, dtype, &[1, 3, 2, 4]);
            let y = f.input("y", TensorType::new(dtype, [1usize, 4, 2, 5]));
            let op = f.op(OpKind::Einsum).arg("values", Arg::from(vec![x, y]));
            Ok(vec![op.arg("equation", Literal::string("nchw,nwhu->nchu")).result()?])
        });
        subject.path = ane_model::Path::CoreMl;
        subject.prove(Fix::Einsum, ORDER).unwrap();
        let subject = Subject::new("m4", |f| {
            let x = input(f, dtype, &[1, 3, 8]);
            let weight = f.constant("w", literal(dtype, "w", &[8], 1.0));
            let op = f.op(OpKind::LlmRmsNorm).arg("x", x).arg("weight", weight);
            Ok(vec![op.arg("epsilon", Literal::scalar(1e-2f32)).result()?])
        });
        subject.prove(Fix::Dialect, constants(dtype)).unwrap();
    }
}
