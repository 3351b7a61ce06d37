//! Rotary position embedding (Su et al. 2021): its frequencies and its operation.

use std::f64::consts::TAU;

use mil::{FunctionBuilder, Literal, OpKind, Result, ValueId};
use tensor::WeightId;

/// How frequencies are stretched for contexts longer than those of pre-training.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency is divided by `factor` (position interpolation, Chen et al. 2023).
    Linear {
        /// By how much.
        factor: f64,
    },
    /// As Llama 3.1 does: wavelengths longer than `original / low` are stretched by `factor`, those shorter
    /// than `original / high` are kept, and those between are blended.
    ByWavelength {
        /// By how much.
        factor: f64,
        /// Turns in the original context at and below which a frequency is stretched fully.
        low: f64,
        /// Turns in the original context at and above which a frequency is kept.
        high: f64,
        /// Context length of pre-training.
        original: f64,
    },
}

impl RopeScaling {
    fn apply(self, frequency: f64) -> f64 {
        match self {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::ByWavelength { factor, low, high, original } => {
                let turns = original * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
        }
    }
}

/// Angles per position, one for each of the `rotated / 2` pairs: `base^(-2i / rotated)`, scaled, and
/// divided by the file's own `factors` if it has some.
pub(crate) fn inverse_frequencies(
    rotated: usize,
    base: f64,
    scaling: RopeScaling,
    factors: Option<&[f32]>,
) -> Vec<f32> {
    (0..rotated / 2)
        .map(|i| {
            let frequency = base.powf(-2.0 * i as f64 / rotated as f64);
            let factor = factors.map_or(1.0, |f| f64::from(f[i]));
            (scaling.apply(frequency) / factor) as f32
        })
        .collect()
}

/// The rotation of queries and keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rope {
    /// Angles per position `[R/2]` fp32; see [`inverse_frequencies`].
    pub(crate) inverse_frequencies: WeightId,
    /// Whether pairs are neighbours `(2i, 2i+1)`, not halves `(i, i + R/2)`.
    pub(crate) interleaved: bool,
}

impl Rope {
    /// `x` `[1, T, H, D]`, its first `R` elements rotated by `positions` `[T]`.
    pub(crate) fn apply(
        &self,
        b: &mut FunctionBuilder<'_>,
        x: ValueId,
        positions: ValueId,
        name: &str,
    ) -> Result<ValueId> {
        let inverse_frequencies = b.weight(self.inverse_frequencies)?;
        b.op(OpKind::LlmRope)
            .arg("x", x)
            .arg("positions", positions)
            .arg("inv_freq", inverse_frequencies)
            .arg("interleaved", Literal::bool(self.interleaved))
            .name(name)
            .result()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let scaling =
            RopeScaling::ByWavelength { factor: 8.0, low: 1.0, high: 4.0, original: 128.0 };
        let plain = inverse_frequencies(16, 1e4, RopeScaling::None, None);
        let scaled = inverse_frequencies(16, 1e4, scaling, None);
        let ratios: Vec<f32> = plain.iter().zip(&scaled).map(|(p, s)| p / s).collect();
        // Wavelengths 6 and 20 make more than 4 turns in 128 positions, 63 makes two, 199 less than one.
        assert_eq!(ratios[..2], [1.0, 1.0]);
        assert!(ratios[2] > 1.0 && ratios[2] < 8.0, "{ratios:?}");
        assert!(ratios[3..].iter().all(|r| (r - 8.0).abs() < 1e-5), "{ratios:?}");
    }

    #[test]
    fn factors_divide() {
        let found =
            inverse_frequencies(4, 100.0, RopeScaling::Linear { factor: 2.0 }, Some(&[1.0, 4.0]));
        assert_eq!(found, [0.5, 0.0125]);
    }
}
