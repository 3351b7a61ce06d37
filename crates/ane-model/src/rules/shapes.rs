//! Sizes: axes, rank, reductions, kernels, windows, and shapes that are not fixed.

use mil::{Dim, OpKind, TensorType, Type};

use super::cx::{OpCx, above, dims, sizes};
use super::direct::softmax_length;
use super::{
    ANY_YEAR, Chips, Condition, DIRECT, Finding, Fix, Found, FunctionCx, Outcome, Path, Rule,
    Severity, claimed, disputed, measured,
};
use crate::chip::{Chip, Fact, Verdict};

const BOTH: &[Path] = &[Path::Direct, Path::CoreMl];

/// Refused by the engine: fails on the direct path, runs elsewhere through Core ML.
const SIZE: Rule = Rule {
    paths: BOTH,
    symptom: "the direct path does not compile it; Core ML runs the operation on the CPU or GPU",
    code: Some("Tensor dimensions … are not within supported range"),
    ..DIRECT
};

/// Concerns Core ML alone.
const COREML: Rule = Rule {
    paths: &[Path::CoreMl],
    years: ANY_YEAR,
    outcome: Outcome::OffEngine,
    severity: Severity::Warning,
    symptom: "Core ML runs it on the CPU or GPU",
    code: None,
    ..DIRECT
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-axis-limit",
        title: "an axis is longer than the engine allows",
        evidence: &[
            measured("ane-guide ch. 4: 16,384 up to A15, M2 and M3"),
            measured("751K: 65,536 on M4 and M6, 65,537 refused"),
            measured("Anemll Forge: a history of 65,536 with a block of 64 rows fails"),
            measured("FluidAudio #121: N[1-65536]D[1-16384]C[1-65536]H[1-16384]W[1-16384]"),
        ],
        fix: "split the axis, or reshape so that it is spread over two",
        condition: Condition::Op(axis_limit),
        ..SIZE
    },
    Rule {
        id: "ane-rank",
        title: "a tensor has more than 5 axes",
        evidence: &[
            measured("ane-guide ch. 4; 751K"),
            measured("CoreML-LLM: A18 faults on rank 10 that a Mac accepts"),
        ],
        fix: "merge axes by reshaping",
        condition: Condition::Op(|op| {
            let rank = op.computes().then(|| op.result_type())??.rank() as u64;
            above(&op.chip().limits.rank, rank, format!("rank {rank}"))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-zero-size",
        title: "a tensor has an axis of size 0",
        evidence: &[measured("ane-guide: refused by the front end")],
        fix: "leave the operation out",
        condition: Condition::Op(|op| {
            let shape = op.computes().then(|| op.result())??;
            shape.contains(&0).then(|| Finding::new(format!("a result of {}", dims(&shape))))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-reduction-depth",
        title: "a product sums over more elements than the engine allows",
        evidence: &[measured("751K: 32,768, 40,000 refused"), disputed("larql #312: 16,384")],
        fix: "split the reduction and add the parts",
        rewriting: Some(Fix::SplitReduction),
        condition: Condition::Op(|op| {
            let depth = reduction(op)?;
            above(&op.chip().limits.reduction, depth, format!("a reduction of {depth}"))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-short-reduction",
        title: "Core ML prefers another backend for short reductions",
        severity: Severity::Info,
        evidence: &[
            measured("larql #312: from about 4,992 in fp16, 4,096 in int8"),
            disputed("751K: smaller products are placed on the engine"),
        ],
        fix: "see the predicted placement; make more work of one segment",
        condition: Condition::Op(|op| {
            let depth = reduction(op)?;
            let limit = op.chip().coreml.reduction_preferred.as_ref()?;
            (depth < limit.value)
                .then(|| Finding::new(format!("a reduction of {depth}, from {limit} on")))
        }),
        ..COREML
    },
    Rule {
        id: "ane-conv-kernel",
        title: "a kernel is larger than the engine allows",
        evidence: &[
            measured("751K, M4 and M6: 15 wide, 31 high, 16 square"),
            measured("ane-guide, M1: 15 wide in the front end, 13 in the datapath"),
        ],
        fix: "split the kernel into several and add the results",
        condition: Condition::Op(conv_kernel),
        ..SIZE
    },
    Rule {
        id: "ane-wide-kernel",
        title: "a kernel is wider than runs at full speed, or takes minutes to compile",
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "the kernel is split; 16x16 took 212 to 229 s and 11.7 GB to compile, 13x13 up to 23 s",
        code: None,
        evidence: &[measured("751K, M4 and M6"), measured("ane-guide, M1")],
        fix: "use smaller kernels",
        condition: Condition::Op(|op| {
            let width = *kernel(op)?.last()?;
            let native = op.chip().limits.kernel_width_native.as_ref()?;
            (width > native.value)
                .then(|| Finding::new(format!("{width} wide; full speed up to {native}")))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-pool-window",
        title: "a pooling window is larger than the engine allows",
        evidence: &[measured(
            "751K, M4: max_pool up to 8x8, 9x1 works, 1x9 does not; avg_pool of 14 works",
        )],
        fix: "pool twice with smaller windows",
        condition: Condition::Op(pool_window),
        ..SIZE
    },
    Rule {
        id: "ane-dynamic-shape",
        title: "a size is not known when compiling",
        paths: BOTH,
        symptom: "Core ML runs all of it on the CPU or GPU; the direct path does not take it",
        code: None,
        evidence: &[measured("apple/coremltools #2370: RangeDim 0 % on the engine; #1260, #2600")],
        fix: "fix the sizes: one function a size, which share their weights",
        condition: Condition::Function(dynamic),
        ..DIRECT
    },
    Rule {
        id: "ane-enumerated-shape",
        title: "only the default of enumerated shapes runs on the engine",
        evidence: &[measured("apple/coremltools #2370: other shapes 2 % on the engine")],
        fix: "one function a size, which share their weights",
        condition: Condition::Function(enumerated),
        ..COREML
    },
    Rule {
        id: "ane-matmul-rank",
        title: "a batched matmul of rank 5 is refused",
        evidence: &[
            measured("ane-guide: matmul needs depth 1"),
            claimed("CoreML-LLM: rank 3 instead of rank 5"),
        ],
        fix: "merge batch axes: rank 3 or 4",
        condition: Condition::Op(|op| {
            let rank = matches!(op.kind(), OpKind::Matmul).then(|| op.result_type())??.rank();
            (rank > 4).then(|| Finding::new(format!("matmul of rank {rank}")))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-conv-rank",
        title: "conv needs four axes on the direct path",
        paths: &[Path::Direct],
        symptom: "the text is refused",
        evidence: &[measured("ane-guide: the front end wants NCHW")],
        fix: "reshape to [1, C, 1, S]",
        condition: Condition::Op(|op| {
            let rank = (op.kind() == OpKind::Conv).then(|| op.shape("x"))??.len();
            (rank != 4).then(|| Finding::new(format!("conv of rank {rank}")))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-rank2-activation",
        title: "an activation of a product of rank 2 is inexact",
        outcome: Outcome::WrongResult,
        symptom: "errors of 0.19 to 0.26 where the CPU has 0.06 to 0.09",
        evidence: &[measured("apple/coremltools #2625: MobileNetV3, hardswish; coreai-torch #51")],
        fix: "make the product one of rank 4: 1x1 conv",
        condition: Condition::Op(|op| {
            use OpKind::*;
            let product = matches!(op.kind(), Matmul | Linear) && op.result_type()?.rank() == 2;
            let feeds = product.then(|| {
                op.users()
                    .find(|u| matches!(u.kind, SigmoidHard | Relu6 | Clip | Gelu | Silu | Softplus))
            })??;
            Some(Finding::new(format!("a product of rank 2 goes to {}", feeds.kind.name())))
        }),
        ..COREML
    },
    Rule {
        id: "ane-softmax-history",
        title: "one softmax over a long history does not compile",
        evidence: &[
            measured("Anemll Forge, M6: 16K works, 32K and 64K do not; M5 Pro: 31K works"),
            disputed("Orion: softmax over 32,000 runs on M4 Max"),
        ],
        fix: "compute it in blocks with a common maximum, which is exact",
        code: Some("ANECCompile() FAILED"),
        severity: Severity::Warning,
        condition: Condition::Op(|op| {
            let length = softmax_length(op)?;
            above(&op.chip().limits.softmax, length, format!("softmax over {length}"))
        }),
        ..SIZE
    },
    Rule {
        id: "ane-sdpa-length",
        title: "attention over a long sequence does not compile in one piece",
        outcome: Outcome::CompileFails,
        symptom: "Failed to build the model execution plan",
        code: Some("-14"),
        evidence: &[
            measured("SqueezeBits: a stateful model of 0.6B with 1,024 or 2,048 positions"),
            claimed("coremltools 8.3: scaled_dot_product_attention_sliced_q"),
        ],
        fix: "slice the queries: attention of each slice, results concatenated",
        condition: Condition::Op(|op| {
            let sdpa = op.kind() == OpKind::ScaledDotProductAttention;
            let (query, key) = sdpa.then(|| op.shape("query").zip(op.shape("key")))??;
            let (q, k) = (*query.iter().rev().nth(1)?, *key.iter().rev().nth(1)?);
            (k >= 1024 && q >= 1024).then(|| Finding::new(format!("{q} queries of {k} keys")))
        }),
        ..COREML
    },
    Rule {
        id: "ane-depthwise-row",
        title: "wide depthwise convolutions of one row leave the engine",
        evidence: &[measured("CoreML-LLM: groups of 1,024 and more with a 1x3 kernel")],
        fix: "write it as slices, mul and add",
        condition: Condition::Op(|op| {
            let groups = (op.kind() == OpKind::Conv).then(|| op.view().int("groups").ok())???;
            let kernel = kernel(op)?;
            let row = matches!(kernel[..], [1, 3] | [3]);
            (groups >= 1024 && row)
                .then(|| Finding::new(format!("{groups} groups, kernel {}", dims(&kernel))))
        }),
        ..COREML
    },
    Rule {
        id: "ane-scaled-channels",
        title: "a scale or offset of more than 16,384 channels is refused on older chips",
        chips: Chips::Where("M3 Max, where it was measured, and its kin", |c| {
            c.limits.scaled_channels.is_some()
        }),
        evidence: &[measured(
            "Anemll Forge, T6031: the head had to be split; M5 and M6 take 17,408",
        )],
        fix: "split the channels",
        condition: Condition::Op(|op| {
            let scale = matches!(op.kind(), OpKind::Add | OpKind::Mul)
                && (op.is_constant("x") || op.is_constant("y"));
            let channels = *scale.then(|| op.result())??.get(1)?;
            above(&op.chip().limits.scaled_channels, channels, format!("{channels} channels"))
        }),
        ..SIZE
    },
];

/// An axis as the engine has it: its name, size and limit.
type Axis<'c> = (&'static str, u64, &'c Option<Fact<u64>>);

/// The axes of a tensor. One of fewer than four axes can be laid out in several ways.
fn axes<'c>(chip: &'c Chip, shape: &[u64]) -> Option<Vec<Axis<'c>>> {
    let l = &chip.limits;
    let (batch, channel) = (("batch", &l.batch), ("channel", &l.channels));
    let (height, width) = (("height", &l.height), ("width", &l.width));
    let named = match shape.len() {
        4 => vec![batch, channel, height, width],
        5 => vec![batch, channel, ("depth", &l.depth), height, width],
        _ => return None,
    };
    Some(named.into_iter().zip(shape).map(|((name, limit), &n)| (name, n, limit)).collect())
}

fn axis_limit(op: &OpCx<'_>) -> Option<Finding> {
    if !op.computes() {
        return None;
    }
    let mut worst: Option<Finding> = None;
    let mut keep = |found: Option<Finding>| {
        if let Some(found) = found
            && worst.as_ref().is_none_or(|w| w.severity.is_some() && found.severity.is_none())
        {
            worst = Some(found);
        }
    };
    for name in ["x", "query", "key", "input"] {
        let from_outside = op.maker(name).is_none();
        if from_outside && let Some(shape) = op.shape(name) {
            keep(long_axis(op, &shape, &format!("argument \"{name}\"")));
        }
    }
    for &output in &op.op.outputs {
        let ty = op.cx.function.tensor_ty(output);
        if let Some(shape) = ty.and_then(sizes) {
            keep(long_axis(op, &shape, "the result"));
        }
    }
    worst
}

fn long_axis(op: &OpCx<'_>, shape: &[u64], what: &str) -> Option<Finding> {
    let chip = op.chip();
    let conv = matches!(op.kind(), OpKind::Conv | OpKind::Linear | OpKind::ConvTranspose);
    if let Some(axes) = axes(chip, shape) {
        let found = axes.into_iter().filter_map(|(name, n, limit)| {
            let limit = if conv && name == "channel" { &chip.limits.conv_channels } else { limit };
            above(limit, n, format!("the {name} axis of {what} ({}) has {n} elements", dims(shape)))
        });
        return found.min_by_key(|f| f.severity.is_some());
    }
    // Where the axis comes to lie is the compiler's choice: only what fits nowhere is refused.
    let longest = *shape.iter().max()?;
    let l = &chip.limits;
    let limits = [&l.batch, &l.channels, &l.height, &l.width];
    let all: Vec<&Fact<u64>> = limits.into_iter().flatten().collect();
    let widest = all.iter().max_by_key(|f| f.value)?;
    let message = format!(
        "{what} ({}) has an axis of {longest} elements; the largest limit is {widest}",
        dims(shape)
    );
    if all.iter().all(|f| f.verdict(longest) == Verdict::Exceeded) {
        Some(Finding::new(message))
    } else {
        let some = all.iter().any(|f| f.verdict(longest) == Verdict::Exceeded);
        some.then(|| Finding::at(format!("{message}, others are smaller"), Severity::Info))
    }
}

/// The length that a product sums over.
pub(super) fn reduction(op: &OpCx<'_>) -> Option<u64> {
    match op.kind() {
        OpKind::Matmul => {
            let shape = op.shape("x")?;
            let transposed = op.view().bool_or("transpose_x", false).ok()?;
            shape.iter().rev().nth(usize::from(transposed)).copied()
        }
        OpKind::Linear => op.shape("x")?.last().copied(),
        _ => None,
    }
}

/// The kernel of a convolution, without channels.
fn kernel(op: &OpCx<'_>) -> Option<Vec<u64>> {
    matches!(op.kind(), OpKind::Conv | OpKind::ConvTranspose)
        .then(|| op.shape("weight"))?
        .map(|shape| shape.get(2..).map(<[u64]>::to_vec))?
}

fn conv_kernel(op: &OpCx<'_>) -> Option<Finding> {
    let kernel = kernel(op)?;
    let l = &op.chip().limits;
    let what = format!("a kernel of {}", dims(&kernel));
    match kernel[..] {
        [width] => above(&l.kernel_width, width, what),
        [height, 1] if height > 1 => above(&l.kernel_height, height, what),
        [1, width] => above(&l.kernel_width, width, what),
        [height, width] => {
            let square = above(&l.kernel_square, height.max(width), &what);
            square.or_else(|| {
                (height != width).then(|| above(&l.kernel_width, width, &what)).flatten()
            })
        }
        _ => None,
    }
}

fn pool_window(op: &OpCx<'_>) -> Option<Finding> {
    if op.kind() != OpKind::MaxPool {
        return None;
    }
    let window = op.view().ints("kernel_sizes").ok()??;
    let window: Vec<u64> = window.into_iter().filter_map(|n| u64::try_from(n).ok()).collect();
    let l = &op.chip().limits;
    let what = format!("a window of {}", dims(&window));
    match window[..] {
        [width] | [1, width] => above(&l.max_pool_width, width, what),
        [height, 1] => above(&l.max_pool_height, height, what),
        [height, width] => above(&l.max_pool, height.max(width), what),
        _ => None,
    }
}

fn is_open(ty: &TensorType) -> bool {
    ty.shape.iter().any(|d| !matches!(d, Dim::Fixed(_)))
}

fn dynamic(f: &FunctionCx<'_>) -> Vec<Found> {
    let open = f.inputs().chain(f.states()).filter(|(_, ty)| is_open(ty));
    let inputs: Vec<Found> = open
        .map(|(name, ty)| {
            let finding = Finding::new(format!("input \"{name}\" is {ty}"));
            Found { op: None, finding }
        })
        .collect();
    if !inputs.is_empty() {
        return inputs;
    }
    // Sizes that operations make out of values.
    let made = f.computing().filter(|(_, op)| {
        let types = op.outputs.iter().map(|&v| f.function.ty(v));
        types.filter_map(Type::as_tensor).any(is_open)
    });
    made.take(1)
        .map(|(id, op)| {
            let what = Finding::new(format!("{} has a result of unknown size", op.kind.name()));
            Found { op: Some(id), finding: what }
        })
        .collect()
}

fn enumerated(f: &FunctionCx<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    if let Some(shapes) = f.function.attributes.get("FlexibleShapeInformation") {
        shapes.payload.for_each(&mut |payload| {
            if let mil::Payload::Strings(s) = payload
                && s.iter().any(|s| s == "EnumeratedShapes")
            {
                let finding = Finding::new("its inputs have enumerated shapes");
                found.push(Found { op: None, finding });
            }
        });
    }
    found
}
