//! States: what Core ML's engine backend takes of them.

use std::collections::HashMap;

use mil::{Arg, OpId, OpKind, ValueDef, ValueId};

use super::cx::{OpCx, above, dims, sizes};
use super::{
    Chips, Condition, DIRECT, Finding, Fix, Found, FunctionCx, Outcome, Path, Rule, Severity,
    claimed, measured,
};
use crate::chip::Platform;

const STATE: Rule = Rule {
    paths: &[Path::CoreMl],
    outcome: Outcome::LoadFails,
    symptom: "Failed to build the model execution plan",
    code: Some("-14"),
    ..DIRECT
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-state-dimension",
        title: "a state's dimensions must be multiples of 32",
        evidence: &[measured("apple/coremltools #2631: width 256 works, 270 does not")],
        fix: "pad the dimension to the next multiple of 32",
        rewriting: Some(Fix::PadState),
        condition: Condition::Function(dimension),
        ..STATE
    },
    Rule {
        id: "ane-state-power-of-two",
        title: "a state's dimensions should be powers of two",
        severity: Severity::Warning,
        evidence: &[claimed(
            "SqueezeBits: make state dimension sizes powers of two; nobody tried 288",
        )],
        fix: "pad the dimension to the next power of two",
        condition: Condition::Function(power_of_two),
        ..STATE
    },
    Rule {
        id: "ane-state-count",
        title: "a program can have two states",
        outcome: Outcome::EvaluationFails,
        symptom: "the first prediction fails",
        code: Some("status=0x1d statusType=0x9, Error 11"),
        evidence: &[
            measured("CoreML-LLM: one or two work, three fail"),
            claimed("SqueezeBits: too many states will kill you"),
        ],
        fix: "stack all keys in one state and all values in another",
        condition: Condition::Function(|f| {
            let n = f.states().count() as u64;
            let finding = above(&f.chip.coreml.states, n, format!("{n} states"));
            finding.map(|finding| Found { op: None, finding }).into_iter().collect()
        }),
        ..STATE
    },
    Rule {
        id: "ane-state-second",
        title: "a second state is a risk on a phone",
        chips: Chips::Where("chips of phones", |c| c.platform == Platform::Phone),
        severity: Severity::Warning,
        evidence: &[claimed("CoreML-LLM: one state a chunk, two tolerated")],
        fix: "keep keys and values in one state",
        condition: Condition::Function(|f| {
            let two = f.states().count() == 2;
            let finding = Finding::new("2 states");
            two.then_some(Found { op: None, finding }).into_iter().collect()
        }),
        ..STATE
    },
    Rule {
        id: "ane-state-output",
        title: "what is read from a state cannot be an output",
        outcome: Outcome::CompileFails,
        symptom: "translation to the engine's form fails",
        code: Some("std::bad_cast in MIL->EIR"),
        evidence: &[measured("CoreML-LLM: a slice of a state as a chunk's output")],
        fix: "return what was written, before it goes to the state",
        condition: Condition::Function(state_output),
        ..STATE
    },
    Rule {
        id: "ane-state-chained-update",
        title: "a state must be updated by slice_update, not shifted",
        evidence: &[
            measured("finnvoor/CoreMLPipelines #4: a window moved by slice and concat"),
            claimed("SqueezeBits: update states with care"),
        ],
        fix: "write at a position with slice_update, use the buffer as a ring",
        condition: Condition::Function(chained),
        ..STATE
    },
    Rule {
        id: "ane-state-multi-token",
        title: "functions of several tokens with two states fail on a phone",
        chips: Chips::Where("chips of phones", |c| c.platform == Platform::Phone),
        outcome: Outcome::EvaluationFails,
        severity: Severity::Warning,
        symptom: "prediction fails",
        evidence: &[claimed("CoreML-LLM")],
        fix: "one state, or one token a call",
        condition: Condition::Function(multi_token),
        ..STATE
    },
    Rule {
        id: "ane-state-rank",
        title: "a state of three axes keeps attention off the engine",
        outcome: Outcome::OffEngine,
        severity: Severity::Warning,
        symptom: "Core ML runs attention and the state on the CPU or GPU",
        code: None,
        evidence: &[measured(
            "apple/coremltools #2553: rank 3 fails, rank 4 with conv and at most 32 tokens works",
        )],
        fix: "give the state four axes",
        condition: Condition::Function(|f| {
            per_state(f, |shape| (shape.len() == 3).then(|| Finding::new("of three axes")))
        }),
        ..STATE
    },
    Rule {
        id: "ane-standalone-update",
        title: "slice_update of something that is no state leaves the engine",
        outcome: Outcome::OffEngine,
        severity: Severity::Warning,
        symptom: "Core ML runs it on the CPU or GPU",
        code: Some("Cannot support standalone slice_update"),
        evidence: &[measured("anemll-profile: the plan's own words")],
        fix: "write the result to a state, or blend with a mask",
        condition: Condition::Op(|op| {
            let update = op.kind() == OpKind::SliceUpdate;
            let written = op.users().any(|u| u.kind == OpKind::WriteState);
            (update && !written).then(|| Finding::new("slice_update without write_state"))
        }),
        ..STATE
    },
];

