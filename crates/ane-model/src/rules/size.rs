//! Programs that are too large: bytes, operations, layers, depth.

use std::collections::HashMap;

use mil::{OpKind, Operation, ValueDef, ValueId};

use super::cx::{above, byte_len};
use super::{
    Chips, Condition, DIRECT, Finding, Found, FunctionCx, Outcome, Path, ProgramCx, Rule, Severity,
    claimed, measured,
};

const BOTH: &[Path] = &[Path::Direct, Path::CoreMl];

const SIZE: Rule = Rule {
    paths: BOTH,
    outcome: Outcome::LoadFails,
    severity: Severity::Warning,
    symptom: "compilation or loading fails, or the process is killed for its memory",
    code: None,
    ..DIRECT
};

/// Elements of the input of apple/coremltools #2247, which did not compile.
const TOO_LARGE_TENSOR: u64 = 3 * 5568 * 5568;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-program-bytes",
        title: "a program is larger than is known to load",
        severity: Severity::Error,
        code: Some("ANE Code=53 no memory; 0x20004 beyond about 15 GiB"),
        evidence: &[
            claimed("CoreML-LLM: 1.0 to 1.4 GB on a phone; ANEMLL: 1 GB on iOS, 2 GB on macOS"),
            measured("Core AI on M6: 3 GB runs, 4 GB does not load; smpanaro: about 4 GB on M1"),
            measured("apple/coremltools #2758: 667 MB killed at the first prediction"),
        ],
        fix: "cut the model into chunks of layers; compress the weights",
        condition: Condition::Program(|p| {
            let bytes = p.weight_bytes();
            let what = format!("{bytes} bytes of weights");
            above(&p.chip.coreml.program_bytes_max, bytes, &what).or_else(|| {
                let warn = above(&p.chip.coreml.program_bytes, bytes, &what)?;
                Some(Finding { severity: Some(Severity::Warning), ..warn })
            })
        }),
        ..SIZE
    },
    Rule {
        id: "ane-program-operations",
        title: "a function has more operations than are known to compile in reasonable time",
        evidence: &[
            claimed("CoreML-LLM: 3,000"),
            claimed("Anemll Forge: compile time grows faster than size"),
        ],
        fix: "cut the model into chunks of layers",
        condition: Condition::Function(|f| {
            let n = f.computing().count() as u64;
            whole(above(&f.chip.coreml.operations, n, format!("{n} operations")))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-program-layers",
        title: "a function has more transformer layers than compile on a phone",
        evidence: &[claimed("CoreML-LLM: 15 to 17 layers")],
        fix: "cut the model into chunks of at most 15 layers",
        condition: Condition::Function(|f| {
            let attention = f.computing().filter(|(_, op)| {
                matches!(op.kind, OpKind::Softmax | OpKind::ScaledDotProductAttention)
            });
            let n = attention.count() as u64;
            whole(above(&f.chip.coreml.layers, n, format!("{n} layers with attention")))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-depth",
        title: "a chain of layers is deeper than compiles",
        chips: Chips::Where("M6", |c| c.limits.layers_deep.is_some()),
        evidence: &[measured("751K, h18g: 386 layers")],
        fix: "cut the program",
        condition: Condition::Function(|f| {
            let layer =
                |op: &Operation| matches!(op.kind, OpKind::Conv | OpKind::Linear | OpKind::Matmul);
            let n = longest_chain(f, layer);
            whole(above(&f.chip.limits.layers_deep, n, format!("a chain of {n} products")))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-elementwise-chain",
        title: "a long chain of elementwise operations takes minutes to compile for two engines",
        chips: Chips::Where("chips with two engines", |c| {
            c.identity.engines.as_ref().is_some_and(|e| e.value > 1)
        }),
        outcome: Outcome::Slow,
        symptom: "64 steps 1.1 s, 256 steps 179 s",
        evidence: &[measured("751K: h18g; 0.1 and 0.4 s for one engine (h18)")],
        fix: "cut the program, or compile for one engine",
        condition: Condition::Function(|f| {
            let n = longest_chain(f, |op| elementwise(op.kind));
            let finding = || Finding::new(format!("a chain of {n} elementwise operations"));
            whole((n >= 128).then(finding))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-working-set",
        title: "an intermediate result is larger than the on-chip working set",
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "products lose about 30 %",
        evidence: &[measured("maderix part 2, M4: 32 MB"), measured("ane-guide, M1: 2 MB")],
        fix: "split the work along the sequence or the heads",
        condition: Condition::Function(working_set),
        ..SIZE
    },
    Rule {
        id: "ane-large-tensor",
        title: "a tensor is as large as one that did not compile",
        code: Some("ANECCompile() FAILED (11)"),
        evidence: &[measured("apple/coremltools #2247: 1x3x5568x5568")],
        fix: "work on tiles",
        condition: Condition::Function(|f| {
            let large = f.inputs().filter_map(|(name, ty)| {
                let n: u64 = super::cx::sizes(ty)?.iter().product();
                let finding = || Finding::new(format!("input \"{name}\" has {n} elements"));
                Some(Found { op: None, finding: (n >= TOO_LARGE_TENSOR).then(finding)? })
            });
            large.collect()
        }),
        ..SIZE
    },
    Rule {
        id: "ane-function-weights",
        title: "each loaded function holds its own copy of the weights",
        paths: &[Path::CoreMl],
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "memory times the number of functions",
        evidence: &[measured("Anemll Forge: Core ML duplicates, Core AI shares")],
        fix: "load the functions that are in use",
        condition: Condition::Program(|p| {
            let (n, bytes) = (p.functions.len(), p.weight_bytes());
            (n > 1 && bytes > 0)
                .then(|| Finding::new(format!("{n} functions over {bytes} bytes of weights")))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-opset",
        title: "the system does not know the program's operation set",
        outcome: Outcome::CompileFails,
        severity: Severity::Error,
        symptom: "the program is refused",
        evidence: &[claimed(
            "maderix/ANE: program(1.3) and ios18 need macOS 15; M1 and M2 with older systems ios16",
        )],
        fix: "convert for the older operation set",
        condition: Condition::Program(opset),
        ..SIZE
    },
];

fn whole(finding: Option<Finding>) -> Vec<Found> {
    finding.map(|finding| Found { op: None, finding }).into_iter().collect()
}

fn opset(p: &ProgramCx<'_>) -> Option<Finding> {
    let os = p.os?;
    let newest = p.functions.iter().map(|f| f.function.opset).max()?;
    (os.opset()? < newest).then(|| Finding::new(format!("{newest} on {os}")))
}

/// Whether an operation works on each element alone.
pub(crate) fn elementwise(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        Add | Sub
            | Mul
            | RealDiv
            | Maximum
            | Minimum
            | Pow
            | Abs
            | Relu
            | Relu6
            | Sigmoid
            | Tanh
            | Silu
            | Gelu
            | Exp
            | Exp2
            | Erf
            | Sqrt
            | Rsqrt
            | Inverse
            | Log
            | Square
            | Sin
            | Cos
            | Clip
            | Softplus
            | Softsign
            | LeakyRelu
            | Elu
            | Prelu
            | SigmoidHard
            | ScaledTanh
            | ThresholdedRelu
            | Floor
            | Ceil
            | Round
            | Sign
            | Atan
            | FloorDiv
    )
}

/// Operations that `counts` picks, on the path that has most of them.
fn longest_chain(f: &FunctionCx<'_>, counts: impl Fn(&Operation) -> bool) -> u64 {
    let mut depth: HashMap<ValueId, u64> = HashMap::new();
    let mut longest = 0;
    for (_, op) in f.computing() {
        let mut before = 0;
        op.for_each_arg_value(|v| {
            if let ValueDef::Result(..) = f.function.values[v].def {
                before = before.max(depth.get(&v).copied().unwrap_or(0));
            }
        });
        let here = before + u64::from(counts(op));
        longest = longest.max(here);
        depth.extend(op.outputs.iter().map(|&v| (v, here)));
    }
    longest
}

fn working_set(f: &FunctionCx<'_>) -> Vec<Found> {
    let Some(limit) = &f.chip.memory.working_set else { return Vec::new() };
    let sized = f.computing().filter_map(|(id, op)| {
        let bytes = f.function.tensor_ty(*op.outputs.first()?).map(byte_len)?;
        (bytes > limit.value).then_some((id, bytes))
    });
    // One is enough: the largest.
    let largest = sized.max_by_key(|&(_, bytes)| bytes);
    let found = largest.map(|(id, bytes)| {
        let finding =
            Finding::new(format!("a result of {bytes} bytes; the working set is {limit}"));
        Found { op: Some(id), finding }
    });
    found.into_iter().collect()
}
