//! What a run tells of itself.

use std::ops::ControlFlow;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Result;

/// One step, as it is reported.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Which, from 1.
    pub step: u64,
    /// Mean loss over the targets before the step, in nats.
    pub loss: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// What the loss was multiplied by.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<f32>,
    /// Tokens of this step, padding apart.
    pub tokens: u64,
    /// Tokens since the beginning.
    pub total_tokens: u64,
    /// Time of the step, reading of data included.
    pub seconds: f64,
    /// Time of it that the optimiser took.
    pub update_seconds: f64,
    /// The most memory that the process has had so far, where the system tells.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peak_bytes: Option<u64>,
}

/// One evaluation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Evaluation {
    /// After which step.
    pub step: u64,
    /// Mean loss over the targets, in nats.
    pub loss: f64,
    /// Targets.
    pub targets: u64,
    /// Time it took.
    pub seconds: f64,
}

/// Is told what happens in a run.
pub trait Observer {
    /// After each step. `Break` ends the run, with a checkpoint.
    ///
    /// # Errors
    /// Its own; they end the run without one.
    fn step(&mut self, _step: &Step) -> Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }

    /// Between the batches of an evaluation: whether to leave it and end the run, with a checkpoint that says that it
    /// is still due.
    fn is_ending(&mut self) -> bool {
        false
    }

    /// After each evaluation.
    ///
    /// # Errors
    /// Its own.
    fn evaluated(&mut self, _evaluation: &Evaluation) -> Result<()> {
        Ok(())
    }

    /// After each checkpoint.
    ///
    /// # Errors
    /// Its own.
    fn saved(&mut self, _step: u64, _path: &Path) -> Result<()> {
        Ok(())
    }
}

/// Observes nothing.
pub struct Silent;

impl Observer for Silent {}

/// Tells every one of them.
impl Observer for Vec<Box<dyn Observer + '_>> {
    fn step(&mut self, step: &Step) -> Result<ControlFlow<()>> {
        let mut flow = ControlFlow::Continue(());
        for observer in self {
            if observer.step(step)?.is_break() {
                flow = ControlFlow::Break(());
            }
        }
        Ok(flow)
    }

    fn is_ending(&mut self) -> bool {
        self.iter_mut().any(|o| o.is_ending())
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> Result<()> {
        self.iter_mut().try_for_each(|o| o.evaluated(evaluation))
    }

    fn saved(&mut self, step: u64, path: &Path) -> Result<()> {
        self.iter_mut().try_for_each(|o| o.saved(step, path))
    }
}
