//! What can be asked of a generation, and what it says of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::rate;
use crate::sample::SamplingParams;

/// What is asked of a generation.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate; `None` goes on until something else ends it.
    pub max_tokens: Option<usize>,
    /// Strings that end the generation; they are not part of its text.
    pub stop: Vec<String>,
    /// Whether the tokenizer's end tokens are tokens like others.
    pub ignore_end: bool,
    /// Give each token's log-probability and those of this many likeliest tokens.
    pub logprobs: Option<usize>,
    /// What happens when the context is full.
    pub overflow: Overflow,
    /// Ends the generation, at the latest after the current chunk of the prompt, once it is true.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl GenerateOptions {
    /// Whether it was told to end.
    pub(super) fn cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed))
    }
}

/// What happens when prompt and generated tokens fill the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The generation ends.
    #[default]
    Stop,
    /// The first `keep` tokens stay, the older half of the rest is dropped, and what remains is
    /// computed anew, as if it had been the prompt.
    Slide {
        /// Tokens to keep: usually BOS, or a system message.
        keep: usize,
    },
}

/// What ended a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model chose an end token.
    Eos,
    /// A stop string came.
    Stop,
    /// The most tokens asked for were generated.
    Length,
    /// The context is full.
    Context,
    /// It was told to end, or failed.
    Cancelled,
}

/// Where a generation's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Time for the prompt, as far as it was not in the cache, up to the first logits.
    pub prefill: Duration,
    /// Tokens computed in that time.
    pub prefill_tokens: usize,
    /// Time for all that follows: one model run per token after the first, and choosing every token.
    pub decode: Duration,
    /// Model runs in that time.
    pub decode_tokens: usize,
}

impl Timings {
    /// Tokens of the prompt per second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill)
    }

    /// Generated tokens per second.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_tokens, self.decode)
    }
}
