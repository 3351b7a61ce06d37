//! The stories model: greedy tokens, what is left behind, and the engine's own arithmetic.

use ane_emu::Arithmetic;
use cpu::CpuBackend;
use exec::port::Port;
use exec::{Backend, Tensors};
use tensor::Tensor;

use crate::common::{CONTEXT, PROMPT, Setup, best, greedy, session, stories};

#[test]
fn tokens_are_the_same_and_nothing_is_left() {
    let model = stories();
    let (wanted, margin) = greedy(&mut session(&CpuBackend::new(1), &model), &PROMPT, 64);
    for arithmetic in [Arithmetic::Exact, Arithmetic::Fp16] {
        let rig = Setup::new("m4", arithmetic).rig();
        let (ids, own) = greedy(&mut session(&rig.backend, &model), &PROMPT, 64);
        assert_eq!(ids, wanted, "{arithmetic:?}, margins {margin} and {own}");
        let stats = rig.backend.stats();
        assert!(stats.dispatches >= 64 * 5, "{stats:?}");
        assert!(stats.predicted.unwrap().as_micros() > 0, "{stats:?}");
        assert_eq!(rig.port.usage().compilations, stats.compilations);
        drop(rig.backend);
        let usage = rig.port.usage();
        assert_eq!((usage.models, usage.loaded, usage.surfaces), (0, 0, 0), "{usage:?}");
        assert_eq!(std::fs::read_dir(rig.directory.path()).unwrap().count(), 0);
    }
}

/// In the engine's arithmetic tokens may differ where the two best are close; along the CPU's own
/// tokens they seldom do.
#[test]
fn the_engines_arithmetic_agrees_where_margins_are_wide() {
    let model = stories();
    let mut cpu = session(&CpuBackend::new(1), &model);
    let (ids, _) = greedy(&mut cpu, &PROMPT, 48);
    for chip in ["m1", "m4"] {
        let rig = Setup::new(chip, Arithmetic::Engine).rig();
        let (mut cpu, mut engine) =
            (session(&CpuBackend::new(1), &model), session(&rig.backend, &model));
        let mut given = PROMPT.to_vec();
        let (mut agreed, mut widest_missed) = (0, 0.0f32);
        for id in &ids {
            let (wanted, margin) = best(&cpu.logits_after(&given).unwrap());
            let (found, _) = best(&engine.logits_after(&given).unwrap());
            agreed += usize::from(found == wanted);
            if found != wanted {
                widest_missed = widest_missed.max(margin);
            }
            given.push(*id);
        }
        println!("{chip}: {agreed} of {} agree; widest margin missed {widest_missed}", ids.len());
        assert!(agreed * 10 >= ids.len() * 8, "{chip}: {agreed} of {} agree", ids.len());
        assert!(widest_missed < 1.5, "{chip}: a margin of {widest_missed} was missed");
    }
}

/// The engine takes the prompt, the CPU goes on from the same caches; and the other way round.
#[test]
fn engine_and_cpu_take_turns() {
    let model = stories();
    let (wanted, _) = greedy(&mut session(&CpuBackend::new(1), &model), &PROMPT, 32);
    for function in ["prefill", "decode"] {
        let mut setup = Setup::new("m4", Arithmetic::Fp16);
        setup.functions = Some(vec![function.to_owned()]);
        let rig = setup.rig();
        let (ids, _) = greedy(&mut session(&rig.backend, &model), &PROMPT, 32);
        assert_eq!(ids, wanted, "{function} on the engine");
    }
}

/// A prompt longer than the widest program is taken in pieces.
#[test]
fn long_prompts_are_cut() {
    let model = stories();
    let prompt: Vec<u32> = (0..100).map(|i| 260 + i * 7 % 240).collect();
    assert!(prompt.len() < CONTEXT);
    let (wanted, _) = greedy(&mut session(&CpuBackend::new(1), &model), &prompt, 8);
    let rig = Setup::new("m4", Arithmetic::Fp16).rig();
    let (ids, _) = greedy(&mut session(&rig.backend, &model), &prompt, 8);
    assert_eq!(ids, wanted);
}

fn call(ids: &[i32], positions: &[i32]) -> Tensors {
    let ids = Tensor::from_slice(&[1, ids.len()], ids).unwrap();
    let positions = Tensor::from_slice(&[positions.len()], positions).unwrap();
    [("ids".to_owned(), ids), ("positions".to_owned(), positions)].into()
}

/// A function without caches, whose tokens see each other within a call alone, is not cut.
#[test]
fn a_call_that_cannot_be_cut_is_the_hosts() {
    let model = stories();
    let program = model.specialize(CONTEXT).unwrap();
    let ids: Vec<i32> = (0..100).map(|i| 260 + i * 7 % 240).collect();
    let positions: Vec<i32> = (0..100).collect();
    let mut setup = Setup::new("m4", Arithmetic::Fp16);
    setup.functions = Some(vec!["score".to_owned()]);
    let rig = setup.rig();
    let logits = |backend: &dyn Backend| {
        let mut runnable = backend.prepare(&program).unwrap();
        let mut state = runnable.new_state().unwrap();
        let out = runnable.run("score", &call(&ids, &positions), &mut state).unwrap();
        out.into_values().next().unwrap()
    };
    let (wanted, found) = (logits(&CpuBackend::new(1)), logits(&rig.backend));
    assert_eq!(wanted.shape(), found.shape());
    let [wanted, found] = [wanted, found].map(|t| mil::eval::tensor_floats(&t).unwrap());
    let largest = wanted.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let apart =
        |(a, b): (&[f64], &[f64])| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let vocab = wanted.len() / ids.len();
    for (token, pair) in wanted.chunks(vocab).zip(found.chunks(vocab)).enumerate() {
        let apart = apart(pair);
        assert!(apart / largest < 1e-2, "token {token}: {apart} of {largest}");
    }
}

#[test]
fn what_does_not_fit_a_call_is_refused() {
    let model = stories();
    let program = model.specialize(CONTEXT).unwrap();
    let rig = Setup::new("m4", Arithmetic::Fp16).rig();
    let mut runnable = rig.backend.prepare(&program).unwrap();
    let mut state = runnable.new_state().unwrap();
    let mut refused = |inputs: Tensors, expected: &str| {
        let error = runnable.run("prefill", &inputs, &mut state).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(call(&[300], &[CONTEXT as i32]), "position 128");
    refused(call(&[300], &[-1]), "position -1");
    refused(call(&[300, 301], &[3, 3]), "position 3");
    refused(call(&[300, 301], &[3]), "in another place");
    let mut extra = call(&[300], &[0]);
    extra.insert("other".into(), Tensor::from_slice(&[1], &[0i32]).unwrap());
    refused(extra, "no such input");
    refused(Tensors::new(), "missing");
    // Nothing of it stays behind.
    let bytes = |out: Tensors| out["logits"].bytes().to_vec();
    let after = bytes(runnable.run("prefill", &call(&[300], &[0]), &mut state).unwrap());
    let mut fresh = runnable.new_state().unwrap();
    let wanted = bytes(runnable.run("prefill", &call(&[300], &[0]), &mut fresh).unwrap());
    assert_eq!(after, wanted);
}

/// A context whose caches would have a width that surfaces should not have.
#[test]
fn an_odd_context_is_refused() {
    let program = stories().specialize(CONTEXT + 1).unwrap();
    let Err(e) = Setup::new("m4", Arithmetic::Fp16).rig().backend.prepare(&program) else {
        panic!("129 slots")
    };
    assert!(e.to_string().contains("multiples of 16"), "{e}");
}
