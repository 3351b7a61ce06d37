//! From the last block's output to logits.

use mil::{FunctionBuilder, Literal, OpKind, Result, ValueId};

use super::{Linear, Norm};
use crate::interface;

/// The output layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Over the last block's output.
    pub(crate) norm: Norm,
    /// `[vocab, d]`; the embedding's weight where the two are tied.
    pub(crate) output: Linear,
    /// `c` in `c * tanh(logit / c)`.
    pub(crate) softcap: Option<f32>,
}

impl Head {
    /// The mean cross-entropy of `targets` `[B, T]`, those that are not negative, after `x` `[B, T, d]`.
    pub(crate) fn loss(
        &self,
        b: &mut FunctionBuilder<'_>,
        x: ValueId,
        targets: ValueId,
    ) -> Result<ValueId> {
        let x = self.norm.apply(b, x, "final_norm")?;
        let weight = b.weight(self.output.weight)?;
        let bias = self.output.bias.map(|id| b.weight(id)).transpose()?;
        b.op(OpKind::LlmHeadLoss)
            .arg("x", x)
            .arg("weight", weight)
            .arg("targets", targets)
            .opt_arg("bias", bias)
            .opt_arg("softcap", self.softcap.map(Literal::scalar))
            .name(interface::LOSS)
            .result()
    }

    /// The logits `[1, T, vocab]` of `x` `[1, T, d]`.
    pub(crate) fn apply(&self, b: &mut FunctionBuilder<'_>, x: ValueId) -> Result<ValueId> {
        let x = self.norm.apply(b, x, "final_norm")?;
        let Some(cap) = self.softcap else { return self.output.apply(b, x, interface::LOGITS) };
        let x = self.output.apply(b, x, "logits_uncapped")?;
        let mul = |b: &mut FunctionBuilder<'_>, x, by: f32, name: &str| {
            b.op(OpKind::Mul).arg("x", x).arg("y", Literal::scalar(by)).name(name).result()
        };
        let x = mul(b, x, cap.recip(), "logits_scaled")?;
        let x = b.op(OpKind::Tanh).arg("x", x).name("logits_squashed").result()?;
        mul(b, x, cap, interface::LOGITS)
    }
}
