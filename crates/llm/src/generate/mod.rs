//! Generation: from a prompt's ids to a stream of tokens and text, until something ends it.

mod options;
mod session;
mod stop;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use options::{FinishReason, GenerateOptions, Overflow, Timings};
pub use session::Session;
pub(crate) use session::elements;
use stop::StopMatcher;

use crate::sample::{Sampler, TokenLogprobs, logprobs};
use crate::tokenizer::{DecodeStream, Tokenizer};
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
    end_ids: &'s [u32],
    sampler: Sampler,
    decoder: DecodeStream<'s>,
    stop: StopMatcher,
    /// Prompt and generated tokens, all of them: what repetition penalties look at.
    history: Vec<u32>,
    /// The part of the history that the model sees.
    window: Vec<u32>,
    prompt_len: usize,
    text: String,
    logprobs: Vec<TokenLogprobs>,
    timings: Timings,
    finish_reason: Option<FinishReason>,
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
        Ok(Generation {
            sampler: Sampler::new(options.sampling.clone())?,
            stop: StopMatcher::new(&options.stop)?,
            decoder: tokenizer.decode_stream().after(prompt),
            end_ids: if options.ignore_end { &[] } else { tokenizer.end_ids() },
            session: self,
            history: prompt.to_vec(),
            window: prompt.to_vec(),
            prompt_len: prompt.len(),
            text: String::new(),
            logprobs: Vec::new(),
            timings: Timings::default(),
            finish_reason: None,
            options,
        })
    }
}

impl Generation<'_> {
    /// What ended the generation; `None` while it goes on.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// The whole result. Steps that were not taken are not made up for: the reason is then `Cancelled`.
    pub fn finish(self) -> Generated {
        Generated {
            ids: self.history[self.prompt_len..].to_vec(),
            text: self.text,
            logprobs: self.options.logprobs.map(|_| self.logprobs),
            finish_reason: self.finish_reason.unwrap_or(FinishReason::Cancelled),
            timings: self.timings,
        }
    }

    fn cancelled(&self) -> bool {
        self.options.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed))
    }

    fn generated(&self) -> usize {
        self.history.len() - self.prompt_len
    }

    fn step(&mut self) -> Result<Step> {
        if self.cancelled() {
            return Ok(self.end(FinishReason::Cancelled));
        }
        if self.options.max_tokens == Some(self.generated()) {
            return Ok(self.end(FinishReason::Length));
        }
        if self.window.len() > self.session.context() {
            match self.options.overflow {
                Overflow::Stop => return Ok(self.end(FinishReason::Context)),
                Overflow::Slide { keep } => self.slide(keep),
            }
        }
        let Some(logits) = self.evaluate()? else {
            return Ok(self.end(FinishReason::Cancelled));
        };
        let start = Instant::now();
        let id = self.sampler.sample(&logits, &self.history)?;
        if self.end_ids.contains(&id) {
            self.timings.decode += start.elapsed();
            return Ok(self.end(FinishReason::Eos));
        }
        let logprobs = self.options.logprobs.map(|top| logprobs(&logits, id, top)).transpose()?;
        self.logprobs.extend(logprobs.clone());
        self.history.push(id);
        self.window.push(id);
        let piece = self.decoder.push(id).unwrap_or_default();
        let passed = self.stop.push(&piece);
        self.timings.decode += start.elapsed();
        let mut step = Step { id: Some(id), text: passed.text, logprobs };
        self.text.push_str(&step.text);
        if passed.stop.is_some() {
            self.finish_reason = Some(FinishReason::Stop);
        } else if self.options.max_tokens == Some(self.generated()) {
            step.text += &self.end(FinishReason::Length).text;
        }
        Ok(step)
    }

    /// The logits after the window, its time booked as prefill or decode; `None` if cancelled.
    fn evaluate(&mut self) -> Result<Option<Vec<f32>>> {
        let missing = self.window.len() - self.session.reusable(&self.window);
        let start = Instant::now();
        let cancel = self.options.cancel.clone();
        let go_on = || !cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed));
        let logits = self.session.extend(&self.window, go_on)?;
        let elapsed = start.elapsed();
        // The first token costs a prefill, as does a context that was slid.
        if self.generated() == 0 || missing > 1 {
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

    /// Ends with what text was held back.
    fn end(&mut self, reason: FinishReason) -> Step {
        self.finish_reason = Some(reason);
        let rest = self.decoder.flush().unwrap_or_default();
        let passed = self.stop.push(&rest);
        let text =
            if passed.stop.is_some() { passed.text } else { passed.text + &self.stop.flush() };
        self.text.push_str(&text);
        Step { id: None, text, logprobs: None }
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Step>;

    fn next(&mut self) -> Option<Result<Step>> {
        if self.finish_reason.is_some() {
            return None;
        }
        let step = self.step();
        if step.is_err() {
            self.finish_reason = Some(FinishReason::Cancelled);
        }
        // A last step without news is no step.
        step.map(|s| (s != Step::default()).then_some(s)).transpose()
    }
}

/// Tokens per second; 0 if there was no time.
fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
