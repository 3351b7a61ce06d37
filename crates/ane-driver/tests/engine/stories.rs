//! The stories model: greedy tokens, what is left behind, and the engine's own arithmetic.

use ane_emu::Arithmetic;
use cpu::CpuBackend;
use exec::port::Port;

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
