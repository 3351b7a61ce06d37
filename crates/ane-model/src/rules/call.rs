//! Rules on calls of the private framework: what a driver must not do, whatever the program.

use super::cx::above;
use super::{Condition, DIRECT, Finding, Outcome, Rule, Severity, claimed, disputed, measured};
use crate::chip::{Chip, Effect, Reload, SurfaceUnit};

/// What the text of a program is handed over as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextObject {
    /// UTF-8 bytes.
    NsData,
    /// A string object.
    NsString,
}

/// A call of the private framework, with what its rules depend on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// `modelWithMILText:weights:optionsPlist:`.
    Describe {
        /// What the text is.
        text: TextObject,
        /// Whether a dictionary of weights is given, if only an empty one.
        weights: bool,
    },
    /// `compileWithQoS:options:error:`.
    Compile {
        /// Which compilation of the process it is, from 1.
        ordinal: u64,
    },
    /// `loadWithQoS:options:error:`.
    Load {
        /// Programs that are loaded already.
        loaded: u64,
    },
    /// `evaluateWithQoS:options:request:error:`.
    Evaluate {
        /// Bytes allocated for each input's surface and bytes of its packed tensor, in order.
        inputs: Vec<(u64, u64)>,
        /// The same of the outputs.
        outputs: Vec<(u64, u64)>,
        /// Requests that are in flight already.
        queued: u64,
    },
    /// Weight files of a loaded program are overwritten; it is unloaded and loaded again.
    ReloadWeights,
    /// A surface is given as `weightsBuffer` of a request.
    WeightsBuffer,
    /// The process replaces itself to get a new compile budget.
    Restart,
}

/// Every rule that a call breaks on a chip, with what is the matter.
pub fn check_call(call: &Call, chip: &Chip) -> Vec<(&'static Rule, Finding)> {
    let broken = super::rules().filter_map(|rule| match rule.condition {
        Condition::Call(condition) => Some((rule, condition(call, chip)?)),
        _ => None,
    });
    broken.collect()
}

