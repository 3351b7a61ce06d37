//! Compressed weights: which forms the engine takes.

use mil::{OpKind, TensorType};
use tensor::DType;

use super::cx::{OpCx, above, dims, sizes, stands};
use super::{
    Condition, DIRECT, Finding, Outcome, Path, Rule, Severity, Years, claimed, disputed, measured,
};
use crate::chip::{Acceptance, WeightPath};

const WEIGHT: Rule = Rule {
    paths: &[Path::CoreMl],
    outcome: Outcome::OffEngine,
    severity: Severity::Warning,
    symptom: "Core ML runs the operation on the CPU or GPU",
    code: None,
    ..DIRECT
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-blockwise-scale",
        title: "scales for blocks along the inputs are not the engine's",
        code: Some("ANE only support per-cout/per-tensor quantization"),
        evidence: &[
            measured("apple/coremltools #2510; coreai-models #205, #279"),
            measured("huggingface/swift-chat #31: int4 blocks, 7B, -14"),
            disputed("ane-guide ch. 3: expanded on M1 and M2, streamed on A16 and M5"),
        ],
        fix: "quantise per output channel, or use a palette",
        condition: Condition::Op(blockwise),
        ..WEIGHT
    },
    Rule {
        id: "ane-grouped-palette",
        title: "palettes for groups along the inputs are not the engine's",
        evidence: &[measured(
            "Anemll Forge, M6: groups of inputs go to the CPU; of outputs cost a fifth of the speed",
        )],
        fix: "group along the outputs, or use one palette",
        condition: Condition::Op(grouped),
        ..WEIGHT
    },
    Rule {
        id: "ane-vector-palette",
        title: "a table of vectors is beyond the engine's limits",
        evidence: &[measured(
            "Anemll Forge, M6: at most 256 values, vectors of at most 16 along the outputs, one table a tensor",
        )],
        fix: "use at most 256 values (entries times width), 16 wide, along the outputs",
        condition: Condition::Op(vectors),
        ..WEIGHT
    },
    Rule {
        id: "ane-palette-dtype",
        title: "a palette's values should be fp16",
        evidence: &[
            measured("Anemll Forge, Core AI: int8 and fp8 values leave the engine, fp8 gives NaN"),
            disputed("Anemll Forge, Core ML: int8 and fp8 values work"),
        ],
        fix: "store the palette in fp16",
        condition: Condition::Op(|op| {
            let table = palette(op)?;
            (table.ty.dtype != DType::F16)
                .then(|| Finding::new(format!("a palette of {}", table.ty.dtype)))
        }),
        ..WEIGHT
    },
    Rule {
        id: "ane-scaled-palette",
        title: "a palette with a scale per channel crashes on macOS 26",
        years: Years { from: 26, to: u16::MAX },
        outcome: Outcome::Crash,
        severity: Severity::Error,
        symptom: "verification fails and the process dies",
        code: Some("mps.dequantize"),
        evidence: &[
            measured("apple/coremltools #2688"),
            disputed("Anemll Forge: works on M6, macOS 27"),
        ],
        fix: "multiply by the scale after the product",
        condition: Condition::Op(|op| {
            let scaled = op.kind() == OpKind::ConstexprBlockwiseShiftScale
                && op.maker("data").is_some_and(|m| m.kind == OpKind::ConstexprLutToDense);
            scaled.then(|| Finding::new("a scale of a palette"))
        }),
        ..WEIGHT
    },
    Rule {
        id: "ane-palette-activation",
        title: "palettes with 8-bit activations leave the engine",
        evidence: &[measured("Anemll Forge: LUT with INT8 activations")],
        fix: "use int8 weights, or fp16 activations",
        condition: Condition::Op(|op| {
            let weight = op.maker("weight").is_some_and(|m| m.kind == OpKind::ConstexprLutToDense);
            let input = op.maker("x").is_some_and(|m| m.kind == OpKind::Dequantize);
            (weight && input).then(|| Finding::new("a palette times a quantised activation"))
        }),
        ..WEIGHT
    },
    Rule {
        id: "ane-int8-expanded",
        title: "int8 weights are expanded when compiling",
        paths: &[Path::Direct, Path::CoreMl],
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "a smaller file and no faster streaming",
        evidence: &[measured("ane-guide ch. 3: M1 expands, A14 and M2 stream")],
        fix: "use a palette of 4 bits, which M1 streams",
        condition: Condition::Op(|op| {
            let kind = matches!(
                op.kind(),
                OpKind::ConstexprAffineDequantize | OpKind::ConstexprBlockwiseShiftScale
            );
            let wide = kind && blocks(op).is_none();
            wide.then(|| stands(&op.chip().formats.int8, WeightPath::Expand, "int8 weights"))?
        }),
        ..WEIGHT
    },
    Rule {
        id: "ane-dynamic-conv",
        title: "a convolution whose weights are computed may leave the engine",
        paths: &[Path::Direct, Path::CoreMl],
        evidence: &[
            measured("751K, M4: supported"),
            disputed("Anemll Forge, Core AI: goes to the GPU, matmul does not"),
        ],
        fix: "use matmul",
        condition: Condition::Op(|op| {
            let computed = op.kind() == OpKind::Conv && !op.is_constant("weight");
            computed.then(|| {
                stands(&op.chip().switches.dynamic_conv, Acceptance::Refused, "a computed weight")
            })?
        }),
        ..WEIGHT
    },
    Rule {
        id: "ane-zero-point",
        title: "quantised activations with a zero point are not fused",
        paths: &[Path::Direct, Path::CoreMl],
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "no 8-bit arithmetic, and conversions that cost time",
        evidence: &[measured("Anemll Forge, from compiled programs: zero point 0 only")],
        fix: "quantise symmetrically",
        condition: Condition::Op(|op| {
            let pair = matches!(op.kind(), OpKind::Quantize | OpKind::Dequantize);
            let points = pair.then(|| op.view().ints("zero_point").ok())???;
            points.iter().any(|&z| z != 0).then(|| Finding::new("its zero point is not 0"))
        }),
        ..WEIGHT
    },
    Rule {
        id: "ane-quantize-scale",
        title: "a scale of activations is not positive and finite",
        paths: &[Path::Direct, Path::CoreMl],
        outcome: Outcome::WrongResult,
        severity: Severity::Error,
        symptom: "results are zero or not a number",
        evidence: &[claimed("maderix/ANE: calibration of decayed activations gives scale 0")],
        fix: "calibrate on data that does not vanish",
        condition: Condition::Op(|op| {
            let pair = matches!(op.kind(), OpKind::Quantize | OpKind::Dequantize);
            let scale =
                pair.then(|| op.view().literal("scale"))??.resolve(&op.cx.program.weights)?;
            let scales = mil::eval::tensor_floats(scale)?;
            let bad = scales.into_iter().find(|s| !(s.is_finite() && *s > 0.0))?;
            Some(Finding::new(format!("a scale of {bad}")))
        }),
        ..WEIGHT
    },
    Rule {
        id: "ane-palette-unstable",
        title: "4-bit palettes with states were seen to crash after some hundred predictions",
        severity: Severity::Info,
        outcome: Outcome::Crash,
        symptom: "the process dies after 100 to 200 predictions, or results are wrong",
        evidence: &[
            claimed("apple/coremltools #2716, packages of 9.0"),
            disputed("CoreML-LLM ships such packages"),
        ],
        fix: "run a few hundred predictions before shipping",
        condition: Condition::Op(|op| {
            let small = palette(op)?.entries <= 16;
            (small && op.cx.states().next().is_some())
                .then(|| Finding::new("a 4-bit palette beside a state"))
        }),
        ..WEIGHT
    },
];

