//! The dimensions that every decoder has, and the checks that keep later arithmetic in range.

use std::path::Path;

use crate::{Error, Result};

/// Far beyond every model; products of two dimensions stay in range.
const MAX_DIM: usize = 1 << 24;
/// Far beyond every model, and small for what is allocated by layer before tensors are looked at.
const MAX_LAYERS: usize = 4096;
/// Far beyond every model; frequencies are computed for half as many elements.
const MAX_HEAD_DIM: usize = 1 << 16;

/// Dimensions of a decoder.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Dims {
    /// Blocks.
    pub(crate) layers: usize,
    /// Elements of a token's vector.
    pub(crate) width: usize,
    /// Inner elements of the feed-forward layers.
    pub(crate) feed_forward: usize,
    /// Query heads.
    pub(crate) heads: usize,
    /// Key and value heads.
    pub(crate) kv_heads: usize,
    /// Elements of a head.
    pub(crate) head_dim: usize,
    /// Tokens in the vocabulary.
    pub(crate) vocab: usize,
    /// Longest sequence.
    pub(crate) max_context: usize,
    /// Of the norms.
    pub(crate) norm_epsilon: f32,
}

impl Dims {
    /// Elements of all query heads.
    pub(crate) fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all key heads.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Checks sizes that `file` states.
    ///
    /// # Errors
    /// When one is zero or absurd, or heads do not come in equal groups.
    pub(crate) fn checked(self, file: &Path) -> Result<Self> {
        let sizes = [
            ("layers", self.layers, MAX_LAYERS),
            ("width", self.width, MAX_DIM),
            ("feed-forward width", self.feed_forward, MAX_DIM),
            ("attention heads", self.heads, MAX_DIM),
            ("key-value heads", self.kv_heads, MAX_DIM),
            ("head width", self.head_dim, MAX_HEAD_DIM),
            ("vocabulary", self.vocab, MAX_DIM),
            ("context", self.max_context, MAX_DIM),
        ];
        for (what, n, max) in sizes {
            if n == 0 || n > max {
                return Err(Error::invalid(file, format!("{what} of {n}; 1 to {max} can be")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let why = format!(
                "{} attention heads do not share {} key-value heads evenly",
                self.heads, self.kv_heads
            );
            return Err(Error::invalid(file, why));
        }
        let epsilon = self.norm_epsilon;
        if !(epsilon >= 0.0 && epsilon.is_finite()) {
            return Err(Error::invalid(file, format!("norm epsilon of {epsilon}")));
        }
        Ok(self)
    }
}
