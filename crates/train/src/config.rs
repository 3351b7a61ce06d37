//! What a run is told, how far it is, and why it ends.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{LossScaling, OptimizerConfig, Result, Schedule, TrainError};

/// What a run does, apart from its data and its parameters.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Config {
    /// How parameters follow gradients.
    pub optimizer: OptimizerConfig,
    /// How fast, and for how many steps.
    pub schedule: Schedule,
    /// Batches whose gradients make one step; at least 1.
    pub accumulation: usize,
    /// For devices that compute in half precision; the gradients must have been made `scaled`.
    pub loss_scaling: Option<LossScaling>,
    /// Steps between evaluations on held-out data.
    pub evaluate_every: Option<u64>,
    /// Batches of an evaluation, at least 1; all of a pass by default.
    pub evaluate_batches: Option<usize>,
    /// When to give up.
    pub early_stop: Option<EarlyStop>,
}

impl Config {
    /// # Errors
    /// When a number is out of its range.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |why: &str| Err(TrainError::Invalid(why.to_owned()));
        if self.accumulation == 0 {
            return invalid("a step takes at least one batch");
        }
        if self.evaluate_batches == Some(0) {
            return invalid("an evaluation takes at least one batch");
        }
        let improvement = self.early_stop.map_or(0.0, |s| s.min_improvement);
        if self.early_stop.is_some_and(|s| s.patience == 0) {
            return invalid("the patience of early stop is 0 evaluations, and 1 at least");
        }
        if improvement < 0.0 || !improvement.is_finite() {
            return invalid(&format!("the least improvement is {improvement} nats"));
        }
        self.optimizer.check()?;
        self.schedule.check()?;
        self.loss_scaling.as_ref().map_or(Ok(()), LossScaling::check)
    }
}

/// When evaluations say that a run is done.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct EarlyStop {
    /// Evaluations in a row without an improvement that end the run; at least 1.
    pub patience: u32,
    /// What counts as one, in nats; at least 0.
    pub min_improvement: f64,
}

impl EarlyStop {
    /// Whether a run that is so far is done.
    pub fn is_due(self, progress: &Progress) -> bool {
        progress.stale >= self.patience
    }
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Tokens seen, padding apart.
    pub tokens: u64,
    /// The least held-out loss and the step after which it was measured.
    pub best: Option<(u64, f64)>,
    /// Evaluations since then.
    pub stale: u32,
    /// Whether an evaluation after this step was due and broken off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unevaluated: bool,
}

/// Where and how often a run is saved.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    /// The directory that holds them.
    pub dir: PathBuf,
    /// Steps between them; one is also written at the end.
    pub every: Option<u64>,
    /// How many are kept; at least 1.
    pub keep: usize,
    /// What the caller wants to find in them: its own configuration.
    pub settings: Value,
}

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// All steps are done.
    Finished,
    /// The observer asked for it.
    Stopped,
    /// The held-out loss got no better.
    NoImprovement,
}
