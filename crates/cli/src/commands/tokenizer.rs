//! `rigel tokenizer`: new tokenizers.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::output;
use crate::training::corpus;

/// Make tokenizers
#[derive(Subcommand)]
pub(crate) enum Tokenizer {
    Train(Train),
}

/// Make a tokenizer from text: byte-level BPE with GPT-2's pre-tokenizer
///
/// Writes tokenizer.json and tokenizer_config.json, which Hugging Face's libraries load too. Id 0 is <|endoftext|>.
#[derive(Args)]
pub(crate) struct Train {
    /// Text, JSON lines, or directories of those
    #[arg(required = true, value_name = "PATH")]
    data: Vec<PathBuf>,
    /// Ids, at least 257
    #[arg(long, value_name = "N", required_unless_present = "chars")]
    vocab: Option<usize>,
    /// One token for each character instead
    #[arg(long, conflicts_with = "vocab")]
    chars: bool,
    /// Directory to write, which must not be there
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
}

impl Tokenizer {
    pub(super) fn run(&self) -> Result<()> {
        let Tokenizer::Train(train) = self;
        train.run()
    }
}

impl Train {
    fn run(&self) -> Result<()> {
        let made = corpus::make(&self.data, self.vocab)?;
        import::write_directory(&self.output, |dir| anyhow::Ok(made.write(dir)?))?;
        output::line(&format!("{} ids in {}", made.vocab_size(), self.output.display()))
    }
}
