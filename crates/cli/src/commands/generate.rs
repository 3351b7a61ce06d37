//! `rigel generate`: continues a text.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use llm::Tokenizer;
use llm::adapter::NONE;
use llm::generate::{FinishReason, GenerateOptions, Generated, Overflow};
use llm::sample::{SamplingParams, TokenLogprobs};
use llm::template::{ChatTemplate, Message};
use serde_json::{Value, json};

use super::text_or_stdin;
use crate::interrupt::{self, Heeded};
use crate::loading::{Loaded, ModelArgs};
use crate::output;
use crate::sampling_args::SamplingArgs;

/// Continue a text
///
/// Prints what follows PROMPT as it is generated, and a line's end. The model sees PROMPT as it is; with
/// --chat it is a message to an assistant, in the form that the model was trained with.
#[derive(Args)]
pub(crate) struct Generate {
    /// Text to continue, or `-` for standard input; a new text without it
    #[arg(default_value = "", hide_default_value = true)]
    prompt: String,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Most tokens to generate
    #[arg(long, short = 'n', value_name = "N", default_value_t = 256)]
    max_tokens: usize,
    /// Continue PROMPT N times, each time from the seed after the last one's; computed together, so that tokens take
    /// far less than N times as long, and printed once all have ended
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "slide")]
    samples: u16,
    /// End at this string, which is not printed; may be given several times
    #[arg(long, value_name = "S")]
    stop: Vec<String>,
    /// Go on past the model's end tokens
    #[arg(long)]
    ignore_end: bool,
    /// When the context is full: keep the first N tokens, drop half of the others, go on (else it ends)
    #[arg(long, value_name = "N")]
    slide: Option<usize>,
    /// Put PROMPT into the model's chat template
    #[arg(long)]
    chat: bool,
    /// System message for --chat
    #[arg(long, value_name = "S", requires = "chat")]
    system: Option<String>,
    /// Add each token's log-probability to the JSON, and the N likeliest alternatives
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "0", requires = "json")]
    logprobs: Option<usize>,
    /// Print a JSON object: prompt_ids, ids, text, logprobs, finish_reason (eos, stop, length, context or
    /// cancelled), seed, timings (load_s, prefill_s, decode_s, prefill_tok_s, decode_tok_s); with adapters also
    /// adapter; on an engine also engine (name, compilations, loads, evictions, dispatches, copied_bytes,
    /// predicted_s), so far. With --samples or with --use given several times it is an array of such objects
    #[arg(long)]
    json: bool,
}

impl Generate {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let prompt = text_or_stdin(&self.prompt)?;
        let mut loaded = self.model.load_several(self.samples.into(), self.chat)?;
        let tokenizer = loaded.tokenizer()?;
        loaded.introduce();
        let prompt_ids = self.prompt_ids(&prompt, &loaded, &tokenizer)?;
        let adapters = self.model.used_adapters();
        let wanted = adapters.len() * usize::from(self.samples);
        // The same random numbers for each adapter's answer: what differs is the adapter's doing.
        let sampling = self.sampling.params();
        let mut reports = Vec::new();
        for (nth, name) in adapters.iter().enumerate() {
            if nth > 0 {
                loaded.use_adapter(name.unwrap_or(NONE))?;
            }
            if let Some(name) = name.filter(|_| adapters.len() > 1 && !self.json) {
                output::line(&format!("{}[{name}]", if nth > 0 { "\n" } else { "" }))?;
            }
            let answers = match self.samples {
                1 => vec![self.answer(&mut loaded, &tokenizer, &prompt_ids, &sampling)?],
                _ => self.answers(&mut loaded, &tokenizer, &prompt_ids, &sampling)?,
            };
            if self.json {
                reports.extend(answers.iter().zip(0..).map(|(generated, nth)| {
                    let seed = sampling.seed.wrapping_add(nth);
                    report(&prompt_ids, generated, seed, &loaded, &tokenizer)
                }));
            }
            if answers.iter().any(|one| one.finish_reason == FinishReason::Cancelled) {
                self.print(reports, wanted)?;
                return Ok(interrupt::status());
            }
        }
        self.print(reports, wanted)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the reports on `wanted` answers: one as it is, several in an array.
    fn print(&self, mut reports: Vec<Value>, wanted: usize) -> Result<()> {
        match (self.json, wanted) {
            (false, _) => Ok(()),
            (true, 1) => output::json(&reports.pop()),
            (true, _) => output::json(&reports),
        }
    }

    /// Prints what follows the prompt as it comes, unless it is for a report, and returns it.
    fn answer(
        &self,
        loaded: &mut Loaded,
        tokenizer: &Tokenizer,
        prompt_ids: &[u32],
        sampling: &SamplingParams,
    ) -> Result<Generated> {
        let heeded = Heeded::new();
        let options = self.options(sampling, &heeded);
        let mut generation = loaded.session.generate(tokenizer, prompt_ids, options)?;
        for step in generation.by_ref() {
            let step = step?;
            if !self.json {
                output::piece(&step.text)?;
            }
        }
        let generated = generation.finish();
        if !self.json {
            output::line("")?;
            if generated.finish_reason == FinishReason::Context {
                let context = loaded.session.context();
                output::note(&format!(
                    "note: the context of {context} tokens is full; --slide 0 goes on without the oldest"
                ));
            }
            output::remark(&summary(&generated));
            if let Some(summary) = loaded.device.summary() {
                output::remark(&summary);
            }
        }
        Ok(generated)
    }

