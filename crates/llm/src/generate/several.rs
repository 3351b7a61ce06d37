//! Several continuations of one prompt that keep step: each run of the model gives a token of all.

use std::time::Instant;

use super::continuation::Continuation;
use super::options::{FinishReason, GenerateOptions, Overflow, Timings};
use super::{Generated, Session};
use crate::sample::SamplingParams;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

impl Session {
    /// Continues `prompt` once for each of the session's sequences, the `n`-th with the seed `n` above that of
    /// the options. It takes as many runs of the model as the longest continuation has tokens, and a run for many
    /// costs far less than as many runs, since the weights are read once.
    ///
    /// # Errors
    /// As [`Session::generate`], and when a full context is to slide, which the sequences would not do in step.
    pub fn generate_several(
        &mut self,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Vec<Generated>> {
        self.check(prompt)?;
        if options.overflow != Overflow::Stop {
            return Err(Error::request("several sequences do not slide: they keep step"));
        }
        let continuation = |n: usize| {
            let seed = options.sampling.seed.wrapping_add(n as u64);
            let sampling = SamplingParams { seed, ..options.sampling.clone() };
            Ok((Continuation::new(tokenizer, prompt, options, sampling)?, Timings::default()))
        };
        let mut all = (0..self.sequences()).map(continuation).collect::<Result<Vec<_>>>()?;
        if options.max_tokens == Some(0) {
            all.iter_mut().for_each(|(one, _)| drop(one.end(FinishReason::Length)));
        } else {
            self.go_on(prompt, options, &mut all)?;
        }
        Ok(all.into_iter().map(|(one, timings)| one.finish(timings)).collect())
    }

    fn go_on(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        all: &mut [(Continuation<'_>, Timings)],
    ) -> Result<()> {
        let prefill_tokens = prompt.len() - self.reusable(prompt);
        let start = Instant::now();
        let logits = self.extend(prompt, || !options.cancelled())?;
        let mut timings =
            Timings { prefill: start.elapsed(), prefill_tokens, ..Timings::default() };
        let mut logits = logits.unwrap_or_default();
        let start = Instant::now();
        for position in prompt.len().. {
            if options.cancelled() {
                break;
            }
            for ((one, ended), logits) in all.iter_mut().zip(logits.chunks_exact(self.vocab())) {
                if one.finish_reason().is_none() {
                    one.choose(logits)?;
                    *ended = Timings { decode: start.elapsed(), ..timings };
                }
            }
            let mut going = all.iter_mut().filter(|(one, _)| one.finish_reason().is_none());
            if position == self.context() {
                going.for_each(|(one, _)| drop(one.end(FinishReason::Context)));
                break;
            }
            if going.next().is_none() {
                break;
            }
            // Those that ended go along unseen.
            let ids: Vec<u32> = all.iter().map(|(one, _)| one.last()).collect();
            logits = self.step(&ids, position)?;
            timings.decode_tokens += 1;
        }
        for (one, _) in all.iter_mut().filter(|(one, _)| one.finish_reason().is_none()) {
            one.end(FinishReason::Cancelled);
        }
        Ok(())
    }
}
