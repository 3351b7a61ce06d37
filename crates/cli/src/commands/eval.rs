//! `rigel eval`: how well a model predicts a text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{ArgGroup, Args, ValueEnum};
use llm::agreement::{self, Agreement};
use llm::eval::{Evaluation, Scoring, Text, evaluate, largest_window};
use serde_json::{Value, json};

use crate::loading::{Loaded, ModelArgs};
use crate::{output, progress};

/// Tokens listed for the last position.
const TOP: usize = 5;

/// Disagreements that are listed for people.
const LISTED: usize = 10;

/// Measure how well a model predicts a text, or how well a device agrees with the CPU
///
/// A text longer than the window is scored in windows that overlap by half, each token once. An engine
/// gives the logits token after token, as when it generates.
#[derive(Args)]
#[command(group = ArgGroup::new("input").required(true).args(["text", "ids"]))]
pub(crate) struct Eval {
    #[command(flatten)]
    model: ModelArgs,
    /// Text file, UTF-8
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// JSON file of token ids: an array, or an object with the array "ids"
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Only the first N tokens, at least 2: nothing predicts the first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    max_tokens: Option<u64>,
    /// Tokens that are seen together; by default the context, or less where 256 MiB of logits is not enough for it
    #[arg(long, value_name = "N")]
    window: Option<usize>,
    /// Compare the device with another, token by token after the same text: the likeliest next tokens, their
    /// margins (how far the other's largest logit is above its second), logits, likelihoods and times
    #[arg(long, value_enum)]
    against: Option<Against>,
    /// Print a JSON object: ids, nll (one value per predicted token, of ids[1] on), mean_nll, perplexity,
    /// top (the likeliest next tokens: id, piece, logprob). With --against: ids, predicted, agree, agreement,
    /// margins (smallest, median), disagreements (index, best, reference_best, margin),
    /// largest_difference, largest_relative_difference (as part of the other's largest logit at that token),
    /// mean_nll, time_s (of an emulated engine, how long it takes to emulate it here), reference (name, mean_nll,
    /// time_s), and on an engine engine, as of `generate`, and predicted_s of the comparison alone
    #[arg(long)]
    json: bool,
}

/// What a device is compared with.
#[derive(Clone, Copy, ValueEnum)]
enum Against {
    /// Native kernels on the CPU
    Cpu,
}

impl Eval {
    pub(super) fn run(&self) -> Result<()> {
        // Before a model is fetched and loaded for nothing.
        let text = self.text.as_deref().map(read_text).transpose()?;
        let ids = self.ids.as_deref().map(read_ids).transpose()?;
        self.model.one_adapter()?;
        let scoring = self.model.scoring()?;
        let mut loaded = self.model.load()?;
        let tokenizer = match loaded.tokenizer() {
            Ok(tokenizer) => Some(tokenizer),
            // Ids are enough to evaluate; a tokenizer then only names them.
            Err(_) if ids.is_some() && !self.model.names_tokenizer() => None,
            Err(e) => return Err(e),
        };
        let mut ids = match (ids, text, &tokenizer) {
            (None, Some(text), Some(tokenizer)) => tokenizer.encode(&text, true)?,
            (ids, ..) => ids.unwrap_or_default(),
        };
        ids.truncate(self.max_tokens.map_or(usize::MAX, |n| n as usize));
        loaded.introduce();
        let window = self.window.unwrap_or_else(|| largest_window(&loaded.session));
        let bos = tokenizer.as_ref().and_then(llm::Tokenizer::bos);
        let text = Text { ids: &ids, window, bos };
        match self.against {
            None => self.predict(&mut loaded, scoring, &text, tokenizer.as_ref()),
            Some(Against::Cpu) => self.compare(&mut loaded, scoring, &text),
        }
    }

