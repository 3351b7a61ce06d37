//! Generation: from a prompt's ids to a stream of tokens and text, until something ends it.

mod continuation;
mod options;
mod session;
mod several;
mod stop;

use std::time::{Duration, Instant};

pub use options::{FinishReason, GenerateOptions, Overflow, Timings};
pub use session::Session;
pub(crate) use session::elements;

use continuation::Continuation;

use crate::sample::TokenLogprobs;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// One step of a generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The token that was chosen; `None` in the last step, if only held back text was left.
    pub id: Option<u32>,
    /// Text that became certain with this step: often the token's own, but empty while a character or what
    /// may be a stop string is incomplete.
    pub text: String,
    /// Log-probabilities, if asked for and a token was chosen.
    pub logprobs: Option<TokenLogprobs>,
}

/// All that a generation gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Tokens generated. An end token is not among them; tokens of a stop string are.
    pub ids: Vec<u32>,
    /// Their text, without the stop string.
    pub text: String,
    /// Log-probabilities of `ids`, if asked for.
    pub logprobs: Option<Vec<TokenLogprobs>>,
    /// What ended it.
    pub finish_reason: FinishReason,
    /// Where the time went.
    pub timings: Timings,
}

/// A generation under way: an iterator of [`Step`]s. After an error it is at its end.
pub struct Generation<'s> {
    session: &'s mut Session,
    options: GenerateOptions,
    continuation: Continuation<'s>,
    /// The part of prompt and continuation that the model sees.
    window: Vec<u32>,
    timings: Timings,
}

impl Session {
    /// Begins to generate what follows `prompt`. What the cache holds of the prompt from an earlier call is used again.
    ///
    /// # Errors
    /// When an option is out of its range, or the prompt is empty, longer than the context or not of the
    /// model's vocabulary.
    pub fn generate<'s>(
        &'s mut self,
        tokenizer: &'s Tokenizer,
        prompt: &[u32],
        options: GenerateOptions,
    ) -> Result<Generation<'s>> {
        self.check(prompt)?;
        if let Overflow::Slide { keep } = options.overflow
            && keep.saturating_add(2) > self.context()
        {
            return Err(Error::request(format!(
                "keeping {keep} tokens leaves no room to slide in a context of {}",
                self.context()
            )));
        }
        if self.sequences() != 1 {
            return Err(Error::request("a session of several sequences continues them together"));
        }
        let sampling = options.sampling.clone();
        Ok(Generation {
            continuation: Continuation::new(tokenizer, prompt, &options, sampling)?,
            session: self,
            window: prompt.to_vec(),
            timings: Timings::default(),
            options,
        })
    }
}

impl Generation<'_> {
    /// What ended the generation; `None` while it goes on.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.continuation.finish_reason()
    }

    /// The whole result. Steps that were not taken are not made up for: the reason is then `Cancelled`.
    pub fn finish(self) -> Generated {
        self.continuation.finish(self.timings)
    }

    fn step(&mut self) -> Result<Step> {
        if self.options.cancelled() {
            return Ok(self.continuation.end(FinishReason::Cancelled));
        }
        if self.continuation.is_full() {
            return Ok(self.continuation.end(FinishReason::Length));
        }
        if self.window.len() > self.session.context() {
            match self.options.overflow {
                Overflow::Stop => return Ok(self.continuation.end(FinishReason::Context)),
                Overflow::Slide { keep } => self.slide(keep),
            }
        }
        let Some(logits) = self.evaluate()? else {
            return Ok(self.continuation.end(FinishReason::Cancelled));
        };
        let start = Instant::now();
        let step = self.continuation.choose(&logits)?;
        self.window.extend(step.id);
        self.timings.decode += start.elapsed();
        Ok(step)
    }

    /// The logits after the window, its time booked as prefill or decode; `None` if cancelled.
    fn evaluate(&mut self) -> Result<Option<Vec<f32>>> {
        let missing = self.window.len() - self.session.reusable(&self.window);
        let start = Instant::now();
        let logits = self.session.extend(&self.window, || !self.options.cancelled())?;
        let elapsed = start.elapsed();
        // The first token costs a prefill, as does a context that was slid.
        if self.continuation.generated() == 0 || missing > 1 {
            self.timings.prefill += elapsed;
            self.timings.prefill_tokens += missing;
        } else {
            self.timings.decode += elapsed;
            self.timings.decode_tokens += 1;
        }
        Ok(logits)
    }

    /// Keeps the first `keep` tokens and drops the older half of the rest. What remains is computed anew,
    /// because its keys and values depend on its positions and on what was dropped.
    fn slide(&mut self, keep: usize) {
        let dropped = (self.window.len() - keep).div_ceil(2);
        self.window.drain(keep..keep + dropped);
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Step>;

    fn next(&mut self) -> Option<Result<Step>> {
        if self.finish_reason().is_some() {
            return None;
        }
        let step = self.step();
        if step.is_err() {
            self.continuation.give_up();
        }
        // A last step without news is no step.
        step.map(|s| (s != Step::default()).then_some(s)).transpose()
    }
}

/// Tokens per second; 0 if there was no time.
fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
