//! Constants on the engine: how many, where they lie, how they are streamed.

use std::collections::HashSet;

use mil::{Literal, OpKind, Payload, Type};

use super::cx::{OpCx, byte_len, dims};
use super::{
    Condition, DIRECT, Finding, Fix, Found, FunctionCx, Outcome, Path, Rule, Severity, claimed,
    disputed, measured,
};
use crate::chip::{Chip, SlotUnit};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-weights-baked",
        title: "weights are fixed when the program is compiled",
        outcome: Outcome::Contract,
        severity: Severity::Info,
        symptom: "changed weights have no effect, silently",
        code: None,
        evidence: &[
            claimed("maderix/ANE; Orion, paper table 3, no. 7"),
            disputed("Orion, paper section 5: reload changes them"),
        ],
        fix: "recompile, or pass the weights that change as inputs",
        condition: Condition::Program(|p| {
            let bytes = p.weight_bytes();
            (bytes > 0).then(|| Finding::new(format!("{bytes} bytes of weights are compiled in")))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-blob-offset",
        title: "a reference to a weight file must point at the blob's header",
        outcome: Outcome::WrongResult,
        symptom: "weights are garbage, silently",
        code: None,
        evidence: &[
            measured("Orion, paper table 3, no. 8: 64, not 0 or 128"),
            measured("M4, macOS 27: offsets 0, 128 and 192 do not compile"),
        ],
        fix: "write the offset of the 64-byte record before the data: 64 for the first blob",
        condition: Condition::Op(blob_offset),
        ..DIRECT
    },
    Rule {
        id: "ane-weight-slots",
        title: "a program has 16 weight slots",
        symptom: "the text is refused",
        code: Some("InvalidMILProgram"),
        evidence: &[
            measured("mechramc/Orion #3, M4 Max and M4: the 17th weight tensor"),
            disputed("M4, macOS 27: files count, 128 tensors of one file compile"),
        ],
        fix: "put all weights in one file where files count; else stack weights and take slices, or split the program",
        rewriting: Some(Fix::PackWeights),
        condition: Condition::Program(|p| slots(p, false)),
        ..DIRECT
    },
    Rule {
        id: "ane-scalar-operand",
        title: "scalar operands of pow, add and mul take a weight slot",
        symptom: "the text is refused",
        code: Some("InvalidMILProgram"),
        evidence: &[measured(
            "mechramc/Orion #3: 15 weights with a scalar operand, whatever their number",
        )],
        fix: "fold the scalar into a weight, or use an operation without one",
        rewriting: Some(Fix::PackWeights),
        condition: Condition::Program(|p| slots(p, true)),
        ..DIRECT
    },
    Rule {
        id: "ane-dma-notch",
        title: "weights of whole megabytes a core are streamed slowly",
        paths: &[Path::Direct, Path::CoreMl],
        outcome: Outcome::Slow,
        severity: Severity::Warning,
        symptom: "weights are read at 17 to 19 GB/s instead of 45 to 60",
        code: None,
        evidence: &[measured(
            "eiln.github.io/posts/ane-dma.html; kasper0406/stablehlo-coreml #110, M4",
        )],
        fix: "split the reduction in two and add, so that each part is no whole megabyte",
        rewriting: Some(Fix::SplitReduction),
        condition: Condition::Op(|op| {
            let product = Product::of(op)?;
            let bytes = product.core_bytes();
            in_notch(op.chip(), bytes).then(|| {
                Finding::new(format!(
                    "ceil({}/16) x {} x {} x 2 = {bytes} bytes a core, {} MiB",
                    product.outputs,
                    product.inputs,
                    product.taps,
                    (bytes as f64 / 1048576.0).round()
                ))
            })
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-large-weight",
        title: "one weight is larger than the on-chip working set",
        paths: &[Path::Direct, Path::CoreMl],
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "the weight is streamed at each call; Orion keeps such a matrix on the CPU",
        code: None,
        evidence: &[
            claimed("Orion: the 73 MB embedding is too large for the engine's memory"),
            disputed(
                "CoreML-LLM: one convolution of 302 MB is best; Anemll Forge: weights stream anyway",
            ),
        ],
        fix: "measure before splitting; compress the weight: time follows its bytes",
        condition: Condition::Op(large_weight),
        ..DIRECT
    },
    Rule {
        id: "ane-wide-head",
        title: "a projection has more outputs than one axis holds",
        paths: &[Path::Direct, Path::CoreMl],
        outcome: Outcome::OffEngine,
        severity: Severity::Warning,
        symptom: "unknown: sources contradict each other on where such a layer runs",
        code: None,
        evidence: &[
            disputed("CoreML-LLM: one convolution of 262,144 outputs on the engine"),
            claimed(
                "validator string C[1-65536]; maderix/ANE #26: chunks, as the vocabulary exceeds 65,536",
            ),
            claimed("ANEMLL: slices where the width exceeds 16,384"),
        ],
        fix: "split the outputs into slices of at most 16,384",
        condition: Condition::Op(|op| {
            let product = Product::of(op)?;
            let limit = op.chip().limits.conv_channels.as_ref()?;
            (product.outputs > 65_536).then(|| {
                Finding::new(format!(
                    "{} outputs; channels of convolutions: {limit}",
                    product.outputs
                ))
            })
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-weight-window",
        title: "matmul by a constant of 4,033 or more rows loses a tenth",
        paths: &[Path::Direct, Path::CoreMl],
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "matmul is 9 % slower, conv is not",
        code: None,
        evidence: &[measured("Anemll Forge, M6: the weight window of a core is 1 MiB")],
        fix: "use conv",
        condition: Condition::Op(|op| {
            let product = (op.kind() == OpKind::Matmul).then(|| Product::of(op))??;
            (product.inputs >= 4033).then(|| Finding::new(format!("{} rows", product.inputs)))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-zero-taps",
        title: "a kernel has positions that are zero everywhere",
        paths: &[Path::Direct, Path::CoreMl],
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "time is spent on multiplying by zero",
        code: None,
        evidence: &[claimed("CoreML-LLM: kernels padded with zeros")],
        fix: "cut the kernel and adapt the padding",
        condition: Condition::Function(zero_taps),
        ..DIRECT
    },
];

/// A product with a constant, as the engine streams it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Product {
    /// Output channels.
    pub outputs: u64,
    /// Length of the reduction in each tap.
    pub inputs: u64,
    /// Positions of the kernel.
    pub taps: u64,
}

impl Product {
    /// The product that a convolution, linear or matmul is, if its weights are constant.
    pub(crate) fn of(op: &OpCx<'_>) -> Option<Product> {
        match op.kind() {
            OpKind::Conv if op.is_constant("weight") => match *op.shape("weight")? {
                [outputs, inputs, ref taps @ ..] => {
                    Some(Product { outputs, inputs, taps: taps.iter().product() })
                }
                _ => None,
            },
            OpKind::Linear if op.is_constant("weight") => match *op.shape("weight")? {
                [outputs, inputs] => Some(Product { outputs, inputs, taps: 1 }),
                _ => None,
            },
            OpKind::Matmul if op.is_constant("y") => {
                let shape = op.shape("y")?;
                let [.., a, b] = shape[..] else { return None };
                let transposed = op.view().bool_or("transpose_y", false).ok()?;
                let (inputs, outputs) = if transposed { (b, a) } else { (a, b) };
                Some(Product { outputs, inputs, taps: 1 })
            }
            _ => None,
        }
    }

    /// Bytes that one of 16 cores streams, in fp16 (kasper0406/stablehlo-coreml #110).
    pub fn core_bytes(&self) -> u64 {
        self.outputs.div_ceil(16) * self.inputs * self.taps * 2
    }
}

/// Whether a core that streams `bytes` runs into the chip's DMA notch.
pub fn in_notch(chip: &Chip, bytes: u64) -> bool {
    let (Some(period), Some(tolerance)) = (&chip.rates.notch_period, &chip.rates.notch_tolerance)
    else {
        return false;
    };
    let nearest = (bytes + period.value / 2) / period.value * period.value;
    nearest > 0 && bytes.abs_diff(nearest) <= tolerance.value
}

/// Calls `f` on the weights that an operation's attributes and arguments in place refer to.
fn for_each_weight(op: &OpCx<'_>, f: &mut dyn FnMut(tensor::WeightId)) {
    let mut look = |literal: &Literal| {
        literal.payload.for_each(&mut |payload| {
            if let Payload::Weight(id) = payload {
                f(*id);
            }
        });
    };
    op.op.attributes.values().for_each(&mut look);
    for arg in op.op.args.iter().flatten() {
        arg.for_each_literal(&mut look);
    }
}

fn blob_offset(op: &OpCx<'_>) -> Option<Finding> {
    let mut wrong = None;
    for_each_weight(op, &mut |id| {
        if let Some(blob) = &op.cx.program.blobs[id]
            && (blob.offset < 64 || blob.offset == 128 || blob.offset % 64 != 0)
        {
            wrong = Some(format!("offset {} of {}", blob.offset, blob.path));
        }
    });
    wrong.map(Finding::new)
}

/// Findings on the number of weight slots, without and with that of scalar operands.
fn slots(p: &super::ProgramCx<'_>, scalars: bool) -> Option<Finding> {
    let budget = p.chip.runtime.weight_slots.as_ref()?;
    let unit = p.chip.switches.slot_unit.as_ref()?;
    let mut tensors = 0;
    let mut files = HashSet::new();
    let mut scalar = false;
    for function in &p.functions {
        for &id in &function.order {
            let op = OpCx::new(function, id);
            for_each_weight(&op, &mut |weight| {
                tensors += 1;
                files.insert(p.program.blobs[weight].as_ref().map(|blob| blob.path.clone()));
            });
            scalar |= has_scalar(&op);
        }
    }
    let files = files.len() as u64;
    let used = |unit| if unit == SlotUnit::Tensors { tensors } else { files };
    let extra =
        if scalar { p.chip.runtime.scalar_slots.as_ref().map_or(0, |s| s.value) } else { 0 };
    let over = |unit| match scalars {
        false => used(unit) > budget.value,
        true => used(unit) <= budget.value && used(unit) + extra > budget.value,
    };
    let with = if scalars { format!(", {extra} more for scalar operands") } else { String::new() };
    let message = format!(
        "{tensors} weight tensors in {files} files{with}; {budget} of {}{}",
        unit.value,
        if unit.is_disputed() { " (disputed)" } else { "" }
    );
    if over(unit.value) {
        Some(Finding::new(message))
    } else {
        let claimed = unit.claims.iter().any(|c| over(c.value));
        claimed.then(|| Finding::at(message, Severity::Warning))
    }
}

fn has_scalar(op: &OpCx<'_>) -> bool {
    let takes = matches!(op.kind(), OpKind::Pow | OpKind::Add | OpKind::Mul);
    takes
        && ["x", "y"].iter().any(|&name| {
            let scalar = op.view().tensor(name).is_ok_and(|t| t.rank() == 0);
            scalar && op.is_constant(name)
        })
}

fn large_weight(op: &OpCx<'_>) -> Option<Finding> {
    let limit = op.chip().memory.working_set.as_ref()?;
    let value = if op.kind() == OpKind::Const { op.op.const_value() } else { None };
    let ty = value.map(|l| &l.ty).and_then(Type::as_tensor)?;
    let bytes = byte_len(ty);
    (bytes > limit.value)
        .then(|| Finding::new(format!("{bytes} bytes; the working set is {limit}")))
}

fn zero_taps(f: &FunctionCx<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (id, operation) in f.computing() {
        let op = OpCx { cx: f, id, op: operation };
        let weight = (op.kind() == OpKind::Conv).then(|| op.view().literal("weight")).flatten();
        let Some((shape, zero)) = weight.and_then(|w| taps(w, &f.program.weights)) else {
            continue;
        };
        let empty = zero.iter().filter(|&&z| z).count();
        if empty > 0 && empty < zero.len() {
            let message = format!(
                "{empty} of {} positions of a {} kernel are zero",
                zero.len(),
                dims(&shape)
            );
            found.push(Found { op: Some(id), finding: Finding::new(message) });
        }
    }
    found
}

/// The kernel's shape and, for each of its positions, whether all weights there are zero; `None`
/// for kernels of one position.
fn taps(weight: &Literal, weights: &tensor::WeightStore) -> Option<(Vec<u64>, Vec<bool>)> {
    let tensor = weight.resolve(weights)?;
    let shape: Vec<u64> = tensor.shape().get(2..)?.iter().map(|&n| n as u64).collect();
    let positions = usize::try_from(shape.iter().product::<u64>()).ok()?;
    let element = tensor.dtype().block_bytes();
    let whole = tensor.dtype().is_float() && tensor.dtype().block_len() == 1;
    if positions < 2 || !whole {
        return None;
    }
    let mut zero = vec![true; positions];
    for (i, bytes) in tensor.bytes().chunks_exact(element).enumerate() {
        if zero[i % positions] && bytes.iter().any(|&b| b != 0) {
            zero[i % positions] = false;
        }
    }
    Some((shape, zero))
}
