//! `rigel eval`: how well a model predicts a text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{ArgGroup, Args};
use llm::eval::{evaluate, largest_window};
use serde_json::{Value, json};

use crate::loading::ModelArgs;
use crate::{output, progress};

/// Tokens listed for the last position.
const TOP: usize = 5;

/// Measure how well a model predicts a text
///
/// A text longer than the window is scored in windows that overlap by half, each token once.
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
    /// Only the first N tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Tokens that are seen together; by default the context, or less where 256 MiB of logits is not enough for it
    #[arg(long, value_name = "N")]
    window: Option<usize>,
    /// Print a JSON object: ids, nll (one value per predicted token, of ids[1] on), mean_nll, perplexity,
    /// top (the likeliest next tokens: id, piece, logprob)
    #[arg(long)]
    json: bool,
}

impl Eval {
    pub(super) fn run(&self) -> Result<()> {
        // Before a model is fetched and loaded for nothing.
        let text = self.text.as_deref().map(read_text).transpose()?;
        let ids = self.ids.as_deref().map(read_ids).transpose()?;
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
        ids.truncate(self.max_tokens.unwrap_or(usize::MAX));
        loaded.introduce();
        let window = self.window.unwrap_or_else(|| largest_window(&loaded.session));
        let bos = tokenizer.as_ref().and_then(llm::Tokenizer::bos);
        let bar = progress::steps("evaluating", ids.len());
        let result = evaluate(&mut loaded.session, &ids, window, bos, TOP, |done| {
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        let result = result?;
        let top: Vec<Value> = result
            .top
            .iter()
            .map(|&(id, logprob)| {
                let piece = tokenizer.as_ref().and_then(|t| t.id_to_piece(id));
                json!({ "id": id, "piece": piece, "logprob": logprob })
            })
            .collect();
        if self.json {
            return output::json(&json!({
                "ids": ids,
                "nll": result.nll,
                "mean_nll": result.mean_nll(),
                "perplexity": result.perplexity(),
                "top": top,
            }));
        }
        output::line(&format!("tokens      {} ({} predicted)", ids.len(), result.nll.len()))?;
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
