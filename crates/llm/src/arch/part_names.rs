//! Names of weights: GGUF's, which are the same for every architecture, and the key that an
//! architecture's own Hugging Face names are listed under.

/// A weight by its place in the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Part {
    /// Token embedding.
    Tokens,
    /// Learned position embedding.
    Positions,
    /// Output layer.
    Output,
    /// Norm before the output layer.
    FinalNorm,
    /// Norm before attention.
    AttentionNorm,
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// The three projections in one matrix, in this order.
    QueryKeyValue,
    /// Norm of each query head.
    QueryNorm,
    /// Norm of each key head.
    KeyNorm,
    /// Output projection of attention.
    AttentionOutput,
    /// Norm after attention.
    PostAttentionNorm,
    /// Norm before the feed-forward layer.
    MlpNorm,
    /// Gate of the feed-forward layer.
    Gate,
    /// Input matrix of the feed-forward layer.
    Up,
    /// Output matrix of the feed-forward layer.
    Down,
    /// Norm after the feed-forward layer.
    PostMlpNorm,
}

impl Part {
    /// Whether it is a linear layer.
    pub(crate) const fn is_linear(self) -> bool {
        matches!(
            self,
            Part::Output
                | Part::Query
                | Part::Key
                | Part::Value
                | Part::QueryKeyValue
                | Part::AttentionOutput
                | Part::Gate
                | Part::Up
                | Part::Down
        )
    }

    /// The name in GGUF files without `.weight` or `.bias`; `#` stands for the block's number.
    pub(crate) const fn gguf_name(self) -> &'static str {
        match self {
            Part::Tokens => "token_embd",
            Part::Positions => "position_embd",
            Part::Output => "output",
            Part::FinalNorm => "output_norm",
            Part::AttentionNorm => "blk.#.attn_norm",
            Part::Query => "blk.#.attn_q",
            Part::Key => "blk.#.attn_k",
            Part::Value => "blk.#.attn_v",
            Part::QueryKeyValue => "blk.#.attn_qkv",
            Part::QueryNorm => "blk.#.attn_q_norm",
            Part::KeyNorm => "blk.#.attn_k_norm",
            Part::AttentionOutput => "blk.#.attn_output",
            Part::PostAttentionNorm => "blk.#.post_attention_norm",
            Part::MlpNorm => "blk.#.ffn_norm",
            Part::Gate => "blk.#.ffn_gate",
            Part::Up => "blk.#.ffn_up",
            Part::Down => "blk.#.ffn_down",
            Part::PostMlpNorm => "blk.#.post_ffw_norm",
        }
    }
}

/// An architecture's names in Hugging Face checkpoints, in the manner of [`Part::gguf_name`].
#[derive(Debug)]
pub(crate) struct HfNames {
    /// Prefixes that the names may have, all except the output layer's; the first that the file uses
    /// holds. Checkpoints saved without a head have none.
    pub(crate) prefixes: &'static [&'static str],
    /// The names without prefix.
    pub(crate) parts: &'static [(Part, &'static str)],
    /// Ends of names of tensors that are no weights, such as masks that old versions stored.
    pub(crate) buffers: &'static [&'static str],
}

impl HfNames {
    /// The part that is the linear layer at `path` of the model, and its block's number.
    pub(crate) fn find(&self, path: &str) -> Option<(Part, Option<usize>)> {
        let prefixes = self.prefixes.iter().copied().chain([""]);
        let paths: Vec<&str> = prefixes.filter_map(|prefix| path.strip_prefix(prefix)).collect();
        self.parts.iter().filter(|(part, _)| part.is_linear()).find_map(|&(part, name)| {
            paths.iter().find_map(|path| match name.split_once('#') {
                None => (*path == name).then_some((part, None)),
                Some((before, after)) => {
                    let number = path.strip_prefix(before)?.strip_suffix(after)?;
                    Some((part, Some(number.parse().ok()?)))
                }
            })
        })
    }

    /// The name of `part`, if the architecture has it.
    pub(crate) fn get(&self, part: Part) -> Option<&'static str> {
        self.parts.iter().find(|(p, _)| *p == part).map(|&(_, name)| name)
    }
}
