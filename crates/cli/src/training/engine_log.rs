//! What each step takes of an engine, as JSON lines.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ane_driver::Stats;
use serde::{Deserialize, Serialize};
use train::metrics::{JsonLines, Line};
use train::{Observer, Step};

use super::run::lines;
use crate::devices::EngineStats;

/// One line: a step, what it takes, evaluations since the step before included. Times are those of the engine's
/// clock, unknown where its chip's file lacks a rate.
#[derive(Serialize, Deserialize)]
struct Taken {
    step: u64,
    compilations: usize,
    loads: usize,
    reloads: usize,
    dispatches: usize,
    copied_bytes: usize,
    predicted_s: Option<f64>,
    preparing_s: Option<f64>,
}

impl Line for Taken {
    fn step(&self) -> u64 {
        self.step
    }
}

/// Writes them, and stops the run before a step for which this process has too few compilations left.
pub(super) struct EngineLog {
    lines: JsonLines<Taken>,
    stats: EngineStats,
    before: Stats,
    /// Whether the first step of this process is done, which compiles what is compiled once.
    begun: bool,
    /// Whether each step may compile.
    compiles: bool,
    exhausted: Arc<AtomicBool>,
}

impl EngineLog {
    /// Goes on with the file at `path` behind step `done`, of steps that each may compile, or that all use what the
    /// first one compiled. `exhausted` is set when the run is stopped.
    ///
    /// # Errors
    /// As for [`JsonLines::open`].
    pub(super) fn open(
        path: &Path,
        done: u64,
        stats: EngineStats,
        compiles: bool,
        exhausted: Arc<AtomicBool>,
    ) -> train::Result<Self> {
        let (lines, before) = (lines(path, done)?, stats().0);
        Ok(EngineLog { lines, before, stats, begun: false, compiles, exhausted })
    }
}

impl Observer for EngineLog {
    fn step(&mut self, step: &Step) -> train::Result<ControlFlow<()>> {
        let (now, left) = (self.stats)();
        let before = std::mem::replace(&mut self.before, now);
        // Before the first dispatch there is no time yet.
        let since = |now: Option<Duration>, before: Option<Duration>| {
            Some((now? - before.unwrap_or_default()).as_secs_f64())
        };
        let compilations = now.compilations - before.compilations;
        self.lines.write(&Taken {
            step: step.step,
            compilations,
            loads: now.loads - before.loads,
            reloads: now.reloads - before.reloads,
            dispatches: now.dispatches - before.dispatches,
            copied_bytes: now.copied - before.copied,
            predicted_s: since(now.predicted, before.predicted),
            preparing_s: since(now.preparing, before.preparing),
        })?;
        // The first step may have compiled what later ones use, an evaluation's programs among it; after that it is
        // enough for a step and for an evaluation after it.
        let needed = match (self.compiles, std::mem::replace(&mut self.begun, true)) {
            (false, _) => 0,
            (true, false) => compilations,
            (true, true) => 2 * compilations,
        };
        if left.is_some_and(|left| left < needed) {
            self.exhausted.store(true, Ordering::Relaxed);
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }
}
