//! One block of a decoder: attention and a feed-forward layer, each on a residual branch.

use mil::{FunctionBuilder, OpKind, Result, ValueId};

use super::attention::Place;
use super::{Attention, Mlp, Norm};

/// A block: each branch is normalised before its layer, and in some models after it too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Before attention.
    pub(crate) attention_norm: Norm,
    /// First layer.
    pub(crate) attention: Attention,
    /// After attention.
    pub(crate) post_attention_norm: Option<Norm>,
    /// Before the feed-forward layer.
    pub(crate) mlp_norm: Norm,
    /// Second layer.
    pub(crate) mlp: Mlp,
    /// After the feed-forward layer.
    pub(crate) post_mlp_norm: Option<Norm>,
}

impl Block {
    /// The block's output for `x` `[B, T, d]`: `[B, T, d]`.
    pub(crate) fn apply(
        &self,
        b: &mut FunctionBuilder<'_>,
        x: ValueId,
        place: Place,
        name: &str,
    ) -> Result<ValueId> {
        let y = self.attention_norm.apply(b, x, &format!("{name}_attention_norm"))?;
        let y = self.attention.apply(b, y, place, &format!("{name}_attention"))?;
        let y = optional(self.post_attention_norm, b, y, &format!("{name}_attention_post_norm"))?;
        let x = residual(b, x, y, &format!("{name}_attention_residual"))?;
        let y = self.mlp_norm.apply(b, x, &format!("{name}_mlp_norm"))?;
        let y = self.mlp.apply(b, y, &format!("{name}_mlp"))?;
        let y = optional(self.post_mlp_norm, b, y, &format!("{name}_mlp_post_norm"))?;
        residual(b, x, y, &format!("{name}_mlp_residual"))
    }
}

fn optional(
    norm: Option<Norm>,
    b: &mut FunctionBuilder<'_>,
    x: ValueId,
    name: &str,
) -> Result<ValueId> {
    norm.map_or(Ok(x), |n| n.apply(b, x, name))
}

fn residual(b: &mut FunctionBuilder<'_>, x: ValueId, y: ValueId, name: &str) -> Result<ValueId> {
    b.op(OpKind::Add).arg("x", x).arg("y", y).name(name).result()
}
