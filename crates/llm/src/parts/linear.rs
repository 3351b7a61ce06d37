//! A matrix product with an optional bias.

use mil::{FunctionBuilder, OpKind, Result, ValueId};
use tensor::WeightId;

/// `x W^T + b`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    /// `[out, in]`, in any storage format.
    pub(crate) weight: WeightId,
    /// `[out]` fp32.
    pub(crate) bias: Option<WeightId>,
}

impl Linear {
    /// The product for `x` `[..., in]`: `[..., out]`.
    pub(crate) fn apply(
        &self,
        b: &mut FunctionBuilder<'_>,
        x: ValueId,
        name: &str,
    ) -> Result<ValueId> {
        let weight = b.weight(self.weight)?;
        let bias = self.bias.map(|id| b.weight(id)).transpose()?;
        b.op(OpKind::LlmLinear)
            .arg("x", x)
            .arg("weight", weight)
            .opt_arg("bias", bias)
            .name(name)
            .result()
    }
}
