//! What a file says of its rotary embedding.

use std::path::Path;

use crate::parts::RopeScaling;
use crate::{Error, Result};

/// Settings of a rotary embedding.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct RopeSettings {
    /// Base of the frequencies.
    pub(crate) base: f64,
    /// How they are stretched.
    pub(crate) scaling: RopeScaling,
    /// How many elements of a head are rotated.
    pub(crate) rotated: usize,
}

impl RopeSettings {
    /// Checks settings that `file` states for heads of `head_dim`.
    ///
    /// # Errors
    /// When they make no sense.
    pub(crate) fn checked(self, file: &Path, head_dim: usize) -> Result<Self> {
        if self.rotated == 0 || self.rotated > head_dim || !self.rotated.is_multiple_of(2) {
            let why =
                format!("rotary embedding of {} elements in heads of {head_dim}", self.rotated);
            return Err(Error::invalid(file, why));
        }
        let numbers = match self.scaling {
            RopeScaling::None => vec![self.base],
            RopeScaling::Linear { factor } => vec![self.base, factor],
            RopeScaling::ByWavelength { factor, low, high, original } => {
                vec![self.base, factor, low, high - low, original]
            }
        };
        if numbers.iter().any(|&x| !(x > 0.0 && x.is_finite())) {
            let why = format!("rotary base {} with scaling {:?}", self.base, self.scaling);
            return Err(Error::invalid(file, why));
        }
        Ok(self)
    }
}
