//! Emulated machines with a driver over them, and models on both sides.

use std::sync::Arc;

use ane_emu::{Arithmetic, Emulator, Machine};
use ane_model::Chip;
use cpu::CpuBackend;
use exec::Backend;
use llm::Model;
use llm::generate::Session;
use mil::Program;
use passes::ane::Variable;
use rigel_ane_driver::{AneBackend, Options, Update};
use tempfile::TempDir;

/// An emulated machine, its port, and a backend over it.
pub(crate) struct Rig {
    pub(crate) port: Arc<Emulator>,
    pub(crate) backend: AneBackend<Emulator>,
    pub(crate) directory: TempDir,
}

/// What a rig is made of; [`Setup::new`] is an M4 with everything on the engine.
pub(crate) struct Setup {
    /// The machine's chip.
    pub(crate) chip: Chip,
    /// The chip that the driver takes it for.
    pub(crate) believed: Chip,
    pub(crate) arithmetic: Arithmetic,
    /// All if none is named.
    pub(crate) functions: Option<Vec<String>>,
    pub(crate) columns: Vec<usize>,
    pub(crate) variable: Variable,
    pub(crate) update: Option<Update>,
    /// Requests of others in flight.
    pub(crate) queued: usize,
}

impl Setup {
    pub(crate) fn new(chip: &str, arithmetic: Arithmetic) -> Self {
        let chip = Chip::find(chip).unwrap().clone();
        Setup {
            believed: chip.clone(),
            chip,
            arithmetic,
            functions: Some(["prefill", "decode"].map(str::to_owned).into()),
            columns: vec![16, 64],
            variable: Variable::default(),
            update: None,
            queued: 0,
        }
    }

    /// Changes machine and driver alike.
    pub(crate) fn with(mut self, change: impl Fn(&mut Chip)) -> Self {
        change(&mut self.chip);
        change(&mut self.believed);
        self
    }

    pub(crate) fn rig(self) -> Rig {
        let directory = tempfile::tempdir().unwrap();
        let os = "macos15".parse().unwrap();
        let mut machine = Machine::new(self.chip, os, self.arithmetic, directory.path().to_owned());
        machine.queued = self.queued;
        let port = Arc::new(Emulator::new(machine));
        let options = Options {
            chip: self.believed,
            os,
            functions: self.functions,
            columns: self.columns,
            variable: self.variable,
            update: self.update,
            exhausted: None,
        };
        let backend = AneBackend::new(port.clone(), Arc::new(CpuBackend::new(1)), options);
        Rig { port, backend, directory }
    }
}

pub(crate) const CONTEXT: usize = 128;

pub(crate) fn prepared(backend: &dyn Backend, program: &Program, vocab: usize) -> Session {
    Session::new(backend.prepare(program).unwrap(), CONTEXT, vocab).unwrap()
}

pub(crate) fn session(backend: &dyn Backend, model: &Model) -> Session {
    let context = CONTEXT.min(model.config().max_context);
    let runnable = backend.prepare(&model.specialize(context).unwrap()).unwrap();
    Session::new(runnable, context, model.config().vocab).unwrap()
}

/// Index of the largest logit, and how far it is above the next.
pub(crate) fn best(logits: &[f32]) -> (u32, f32) {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    let others = (0..logits.len()).filter(|&i| i != best).map(|i| logits[i]);
    (best as u32, logits[best] - others.fold(f32::MIN, f32::max))
}

/// Greedy tokens after `prompt`, and the smallest margin.
pub(crate) fn greedy(session: &mut Session, prompt: &[u32], count: usize) -> (Vec<u32>, f32) {
    let (mut ids, mut margin) = (prompt.to_vec(), f32::INFINITY);
    for _ in 0..count {
        let (id, own) = best(&session.logits_after(&ids).unwrap());
        margin = margin.min(own);
        ids.push(id);
    }
    (ids.split_off(prompt.len()), margin)
}

pub(crate) fn stories() -> Model {
    Model::load(testkit::shared_dir().join("models/stories260K.bin")).unwrap()
}

pub(crate) const PROMPT: [u32; 5] = [1, 403, 407, 261, 378];

pub(crate) fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

/// Sets a switch of a chip, known or not.
macro_rules! switch {
    ($chip:expr, $name:ident, $value:expr) => {
        if let Some(fact) = $chip.switches.$name.take() {
            $chip.switches.$name = Some(fact.with($value));
        }
    };
}
pub(crate) use switch;