/// Block counts of a scale along each axis, if it has blocks along others than the outputs.
fn blocks(op: &OpCx<'_>) -> Option<Vec<u64>> {
    if op.kind() != OpKind::ConstexprBlockwiseShiftScale {
        return None;
    }
    let scale = op.shape("scale")?;
    scale.iter().skip(1).any(|&n| n > 1).then_some(scale)
}

fn blockwise(op: &OpCx<'_>) -> Option<Finding> {
    let scale = blocks(op)?;
    let what = format!("scales of {}", dims(&scale));
    stands(&op.chip().formats.blockwise, WeightPath::OffEngine, what)
}

/// A palette: the groups it has along each axis of the weight, entries, and width of an entry.
struct Palette<'a> {
    ty: &'a TensorType,
    groups: Vec<u64>,
    entries: u64,
    width: u64,
}

fn palette<'a>(op: &OpCx<'a>) -> Option<Palette<'a>> {
    if op.kind() != OpKind::ConstexprLutToDense {
        return None;
    }
    if let Some(ty) = op.view().opt_tensor("lut").ok()? {
        let shape = sizes(ty)?;
        let [ref groups @ .., entries, width] = shape[..] else { return None };
        return Some(Palette { ty, groups: groups.to_vec(), entries, width });
    }
    // iOS 16's form: one palette of scalars.
    let ty = op.op.attributes.get("lut")?.ty.as_tensor()?;
    let entries = *sizes(ty)?.first()?;
    Some(Palette { ty, groups: Vec::new(), entries, width: 1 })
}

fn grouped(op: &OpCx<'_>) -> Option<Finding> {
    let table = palette(op).filter(|p| p.width == 1)?;
    let groups = dims(&table.groups);
    if table.groups.iter().skip(1).any(|&n| n > 1) {
        return Some(Finding::new(format!("palettes for groups of {groups}")));
    }
    let outputs = table.groups.first().is_some_and(|&n| n > 1);
    outputs.then(|| {
        Finding::at(format!("palettes for groups of {groups}: a fifth slower"), Severity::Info)
    })
}

fn vectors(op: &OpCx<'_>) -> Option<Finding> {
    let table = palette(op).filter(|p| p.width > 1)?;
    let limits = &op.chip().limits;
    let (entries, width) = (table.entries, table.width);
    if table.groups.iter().any(|&n| n > 1) {
        return Some(Finding::new(format!("tables for groups of {}", dims(&table.groups))));
    }
    let axis = op.view().int("vector_axis").ok()?.unwrap_or(0);
    if axis != 0 {
        return Some(Finding::new(format!("vectors along axis {axis}, not along the outputs")));
    }
    above(&limits.vector_width, width, format!("vectors of {width}")).or_else(|| {
        let values = entries * width;
        above(&limits.vector_table_values, values, format!("{entries} x {width} = {values} values"))
    })
}
