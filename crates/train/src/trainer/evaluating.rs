//! Evaluations on held-out data, and what they say of the run.

use std::time::Instant;

use super::Trainer;
use crate::{BatchSource, Evaluation, Observer, Result, TrainError};

impl Trainer {
    /// The mean loss over one pass of `data`, or its first batches if the configuration bounds them;
    /// `data` stands then where it stood.
    ///
    /// # Errors
    /// When there are no targets or no end, a run fails, or the loss is not finite.
    pub fn evaluate(&mut self, data: &mut dyn BatchSource) -> Result<Evaluation> {
        let whole = self.evaluation(data, &mut || false)?;
        whole.ok_or_else(|| TrainError::Invalid("another process left the evaluation".to_owned()))
    }

    /// As [`Trainer::evaluate`]; `None` if this process or another was to leave it, which is asked before each
    /// batch.
    fn evaluation(
        &mut self,
        data: &mut dyn BatchSource,
        is_ending: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Evaluation>> {
        let start = Instant::now();
        if self.config.evaluate_batches.is_none() && data.is_endless() {
            let why = "the held-out data has no end, and the configuration no bound of its batches";
            return Err(TrainError::Invalid(why.to_owned()));
        }
        let position = data.position();
        let [mut total, mut targets, mut left] = [0.0; 3];
        let mut culprit = Vec::new();
        for _ in 0..self.config.evaluate_batches.unwrap_or(usize::MAX) {
            if is_ending() {
                left = 1.0;
                break;
            }
            let Some(batch) = data.next_batch()? else { break };
            if batch.targets == 0 {
                continue; // A mean over none is not a number.
            }
            let loss = self.prepared.loss(&batch)?;
            total += loss * batch.targets as f64;
            targets += batch.targets as f64;
            if !loss.is_finite() {
                culprit.push(batch);
                break;
            }
        }
        data.seek(&position)?;
        let mut sums = [total, targets, left];
        self.sum(&mut sums)?;
        let [total, targets, left] = sums;
        if left > 0.0 {
            return Ok(None);
        }
        if targets == 0.0 {
            return Err(TrainError::Invalid("the held-out data has no targets".to_owned()));
        }
        let loss = total / targets;
        if !loss.is_finite() {
            let what = format!("the held-out loss is {loss}");
            return Err(self.not_finite(self.progress.step, what, &culprit));
        }
        let seconds = start.elapsed().as_secs_f64();
        let targets = targets as u64;
        Ok(Some(Evaluation { step: self.progress.step, loss, targets, seconds }))
    }

    /// Evaluates and takes note of it; whether it is time to give up, or `None` if the evaluation was left.
    pub(super) fn judge(
        &mut self,
        held_out: &mut dyn BatchSource,
        observer: &mut dyn Observer,
    ) -> Result<Option<bool>> {
        let evaluation = self.evaluation(held_out, &mut || observer.is_ending())?;
        self.progress.unevaluated = evaluation.is_none();
        let Some(evaluation) = evaluation else { return Ok(None) };
        observer.evaluated(&evaluation)?;
        let stop = self.config.early_stop;
        let least = stop.map_or(0.0, |s| s.min_improvement);
        let progress = &mut self.progress;
        if progress.best.is_none_or(|(_, best)| evaluation.loss < best - least) {
            progress.best = Some((evaluation.step, evaluation.loss));
            progress.stale = 0;
        } else {
            progress.stale += 1;
        }
        Ok(Some(stop.is_some_and(|s| s.is_due(progress))))
    }

    /// Whether the evaluation of this step is one to go back to.
    pub(super) fn is_best(&self) -> bool {
        let best = self.progress.best.is_some_and(|(step, _)| step == self.progress.step);
        best && self.config.early_stop.is_some()
    }
}
