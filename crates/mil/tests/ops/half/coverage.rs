//! Which operation is held to what in half precision: every kind of the catalogue to one of these, and what
//! is called a copy or said to make no floats must be so in all programs of one operation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use mil::eval::{self, Arithmetic, Array, Data, States, Value};
use mil::ops::OPS;
use mil::{Arg, Function, OpKind, Program, ValueId};

use super::{case, elementwise, golden, goldens, images, sums, windows};
use crate::artefacts;
use tensor::DType;
use testkit::seeded;

/// Those whose results are some of their arguments' numbers, or zero.
const COPIES: &[OpKind] = {
    use OpKind::*;
    &[
        Identity,
        Maximum,
        Minimum,
        Gather,
        GatherAlongAxis,
        GatherNd,
        Reshape,
        Transpose,
        ExpandDims,
        Squeeze,
        Fill,
        Concat,
        Split,
        Stack,
        Tile,
        Pad,
        SliceByIndex,
        SliceBySize,
        SliceUpdate,
        Select,
        Topk,
        Reverse,
        ReverseSequence,
        SlidingWindows,
        BandPart,
        OneHot,
        Flatten2d,
        FillLike,
        ReshapeLike,
        DepthToSpace,
        SpaceToDepth,
        PixelShuffle,
        PixelUnshuffle,
        SpaceToBatch,
        BatchToSpace,
        Crop,
        NonMaximumSuppression,
        ReadState,
        WriteState,
        MakeList,
        ListWrite,
        ListRead,
        ListGather,
        ListScatter,
        Classify,
    ]
};

/// Those whose results are no floats.
const DISCRETE: &[OpKind] = {
    use OpKind::*;
    &[
        Equal,
        NotEqual,
        Less,
        LessEqual,
        Greater,
        GreaterEqual,
        LogicalAnd,
        LogicalOr,
        LogicalXor,
        LogicalNot,
        ReduceArgmax,
        ReduceArgmin,
        Shape,
        NonZero,
        Argsort,
        Quantize,
        ListLength,
    ]
};

/// Those that the arithmetic says nothing about, or that are held to it elsewhere.
const APART: &[OpKind] = {
    use OpKind::*;
    &[
        // Given.
        Const,
        // What their blocks compute.
        Cond,
        WhileLoop,
        // Drawn: the numbers are not Core ML's.
        RandomBernoulli,
        RandomNormal,
        RandomUniform,
        RandomCategorical,
        // To coremltools' bits, by `artefacts::compressed_weights` and `compressed`.
        ConstexprBlockwiseShiftScale,
        ConstexprLutToDense,
        ConstexprSparseToDense,
        ConstexprLutToSparse,
        ConstexprSparseBlockwiseShiftScale,
        ConstexprAffineDequantize,
        ConstexprCast,
        // Not of Core ML; to their decompositions, by `llm` and `decompose`.
        LlmRmsNorm,
        LlmLinear,
        LlmEmbedding,
        LlmDequantize,
        LlmRope,
        LlmAttention,
        LlmGatedMlp,
        LlmHeadLoss,
        LlmRmsNormGrad,
        LlmAttentionGrad,
        LlmHeadLossGrad,
    ]
};

/// Those with an oracle, by its cases.
fn oracles() -> BTreeSet<OpKind> {
    let cases = [sums::cases(), windows::cases(), images::cases(), goldens::cases()];
    let kinds = cases.into_iter().flatten().map(|case: case::Case| case.kind);
    let lines = golden().into_iter().map(|(name, ..)| OpKind::from_name(&name).unwrap());
    kinds.chain(lines).chain(elementwise::KINDS).collect()
}

#[test]
fn every_operation_is_held_to_something() {
    let sets = [oracles(), set(COPIES), set(DISCRETE), set(APART)];
    for kind in OPS {
        let count = sets.iter().filter(|s| s.contains(kind)).count();
        assert_eq!(count, 1, "{} is in {count} lists", kind.name());
    }
    assert_eq!(sets.iter().map(BTreeSet::len).sum::<usize>(), OPS.len());
    assert!(sets[0].len() >= 90, "{} oracles", sets[0].len());
}

