//! One continuation of a prompt: from logits to tokens and their text, until something ends it.

use super::options::{FinishReason, GenerateOptions, Timings};
use super::stop::StopMatcher;
use super::{Generated, Step};
use crate::Result;
use crate::sample::{Sampler, SamplingParams, TokenLogprobs, logprobs};
use crate::tokenizer::{DecodeStream, Tokenizer};

pub(super) struct Continuation<'t> {
    end_ids: &'t [u32],
    sampler: Sampler,
    decoder: DecodeStream<'t>,
    stop: StopMatcher,
    max_tokens: Option<usize>,
    /// How many alternatives' log-probabilities are wanted, if any.
    top: Option<usize>,
    /// Prompt and generated tokens, all of them: what repetition penalties look at.
    history: Vec<u32>,
    prompt_len: usize,
    text: String,
    logprobs: Vec<TokenLogprobs>,
    finish_reason: Option<FinishReason>,
}

impl<'t> Continuation<'t> {
    /// One of `prompt`, of which nothing is chosen yet.
    ///
    /// # Errors
    /// When an option is out of its range.
    pub(super) fn new(
        tokenizer: &'t Tokenizer,
        prompt: &[u32],
        options: &GenerateOptions,
        sampling: SamplingParams,
    ) -> Result<Self> {
        Ok(Continuation {
            end_ids: if options.ignore_end { &[] } else { tokenizer.end_ids() },
            sampler: Sampler::new(sampling)?,
            decoder: tokenizer.decode_stream().after(prompt),
            stop: StopMatcher::new(&options.stop)?,
            max_tokens: options.max_tokens,
            top: options.logprobs,
            history: prompt.to_vec(),
            prompt_len: prompt.len(),
            text: String::new(),
            logprobs: Vec::new(),
            finish_reason: None,
        })
    }

    /// What ended it; `None` while it goes on.
    pub(super) fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// Tokens chosen so far.
    pub(super) fn generated(&self) -> usize {
        self.history.len() - self.prompt_len
    }

    /// The last token of prompt and continuation; there is one, as no prompt is empty.
    pub(super) fn last(&self) -> u32 {
        self.history.last().copied().unwrap_or_default()
    }

    /// Whether it is as long as was asked for.
    pub(super) fn is_full(&self) -> bool {
        self.max_tokens == Some(self.generated())
    }

    /// Chooses the next token from the logits `[vocab]` after the last.
    pub(super) fn choose(&mut self, logits: &[f32]) -> Result<Step> {
        let id = self.sampler.sample(logits, &self.history)?;
        if self.end_ids.contains(&id) {
            return Ok(self.end(FinishReason::Eos));
        }
        let logprobs = self.top.map(|top| logprobs(logits, id, top)).transpose()?;
        self.logprobs.extend(logprobs.clone());
        self.history.push(id);
        let piece = self.decoder.push(id).unwrap_or_default();
        let passed = self.stop.push(&piece);
        let mut step = Step { id: Some(id), text: passed.text, logprobs };
        self.text.push_str(&step.text);
        if passed.stop.is_some() {
            self.finish_reason = Some(FinishReason::Stop);
        } else if self.is_full() {
            step.text += &self.end(FinishReason::Length).text;
        }
        Ok(step)
    }

    /// Ends with what text was held back.
    pub(super) fn end(&mut self, reason: FinishReason) -> Step {
        self.finish_reason = Some(reason);
        let rest = self.decoder.flush().unwrap_or_default();
        let passed = self.stop.push(&rest);
        let text =
            if passed.stop.is_some() { passed.text } else { passed.text + &self.stop.flush() };
        self.text.push_str(&text);
        Step { id: None, text, logprobs: None }
    }

    /// Ends without a last step, after an error.
    pub(super) fn give_up(&mut self) {
        self.finish_reason = Some(FinishReason::Cancelled);
    }

    /// The whole result. If it was still going on, the reason is that it was cancelled.
    pub(super) fn finish(self, timings: Timings) -> Generated {
        Generated {
            ids: self.history[self.prompt_len..].to_vec(),
            text: self.text,
            logprobs: self.top.map(|_| self.logprobs),
            finish_reason: self.finish_reason.unwrap_or(FinishReason::Cancelled),
            timings,
        }
    }
}
