//! Operations that the engine's compiler refuses or gets wrong when it is given MIL text directly.

use mil::OpKind;

use super::cx::{OpCx, stands};
use super::{
    Chips, Condition, DIRECT, Finding, Fix, Outcome, Rule, Severity, claimed, disputed, measured,
};
use crate::chip::{Acceptance, Effect};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-concat",
        title: "concat is refused on the direct path",
        evidence: &[
            measured("Orion, paper table 3, no. 1, M4 Max: all seven kernels with concat failed"),
            measured("rustane"),
            disputed("jafreck/ironmill: works on hardware with constant axis and interleave"),
        ],
        fix: "return the parts as outputs, or pack inputs by channel and take slices",
        condition: Condition::Op(|op| {
            let refused = || stands(&op.chip().switches.concat, Acceptance::Refused, "concat");
            (op.kind() == OpKind::Concat).then(refused)?
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-sdpa-mask",
        title: "scaled_dot_product_attention ignores its mask",
        outcome: Outcome::WrongResult,
        symptom: "attention is not masked, silently",
        code: None,
        evidence: &[claimed("maderix/ANE; Orion, paper table 3, no. 6; ANEgpt")],
        fix: "write query times key, plus mask, softmax, times value",
        rewriting: Some(Fix::Attention),
        condition: Condition::Op(|op| {
            let masked =
                op.kind() == OpKind::ScaledDotProductAttention && op.op.arg("attn_mask").is_some();
            masked.then(|| stands(&op.chip().switches.sdpa_mask, Effect::Ignored, "attn_mask"))?
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-gelu",
        title: "gelu is refused by name",
        evidence: &[
            measured("Orion, paper table 3, no. 10; rustane"),
            measured("mil_infer: refused in every spelling"),
        ],
        fix: "write it with tanh, mul and add",
        rewriting: Some(Fix::Gelu),
        condition: Condition::Op(|op| {
            let refused = || stands(&op.chip().switches.gelu, Acceptance::Refused, "gelu");
            (op.kind() == OpKind::Gelu).then(refused)?
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-silu",
        title: "silu is refused by name",
        evidence: &[claimed("Orion: decompose"), disputed("jafreck/ironmill: works on hardware")],
        fix: "write x times sigmoid(x); through tanh (x/2 * (1 + tanh(x/2))) it is more exact",
        rewriting: Some(Fix::Silu),
        condition: Condition::Op(|op| {
            let refused = || stands(&op.chip().switches.silu, Acceptance::Refused, "silu");
            (op.kind() == OpKind::Silu).then(refused)?
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-conv-bias",
        title: "conv takes no bias",
        evidence: &[claimed("Orion, paper table 3, no. 13; rustane")],
        fix: "add the bias, shaped [1, channels, 1, 1], afterwards",
        rewriting: Some(Fix::ConvBias),
        condition: Condition::Op(|op| {
            let conv = matches!(op.kind(), OpKind::Conv | OpKind::ConvTranspose);
            (conv && op.op.arg("bias").is_some()).then(|| Finding::new("conv has bias="))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-inline-argument",
        title: "constant arguments must be named constants, not written in place",
        symptom: "the text is refused",
        code: Some("InvalidMILProgram"),
        evidence: &[
            claimed("Orion, paper table 3, no. 12: transpose flags"),
            claimed("maderix/ANE: pads, strides too"),
        ],
        fix: "make a const and name it in the argument",
        rewriting: Some(Fix::NamedConstants),
        condition: Condition::Op(inline_argument),
        ..DIRECT
    },
    Rule {
        id: "ane-conv-input-channels",
        title: "a convolution of 32,000 input channels is refused",
        evidence: &[
            measured("Orion, paper table 3, no. 16; maderix/ANE: classifier backward, inputs only"),
            disputed("MILLer: the limit in the compiler's binary is 32768"),
        ],
        fix: "split the input channels, convolve each part, add the results",
        rewriting: Some(Fix::SplitReduction),
        condition: Condition::Op(conv_input_channels),
        ..DIRECT
    },
    Rule {
        id: "ane-matmul-for-conv",
        title: "a matmul by a constant is slower than a 1x1 convolution",
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "about a third of the speed",
        code: None,
        evidence: &[
            measured("maderix part 2, M4; Orion, no. 17"),
            disputed("CoreML-LLM: 23.48 and 23.24 ms, no difference through Core ML"),
        ],
        fix: "use conv with the weight as [outputs, inputs, 1, 1]",
        condition: Condition::Op(|op| {
            let constant = op.kind() == OpKind::Matmul && op.is_constant("y");
            constant.then(|| Finding::new("matmul by a constant"))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-rsqrt",
        title: "rsqrt is refused",
        evidence: &[
            measured("mechramc/Orion #3: never compiles, even without weights"),
            disputed("jafreck/ironmill: compiles when epsilon is given"),
        ],
        fix: "write pow(x, -0.5)",
        rewriting: Some(Fix::Rsqrt),
        condition: Condition::Op(|op| {
            let refused = || stands(&op.chip().switches.rsqrt, Acceptance::Refused, "rsqrt");
            (op.kind() == OpKind::Rsqrt).then(refused)?
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-missing-epsilon",
        title: "rsqrt, log and inverse need their epsilon written out",
        evidence: &[measured("jafreck/ironmill")],
        fix: "give epsilon as a named constant",
        rewriting: Some(Fix::Epsilon),
        condition: Condition::Op(|op| {
            let kind = matches!(op.kind(), OpKind::Rsqrt | OpKind::Log | OpKind::Inverse);
            (kind && op.op.arg("epsilon").is_none())
                .then(|| Finding::new(format!("{} without epsilon", op.kind().name())))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-pow",
        title: "pow is refused on the M1 generation",
        evidence: &[
            claimed("a user of maderix/ANE, M1"),
            disputed("Orion, ironmill: works on M4"),
            disputed("rustane: refused on its machine"),
        ],
        fix: "square by mul; for x^-0.5 use sqrt and inverse with an epsilon",
        condition: Condition::Op(|op| {
            let refused = || stands(&op.chip().switches.pow, Acceptance::Refused, "pow");
            (op.kind() == OpKind::Pow).then(refused)?
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-root-after-reduce",
        title: "sqrt or rsqrt of a reduction is refused",
        evidence: &[
            claimed("maderix/ANE"),
            disputed(
                "the fused pattern, not the operation: sqrt alone compiles (mechramc/Orion #3)",
            ),
        ],
        fix: "write pow(x, 0.5) or pow(x, -0.5)",
        rewriting: Some(Fix::Root),
        condition: Condition::Op(|op| {
            let root = matches!(op.kind(), OpKind::Sqrt | OpKind::Rsqrt);
            let reduces = root && op.maker("x").is_some_and(|m| is_reduction(m.kind));
            reduces.then(|| Finding::new(format!("{} of a reduction", op.kind().name())))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-tile",
        title: "tile can spoil a program's state",
        outcome: Outcome::WrongResult,
        severity: Severity::Warning,
        symptom: "later evaluations give wrong results",
        code: None,
        evidence: &[claimed("ane-infer")],
        fix: "broadcast in add or mul instead",
        condition: Condition::Op(|op| (op.kind() == OpKind::Tile).then(|| Finding::new("tile"))),
        ..DIRECT
    },
    Rule {
        id: "ane-gather-direct",
        title: "gather and scatter are refused",
        evidence: &[measured("jafreck/ironmill"), claimed("Orion: embedding on the CPU")],
        fix: "look rows up on the CPU and pass them as an input",
        condition: Condition::Op(|op| {
            use OpKind::*;
            let refused = matches!(
                op.kind(),
                Gather | GatherAlongAxis | GatherNd | Scatter | ScatterAlongAxis | ScatterNd
            );
            refused.then(|| Finding::new(op.kind().name()))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-softmax-length",
        title: "softmax over a length that is no power of two may be refused",
        severity: Severity::Error,
        symptom: "the text is refused",
        code: Some("InvalidMILProgram"),
        evidence: &[
            claimed("hollance/neural-engine #44"),
            disputed("Orion: softmax over 32,000 runs"),
        ],
        fix: "pad the axis to a power of two with a large negative mask",
        condition: Condition::Op(|op| {
            let length = softmax_length(op)?;
            let what = format!("softmax over {length} elements");
            (!length.is_power_of_two()).then(|| {
                stands(&op.chip().switches.softmax_any_length, Acceptance::Refused, what)
            })?
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-slice-offset",
        title: "a slice along the width with an offset loses large values",
        outcome: Outcome::WrongResult,
        severity: Severity::Warning,
        symptom: "values above 4094 become infinite",
        code: None,
        chips: Chips::Where("M1, A14, M2 and their kin", |c| c.numerics.slice_offset_max.is_some()),
        evidence: &[measured("ANEForge, M1; ane-guide ch. 3: exact from A16 and M4 on")],
        fix: "keep values below 4094, or put what is sliced on the channel axis",
        condition: Condition::Op(slice_offset),
        ..DIRECT
    },
    Rule {
        id: "ane-matmul-multiple",
        title: "the inner length of a matmul should be a multiple of 32",
        outcome: Outcome::WrongResult,
        severity: Severity::Warning,
        symptom: "the result is zero, silently",
        code: None,
        chips: Chips::Where("M1, where it was seen, and its kin", |c| {
            c.switches.matmul_any_length.is_some()
        }),
        evidence: &[claimed("maderix/ANE #47, M1")],
        fix: "pad the inner length with zeros",
        condition: Condition::Op(|op| {
            let length = (op.kind() == OpKind::Matmul).then(|| super::shapes::reduction(op))??;
            let what = format!("an inner length of {length}");
            (!length.is_multiple_of(32))
                .then(|| stands(&op.chip().switches.matmul_any_length, Acceptance::Refused, what))?
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-sine",
        title: "sin and cos need A15 or newer",
        paths: &[super::Path::Direct, super::Path::CoreMl],
        evidence: &[
            claimed("notes on single operations, source not named"),
            measured("751K: supported on M4"),
        ],
        fix: "pass the tables of the rotary embedding as inputs or constants",
        condition: Condition::Op(|op| {
            let refused =
                || stands(&op.chip().switches.sine, Acceptance::Refused, op.kind().name());
            matches!(op.kind(), OpKind::Sin | OpKind::Cos).then(refused)?
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-dilated-conv",
        title: "dilated convolutions are slow",
        paths: &[super::Path::Direct, super::Path::CoreMl],
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "no fast algorithm is used",
        code: None,
        evidence: &[measured("751K: 3x3 dilated by 2"), claimed("hollance/neural-engine")],
        fix: "use stride or a larger kernel where the model allows",
        condition: Condition::Op(|op| {
            let dilations = op.view().ints("dilations").ok()??;
            dilations
                .iter()
                .any(|&d| d > 1)
                .then(|| Finding::new(format!("dilations {dilations:?}")))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-dead-output",
        title: "an output must be computed by an operation that stays",
        symptom: "the text is refused: the compiler removed the output's operation",
        code: Some("InvalidMILProgram"),
        evidence: &[claimed("Orion, paper table 3, no. 14")],
        fix: "return what the identity, cast or reshape was given; copy an input by adding zero",
        condition: Condition::Function(dead_outputs),
        ..DIRECT
    },
    Rule {
        id: "ane-input-spatial",
        title: "inputs of 14,593 to 14,622 columns fail",
        outcome: Outcome::EvaluationFails,
        severity: Severity::Warning,
        symptom: "every evaluation fails",
        code: Some("status=0x1d"),
        evidence: &[claimed("maderix/ANE issues")],
        fix: "pad to 14,624 columns or more, or cut below 14,593",
        condition: Condition::Function(|f| {
            let bad = f.inputs().filter_map(|(name, ty)| {
                let width = super::cx::sizes(ty)?.last().copied()?;
                let finding = Finding::new(format!("input \"{name}\" has {width} columns"));
                (14_593..=14_622).contains(&width).then_some(super::Found { op: None, finding })
            });
            bad.collect()
        }),
        ..DIRECT
    },
];

fn is_reduction(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(kind, ReduceMean | ReduceSum | ReduceMax | ReduceMin | ReduceSumSquare | ReduceL2Norm)
}

fn inline_argument(op: &OpCx<'_>) -> Option<Finding> {
    if !op.computes() {
        return None;
    }
    let params = op.kind().def().params().iter().zip(&op.op.args);
    let inline = params.filter(|(p, a)| p.constant && matches!(a, Some(mil::Arg::Literal(_))));
    let names: Vec<&str> = inline.map(|(p, _)| p.name).collect();
    (!names.is_empty()).then(|| Finding::new(format!("written in place: {}", names.join(", "))))
}

fn conv_input_channels(op: &OpCx<'_>) -> Option<Finding> {
    if op.kind() != OpKind::Conv {
        return None;
    }
    let channels = *op.shape("x")?.get(1)?;
    let limit = op.chip().limits.direct_conv_inputs_refused.as_ref()?;
    if channels < limit.value {
        return None;
    }
    let message = format!("{channels} input channels; {limit} are refused");
    let doubt = limit.claims.iter().any(|c| channels < c.value);
    Some(if doubt { Finding::at(message, Severity::Warning) } else { Finding::new(message) })
}

/// The length that a softmax sums over.
pub(super) fn softmax_length(op: &OpCx<'_>) -> Option<u64> {
    if op.kind() != OpKind::Softmax {
        return None;
    }
    let shape = op.shape("x")?;
    let view = op.view();
    let axis = view.axis(view.int("axis").ok()?.unwrap_or(-1), shape.len()).ok()?;
    Some(shape[axis])
}

fn slice_offset(op: &OpCx<'_>) -> Option<Finding> {
    if !matches!(op.kind(), OpKind::SliceByIndex | OpKind::SliceBySize) {
        return None;
    }
    let rank = op.shape("x")?.len();
    let begin = op.view().ints("begin").ok()??;
    let masked = op.view().bools("begin_mask").ok()?.and_then(|m| m.last().copied());
    let last = *begin.last()?;
    let limit = op.chip().numerics.slice_offset_max.as_ref()?;
    (rank == 4 && last != 0 && masked != Some(true)).then(|| {
        Finding::new(format!(
            "the slice begins at column {last}; magnitudes above {limit} are lost"
        ))
    })
}

/// Outputs that are inputs, constants, or made by an operation that changes nothing.
fn dead_outputs(f: &super::FunctionCx<'_>) -> Vec<super::Found> {
    let mut found = Vec::new();
    for &output in &f.function.body.outputs {
        let name = &f.function.values[output].name;
        let (op, why) = match f.function.values[output].def {
            mil::ValueDef::Param => (None, "is an input"),
            mil::ValueDef::Result(op, _) if f.is_constant(output) => (Some(op), "is a constant"),
            mil::ValueDef::Result(op, _) if changes_nothing(&OpCx::new(f, op)) => {
                (Some(op), "is made by an operation that changes nothing")
            }
            mil::ValueDef::Result(..) => continue,
        };
        found.push(super::Found { op, finding: Finding::new(format!("output \"{name}\" {why}")) });
    }
    found
}

fn changes_nothing(op: &OpCx<'_>) -> bool {
    let same_type = || {
        let x = op.value("x").and_then(|v| op.cx.function.tensor_ty(v));
        x.is_some() && x == op.result_type()
    };
    match op.kind() {
        OpKind::Identity => true,
        OpKind::Cast | OpKind::Reshape => same_type(),
        OpKind::Transpose => {
            let perm = op.view().ints("perm").ok().flatten().unwrap_or_default();
            perm.iter().enumerate().all(|(i, &p)| p == i as i64)
        }
        _ => false,
    }
}
