//! From token ids to vectors.

use mil::{FunctionBuilder, Literal, OpKind, Result, ValueId};
use tensor::WeightId;

/// The input of the first block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Embedding {
    /// `[vocab, d]`.
    pub(crate) tokens: WeightId,
    /// Learned positions `[max_context, d]`, added.
    pub(crate) positions: Option<WeightId>,
    /// Factor of the tokens' vectors.
    pub(crate) scale: Option<f32>,
}

impl Embedding {
    /// The vectors `[B, T, d]` of `ids` `[B, T]` at `positions` `[T]` or `[B, T]`.
    pub(crate) fn apply(
        &self,
        b: &mut FunctionBuilder<'_>,
        ids: ValueId,
        positions: ValueId,
    ) -> Result<ValueId> {
        let mut x = lookup(b, ids, self.tokens, "embedding")?;
        if let Some(scale) = self.scale {
            let scale = Literal::scalar(scale);
            x = b.op(OpKind::Mul).arg("x", x).arg("y", scale).name("embedding_scaled").result()?;
        }
        if let Some(table) = self.positions {
            let shared = b.function().tensor_ty(positions).is_some_and(|t| t.rank() == 1);
            let positions = match shared {
                true => b
                    .op(OpKind::ExpandDims)
                    .arg("x", positions)
                    .arg("axes", Literal::vector(&[0i32]))
                    .name("positions_batch")
                    .result()?,
                false => positions,
            };
            let p = lookup(b, positions, table, "position_embedding")?;
            x = b.op(OpKind::Add).arg("x", x).arg("y", p).name("embedding_placed").result()?;
        }
        Ok(x)
    }
}

fn lookup(
    b: &mut FunctionBuilder<'_>,
    ids: ValueId,
    table: WeightId,
    name: &str,
) -> Result<ValueId> {
    let weight = b.weight(table)?;
    b.op(OpKind::LlmEmbedding).arg("ids", ids).arg("weight", weight).name(name).result()
}
