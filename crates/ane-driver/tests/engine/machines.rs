//! The same model on other chips, with every disputed switch either way, and what fails cleanly.

use std::sync::Arc;

use ane_emu::{Arithmetic, Emulator, Machine};
use ane_model::Chip;
use ane_model::chip::{Acceptance, BindingOrder, Reload, SlotUnit, SurfaceUnit};
use cpu::CpuBackend;
use exec::port::Port;
use passes::ane::Variable;
use rigel_ane_driver::{AneBackend, Options, Update, self_test};

use crate::common::{PROMPT, Setup, greedy, session, stories, switch};

#[test]
fn every_chip_and_switch_gives_the_same_tokens() {
    let model = stories();
    let (wanted, _) = greedy(&mut session(&CpuBackend::new(1), &model), &PROMPT, 12);
    type Change = fn(&mut Chip);
    let switches: [(&str, Change); 9] = [
        ("as filed", |_| {}),
        ("concat refused", |c| switch!(c, concat, Acceptance::Refused)),
        ("concat accepted", |c| switch!(c, concat, Acceptance::Accepted)),
        ("files counted", |c| switch!(c, slot_unit, SlotUnit::Files)),
        ("tensors counted", |c| switch!(c, slot_unit, SlotUnit::Tensors)),
        ("bound by size", |c| switch!(c, binding, BindingOrder::Size)),
        ("bound by signature", |c| switch!(c, binding, BindingOrder::Signature)),
        ("no minimum", |c| switch!(c, surface_unit, SurfaceUnit::Nothing)),
        ("delta reload", |c| switch!(c, delta_reload, Reload::Applied)),
    ];
    for chip in ["m1", "m4", "m6"] {
        for (what, change) in switches {
            let rig = Setup::new(chip, Arithmetic::Fp16).with(change).rig();
            let (ids, _) = greedy(&mut session(&rig.backend, &model), &PROMPT, 12);
            assert_eq!(ids, wanted, "{chip}, {what}");
            drop(rig.backend);
            let usage = rig.port.usage();
            assert_eq!((usage.models, usage.loaded, usage.surfaces), (0, 0, 0), "{chip}, {what}");
        }
    }
}

/// Planted: with the surfaces bound in another order the tokens differ, so that the other tests would
/// show it.
#[test]
fn a_wrong_order_of_surfaces_is_seen() {
    let model = stories();
    let (wanted, _) = greedy(&mut session(&CpuBackend::new(1), &model), &PROMPT, 12);
    let mut setup = Setup::new("m4", Arithmetic::Fp16);
    switch!(setup.chip, binding, BindingOrder::Size);
    let rig = setup.rig();
    let mut session = session(&rig.backend, &model);
    let failed = session.logits_after(&PROMPT);
    let differs = failed.is_err() || greedy(&mut session, &PROMPT, 12).0 != wanted;
    assert!(differs);
}

/// Too few programs may be loaded for all of them: they are unloaded and loaded in turn.
#[test]
fn programs_take_turns_in_the_engine() {
    let model = stories();
    let (wanted, _) = greedy(&mut session(&CpuBackend::new(1), &model), &PROMPT, 6);
    let rig = Setup::new("m4", Arithmetic::Fp16)
        .with(|c| {
            if let Some(fact) = c.runtime.loaded_programs.take() {
                c.runtime.loaded_programs = Some(fact.with(2));
            }
        })
        .rig();
    let (ids, _) = greedy(&mut session(&rig.backend, &model), &PROMPT, 6);
    assert_eq!(ids, wanted);
    assert!(rig.backend.stats().evictions > 0);
    assert_eq!(rig.port.usage().loaded, 2);
}

