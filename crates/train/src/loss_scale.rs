//! Dynamic loss scaling: against underflow of gradients in half precision (Micikevicius et al., arXiv:1710.03740).

use serde::{Deserialize, Serialize};

use crate::{Result, TrainError};

/// How the scale moves.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LossScaling {
    /// The first scale, from `min` to `max`.
    pub initial: f32,
    /// The scale is multiplied by this after `interval` steps without overflow; at least 1.
    pub growth: f32,
    /// The scale is multiplied by this at an overflow; between 0 and 1.
    pub backoff: f32,
    /// Steps between growths; at least 1.
    pub interval: u32,
    /// Below this the gradients themselves are at fault; above 0.
    pub min: f32,
    /// Never above.
    pub max: f32,
}

impl Default for LossScaling {
    fn default() -> Self {
        LossScaling {
            initial: 65536.0,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
            min: 1.0,
            max: 16_777_216.0,
        }
    }
}

impl LossScaling {
    /// # Errors
    /// When a number is out of its range.
    pub(crate) fn check(&self) -> Result<()> {
        let LossScaling { initial, growth, backoff, interval, min, max } = *self;
        let scales = 0.0 < min && max.is_finite() && (min..=max).contains(&initial);
        let moves = growth >= 1.0 && growth.is_finite() && 0.0 < backoff && backoff < 1.0;
        if scales && moves && interval > 0 {
            return Ok(());
        }
        Err(TrainError::Invalid(format!("a number of the loss scaling is out of range: {self:?}")))
    }
}

/// The scale now.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LossScale {
    /// What the loss is multiplied by.
    pub scale: f32,
    /// Steps since it last moved.
    pub steps: u32,
}

impl LossScale {
    /// At the start of a run.
    pub fn new(scaling: &LossScaling) -> Self {
        LossScale { scale: scaling.initial, steps: 0 }
    }

    /// After a step without overflow.
    pub fn succeeded(&mut self, scaling: &LossScaling) {
        self.steps += 1;
        if self.steps >= scaling.interval {
            self.scale = (self.scale * scaling.growth).min(scaling.max);
            self.steps = 0;
        }
    }

    /// After an overflow; false if the scale cannot be lower.
    pub fn overflowed(&mut self, scaling: &LossScaling) -> bool {
        let lower = self.scale * scaling.backoff;
        let can = lower >= scaling.min && lower < self.scale;
        if can {
            *self = LossScale { scale: lower, steps: 0 };
        }
        can
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves() {
        let scaling = LossScaling { initial: 4.0, interval: 2, max: 8.0, ..Default::default() };
        let mut s = LossScale::new(&scaling);
        let scales = [(); 5].map(|()| {
            s.succeeded(&scaling);
            s.scale
        });
        assert_eq!(scales, [4.0, 8.0, 8.0, 8.0, 8.0]);
        let falls = [(); 5].map(|()| (s.overflowed(&scaling), s.scale));
        assert_eq!(falls, [(true, 4.0), (true, 2.0), (true, 1.0), (false, 1.0), (false, 1.0)]);
    }
}
