//! What is emulated: a chip with its switches, the arithmetic, the clock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ane_model::{Chip, Os};
use mil::{OpView, Program, Type};

/// How an emulated engine computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arithmetic {
    /// In `f64`; only surfaces round.
    Exact,
    /// Every result rounded once to its type.
    Fp16,
    /// As the chip's file says: its accumulator, its tables, its lost subnormals.
    Engine,
}

/// How long an emulated engine takes.
pub trait Clock: Send + Sync {
    /// Time of one evaluation.
    fn evaluation(&self, program: &Program, chip: &Chip) -> Duration;
    /// Time of compiling.
    fn compilation(&self, program: &Program, chip: &Chip) -> Duration;
    /// Time of loading.
    fn load(&self, program: &Program, chip: &Chip) -> Duration;
}

/// A clock of the chip file's rates alone: an evaluation takes the dispatch and the larger of
/// arithmetic and weight streaming. Rates that are unknown take no time.
#[derive(Clone, Copy, Default, Debug)]
pub struct RateClock;

fn milliseconds(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default()
}

impl Clock for RateClock {
    fn evaluation(&self, program: &Program, chip: &Chip) -> Duration {
        let operations =
            program.functions.values().flat_map(|f| f.ops.values().map(move |o| (f, o)));
        let flops: f64 = operations
            .map(|(function, op)| {
                let results: Vec<Type> =
                    op.outputs.iter().map(|&v| function.ty(v).clone()).collect();
                let view = OpView::new(function, &program.weights, op);
                op.kind.def().cost(&view, &results).flops
            })
            .sum();
        let bytes = program.weights.byte_len() as f64;
        let rates = &chip.rates;
        let value = |fact: &Option<ane_model::chip::Fact<f64>>| fact.as_ref().map(|f| f.value);
        let compute = value(&rates.fp16_tflops).map_or(0.0, |r| flops / (r * 1e9));
        let weights = value(&rates.weight_gbps).map_or(0.0, |r| bytes / (r * 1e6));
        milliseconds(value(&rates.dispatch_ms).unwrap_or(0.0) + compute.max(weights))
    }

    fn compilation(&self, _: &Program, chip: &Chip) -> Duration {
        milliseconds(chip.rates.compile_ms.as_ref().map_or(0.0, |f| f.value))
    }

    fn load(&self, _: &Program, chip: &Chip) -> Duration {
        milliseconds(chip.rates.load_ms.as_ref().map_or(0.0, |f| f.value))
    }
}

/// What to emulate.
#[derive(Clone)]
pub struct Machine {
    /// The chip; its switches say how disputed behaviours go.
    pub chip: Chip,
    /// The operating system.
    pub os: Os,
    /// The arithmetic.
    pub arithmetic: Arithmetic,
    /// Where programs' directories are made: what `NSTemporaryDirectory()` would be.
    pub directory: PathBuf,
    /// Requests of others that are in flight at any time.
    pub queued: usize,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl Machine {
    /// A machine with nothing else running, whose time the chip file's rates tell.
    pub fn new(chip: Chip, os: Os, arithmetic: Arithmetic, directory: PathBuf) -> Self {
        // A machine knows no doubt: what is disputed is as its file's values have it.
        let chip = chip.settled();
        Machine { chip, os, arithmetic, directory, queued: 0, clock: Arc::new(RateClock) }
    }
}
