//! Element types that the engine does not compute with.

use mil::{OpKind, TensorType};
use tensor::DType;

use super::cx::{OpCx, stands};
use super::{
    Condition, DIRECT, Finding, Found, FunctionCx, Outcome, Path, Rule, Severity, claimed,
    disputed, measured,
};
use crate::chip::Acceptance;

const COREML: Rule = Rule {
    paths: &[Path::CoreMl],
    outcome: Outcome::OffEngine,
    severity: Severity::Warning,
    symptom: "Core ML runs it on the CPU; a single such operation can pull a small network after it",
    code: None,
    ..DIRECT
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-int32",
        title: "integer arithmetic does not run on the engine",
        code: Some("Unsupported tensor data type: int32"),
        evidence: &[
            measured("751K: any int32 tensor, M4"),
            measured("anemll-profile: the plan's own words"),
        ],
        fix: "compute indices and counts on the CPU and pass them as inputs, or use fp16",
        condition: Condition::Op(integers),
        ..COREML
    },
    Rule {
        id: "ane-int32-direct",
        title: "integer arithmetic is refused",
        evidence: &[
            measured("jafreck/ironmill: fp16, fp32 and bool only"),
            measured("ane-guide: M1's front end refuses int32"),
        ],
        fix: "compute indices and counts on the CPU and pass them as fp16",
        condition: Condition::Op(integers),
        ..DIRECT
    },
    Rule {
        id: "ane-bool-compute",
        title: "arithmetic on truth values may not run on the engine",
        evidence: &[
            disputed("751K, M4: comparisons, select and logical_and are supported"),
            claimed("notes on single operations, source not named: boolean logic is not"),
        ],
        fix: "use 0 and 1 in fp16: mul for and, a mask added for select",
        condition: Condition::Op(|op| {
            use OpKind::*;
            let logic = matches!(
                op.kind(),
                LogicalAnd
                    | LogicalOr
                    | LogicalXor
                    | LogicalNot
                    | Equal
                    | NotEqual
                    | Less
                    | LessEqual
                    | Greater
                    | GreaterEqual
                    | Select
            );
            let what = op.kind().name();
            logic.then(|| stands(&op.chip().switches.bool_compute, Acceptance::Refused, what))?
        }),
        ..COREML
    },
    Rule {
        id: "ane-fp32-island",
        title: "an operation in fp32 among fp16 leaves the engine",
        symptom: "casts to and from fp32, and the operation on the CPU or GPU",
        evidence: &[
            claimed("CoreML-LLM; apple/coremltools #561"),
            disputed("751K: fp32 inputs get a cast and go to the engine"),
        ],
        fix: "compute in fp16; scale values that do not fit",
        condition: Condition::Function(fp32_island),
        ..COREML
    },
    Rule {
        id: "ane-wide-float",
        title: "fp64 and bfloat16 are not the engine's",
        paths: &[Path::Direct, Path::CoreMl],
        severity: Severity::Error,
        symptom: "the program is refused",
        evidence: &[
            measured("ane-guide: M1's front end refuses bf16"),
            claimed("jafreck/ironmill: fp16, fp32 and bool only"),
        ],
        fix: "cast to fp16",
        condition: Condition::Op(|op| {
            let ty = op.computes().then(|| op.result_type())??;
            matches!(ty.dtype, DType::F64 | DType::Bf16)
                .then(|| Finding::new(format!("{} computes in {}", op.kind().name(), ty.dtype)))
        }),
        ..DIRECT
    },
];

/// Integer tensors of an operation, those between quantize and dequantize apart.
fn integers(op: &OpCx<'_>) -> Option<Finding> {
    use OpKind::*;
    if !op.computes()
        || matches!(op.kind(), Quantize | Dequantize | ReadState | WriteState | SliceUpdate)
    {
        return None;
    }
    let integer = |t: &&TensorType| t.dtype.is_int() && t.rank() > 0;
    let cx = op.cx;
    let results = op.op.outputs.iter().filter_map(|&v| cx.function.tensor_ty(v));
    let mut given: Vec<&TensorType> = Vec::new();
    op.op.for_each_arg_value(|v| {
        if !cx.is_constant(v) {
            given.extend(cx.function.tensor_ty(v));
        }
    });
    // A quantised activation passes through operations that move data or multiply it.
    let narrow = |t: &&TensorType| !matches!(t.dtype, DType::I8 | DType::U8);
    let found = results.chain(given).filter(integer).find(narrow)?;
    Some(Finding::new(format!("{} on {found}", op.kind().name())))
}

fn fp32_island(f: &FunctionCx<'_>) -> Vec<Found> {
    let float = |op: &mil::Operation| {
        let first = op.outputs.first().and_then(|&v| f.function.tensor_ty(v));
        first.map(|t| t.dtype).filter(|_| op.kind != OpKind::Cast)
    };
    let half = f.computing().any(|(_, op)| float(op) == Some(DType::F16));
    let wide = f.computing().filter(|(_, op)| half && float(op) == Some(DType::F32));
    wide.map(|(id, op)| {
        let finding = Finding::new(format!("{} computes in fp32", op.kind.name()));
        Found { op: Some(id), finding }
    })
    .collect()
}