#[test]
fn a_spent_budget_is_said_and_leaves_nothing() {
    let model = stories();
    let few = |c: &mut Chip| {
        if let Some(fact) = c.runtime.compiles.take() {
            c.runtime.compiles = Some(fact.with(3));
        }
    };
    let rig = Setup::new("m4", Arithmetic::Fp16).with(few).rig();
    let error = session(&rig.backend, &model).logits_after(&PROMPT).unwrap_err().to_string();
    assert!(error.contains("compiled 3 programs"), "{error}");
    drop(rig.backend);
    let usage = rig.port.usage();
    assert_eq!((usage.models, usage.loaded, usage.surfaces), (0, 0, 0), "{usage:?}");
    assert_eq!(std::fs::read_dir(rig.directory.path()).unwrap().count(), 0);
}

/// With a compilation less than all sizes need, the larger size is left out, and a long prompt is read
/// in pieces of the smaller, whose programs decoding has too.
#[test]
fn a_budget_for_some_sizes_is_kept() {
    let model = stories();
    // Prompt and decoding in programs of both sizes.
    let long: Vec<u32> = PROMPT.iter().copied().cycle().take(20).collect();
    let compile = |budget: Option<usize>| {
        let setup = Setup::new("m4", Arithmetic::Fp16).with(|c| {
            let fact = c.runtime.compiles.take();
            c.runtime.compiles = fact.map(|f| budget.map_or(f.clone(), |b| f.with(b as u64)));
        });
        let rig = setup.rig();
        let mut session = session(&rig.backend, &model);
        let ids = [&long[..], &PROMPT].map(|prompt| greedy(&mut session, prompt, 4).0);
        (ids, rig.port.usage().compilations)
    };
    let (wanted, all) = compile(None);
    let (ids, fewer) = compile(Some(all - 1));
    assert_eq!(ids, wanted);
    assert!(0 < fewer && fewer < all, "{fewer} of {all}");
}

#[test]
fn a_full_queue_is_said() {
    let model = stories();
    let mut setup = Setup::new("m4", Arithmetic::Fp16);
    setup.queued = 127;
    let rig = setup.rig();
    let error = session(&rig.backend, &model).logits_after(&PROMPT).unwrap_err().to_string();
    assert!(error.contains("ane-queue-depth"), "{error}");
    drop(rig.backend);
    assert_eq!(rig.port.usage().surfaces, 0);
}

#[test]
fn the_self_test_tells_whether_reloading_works() {
    for (reload, works) in
        [(Reload::Applied, true), (Reload::Ignored, false), (Reload::Refused, false)]
    {
        let directory = tempfile::tempdir().unwrap();
        let mut chip = Chip::find("m4").unwrap().clone();
        switch!(chip, delta_reload, reload);
        let os = "macos15".parse().unwrap();
        let machine =
            Machine::new(chip.clone(), os, Arithmetic::Engine, directory.path().to_owned());
        let port = Arc::new(Emulator::new(machine));
        let found = self_test(&port, &chip).unwrap();
        assert_eq!((found.delta_reload, found.note.is_none()), (works, works));
        assert_eq!(found.update() == Update::Delta, works);
        let usage = port.usage();
        assert_eq!((usage.models, usage.loaded, usage.surfaces), (0, 0, 0));
    }
}

/// A program of another machine's files cannot be compiled: the error names the file.
#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let chip = Chip::find("m4").unwrap().clone();
    let os = "macos15".parse().unwrap();
    let nowhere = std::path::PathBuf::from("/proc/rigel");
    let port = Arc::new(Emulator::new(Machine::new(chip.clone(), os, Arithmetic::Fp16, nowhere)));
    let options = Options {
        chip,
        os,
        functions: Some(vec!["decode".into(), "prefill".into()]),
        columns: vec![16],
        variable: Variable::default(),
        update: None,
        exhausted: None,
    };
    let backend = AneBackend::new(port.clone(), Arc::new(CpuBackend::new(1)), options);
    let error = session(&backend, &stories()).logits_after(&PROMPT).unwrap_err().to_string();
    assert!(error.contains("/proc/rigel"), "{error}");
    drop(backend);
    assert_eq!(port.usage().models, 0);
}
