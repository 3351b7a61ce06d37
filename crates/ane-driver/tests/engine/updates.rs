//! Other weights in programs that are compiled: by compiling again, by reloading, as inputs.

use ane_emu::Arithmetic;
use ane_model::chip::Reload;
use cpu::CpuBackend;
use exec::Runnable;
use exec::port::Port;
use half::f16;
use llm::generate::Session;
use mil::Program;
use rigel_ane_driver::Update;
use tensor::Tensor;

use crate::common::{CONTEXT, PROMPT, Rig, Setup, largest_difference, prepared, stories};

/// Names of the weights that change.
fn changing(program: &Program) -> Vec<String> {
    let wanted = |name: &str| name.contains("q_proj") || name.contains("down_proj");
    let names = program.weights.iter().map(|(_, w)| w.name.clone());
    let names: Vec<String> = names.filter(|n| wanted(n)).collect();
    assert!(names.len() >= 4);
    names
}

/// The program with those weights halved and their signs changed.
fn changed(program: &Program) -> Program {
    let mut changed = program.clone();
    for name in changing(program) {
        let id = program.weights.find(&name).unwrap();
        let old = &program.weights.get(id).unwrap().tensor;
        let values = mil::eval::tensor_floats(old).unwrap();
        let values: Vec<f32> = values.into_iter().map(|x| -0.5 * x as f32).collect();
        changed.weights.replace(id, Tensor::from_slice(old.shape(), &values).unwrap());
    }
    changed
}

fn on_cpu(program: &Program, vocab: usize) -> Vec<f32> {
    prepared(&CpuBackend::new(1), program, vocab).logits_after(&PROMPT).unwrap()
}

/// Logits of a program on the rig before and after its weights change, and after they change back,
/// against the CPU's.
fn follows(rig: &Rig, program: &Program, vocab: usize) {
    let new = changed(program);
    let scale = on_cpu(program, vocab).iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let apart = largest_difference(&on_cpu(program, vocab), &on_cpu(&new, vocab)) / scale;
    assert!(apart > 0.1, "the change is too small to see: {apart}");
    let mut runnable = rig.backend.open(program).unwrap();
    for (i, program) in [program, &new, program].into_iter().enumerate() {
        if i > 0 {
            runnable.set_weights(program).unwrap();
        }
        let logits = logits(&mut runnable);
        let difference = largest_difference(&logits, &on_cpu(program, vocab)) / scale;
        assert!(difference < 1e-2, "change {i}: {difference}");
    }
}

/// Logits after the prompt.
fn logits(runnable: &mut dyn Runnable) -> Vec<f32> {
    let mut state = runnable.new_state().unwrap();
    let ids: Vec<i32> = PROMPT.iter().map(|&id| id as i32).collect();
    let positions: Vec<i32> = (0..PROMPT.len() as i32).collect();
    let inputs = [
        ("ids".to_owned(), Tensor::from_slice(&[1, ids.len()], &ids).unwrap()),
        ("positions".to_owned(), Tensor::from_slice(&[positions.len()], &positions).unwrap()),
    ];
    let out = runnable.run("prefill", &inputs.into(), &mut state).unwrap();
    let logits = out.values().next().unwrap();
    mil::eval::tensor_floats(logits).unwrap().into_iter().map(|x| x as f32).collect()
}

#[test]
fn weights_follow_by_each_way() {
    let model = stories();
    let (program, vocab) = (model.specialize(CONTEXT).unwrap(), model.config().vocab);
    for (update, effect) in [
        (Some(Update::Recompile), Reload::Ignored),
        (Some(Update::Delta), Reload::Applied),
        (None, Reload::Applied),
        (None, Reload::Ignored),
        (None, Reload::Refused),
    ] {
        let mut setup = Setup::new("m4", Arithmetic::Fp16)
            .with(|chip| chip.switches.delta_reload.as_mut().unwrap().value = effect);
        setup.update = update;
        let rig = setup.rig();
        follows(&rig, &program, vocab);
        let stats = rig.backend.stats();
        // Which way it went: without a test as told, with one as the machine allows.
        let delta = update.map_or(effect == Reload::Applied, |u| u == Update::Delta);
        assert_eq!(stats.reloads > 0, delta, "{update:?} {effect:?}: {stats:?}");
    }
}

