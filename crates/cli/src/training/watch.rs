//! Watches a run as it goes: shows it, as a live line on a terminal, plain lines elsewhere, and heeds a signal.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use analysis::units::size;
use indicatif::ProgressBar;
use train::{Evaluation, Observer, Step};

use crate::{output, progress};

/// Time between plain lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Ends the run when the flag is set.
pub(super) struct Cancel(pub(super) Arc<AtomicBool>);

impl Observer for Cancel {
    fn step(&mut self, _: &Step) -> train::Result<ControlFlow<()>> {
        Ok(match self.0.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    }

    fn is_ending(&mut self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Shows steps on standard error.
pub(super) struct Watch {
    bar: ProgressBar,
    total: u64,
    shown: Option<Instant>,
    rate: Option<f64>,
    held_out: Option<f64>,
}

impl Watch {
    /// Watches a run of `total` steps of which `done` are done.
    pub(super) fn new(done: u64, total: u64) -> Self {
        let bar = progress::training(total);
        bar.set_position(done);
        bar.reset_eta();
        Watch { bar, total, shown: None, rate: None, held_out: None }
    }

    fn line(&self, text: &str) {
        match self.bar.is_hidden() {
            true => output::note(text),
            false => self.bar.println(text),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Watch {
    fn step(&mut self, step: &Step) -> train::Result<ControlFlow<()>> {
        let now = step.tokens as f64 / step.seconds.max(1e-9);
        // A moving mean, so that the number can be read.
        let rate = self.rate.map_or(now, |rate| 0.9 * rate + 0.1 * now);
        self.rate = Some(rate);
        let memory = step.peak_bytes.map(|b| format!("  {}", size(b))).unwrap_or_default();
        let held_out = self.held_out.map(|l| format!("  held out {l:.4}")).unwrap_or_default();
        let text = format!(
            "loss {:.4}{held_out}  {rate:.0} tokens/s  gradient {:.3}{memory}",
            step.loss, step.gradient_norm
        );
        self.bar.set_position(step.step);
        self.bar.set_message(text.clone());
        let due = self.shown.is_none_or(|at| at.elapsed() >= PAUSE) || step.step == self.total;
        if due && self.bar.is_hidden() {
            self.shown = Some(Instant::now());
            output::note(&format!("step {}/{}  {text}", step.step, self.total));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> train::Result<()> {
        self.held_out = Some(evaluation.loss);
        self.line(&format!("step {}: held-out loss {:.4}", evaluation.step, evaluation.loss));
        Ok(())
    }

    fn saved(&mut self, step: u64, path: &Path) -> train::Result<()> {
        self.line(&format!("step {step}: saved {}", path.display()));
        Ok(())
    }
}
