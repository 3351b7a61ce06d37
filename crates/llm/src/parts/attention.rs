//! Self-attention with grouped key and value heads.

use mil::{FunctionBuilder, Literal, OpKind, Result, ValueId};

use super::{Linear, Norm, Rope};

/// The self-attention layer of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    /// `[heads * head_dim, d]`.
    pub(crate) query: Linear,
    /// `[kv_heads * head_dim, d]`.
    pub(crate) key: Linear,
    /// `[kv_heads * head_dim, d]`.
    pub(crate) value: Linear,
    /// `[d, heads * head_dim]`.
    pub(crate) output: Linear,
    /// Over each head's query, before the rotation.
    pub(crate) query_norm: Option<Norm>,
    /// Over each head's key, before the rotation.
    pub(crate) key_norm: Option<Norm>,
    /// Of queries and keys.
    pub(crate) rope: Option<Rope>,
    /// Query heads.
    pub(crate) heads: usize,
    /// Key and value heads; divides `heads`.
    pub(crate) kv_heads: usize,
    /// Elements of a head.
    pub(crate) head_dim: usize,
    /// Factor of the scores.
    pub(crate) scale: f32,
    /// How many positions, itself included, a query sees; all earlier ones if `None`.
    pub(crate) window: Option<usize>,
    /// `c` in `c * tanh(score / c)`.
    pub(crate) softcap: Option<f32>,
}

/// The states that hold a layer's keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache {
    /// `[B, kv_heads, context, head_dim]`.
    pub(crate) key: ValueId,
    /// `[B, kv_heads, context, head_dim]`.
    pub(crate) value: ValueId,
}

/// Where the rows of a sequence are, and what they may see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// `[T]`.
    pub(crate) positions: ValueId,
    /// Which document each row is of, `[B, T]`; all are of one if `None`.
    pub(crate) segments: Option<ValueId>,
    /// Keys and values of earlier rows.
    pub(crate) cache: Option<Cache>,
}

impl Attention {
    /// The layer's output for `x` `[B, T, d]`: `[B, T, d]`.
    pub(crate) fn apply(
        &self,
        b: &mut FunctionBuilder<'_>,
        x: ValueId,
        place: Place,
        name: &str,
    ) -> Result<ValueId> {
        let Place { positions, segments, cache } = place;
        let query = self.project(b, x, &self.query, self.heads, &format!("{name}_query"))?;
        let key = self.project(b, x, &self.key, self.kv_heads, &format!("{name}_key"))?;
        let value = self.project(b, x, &self.value, self.kv_heads, &format!("{name}_value"))?;
        let query = self.place(b, query, self.query_norm, positions, &format!("{name}_query"))?;
        let key = self.place(b, key, self.key_norm, positions, &format!("{name}_key"))?;
        let mixed = b
            .op(OpKind::LlmAttention)
            .arg("query", query)
            .arg("key", key)
            .arg("value", value)
            .arg("positions", positions)
            .arg("scale", Literal::scalar(self.scale))
            .opt_arg("key_cache", cache.map(|c| c.key))
            .opt_arg("value_cache", cache.map(|c| c.value))
            .opt_arg("window", self.window.map(|w| Literal::scalar(w as i32)))
            .opt_arg("softcap", self.softcap.map(Literal::scalar))
            .opt_arg("segments", segments)
            .name(format!("{name}_mix"))
            .result()?;
        let flat = [batch(b, x), -1, (self.heads * self.head_dim) as i32];
        let mixed = reshape(b, mixed, &flat, &format!("{name}_flat"))?;
        self.output.apply(b, mixed, name)
    }

    /// `x` projected and cut into heads: `[B, T, heads, head_dim]`.
    fn project(
        &self,
        b: &mut FunctionBuilder<'_>,
        x: ValueId,
        linear: &Linear,
        heads: usize,
        name: &str,
    ) -> Result<ValueId> {
        let y = linear.apply(b, x, &format!("{name}_flat"))?;
        reshape(b, y, &[batch(b, x), -1, heads as i32, self.head_dim as i32], name)
    }

    /// Queries or keys, normalised and rotated.
    fn place(
        &self,
        b: &mut FunctionBuilder<'_>,
        mut x: ValueId,
        norm: Option<Norm>,
        positions: ValueId,
        name: &str,
    ) -> Result<ValueId> {
        if let Some(norm) = norm {
            x = norm.apply(b, x, &format!("{name}_norm"))?;
        }
        match self.rope {
            Some(rope) => rope.apply(b, x, positions, &format!("{name}_rope")),
            None => Ok(x),
        }
    }
}

/// The sequences in `x` `[B, T, d]`, a fixed number.
fn batch(b: &FunctionBuilder<'_>, x: ValueId) -> i32 {
    let sizes = b.function().tensor_ty(x).map(|t| t.shape.as_slice());
    sizes.and_then(|s| s.first()?.fixed()).unwrap_or(1) as i32
}

fn reshape(b: &mut FunctionBuilder<'_>, x: ValueId, shape: &[i32], name: &str) -> Result<ValueId> {
    b.op(OpKind::Reshape).arg("x", x).arg("shape", Literal::vector(shape)).name(name).result()
}