    /// How well the model predicts the text.
    fn predict(
        &self,
        loaded: &mut Loaded,
        scoring: Scoring,
        text: &Text<'_>,
        tokenizer: Option<&llm::Tokenizer>,
    ) -> Result<()> {
        let bar = progress::steps("evaluating", text.ids.len());
        let result = evaluate(&mut loaded.session, scoring, text, TOP, |done| {
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        let result = result?;
        let top: Vec<Value> = result
            .top
            .iter()
            .map(|&(id, logprob)| {
                let piece = tokenizer.and_then(|t| t.id_to_piece(id));
                json!({ "id": id, "piece": piece, "logprob": logprob })
            })
            .collect();
        if self.json {
            return output::json(&json!({
                "ids": text.ids,
                "nll": result.nll,
                "mean_nll": result.mean_nll(),
                "perplexity": result.perplexity(),
                "top": top,
            }));
        }
        print(text, &result, &top)
    }

    /// How well the device agrees with the CPU.
    fn compare(&self, loaded: &mut Loaded, scoring: Scoring, text: &Text<'_>) -> Result<()> {
        let mut reference = self.model.on_cpu(loaded)?;
        // No time at all before the first dispatch.
        let before = loaded.device.predicted().unwrap_or_default();
        let bar = progress::steps("comparing", text.ids.len());
        let session = (&mut loaded.session, scoring);
        let found = agreement::compare(session, &mut reference, text, |done| {
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        let found = found?;
        let predicted = loaded.device.predicted().map(|all| all - before);
        let predicted = predicted.map(|t| t.as_secs_f64());
        if self.json {
            let mut report = report(text, &found);
            if let Some(engine) = loaded.device.report() {
                report["engine"] = engine;
                report["predicted_s"] = predicted.into();
            }
            return output::json(&report);
        }
        print_agreement(text, &found, predicted)
    }
}

fn print(text: &Text<'_>, result: &Evaluation, top: &[Value]) -> Result<()> {
    output::line(&format!("tokens      {} ({} predicted)", text.ids.len(), result.nll.len()))?;
    output::line(&format!("mean nll    {:.5}", result.mean_nll()))?;
    output::line(&format!("perplexity  {:.4}", result.perplexity()))?;
    output::line("likeliest next:")?;
    for t in top {
        let logprob = t["logprob"].as_f64().unwrap_or(f64::NAN);
        let piece = t["piece"].as_str().unwrap_or("");
        output::line(&format!("{:>9}  {logprob:>9.4}  {piece}", t["id"].to_string()))?;
    }
    Ok(())
}

fn report(text: &Text<'_>, found: &Agreement) -> Value {
    let [mean, reference_mean] = found.mean_nlls();
    let margins =
        found.margins().map(|[smallest, median]| json!({ "smallest": smallest, "median": median }));
    let disagreements: Vec<Value> = found
        .disagreements()
        .map(|p| {
            json!({
                "index": p.index,
                "best": p.best,
                "reference_best": p.reference_best,
                "margin": p.margin,
            })
        })
        .collect();
    json!({
        "ids": text.ids,
        "predicted": found.positions.len(),
        "agree": found.positions.len() - disagreements.len(),
        "agreement": found.fraction(),
        "margins": margins,
        "disagreements": disagreements,
        "largest_difference": found.largest_difference,
        "largest_relative_difference": found.largest_relative_difference,
        "mean_nll": mean,
        "time_s": found.time.as_secs_f64(),
        "reference": {
            "name": "cpu",
            "mean_nll": reference_mean,
            "time_s": found.reference_time.as_secs_f64(),
        },
    })
}

fn print_agreement(text: &Text<'_>, found: &Agreement, predicted: Option<f64>) -> Result<()> {
    let all = found.positions.len();
    let differ = found.disagreements().count();
    let [mean, reference] = found.mean_nlls();
    output::line(&format!("tokens         {} ({all} predicted)", text.ids.len()))?;
    let percent = 100.0 * found.fraction();
    output::line(&format!("same likeliest {} ({percent:.2} %)", all - differ))?;
    if let Some([smallest, median]) = found.margins() {
        output::line(&format!("margins        smallest {smallest:.4}, median {median:.4}"))?;
    }
    output::line(&format!(
        "logits differ  by at most {:.4}, {:.2e} of the largest",
        found.largest_difference, found.largest_relative_difference
    ))?;
    output::line(&format!("mean nll       {mean:.5}, on the CPU {reference:.5}"))?;
    // An engine that keeps no clock of its own is a real one.
    let what = if predicted.is_some() { " for emulating it here" } else { "" };
    let clock = predicted.map_or_else(String::new, |s| format!(", by the engine's clock {s:.4} s"));
    output::line(&format!(
        "time           {:.2} s{what}, on the CPU {:.2} s{clock}",
        found.time.as_secs_f64(),
        found.reference_time.as_secs_f64()
    ))?;
    for p in found.disagreements().take(LISTED) {
        output::line(&format!(
            "token {:>6}   likeliest {} and on the CPU {}, margin {:.4}",
            p.index, p.best, p.reference_best, p.margin
        ))?;
    }
    match differ.saturating_sub(LISTED) {
        0 => Ok(()),
        more => output::line(&format!("and {more} more")),
    }
}

fn read_text(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    ensure!(!text.is_empty(), "{}: file is empty", path.display());
    Ok(text)
}

/// The ids in a JSON file.
fn read_ids(path: &Path) -> Result<Vec<u32>> {
    let read = || -> Result<Vec<u32>> {
        let value: Value = serde_json::from_slice(&fs::read(path)?)?;
        let array = value.as_array().or_else(|| value["ids"].as_array());
        let array =
            array.context("neither an array of token ids nor an object with the array \"ids\"")?;
        let id = |(i, v): (usize, &Value)| {
            let id = v.as_u64().and_then(|v| u32::try_from(v).ok());
            id.with_context(|| format!("entry {i} is {v}, which is no token id"))
        };
        array.iter().enumerate().map(id).collect()
    };
    read().with_context(|| path.display().to_string())
}
