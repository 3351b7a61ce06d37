//! What a program's inputs and outputs ask of the surfaces they are bound to.

use mil::TensorType;

use super::cx::{above, byte_len, sizes, stands};
use super::{
    Condition, DIRECT, Finding, Fix, Found, FunctionCx, Outcome, Rule, Severity, claimed, disputed,
    measured,
};
use crate::chip::{BindingOrder, SurfaceUnit};

const REQUEST: Rule = Rule {
    outcome: Outcome::EvaluationFails,
    symptom: "it compiles, and every evaluation fails",
    code: Some(
        "ANEProgramProcessRequestDirect() Failed with status=0x1d : Program Inference error",
    ),
    ..DIRECT
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-output-sizes",
        title: "outputs of unequal sizes need surfaces of the largest size",
        severity: Severity::Warning,
        evidence: &[claimed("Orion, paper table 3, no. 2; rustane")],
        fix: "allocate all output surfaces at the size named, or pad the outputs",
        rewriting: Some(Fix::UniformOutputs),
        condition: Condition::Function(|f| unequal("output", f.outputs())),
        ..REQUEST
    },
    Rule {
        id: "ane-input-sizes",
        title: "inputs of unequal sizes need surfaces of the largest size",
        severity: Severity::Warning,
        evidence: &[claimed("Orion, paper table 3, no. 18")],
        fix: "allocate all input surfaces at the size named, or pad the inputs",
        rewriting: Some(Fix::UniformInputs),
        condition: Condition::Function(|f| unequal("input", f.inputs())),
        ..REQUEST
    },
    Rule {
        id: "ane-packed-surface",
        title: "a surface larger than its input is read packed from byte 0",
        outcome: Outcome::WrongResult,
        severity: Severity::Warning,
        symptom: "data written with the surface's stride is read as something else, silently",
        code: None,
        evidence: &[measured("Orion, paper table 3, no. 20: LoRA 260 times too small")],
        fix: "write the tensor packed as [1, C, 1, S] at the start of the surface",
        rewriting: Some(Fix::UniformInputs),
        condition: Condition::Function(packed),
        ..DIRECT
    },
    Rule {
        id: "ane-output-order",
        title: "outputs are bound by name, not in the order of the signature",
        outcome: Outcome::WrongResult,
        severity: Severity::Warning,
        symptom: "outputs are swapped, silently",
        code: None,
        evidence: &[
            measured("Orion, paper table 3, no. 3"),
            disputed("maderix/ANE #47, M1: by size"),
        ],
        fix: "name outputs so that alphabetical order is the signature's, or sort the surfaces",
        condition: Condition::Function(|f| order("output", f, f.outputs())),
        ..DIRECT
    },
    Rule {
        id: "ane-input-order",
        title: "inputs are bound by name, not in the order of the signature",
        outcome: Outcome::WrongResult,
        severity: Severity::Warning,
        symptom: "inputs are swapped, silently",
        code: None,
        evidence: &[
            measured("Orion, paper table 3, no. 19: six permutations of three inputs tried"),
            disputed("maderix/ANE #47, M1: by size"),
            disputed("Orion's API reference: in the signature's order"),
        ],
        fix: "name inputs so that alphabetical order is the signature's, or sort the surfaces",
        condition: Condition::Function(|f| order("input", f, f.inputs())),
        ..DIRECT
    },
    Rule {
        id: "ane-minimum-surface",
        title: "an input or output is smaller than the smallest surface",
        severity: Severity::Warning,
        evidence: &[
            claimed("Orion, paper table 3, no. 4: fp32 [768, 16] is 49,152 bytes, fp16 half of it"),
            disputed("Orion spike T099: one column worked"),
        ],
        fix: "pad the sequence to 16 columns, and the allocation to the minimum",
        condition: Condition::Function(minimum),
        ..REQUEST
    },
    Rule {
        id: "ane-io-dtype",
        title: "an input or output has a type that the chip does not take",
        symptom: "the program is refused",
        evidence: &[
            measured("ane-guide: M1 takes fp16 and uint8"),
            measured("HiQS-Labs/Orion-fork: fp32 fails on M1 Pro and M1 Max, works on M4 Pro"),
            measured("jafreck/ironmill: fp16, fp32 and bool"),
        ],
        fix: "declare fp16 and cast on the CPU",
        condition: Condition::Function(io_dtype),
        ..DIRECT
    },
    Rule {
        id: "ane-input-count",
        title: "a function has more inputs than are known to work",
        outcome: Outcome::LoadFails,
        symptom: "marked as fully placed, and then cannot be run",
        code: Some("no procedureInfo"),
        paths: &[super::Path::Direct, super::Path::CoreMl],
        evidence: &[
            measured("Anemll Forge, M5 Max, Core AI: 43 work, 44 do not"),
            claimed("h3.c-ane: 8"),
            disputed("one user: 98 worked"),
        ],
        fix: "pack several inputs into one and take slices",
        condition: Condition::Function(input_count),
        ..DIRECT
    },
    Rule {
        id: "ane-width-multiple",
        title: "the width should be a multiple of 16",
        outcome: Outcome::WrongResult,
        severity: Severity::Warning,
        symptom: "wrong data, silently",
        code: None,
        evidence: &[claimed("rustane: 16"), disputed("electricapp/ane-bridge-rs: 32")],
        fix: "pad the width",
        condition: Condition::Function(width_multiple),
        ..DIRECT
    },
    Rule {
        id: "ane-few-columns",
        title: "wide tensors of few columns may be refused",
        severity: Severity::Warning,
        evidence: &[
            claimed("jafreck/ironmill: more than about 768 channels with fewer than 32 columns"),
            disputed("Orion: 768 channels with 16 columns work"),
        ],
        fix: "pad the sequence to 32 columns",
        condition: Condition::Function(few_columns),
        ..DIRECT
    },
];

