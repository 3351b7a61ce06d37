//! `rigel tokenize`: text to token ids and back.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use llm::Tokenizer;
use serde_json::json;

use super::text_or_stdin;
use crate::loading::ModelName;
use crate::output;

/// Show a text's token ids and pieces, or the text of ids
#[derive(Args)]
pub(crate) struct Tokenize {
    /// Text, or `-` for standard input
    #[arg(allow_hyphen_values = true)]
    text: String,
    #[command(flatten)]
    name: ModelName,
    /// TEXT is ids, apart by spaces or commas; print their text
    #[arg(long)]
    decode: bool,
    /// Do not add what the model expects around a text, such as BOS
    #[arg(long)]
    no_special: bool,
    /// Names of control tokens in TEXT, such as <|im_end|>, mean those tokens
    #[arg(long)]
    control: bool,
    /// Print a JSON object: ids, pieces; with --decode: ids, text
    #[arg(long)]
    json: bool,
}

impl Tokenize {
    pub(super) fn run(&self) -> Result<()> {
        let tokenizer = self.tokenizer()?;
        let text = text_or_stdin(&self.text)?;
        if self.decode {
            let ids = parse_ids(&text)?;
            if let Some(id) = ids.iter().find(|&&id| tokenizer.id_to_piece(id).is_none()) {
                bail!("the tokenizer has no token {id}");
            }
            let text = tokenizer.decode(&ids, false);
            return if self.json {
                output::json(&json!({ "ids": ids, "text": text }))
            } else {
                output::line(&text)
            };
        }
        let ids = if self.control {
            tokenizer.encode_with_control(&text, !self.no_special)?
        } else {
            tokenizer.encode(&text, !self.no_special)?
        };
        let pieces: Vec<_> = ids.iter().map(|&id| tokenizer.id_to_piece(id)).collect();
        if self.json {
            return output::json(&json!({ "ids": ids, "pieces": pieces }));
        }
        for (id, piece) in ids.iter().zip(pieces) {
            output::line(&format!("{id}\t{}", piece.unwrap_or_default()))?;
        }
        Ok(())
    }

    /// The tokenizer file alone if one is named; no model is needed then.
    fn tokenizer(&self) -> Result<Tokenizer> {
        match &self.name.tokenizer {
            Some(path) => Ok(Tokenizer::from_file(path)?),
            None => Ok(Tokenizer::for_model(&self.name.open()?, None)?),
        }
    }
}

fn parse_ids(text: &str) -> Result<Vec<u32>> {
    let words = text.trim_matches(['[', ']']).split(|c: char| c == ',' || c.is_whitespace());
    words
        .filter(|w| !w.is_empty())
        .map(|w| w.parse().map_err(|e| anyhow!("{w:?}: {e}")).context("not a token id"))
        .collect()
}
