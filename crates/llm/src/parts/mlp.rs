//! The feed-forward layer of a block.

use mil::{FunctionBuilder, Literal, OpKind, Result, ValueId};
use tensor::WeightId;

use super::{Activation, Linear};

/// A feed-forward layer from `d` to `f` and back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mlp {
    /// `down(activation(gate x) * (up x))` (Shazeer 2020).
    Gated {
        /// `[f, d]`.
        gate: WeightId,
        /// `[f, d]`.
        up: WeightId,
        /// `[d, f]`.
        down: WeightId,
        /// Of the gate.
        activation: Activation,
    },
    /// `down(activation(up x))`.
    Plain {
        /// `[f, d]`.
        up: Linear,
        /// `[d, f]`.
        down: Linear,
        /// Of the inner layer.
        activation: Activation,
    },
}

impl Mlp {
    /// The layer's output for `x` `[..., d]`, of the same shape.
    pub(crate) fn apply(
        &self,
        b: &mut FunctionBuilder<'_>,
        x: ValueId,
        name: &str,
    ) -> Result<ValueId> {
        match self {
            Mlp::Gated { gate, up, down, activation } => {
                let (gate, up, down) = (b.weight(*gate)?, b.weight(*up)?, b.weight(*down)?);
                b.op(OpKind::LlmGatedMlp)
                    .arg("x", x)
                    .arg("gate", gate)
                    .arg("up", up)
                    .arg("down", down)
                    .arg("activation", Literal::string(activation.name()))
                    .name(name)
                    .result()
            }
            Mlp::Plain { up, down, activation } => {
                let inner = up.apply(b, x, &format!("{name}_up"))?;
                let inner = activation.apply(b, inner, &format!("{name}_activation"))?;
                down.apply(b, inner, name)
            }
        }
    }
}
