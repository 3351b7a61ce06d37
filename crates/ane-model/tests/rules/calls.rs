//! Rules on calls, each with a call that it accepts and one that it refuses.

use rigel_ane_model::chip::{Effect, Reload, SurfaceUnit};
use rigel_ane_model::rules::{Call, Condition, TextObject, check_call, rules};
use rigel_ane_model::{Chip, Severity};

use crate::common::chip;

fn evaluate(inputs: &[u64], outputs: &[u64], queued: u64) -> Call {
    let pack = |sizes: &[u64]| sizes.iter().map(|&n| (n, n)).collect();
    Call::Evaluate { inputs: pack(inputs), outputs: pack(outputs), queued }
}

/// Rule, a call that it accepts, a call that it refuses.
fn cases() -> Vec<(&'static str, Call, Call)> {
    let data = |text, weights| Call::Describe { text, weights };
    let fine = evaluate(&[49152, 49152], &[65536], 0);
    vec![
        ("ane-text-object", data(TextObject::NsData, true), data(TextObject::NsString, true)),
        ("ane-weight-dictionary", data(TextObject::NsData, true), data(TextObject::NsData, false)),
        ("ane-compile-budget", Call::Compile { ordinal: 119 }, Call::Compile { ordinal: 120 }),
        ("ane-restart-cost", Call::Load { loaded: 0 }, Call::Restart),
        ("ane-loaded-programs", Call::Load { loaded: 127 }, Call::Load { loaded: 128 }),
        ("ane-queue-depth", evaluate(&[49152], &[49152], 126), evaluate(&[49152], &[49152], 127)),
        ("ane-unequal-input-surfaces", fine.clone(), evaluate(&[49152, 65536], &[65536], 0)),
        ("ane-unequal-output-surfaces", fine.clone(), evaluate(&[65536], &[49152, 65536], 0)),
        ("ane-small-surface", fine.clone(), evaluate(&[24576], &[49152], 0)),
        ("ane-delta-reload", fine.clone(), Call::ReloadWeights),
        ("ane-weights-buffer", fine, Call::WeightsBuffer),
    ]
}

fn broken(call: &Call, chip: &Chip) -> Vec<&'static str> {
    check_call(call, chip).into_iter().map(|(rule, _)| rule.id).collect()
}

#[test]
fn each_call_rule_accepts_and_refuses() {
    for (id, accepted, refused) in cases() {
        assert!(!broken(&accepted, chip("m4")).contains(&id), "{id} refuses {accepted:?}");
        assert!(broken(&refused, chip("m4")).contains(&id), "{id} accepts {refused:?}");
    }
    let of_calls = rules().filter(|r| matches!(r.condition, Condition::Call(_)));
    for rule in of_calls {
        assert!(cases().iter().any(|c| c.0 == rule.id), "{} has no case", rule.id);
    }
}

#[test]
fn switches_decide_disputed_calls() {
    let mut machine = chip("m4").clone();
    let severity = |machine: &Chip, call: &Call, id: &str| {
        let found = check_call(call, machine).into_iter().find(|(rule, _)| rule.id == id);
        found.map(|(rule, finding)| finding.severity.unwrap_or(rule.severity))
    };
    let reload = |m: &Chip| severity(m, &Call::ReloadWeights, "ane-delta-reload");
    assert_eq!(reload(&machine), Some(Severity::Error));
    machine.switches.delta_reload = machine.switches.delta_reload.map(|f| f.with(Reload::Applied));
    assert_eq!(reload(&machine), None);

    let compile = |m: &Chip| severity(m, &Call::Compile { ordinal: 120 }, "ane-compile-budget");
    assert_eq!(compile(&machine), Some(Severity::Error));
    machine.switches.compile_leak = machine.switches.compile_leak.map(|f| f.with(Effect::Ignored));
    assert_eq!(compile(&machine), None);

    // A tensor of 24,576 bytes in a surface of 49,152.
    let call = Call::Evaluate { inputs: vec![(49152, 24576)], outputs: vec![], queued: 0 };
    let small = |m: &Chip| severity(m, &call, "ane-small-surface");
    assert_eq!(small(&machine), None);
    machine.switches.surface_unit =
        machine.switches.surface_unit.map(|f| f.with(SurfaceUnit::Tensor));
    assert_eq!(small(&machine), Some(Severity::Error));
}
