//! What is emulated: a chip with its switches, the arithmetic, the clock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ane_model::chip::Fact;
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

/// How long an emulated engine takes; `None` where that is not known.
pub trait Clock: Send + Sync {
    /// Time of one evaluation.
    fn evaluation(&self, program: &Program, chip: &Chip) -> Option<Duration>;
    /// Time of compiling.
    fn compilation(&self, program: &Program, chip: &Chip) -> Option<Duration>;
    /// Time of loading.
    fn load(&self, program: &Program, chip: &Chip) -> Option<Duration>;
}

/// A clock of the chip file's rates alone: an evaluation takes the dispatch and the larger of
/// arithmetic and weight streaming.
#[derive(Clone, Copy, Default, Debug)]
pub struct RateClock;

fn milliseconds(ms: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(ms / 1e3).ok()
}

fn value(fact: &Option<Fact<f64>>) -> Option<f64> {
    fact.as_ref().map(|f| f.value)
}

impl Clock for RateClock {
    fn evaluation(&self, program: &Program, chip: &Chip) -> Option<Duration> {
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
        let compute = flops / (value(&rates.fp16_tflops)? * 1e9);
        // Without weights their rate does not matter.
        let weights = if bytes == 0.0 { 0.0 } else { bytes / (value(&rates.weight_gbps)? * 1e6) };
        milliseconds(value(&rates.dispatch_ms)? + compute.max(weights))
    }

    fn compilation(&self, _: &Program, chip: &Chip) -> Option<Duration> {
        milliseconds(value(&chip.rates.compile_ms)?)
    }

    fn load(&self, _: &Program, chip: &Chip) -> Option<Duration> {
        milliseconds(value(&chip.rates.load_ms)?)
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