fn set(kinds: &[OpKind]) -> BTreeSet<OpKind> {
    kinds.iter().copied().collect()
}

/// Adds the bits of all floats in `value`.
fn add_floats(value: &Value, to: &mut BTreeSet<u64>) {
    match value {
        Value::Array(a) => {
            if let Data::Float(v) = &a.data {
                to.extend(v.iter().map(|x| x.to_bits()));
            }
        }
        Value::List(items) => items.iter().for_each(|v| add_floats(v, to)),
        Value::Dict(entries) => entries.iter().for_each(|(_, v)| add_floats(v, to)),
        Value::State(_) => {}
    }
}

fn add_argument(
    program: &Program,
    function: &Function,
    made: &BTreeMap<ValueId, Value>,
    arg: &Arg,
    to: &mut BTreeSet<u64>,
) {
    if let Arg::List(items) = arg {
        items.iter().for_each(|a| add_argument(program, function, made, a, to));
    } else if let Some(literal) = function.const_arg(arg) {
        add_floats(&Value::from_literal(literal, &program.weights).unwrap(), to);
    } else if let Arg::Value(v) = arg {
        add_floats(&made[v], to);
    }
}

/// Some numbers for an input: floats at random, integers and truth values 0.
fn input(data: &mil::ValueData) -> Value {
    let ty = data.ty.as_tensor().unwrap();
    let shape = ty.fixed_shape().unwrap();
    let count = shape.iter().product();
    let elements = match ty.dtype {
        DType::Bool => Data::Bool(vec![false; count]),
        d if d.is_int() => Data::Int(vec![0; count]),
        _ => {
            let values = seeded::tensor(16, &data.name, count, 0.9);
            Data::Float(values.into_iter().map(f64::from).collect())
        }
    };
    Array { dtype: ty.dtype, shape, data: elements }.into()
}

/// In the programs of one operation, what has float results has an oracle or copies to the bit.
#[test]
fn programs_of_one_operation() {
    let (oracles, copies) = (oracles(), set(COPIES));
    let (mut rounding, mut copying) = (BTreeSet::new(), BTreeSet::new());
    for entry in fs::read_dir(artefacts::root().join("zoo")).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.to_str().unwrap().strip_suffix(".fp16.mil") else { continue };
        let program = artefacts::load(&path).unwrap();
        let main = &program.functions["main"];
        for op in main.ops.values() {
            let floats = op.outputs.iter().any(|&v| {
                let elements = |t: &mil::Type| t.as_tensor().is_none_or(|t| t.dtype.is_float());
                elements(main.ty(v))
            });
            let held = oracles.contains(&op.kind) || copies.contains(&op.kind);
            let structure = [OpKind::Const, OpKind::WhileLoop].contains(&op.kind);
            assert!(held || structure || !floats, "{} of {name}", op.kind.name());
            if floats && oracles.contains(&op.kind) {
                rounding.insert(op.kind);
            }
            assert!(!(floats && DISCRETE.contains(&op.kind)), "{} of {name}", op.kind.name());
        }
        let mut made: BTreeMap<ValueId, Value> =
            main.inputs.iter().map(|&v| (v, input(&main.values[v]))).collect();
        let inputs =
            made.iter().map(|(&v, value)| (main.values[v].name.clone(), value.clone())).collect();
        let mut observe = |v, value: &Value| drop(made.insert(v, value.clone()));
        let (mode, mut states) = (Arithmetic::Fp16, States::new());
        eval::run_observed(&program, "main", mode, &inputs, &mut states, &mut observe).unwrap();
        for &id in &main.body.ops {
            let op = &main.ops[id];
            if !copies.contains(&op.kind) {
                continue;
            }
            let (mut from, mut results) = ([0f64.to_bits()].into(), BTreeSet::new());
            op.args
                .iter()
                .flatten()
                .for_each(|a| add_argument(&program, main, &made, a, &mut from));
            op.outputs.iter().for_each(|v| add_floats(&made[v], &mut results));
            assert!(results.is_subset(&from), "{} of {name} makes numbers", op.kind.name());
            copying.insert(op.kind);
        }
    }
    assert!(rounding.len() >= 60 && copying.len() >= 25, "{rounding:?} {copying:?}");
}
