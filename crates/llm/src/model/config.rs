//! What is known of a model before its weights are read.

use serde::Serialize;

/// A model's dimensions and settings that concern its users.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ModelConfig {
    /// Which architecture runs it, such as `llama`.
    pub arch: &'static str,
    /// The name that the file gives it.
    pub name: Option<String>,
    /// Trained numbers; a tied output layer counts once.
    pub parameters: u64,
    /// Blocks.
    pub layers: usize,
    /// Elements of a token's vector (`d`).
    pub width: usize,
    /// Inner elements of the feed-forward layers (`f`).
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Longest sequence, in tokens, that the model was made for.
    pub max_context: usize,
    /// Positions that a query of a sliding-window layer sees, if there are such layers.
    pub window: Option<usize>,
    /// Whether the output layer is the embedding.
    pub tied: bool,
}