/// Prefill and decode have programs in common: none of their old forms is left, however often weights
/// change.
#[test]
fn nothing_is_left_of_old_weights() {
    let model = stories();
    let program = model.specialize(CONTEXT).unwrap();
    let mut setup = Setup::new("m4", Arithmetic::Fp16).with(|chip| chip.runtime.compiles = None);
    setup.update = Some(Update::Recompile);
    setup.columns = vec![16];
    let rig = setup.rig();
    let mut runnable = rig.backend.open(&program).unwrap();
    let mut state = runnable.new_state().unwrap();
    let mut both = |runnable: &mut rigel_ane_driver::AneRunnable<_>| {
        for function in ["prefill", "decode"] {
            let inputs = exec::Tensors::from([
                ("ids".to_owned(), Tensor::from_slice(&[1, 1], &[3i32]).unwrap()),
                ("positions".to_owned(), Tensor::from_slice(&[1], &[0i32]).unwrap()),
            ]);
            runnable.run(function, &inputs, &mut state).unwrap();
        }
    };
    both(&mut runnable);
    let models = rig.port.usage().models;
    for weights in [changed(&program), program.clone(), changed(&program)] {
        runnable.set_weights(&weights).unwrap();
        both(&mut runnable);
        assert_eq!(rig.port.usage().models, models);
    }
}

/// What is an input needs neither a compilation nor a reload.
#[test]
fn weights_as_inputs_follow_without_compiling() {
    let model = stories();
    let (program, vocab) = (model.specialize(CONTEXT).unwrap(), model.config().vocab);
    let mut setup = Setup::new("m4", Arithmetic::Fp16);
    setup.variable.weights = changing(&program);
    let rig = setup.rig();
    let mut runnable = rig.backend.open(&program).unwrap();
    logits(&mut runnable);
    let before = (rig.port.usage().compilations, rig.backend.stats().reloads);
    runnable.set_weights(&changed(&program)).unwrap();
    let new = logits(&mut runnable);
    let wanted = on_cpu(&changed(&program), vocab);
    let scale = wanted.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    assert!(largest_difference(&new, &wanted) / scale < 1e-2);
    assert_eq!((rig.port.usage().compilations, rig.backend.stats().reloads), before);
}

/// A program that two hold is not changed under the other.
#[test]
fn weights_are_changed_for_one_alone() {
    let model = stories();
    let program = model.specialize(CONTEXT).unwrap();
    let mut setup = Setup::new("m4", Arithmetic::Fp16)
        .with(|chip| chip.switches.delta_reload.as_mut().unwrap().value = Reload::Applied);
    setup.update = Some(Update::Delta);
    let rig = setup.rig();
    let mut frozen = rig.backend.open(&program).unwrap();
    let mut trained = rig.backend.open(&program).unwrap();
    let before = logits(&mut frozen);
    assert_eq!(logits(&mut trained), before);
    trained.set_weights(&changed(&program)).unwrap();
    assert_ne!(logits(&mut trained), before);
    assert_eq!(logits(&mut frozen), before);
}

/// On a machine that ignores reloading, a driver told to rely on it computes with the old weights:
/// what the self-test is for.
#[test]
fn a_reload_that_does_nothing_would_be_seen() {
    let model = stories();
    let program = model.specialize(CONTEXT).unwrap();
    let mut setup = Setup::new("m4", Arithmetic::Fp16)
        .with(|chip| chip.switches.delta_reload.as_mut().unwrap().value = Reload::Ignored);
    setup.update = Some(Update::Delta);
    let rig = setup.rig();
    let mut runnable = rig.backend.open(&program).unwrap();
    let old = logits(&mut runnable);
    runnable.set_weights(&changed(&program)).unwrap();
    assert_eq!(logits(&mut runnable), old);
}

/// Two sequences by turns, one of which began before the weights of the other's program changed.
#[test]
fn states_take_turns() {
    let model = stories();
    let (program, vocab) = (model.specialize(CONTEXT).unwrap(), model.config().vocab);
    let rig = Setup::new("m4", Arithmetic::Fp16).rig();
    let mut both: Vec<Session> = Vec::new();
    for _ in 0..2 {
        both.push(prepared(&rig.backend, &program, vocab));
    }
    let ids = [&PROMPT[..], &PROMPT[..3]];
    for _ in 0..3 {
        for (session, ids) in both.iter_mut().zip(ids) {
            session.reset();
            let logits = session.logits_after(ids).unwrap();
            let mut cpu = prepared(&CpuBackend::new(1), &program, vocab);
            let wanted = cpu.logits_after(ids).unwrap();
            assert!(
                largest_difference(&logits, &wanted)
                    < 0.05 * f16::ONE.to_f32().max(wanted[0].abs())
            );
        }
    }
}

#[test]
fn another_program_or_shape_is_refused() {
    let program = stories().specialize(CONTEXT).unwrap();
    let rig = Setup::new("m4", Arithmetic::Fp16).rig();
    let mut runnable = rig.backend.open(&program).unwrap();
    let mut other = program.clone();
    let id = program.weights.find(&changing(&program)[0]).unwrap();
    other.weights.replace(id, Tensor::from_slice(&[1], &[0.0f32]).unwrap());
    assert!(runnable.set_weights(&other).is_err());
    let mut fewer = program.clone();
    fewer.functions.pop_last();
    let error = runnable.set_weights(&fewer).unwrap_err().to_string();
    assert!(error.contains("another"), "{error}");
}
