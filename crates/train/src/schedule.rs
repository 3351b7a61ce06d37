//! The learning rate over the steps of a run.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use crate::{Result, TrainError};

/// A linear warm-up, then a way down.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// The greatest learning rate.
    pub peak: f64,
    /// Steps before it is reached; at most `total`.
    pub warmup: u64,
    /// Steps of the whole run.
    pub total: u64,
    /// What is left of the peak at the end, from 0 to 1.
    pub floor: f64,
    /// The way from the peak to the floor.
    pub decay: Decay,
}

/// How the learning rate falls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// It stays at the peak.
    Constant,
    /// By equal amounts.
    Linear,
    /// Along half a cosine (Loshchilov & Hutter, arXiv:1608.03983).
    Cosine,
}

impl Schedule {
    /// # Errors
    /// When a number is out of its range.
    pub(crate) fn check(&self) -> Result<()> {
        let fits = self.peak >= 0.0 && self.peak.is_finite() && (0.0..=1.0).contains(&self.floor);
        if fits && self.warmup <= self.total {
            return Ok(());
        }
        Err(TrainError::Invalid(format!("a number of the schedule is out of range: {self:?}")))
    }

    /// The learning rate of the step after `done` steps: `peak * (done + 1) / (warmup + 1)` during warm-up,
    /// then from the peak at `done = warmup` down to the floor at `done = total`.
    pub fn at(&self, done: u64) -> f64 {
        if done < self.warmup {
            return self.peak * (done + 1) as f64 / (self.warmup + 1) as f64;
        }
        let way = self.total.saturating_sub(self.warmup).max(1) as f64;
        let part = ((done - self.warmup) as f64 / way).min(1.0);
        let left = match self.decay {
            Decay::Constant => return self.peak,
            Decay::Linear => 1.0 - part,
            Decay::Cosine => 0.5 * (1.0 + (PI * part).cos()),
        };
        let floor = self.peak * self.floor;
        floor + (self.peak - floor) * left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners() {
        let s = Schedule { peak: 1.0, warmup: 3, total: 11, floor: 0.1, decay: Decay::Cosine };
        let near = |x: f64, y: f64| assert!((x - y).abs() < 1e-12, "{x} is not {y}");
        [0.25, 0.5, 0.75, 1.0].iter().enumerate().for_each(|(i, &v)| near(s.at(i as u64), v));
        near(s.at(7), 0.55);
        near(s.at(11), 0.1);
        near(s.at(100), 0.1);
        near(Schedule { decay: Decay::Linear, ..s }.at(5), 0.1 + 0.9 * 0.75);
        near(Schedule { decay: Decay::Constant, ..s }.at(100), 1.0);
        near(Schedule { warmup: 0, total: 0, ..s }.at(0), 1.0);
    }
}
