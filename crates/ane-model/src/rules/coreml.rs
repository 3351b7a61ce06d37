//! Operations that Core ML does not give to the engine, and Rigel's own that have to be lowered first.

use mil::OpKind;

use super::cx::above;
use super::{
    Condition, DIRECT, Finding, Fix, Outcome, Path, Rule, Severity, claimed, disputed, measured,
};
use crate::placement::{Support, support};

const COREML: Rule = Rule {
    paths: &[Path::CoreMl],
    outcome: Outcome::OffEngine,
    severity: Severity::Warning,
    symptom: "Core ML runs it on the CPU or GPU",
    code: None,
    ..DIRECT
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-unsupported-op",
        title: "the engine does not run this operation",
        evidence: &[measured("751K: one-operation models compiled on M4, macOS 27.0.1")],
        fix: "write it with operations that the engine runs, or move it out of the program",
        condition: Condition::Op(|op| {
            let no = support(op.kind()) == Support::No && !special(op.kind());
            no.then(|| Finding::new(format!("{} is not supported", op.kind().name())))
        }),
        ..COREML
    },
    Rule {
        id: "ane-unsupported-direct",
        title: "the engine does not run this operation",
        paths: &[Path::Direct],
        outcome: Outcome::CompileFails,
        severity: Severity::Error,
        symptom: "compilation fails",
        evidence: &[
            measured("751K: what Core ML does not give to the engine, M4"),
            claimed("ane-guide; jafreck/ironmill"),
        ],
        fix: "write it with operations that the engine runs, or run it on the CPU",
        condition: Condition::Op(|op| {
            use OpKind::*;
            let other = matches!(
                op.kind(),
                Gather | GatherAlongAxis | GatherNd | Scatter | ScatterAlongAxis | ScatterNd
            );
            let no = support(op.kind()) == Support::No && !other && !is_llm(op.kind());
            no.then(|| Finding::new(format!("{} is not supported", op.kind().name())))
        }),
        ..COREML
    },
    Rule {
        id: "ane-control-flow",
        title: "branches and loops keep a program off the engine",
        evidence: &[
            measured("apple/coremltools #2004: while_loop"),
            claimed("CoreML-LLM: unroll loops"),
        ],
        fix: "unroll the loop; compute both branches and blend",
        condition: Condition::Op(|op| {
            let control = matches!(op.kind(), OpKind::Cond | OpKind::WhileLoop);
            control.then(|| Finding::new(op.kind().name()))
        }),
        ..COREML
    },
    Rule {
        id: "ane-recurrent",
        title: "recurrent layers run on the CPU",
        evidence: &[measured("apple/coremltools #337: LSTM on BNNS; 751K: lstm, gru, rnn")],
        fix: "unroll a fixed number of steps into products",
        condition: Condition::Op(|op| {
            let recurrent = matches!(op.kind(), OpKind::Lstm | OpKind::Gru | OpKind::Rnn);
            recurrent.then(|| Finding::new(op.kind().name()))
        }),
        ..COREML
    },
    Rule {
        id: "ane-dialect",
        title: "the operation is Rigel's own, not MIL",
        paths: &[Path::Direct, Path::CoreMl],
        outcome: Outcome::CompileFails,
        severity: Severity::Error,
        symptom: "the program is refused",
        evidence: &[measured("MIL has no such operation")],
        fix: "decompose it into plain MIL before exporting or lowering",
        rewriting: Some(Fix::Dialect),
        condition: Condition::Op(|op| is_llm(op.kind()).then(|| Finding::new(op.kind().name()))),
        ..COREML
    },
    Rule {
        id: "ane-dynamic-slice",
        title: "a slice from a computed position leaves the engine",
        evidence: &[
            measured("751K: slice_by_size with a dynamic start"),
            claimed("ane-guide: dynamic slice, gather, scatter"),
        ],
        fix: "multiply by a one-hot mask, or cut at fixed positions",
        condition: Condition::Op(|op| {
            let slice = matches!(op.kind(), OpKind::SliceByIndex | OpKind::SliceBySize);
            (slice && !op.is_constant("begin")).then(|| Finding::new("begin is computed"))
        }),
        ..COREML
    },
    Rule {
        id: "ane-pow-coreml",
        title: "pow can keep a model off the engine",
        severity: Severity::Info,
        evidence: &[
            claimed("SqueezeBits: don't let the pow in"),
            disputed("751K, M4: pow is supported"),
        ],
        fix: "square by mul; x^-0.5 by rsqrt",
        condition: Condition::Op(|op| (op.kind() == OpKind::Pow).then(|| Finding::new("pow"))),
        ..COREML
    },
    Rule {
        id: "ane-einsum",
        title: "attention by einsum may not be given to the engine",
        evidence: &[
            disputed("apple/coremltools #1613: not loaded on the engine"),
            claimed("apple/ml-ane-transformers is written with it, for the engine"),
        ],
        fix: "use matmul",
        rewriting: Some(Fix::Einsum),
        condition: Condition::Op(|op| {
            let finding = || Finding::at("einsum", Severity::Warning);
            (op.kind() == OpKind::Einsum).then(finding)
        }),
        ..COREML
    },
    Rule {
        id: "ane-tail-island",
        title: "choosing the token at the end costs two transfers",
        severity: Severity::Info,
        symptom: "the tail runs on the CPU, the logits are copied",
        evidence: &[claimed(
            "CoreML-LLM: topk, argmax and gather at the end; in-graph top-k picked wrong tokens on A18 and A19",
        )],
        fix: "return the logits and choose on the CPU, or make sure of the margin",
        condition: Condition::Op(|op| {
            use OpKind::*;
            let picks =
                matches!(op.kind(), Topk | ReduceArgmax | ReduceArgmin | Gather | GatherAlongAxis);
            let outputs = &op.cx.function.body.outputs;
            let last = op.op.outputs.iter().any(|v| outputs.contains(v));
            (picks && last).then(|| Finding::new(format!("{} is an output", op.kind().name())))
        }),
        ..COREML
    },
    Rule {
        id: "ane-topk",
        title: "topk of more than was tried",
        severity: Severity::Info,
        symptom: "unknown beyond k of 40; slow: 8.0 where a convolution takes 2.0 ms",
        evidence: &[measured("751K, M4: k up to 40 of 32,000")],
        fix: "return the logits and choose on the CPU",
        condition: Condition::Op(|op| {
            let k = (op.kind() == OpKind::Topk).then(|| op.view().int("k").ok())???;
            let k = u64::try_from(k).ok()?;
            above(&op.chip().limits.topk, k, format!("k of {k}"))
        }),
        ..COREML
    },
    Rule {
        id: "ane-argmax-axis",
        title: "argmax runs on the engine over channels or space only",
        evidence: &[claimed("validator string, 751K")],
        fix: "transpose so that the axis is not the batch",
        condition: Condition::Op(|op| {
            let arg = matches!(op.kind(), OpKind::ReduceArgmax | OpKind::ReduceArgmin);
            let rank = arg.then(|| op.shape("x"))??.len();
            let view = op.view();
            let axis = view.axis(view.int("axis").ok()?.unwrap_or(-1), rank).ok()?;
            (rank >= 4 && axis == 0).then(|| Finding::new("over the batch axis"))
        }),
        ..COREML
    },
    Rule {
        id: "ane-pad-value",
        title: "constant padding with another value than zero leaves the engine",
        evidence: &[claimed("validator string, 751K: constant padding only with zero")],
        fix: "pad with zero and add what is missing",
        condition: Condition::Op(|op| {
            let value =
                (op.kind() == OpKind::Pad).then(|| op.view().float("constant_val").ok())???;
            (value != 0.0).then(|| Finding::new(format!("padded with {value}")))
        }),
        ..COREML
    },
    Rule {
        id: "ane-nms-boxes",
        title: "non-maximum suppression takes at most 2,048 boxes",
        evidence: &[claimed("validator string, 751K")],
        fix: "keep the best 2,048 boxes before it",
        condition: Condition::Op(|op| {
            let nms = op.kind() == OpKind::NonMaximumSuppression;
            // Boxes are the longer of the last two axes: the other has their four numbers.
            let boxes = nms.then(|| op.shape("boxes"))??.into_iter().skip(1).max()?;
            above(&op.chip().limits.nms_boxes, boxes, format!("{boxes} boxes"))
        }),
        ..COREML
    },
];

/// Whether an operation is of Rigel's own dialect.
fn is_llm(kind: OpKind) -> bool {
    kind.name().starts_with("llm.")
}

/// Whether another rule speaks of an operation that is not supported.
fn special(kind: OpKind) -> bool {
    use OpKind::*;
    is_llm(kind) || matches!(kind, Cond | WhileLoop | Lstm | Gru | Rnn)
}
