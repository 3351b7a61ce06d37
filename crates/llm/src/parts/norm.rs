//! Normalisation over the last axis.

use mil::{FunctionBuilder, Literal, OpKind, Result, ValueId};
use tensor::WeightId;

/// A normalisation and its weights, `[D]` fp32 each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Norm {
    /// `x / rms(x) * weight`.
    Rms {
        /// Factor.
        weight: WeightId,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// `(x - mean) / deviation * weight + bias`.
    Layer {
        /// Factor.
        weight: WeightId,
        /// Summand.
        bias: WeightId,
        /// Added to the variance.
        epsilon: f32,
    },
}

impl Norm {
    /// `x` `[..., D]`, normalised.
    pub(crate) fn apply(
        &self,
        b: &mut FunctionBuilder<'_>,
        x: ValueId,
        name: &str,
    ) -> Result<ValueId> {
        match *self {
            Norm::Rms { weight, epsilon } => {
                let weight = b.weight(weight)?;
                b.op(OpKind::LlmRmsNorm)
                    .arg("x", x)
                    .arg("weight", weight)
                    .arg("epsilon", Literal::scalar(epsilon))
                    .name(name)
                    .result()
            }
            Norm::Layer { weight, bias, epsilon } => {
                let (gamma, beta) = (b.weight(weight)?, b.weight(bias)?);
                b.op(OpKind::LayerNorm)
                    .arg("x", x)
                    .arg("axes", Literal::vector(&[-1i32]))
                    .arg("gamma", gamma)
                    .arg("beta", beta)
                    .arg("epsilon", Literal::scalar(epsilon))
                    .name(name)
                    .result()
            }
        }
    }
}