fn found(message: String) -> Found {
    Found { op: None, finding: Finding::new(message) }
}

fn largest<'a>(
    values: impl Iterator<Item = (&'a str, &'a TensorType)>,
) -> (Vec<(&'a str, u64)>, u64) {
    let sizes: Vec<(&str, u64)> = values.map(|(n, t)| (n, byte_len(t))).collect();
    let max = sizes.iter().map(|s| s.1).max().unwrap_or(0);
    (sizes, max)
}

fn unequal<'a>(what: &str, values: impl Iterator<Item = (&'a str, &'a TensorType)>) -> Vec<Found> {
    let (sizes, max) = largest(values);
    let small: Vec<String> = sizes
        .iter()
        .filter(|s| s.1 < max)
        .map(|(name, bytes)| format!("\"{name}\" has {bytes} bytes"))
        .collect();
    if small.is_empty() {
        return Vec::new();
    }
    let plural = if sizes.len() == 1 { "" } else { "s" };
    vec![found(format!("{} of {max}-byte {what}{plural}", small.join(", ")))]
}

fn packed(f: &FunctionCx<'_>) -> Vec<Found> {
    let (sizes, max) = largest(f.inputs());
    let small = sizes.iter().filter(|s| s.1 < max);
    small
        .map(|(name, bytes)| {
            found(format!(
                "input \"{name}\" takes the first {bytes} of {max} bytes of its surface, packed"
            ))
        })
        .collect()
}

fn order<'a>(
    what: &str,
    f: &FunctionCx<'_>,
    values: impl Iterator<Item = (&'a str, &'a TensorType)>,
) -> Vec<Found> {
    let names: Vec<&str> = values.map(|v| v.0).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    if names == sorted {
        return Vec::new();
    }
    let message =
        format!("{what}s are declared as {} and bound as {}", names.join(", "), sorted.join(", "));
    let finding = stands(&f.chip.switches.binding, BindingOrder::Name, message);
    finding.map(|finding| Found { op: None, finding }).into_iter().collect()
}

fn minimum(f: &FunctionCx<'_>) -> Vec<Found> {
    let (Some(minimum), Some(unit)) = (&f.chip.io.surface_bytes, &f.chip.switches.surface_unit)
    else {
        return Vec::new();
    };
    if unit.value == SurfaceUnit::Nothing {
        return Vec::new();
    }
    let small = f.inputs().chain(f.outputs()).map(|(n, t)| (n, byte_len(t)));
    small
        .filter(|s| s.1 < minimum.value)
        .map(|(name, bytes)| {
            found(format!(
                "\"{name}\" has {bytes} bytes, the minimum ({}) is {minimum}",
                unit.value
            ))
        })
        .collect()
}

fn io_dtype(f: &FunctionCx<'_>) -> Vec<Found> {
    let Some(taken) = &f.chip.io.dtypes else { return Vec::new() };
    let names: Vec<&str> = taken.value.0.iter().map(|d| d.name()).collect();
    let wrong = f.inputs().chain(f.outputs()).filter(|(_, t)| !taken.value.0.contains(&t.dtype));
    wrong
        .map(|(name, ty)| {
            found(format!(
                "\"{name}\" is {}; {} takes {} ({}: {})",
                ty.dtype,
                f.chip.title,
                names.join(", "),
                taken.status,
                taken.source
            ))
        })
        .collect()
}

fn input_count(f: &FunctionCx<'_>) -> Vec<Found> {
    let n = f.function.inputs.len() as u64;
    let count = above(&f.chip.io.inputs, n, format!("{n} inputs"));
    let reliable = || {
        let finding = above(&f.chip.io.inputs_reliable, n, format!("{n} inputs"))?;
        Some(Finding { severity: Some(Severity::Info), ..finding })
    };
    count.or_else(reliable).map(|finding| Found { op: None, finding }).into_iter().collect()
}

fn width_multiple(f: &FunctionCx<'_>) -> Vec<Found> {
    let Some(multiple) = &f.chip.io.width_multiple else { return Vec::new() };
    let widths = f.inputs().chain(f.outputs()).filter_map(|(n, t)| Some((n, *sizes(t)?.last()?)));
    widths
        .filter(|(_, w)| w % multiple.value != 0)
        .map(|(name, width)| {
            found(format!("\"{name}\" has {width} columns; multiple of {multiple}"))
        })
        .collect()
}

fn few_columns(f: &FunctionCx<'_>) -> Vec<Found> {
    let Some(least) = &f.chip.io.columns else { return Vec::new() };
    let all = f.inputs().chain(f.outputs());
    let narrow = all.filter_map(|(name, ty)| match *sizes(ty)? {
        [_, channels, height, width] if channels > 768 => Some((name, channels, height * width)),
        _ => None,
    });
    let most = least.claims.iter().map(|c| c.value).chain([least.value]).max().unwrap_or(0);
    narrow
        .filter(|&(_, _, columns)| columns < most)
        .map(|(name, channels, columns)| {
            found(format!(
                "\"{name}\" has {channels} channels and {columns} columns; at least {least}"
            ))
        })
        .collect()
}
