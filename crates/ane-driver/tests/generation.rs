//! Language models through the driver on emulated engines, against the CPU.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use ane_emu::{Arithmetic, Emulator, Machine};
use ane_model::Chip;
use cpu::CpuBackend;
use exec::Backend;
use exec::port::Port;
use llm::Model;
use llm::generate::Session;
use rigel_ane_driver::{AneBackend, Options, Stats};
use tempfile::TempDir;

/// An emulated machine, its port, and a backend over it.
struct Rig {
    port: Arc<Emulator>,
    backend: AneBackend<Emulator>,
    directory: TempDir,
}

fn rig(
    chip: &str,
    arithmetic: Arithmetic,
    functions: &[&str],
    change: impl FnOnce(&mut Chip),
) -> Rig {
    let directory = tempfile::tempdir().unwrap();
    let mut chip = Chip::find(chip).unwrap().clone();
    change(&mut chip);
    let os = "macos15".parse().unwrap();
    let machine = Machine::new(chip.clone(), os, arithmetic, directory.path().to_owned());
    let port = Arc::new(Emulator::new(machine));
    let options = Options {
        chip,
        os,
        functions: functions.iter().map(|&f| f.to_owned()).collect(),
        columns: vec![16, 64],
        adapters: Vec::new(),
        exhausted: None,
    };
    let backend = AneBackend::new(port.clone(), Arc::new(CpuBackend::new(1)), options);
    Rig { port, backend, directory }
}

const CONTEXT: usize = 128;

fn session(backend: &dyn Backend, model: &Model) -> Session {
    let program = model.specialize(CONTEXT).unwrap();
    Session::new(backend.prepare(&program).unwrap(), CONTEXT, model.config().vocab).unwrap()
}

/// Greedy tokens after `prompt`, and the smallest difference of the two largest logits.
fn greedy(session: &mut Session, prompt: &[u32], count: usize) -> (Vec<u32>, f32) {
    let mut ids = prompt.to_vec();
    let mut margin = f32::INFINITY;
    for _ in 0..count {
        let logits = session.logits_after(&ids).unwrap();
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        let second =
            (0..logits.len()).filter(|&i| i != best).map(|i| logits[i]).fold(f32::MIN, f32::max);
        margin = margin.min(logits[best] - second);
        ids.push(best as u32);
    }
    (ids.split_off(prompt.len()), margin)
}

fn stories() -> Model {
    Model::load(testkit::shared_dir().join("models/stories260K.bin")).unwrap()
}

const PROMPT: [u32; 5] = [1, 403, 407, 261, 378];

fn run(rig: &Rig, model: &Model, count: usize) -> (Vec<u32>, f32, Stats) {
    let mut session = session(&rig.backend, model);
    let (ids, margin) = greedy(&mut session, &PROMPT, count);
    (ids, margin, rig.backend.stats())
}

#[test]
fn stories_are_the_same_on_the_engine() {
    let model = stories();
    let (wanted, margin) = greedy(&mut session(&CpuBackend::new(1), &model), &PROMPT, 64);
    for arithmetic in [Arithmetic::Exact, Arithmetic::Fp16] {
        let rig = rig("m4", arithmetic, &["prefill", "decode"], |_| {});
        let (ids, own, stats) = run(&rig, &model, 64);
        assert_eq!(ids, wanted, "{arithmetic:?}, margins {margin} and {own}");
        assert!(stats.dispatches > 64 && stats.virtual_time.unwrap().as_micros() > 0, "{stats:?}");
        println!("{arithmetic:?} {stats:?}");
        let usage = rig.port.usage();
        assert_eq!(usage.compilations, stats.compilations);
        drop(rig.backend);
        let usage = rig.port.usage();
        assert_eq!((usage.models, usage.loaded, usage.surfaces), (0, 0, 0), "{usage:?}");
        assert_eq!(std::fs::read_dir(rig.directory.path()).unwrap().count(), 0);
    }
}