    /// Several continuations, printed once all have ended, unless they are for a report.
    fn answers(
        &self,
        loaded: &mut Loaded,
        tokenizer: &Tokenizer,
        prompt_ids: &[u32],
        sampling: &SamplingParams,
    ) -> Result<Vec<Generated>> {
        let heeded = Heeded::new();
        let options = self.options(sampling, &heeded);
        let all = loaded.session.generate_several(tokenizer, prompt_ids, &options)?;
        if !self.json {
            for (n, one) in (1..).zip(&all) {
                output::line(&format!("{}[{n}]\n{}", if n > 1 { "\n" } else { "" }, one.text))?;
            }
            let tokens: usize = all.iter().map(|one| one.ids.len()).sum();
            let time = all.iter().map(|one| one.timings.prefill + one.timings.decode).max();
            let seconds = time.unwrap_or_default().as_secs_f64().max(f64::MIN_POSITIVE);
            output::remark(&format!(
                "[{} samples after a prompt of {} tokens: {tokens} tokens in {seconds:.1} s, {:.1} tokens/s]",
                all.len(),
                prompt_ids.len(),
                tokens as f64 / seconds
            ));
        }
        Ok(all)
    }

    fn options(&self, sampling: &SamplingParams, heeded: &Heeded) -> GenerateOptions {
        GenerateOptions {
            sampling: sampling.clone(),
            max_tokens: Some(self.max_tokens),
            stop: self.stop.clone(),
            ignore_end: self.ignore_end,
            logprobs: self.logprobs,
            overflow: self.slide.map_or(Overflow::Stop, |keep| Overflow::Slide { keep }),
            cancel: Some(heeded.flag()),
        }
    }

    fn prompt_ids(&self, prompt: &str, loaded: &Loaded, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        if self.chat {
            let system = self.system.as_deref().map(|s| Message::new("system", s));
            let messages: Vec<_> =
                system.into_iter().chain([Message::new("user", prompt)]).collect();
            return Ok(ChatTemplate::for_model(&loaded.file)?.encode(tokenizer, &messages)?);
        }
        let mut ids = tokenizer.encode(prompt, true)?;
        if ids.is_empty() {
            // A model needs something to continue; a text of its own begins with BOS.
            let bos = tokenizer
                .bos()
                .context("the prompt is empty, and the model has no token to begin a text")?;
            ids.push(bos);
        }
        Ok(ids)
    }
}

fn report(
    prompt_ids: &[u32],
    generated: &Generated,
    seed: u64,
    loaded: &Loaded,
    tokenizer: &Tokenizer,
) -> Value {
    let timings = &generated.timings;
    let mut report = json!({
        "prompt_ids": prompt_ids,
        "ids": generated.ids,
        "text": generated.text,
        "finish_reason": generated.finish_reason,
        "seed": seed,
        "timings": {
            "load_s": loaded.time.as_secs_f64(),
            "prefill_s": timings.prefill.as_secs_f64(),
            "decode_s": timings.decode.as_secs_f64(),
            "prefill_tok_s": timings.prefill_rate(),
            "decode_tok_s": timings.decode_rate(),
        },
    });
    if let Some(logprobs) = &generated.logprobs {
        let piece = |id| tokenizer.id_to_piece(id);
        let token = |l: &TokenLogprobs| {
            let top: Vec<Value> = l
                .top
                .iter()
                .map(|&(id, logprob)| json!({ "id": id, "piece": piece(id), "logprob": logprob }))
                .collect();
            json!({ "id": l.id, "piece": piece(l.id), "logprob": l.logprob, "top": top })
        };
        report["logprobs"] = logprobs.iter().map(token).collect();
    }
    if !loaded.adapter_names().is_empty() {
        report["adapter"] = loaded.adapter().unwrap_or(NONE).into();
    }
    if let Some(engine) = loaded.device.report() {
        report["engine"] = engine;
    }
    report
}

/// One line about a generation, for people.
pub(super) fn summary(generated: &Generated) -> String {
    let timings = &generated.timings;
    let reason = match generated.finish_reason {
        FinishReason::Eos => "the model ended",
        FinishReason::Stop => "a stop string came",
        FinishReason::Length => "--max-tokens reached",
        FinishReason::Context => "the context is full",
        FinishReason::Cancelled => "interrupted",
    };
    format!(
        "[prompt {} tokens, {:.1} tokens/s; generated {}, {:.1} tokens/s; {reason}]",
        timings.prefill_tokens,
        timings.prefill_rate(),
        generated.ids.len(),
        timings.decode_rate()
    )
}
