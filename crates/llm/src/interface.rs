//! The interface of a language model's program: names of functions, inputs, outputs, states and
//! symbols.
//!
//! `prefill` and `decode` take ids int32 `[B, T]` and positions int32 `[T]`, keep keys and values in
//! the states, and return the logits fp32 `[B, 1, vocab]` of the last token; `T` is the symbol
//! [`SEQ`] in `prefill` and 1 in `decode`. `score` has no states and returns the logits
//! `[B, T, vocab]` of every token. A state is `[B, kv_heads, context, head_dim]`; the symbol
//! [`CONTEXT`] must be fixed before memory for it can be made. `B` is 1 but where several sequences,
//! which keep step, were asked for.
//!
//! A program to train has the one function `loss`: ids and targets int32 `[B, T]`, positions int32 `[T]`,
//! which are `0, 1, ...`, and segments int32 `[B, T]` where a sequence may hold several documents, in
//! which rows of one document have one number. It returns the mean cross-entropy, in nats, of the targets
//! that are not negative, an fp32 scalar; the target of a row is usually the id of the next.

/// Function that takes several tokens and extends the cache.
pub const PREFILL: &str = "prefill";
/// Function that takes one token and extends the cache.
pub const DECODE: &str = "decode";
/// Function that takes several tokens and returns the logits after each.
pub const SCORE: &str = "score";
/// Function that returns the loss of a batch of sequences, and its output.
pub const LOSS: &str = "loss";
/// Input: the ids to be predicted, int32 `[B, T]`; negative where none is.
pub const TARGETS: &str = "targets";
/// Input: which document of its sequence a token is of, int32 `[B, T]`.
pub const SEGMENTS: &str = "segments";
/// Input: token ids, int32 `[B, T]`.
pub const IDS: &str = "ids";
/// Input: the tokens' positions, int32 `[T]`, from 0.
pub const POSITIONS: &str = "positions";
/// Output: unnormalised log-probabilities, fp32 `[B, T or 1, vocab]`.
pub const LOGITS: &str = "logits";
/// Symbol: tokens of one call.
pub const SEQ: &str = "seq";
/// Symbol: slots of the cache.
pub const CONTEXT: &str = "context";

/// What the names of a layer's values begin with.
pub(crate) fn layer(layer: usize) -> String {
    format!("layer_{layer}")
}

/// The value that a layer hands to the next one: where to keep activations if those between are to be
/// computed again.
pub fn layer_output(index: usize) -> String {
    format!("{}_mlp_residual", layer(index))
}

/// State that holds a layer's keys.
pub fn key_cache(layer: usize) -> String {
    format!("k_cache_{layer}")
}

/// State that holds a layer's values.
pub fn value_cache(layer: usize) -> String {
    format!("v_cache_{layer}")
}