const SURFACES: Rule = Rule {
    outcome: Outcome::EvaluationFails,
    symptom: "it compiles, and every evaluation fails",
    code: Some(
        "ANEProgramProcessRequestDirect() Failed with status=0x1d : Program Inference error",
    ),
    ..DIRECT
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-text-object",
        title: "the program's text must be bytes (NSData), not a string object",
        outcome: Outcome::Crash,
        symptom: "the process dies at once",
        code: None,
        evidence: &[claimed("Orion, paper table 3, no. 9")],
        fix: "pass the UTF-8 bytes as NSData",
        condition: Condition::Call(|call, _| {
            let Call::Describe { text: TextObject::NsString, .. } = call else { return None };
            Some(Finding::new("the text is an NSString"))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-weight-dictionary",
        title: "a program without weights needs an empty dictionary, not nil",
        outcome: Outcome::Crash,
        symptom: "the process dies at once",
        code: None,
        evidence: &[claimed("Orion, paper table 3, no. 11")],
        fix: "pass @{}",
        condition: Condition::Call(|call, _| {
            let Call::Describe { weights: false, .. } = call else { return None };
            Some(Finding::new("the dictionary of weights is nil"))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-compile-budget",
        title: "a process can compile about 119 programs",
        symptom: "compilation fails silently, or the process becomes unstable",
        code: None,
        evidence: &[
            claimed("maderix/ANE; Orion, paper table 3, no. 5"),
            disputed("maderix/ANE #54: _ANEClient does not leak"),
        ],
        fix: "compile once and cache; replace the process by itself before the budget is spent",
        condition: Condition::Call(compile_budget),
        ..DIRECT
    },
    Rule {
        id: "ane-restart-cost",
        title: "replacing the process costs about 50 ms",
        outcome: Outcome::Slow,
        severity: Severity::Info,
        symptom: "a pause at each restart",
        code: None,
        evidence: &[claimed("Orion, paper table 3, no. 15")],
        fix: "do several steps in one process",
        condition: Condition::Call(|call, chip| {
            let (Call::Restart, Some(cost)) = (call, &chip.runtime.restart_ms) else { return None };
            Some(Finding::new(format!("a restart takes {cost}")))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-loaded-programs",
        title: "about 128 programs can be loaded at a time",
        outcome: Outcome::LoadFails,
        symptom: "loading fails",
        code: Some("0x50004"),
        evidence: &[measured("MidasMulli, M5 Pro; oMLX issues: bank limit 0x20004")],
        fix: "unload programs that are not in use; merge programs",
        condition: Condition::Call(|call, chip| {
            let Call::Load { loaded } = call else { return None };
            above(&chip.runtime.loaded_programs, loaded + 1, format!("{} programs", loaded + 1))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-queue-depth",
        title: "127 requests can be in flight",
        outcome: Outcome::EvaluationFails,
        symptom: "the request is refused",
        code: None,
        evidence: &[claimed("maderix/ANE: property queueDepth")],
        fix: "wait for earlier requests",
        condition: Condition::Call(|call, chip| {
            let Call::Evaluate { queued, .. } = call else { return None };
            above(&chip.runtime.queue, queued + 1, format!("{} requests in flight", queued + 1))
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-unequal-input-surfaces",
        title: "all input surfaces of a request must have the same size",
        evidence: &[claimed("Orion, paper table 3, no. 18")],
        fix: "allocate every input surface at the largest size, data packed from byte 0",
        condition: Condition::Call(|call, _| {
            let Call::Evaluate { inputs, .. } = call else { return None };
            unequal("inputs", inputs)
        }),
        ..SURFACES
    },
    Rule {
        id: "ane-unequal-output-surfaces",
        title: "all output surfaces of a request must have the same size",
        evidence: &[claimed("Orion, paper table 3, no. 2; rustane")],
        fix: "allocate every output surface at the largest size",
        condition: Condition::Call(|call, _| {
            let Call::Evaluate { outputs, .. } = call else { return None };
            unequal("outputs", outputs)
        }),
        ..SURFACES
    },
    Rule {
        id: "ane-small-surface",
        title: "surfaces below 49,152 bytes fail",
        evidence: &[
            claimed("Orion, paper table 3, no. 4"),
            disputed("Orion spike T099: smaller ones worked"),
        ],
        fix: "pad the sequence to 16 columns or the allocation to 49,152 bytes",
        condition: Condition::Call(small_surface),
        ..SURFACES
    },
    Rule {
        id: "ane-delta-reload",
        title: "overwriting weight files and loading again may not change the weights",
        outcome: Outcome::WrongResult,
        symptom: "the old weights are used, silently",
        code: None,
        evidence: &[
            measured("libane probe_delta_reload, M3 Pro, macOS 26.3.1; maderix/ANE, M5"),
            disputed("Orion, paper section 5: it works on M4 Max, macOS 15"),
        ],
        fix: "compare with a fresh compilation at start-up; else recompile or pass weights as inputs",
        condition: Condition::Call(|call, chip| {
            let Call::ReloadWeights = call else { return None };
            let switch = &chip.switches.delta_reload;
            super::cx::stands(switch, Reload::Ignored, "overwritten weights")
        }),
        ..DIRECT
    },
    Rule {
        id: "ane-weights-buffer",
        title: "the weightsBuffer of a request is ignored",
        outcome: Outcome::WrongResult,
        symptom: "the weights of the compilation are used, silently",
        code: None,
        evidence: &[measured("maderix/ANE m5result.md; slavko")],
        fix: "pass weights as inputs",
        condition: Condition::Call(|call, chip| {
            let Call::WeightsBuffer = call else { return None };
            let switch = &chip.switches.weights_buffer;
            super::cx::stands(switch, Effect::Ignored, "weightsBuffer")
        }),
        ..DIRECT
    },
];

fn compile_budget(call: &Call, chip: &Chip) -> Option<Finding> {
    let Call::Compile { ordinal } = call else { return None };
    let budget = &chip.runtime.compiles;
    let spent = above(budget, *ordinal, format!("compilation {ordinal} of the process"))?;
    let leak = super::cx::stands(&chip.switches.compile_leak, Effect::Applied, &spent.message)?;
    Some(Finding { severity: leak.severity.or(spent.severity), ..spent })
}

fn unequal(what: &str, surfaces: &[(u64, u64)]) -> Option<Finding> {
    let sizes: Vec<u64> = surfaces.iter().map(|s| s.0).collect();
    let equal = sizes.windows(2).all(|w| w[0] == w[1]);
    (!equal).then(|| Finding::new(format!("surfaces of the {what} have {sizes:?} bytes")))
}

fn small_surface(call: &Call, chip: &Chip) -> Option<Finding> {
    let Call::Evaluate { inputs, outputs, .. } = call else { return None };
    let unit = chip.switches.surface_unit.as_ref()?.value;
    let minimum = chip.io.surface_bytes.as_ref()?;
    let counted = inputs.iter().chain(outputs).map(|&(allocated, packed)| match unit {
        SurfaceUnit::Allocation => allocated,
        SurfaceUnit::Tensor => packed,
        SurfaceUnit::Nothing => u64::MAX,
    });
    let smallest = counted.min().filter(|&n| n < minimum.value)?;
    let message = format!("a surface of {smallest} bytes ({unit}), the minimum is {minimum}");
    Some(Finding::new(message))
}