/// What was measured is the last axis; of the one before it nobody says that it may be odd.
fn dimension(f: &FunctionCx<'_>) -> Vec<Found> {
    let Some(multiple) = &f.chip.coreml.state_multiple else { return Vec::new() };
    per_state(f, |shape| {
        let odd = |n: &&u64| **n != 1 && !n.is_multiple_of(multiple.value);
        let last_two = || shape.iter().rev().take(2);
        let n = last_two().find(odd)?;
        let message = format!("{n} is no multiple of {multiple}");
        Some(match last_two().next().filter(odd) {
            Some(_) => Finding::new(message),
            None => Finding::at(message, Severity::Warning),
        })
    })
}

fn power_of_two(f: &FunctionCx<'_>) -> Vec<Found> {
    let Some(multiple) = &f.chip.coreml.state_multiple else { return Vec::new() };
    per_state(f, |shape| {
        let last: Vec<u64> = shape.iter().rev().take(2).copied().collect();
        let fits = last.iter().all(|n| n.is_multiple_of(multiple.value) || *n == 1);
        let odd = last.iter().any(|n| !n.is_power_of_two());
        (fits && odd).then(|| Finding::new("multiples of 32 and no powers of two"))
    })
}

fn per_state(f: &FunctionCx<'_>, wrong: impl Fn(&[u64]) -> Option<Finding>) -> Vec<Found> {
    let states = f.states().filter_map(|(name, ty)| Some((name, sizes(ty)?)));
    states
        .filter_map(|(name, shape)| {
            let why = wrong(&shape)?;
            let message = format!("state \"{name}\" is {}: {}", dims(&shape), why.message);
            let finding = Finding { message, ..why };
            Some(Found { op: None, finding })
        })
        .collect()
}

/// Whether a value is a state's content or a view of it.
fn is_alias(f: &FunctionCx<'_>, value: ValueId) -> Option<OpId> {
    let ValueDef::Result(id, _) = f.function.values[value].def else { return None };
    let op = OpCx::new(f, id);
    match op.kind() {
        OpKind::ReadState => Some(id),
        OpKind::SliceByIndex
        | OpKind::SliceBySize
        | OpKind::Reshape
        | OpKind::Squeeze
        | OpKind::ExpandDims
        | OpKind::Identity => is_alias(f, op.value("x")?).map(|_| id),
        _ => None,
    }
}

fn state_output(f: &FunctionCx<'_>) -> Vec<Found> {
    let outputs = f.function.body.outputs.iter();
    outputs
        .filter_map(|&v| {
            let op = is_alias(f, v)?;
            let name = &f.function.values[v].name;
            let finding = Finding::new(format!("output \"{name}\" is a view of a state"));
            Some(Found { op: Some(op), finding })
        })
        .collect()
}

/// Writes of a state that shift it; the second write of a state is mentioned.
fn chained(f: &FunctionCx<'_>) -> Vec<Found> {
    let mut writes: HashMap<ValueId, usize> = HashMap::new();
    let mut found = Vec::new();
    for (id, operation) in f.computing().filter(|(_, op)| op.kind == OpKind::WriteState) {
        let op = OpCx { cx: f, id, op: operation };
        let Some(Arg::Value(state)) = operation.arg("input") else { continue };
        let name = &f.function.values[*state].name;
        let count = writes.entry(*state).or_default();
        *count += 1;
        let finding = if op.maker("data").is_some_and(|m| m.kind == OpKind::Concat) {
            Finding::new(format!("state \"{name}\" is written with a concat"))
        } else if *count == 2 {
            let message = format!("state \"{name}\" is written more than once");
            Finding::at(message, Severity::Info)
        } else {
            continue;
        };
        found.push(Found { op: Some(id), finding });
    }
    found
}

fn multi_token(f: &FunctionCx<'_>) -> Vec<Found> {
    let several = f.program.functions.len() > 1 && f.states().count() >= 2;
    // The tokens of a call are the longest of the first two axes of its first input.
    let tokens = f.inputs().next().and_then(|(_, ty)| sizes(ty));
    let tokens = tokens.and_then(|s| s.iter().take(2).max().copied()).unwrap_or(1);
    let finding = Finding::new(format!("{tokens} tokens a call, {} states", f.states().count()));
    (several && tokens > 1).then_some(Found { op: None, finding }).into_iter().collect()
}
