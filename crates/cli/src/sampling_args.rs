//! Arguments of how tokens are chosen.

use std::hash::{BuildHasher, RandomState};

use clap::Args;
use llm::sample::SamplingParams;

/// How tokens are chosen. Applied in this order: repetition penalty, top-k, top-p, min-p, temperature.
#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Randomness: 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f32,
    /// Only the K most likely tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,
    /// Only the most likely tokens that together have probability P
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,
    /// Only tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    min_p: f32,
    /// Makes tokens that came recently less likely; 1 for no change
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    repetition_penalty: f32,
    /// How many tokens are recent; 0 for all
    #[arg(long, value_name = "N", default_value_t = 64)]
    repetition_window: usize,
    /// Start of the random numbers, for the same text again; a new one each time by default
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// The parameters, with a fresh seed if none is given.
    pub(crate) fn params(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            repetition_window: (self.repetition_window > 0).then_some(self.repetition_window),
            // The standard library keys its hashers with the system's randomness.
            seed: self.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32),
        }
    }
}
