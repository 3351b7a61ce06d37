//! `rigel data`: data for training.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use llm::{LoadOptions, Model, Tokenizer};
use serde_json::json;
use train::data::{Kind, TokenWriter, Tokenized, files};

use crate::interrupt::Heeded;
use crate::loading::ModelName;
use crate::training::corpus::{SeparatorArgs, Words, said};
use crate::training::run::renamed;
use crate::{destination, output, scratch};

/// Prepare data for training
#[derive(Subcommand)]
pub(crate) enum Data {
    Tokenize(Tokenize),
}

/// Make token files (.bin) of text, JSON lines or chats
///
/// Chats are written by the model's template; answers and completions alone are to be predicted. Each document is ended
/// by the model's end token, and begun as the model wants it.
#[derive(Args)]
pub(crate) struct Tokenize {
    /// Text (.txt, .md, any other), JSON lines (.jsonl: text, prompt and completion, or messages), or directories of
    /// those
    #[arg(required = true, value_name = "PATH")]
    data: Vec<PathBuf>,
    /// What to write: NAME.bin
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Replace FILE if it is there
    #[arg(long, conflicts_with = "shard")]
    force: bool,
    /// Begin a new file, NAME-00001.bin and so on, after N tokens; none of them may be there
    #[arg(long, value_name = "N")]
    shard: Option<usize>,
    #[command(flatten)]
    separator: SeparatorArgs,
    #[command(flatten)]
    name: ModelName,
    /// Print a JSON object: files, documents, tokens
    #[arg(long)]
    json: bool,
}

impl Data {
    pub(super) fn run(&self) -> Result<()> {
        let Data::Tokenize(tokenize) = self;
        tokenize.run()
    }
}

impl Tokenize {
    fn run(&self) -> Result<()> {
        let is_bin = self.output.extension().is_some_and(|e| e == "bin");
        ensure!(is_bin, "{}: the destination is named .bin", self.output.display());
        ensure!(self.shard != Some(0), "--shard is 0");
        for file in files(&self.data)? {
            let path = &file.path;
            ensure!(file.kind != Kind::Tokens, "{}: is tokens already", path.display());
            destination::check(&self.output, false, path, self.force || self.shard.is_some())?;
        }
        // A tokenizer file alone is enough, but for chats.
        let (model, tokenizer, vocab) = match &self.name.tokenizer {
            Some(path) => (None, Tokenizer::from_file(path)?, usize::MAX),
            None => {
                let model = Model::from_file(self.name.open()?, LoadOptions::default())?;
                let tokenizer = Tokenizer::for_model(model.file(), None)?;
                // Some tokenizers have control tokens beyond the ids of their model.
                let vocab = model.config().vocab;
                (Some(model), tokenizer, vocab)
            }
        };
        let vocab = vocab.min(tokenizer.vocab_size());
        let words = Words {
            tokenizer: &tokenizer,
            model: model.as_ref().map(Model::file),
            vocab,
            separator: self.separator.separator.as_deref(),
        };
        let (files, done) = self.write(&words)?;
        if self.json {
            return output::json(&json!({
                "files": files,
                "documents": done.documents,
                "tokens": done.tokens,
                "predicted": done.counted,
                "vocab": words.vocab,
            }));
        }
        output::line(&said(&done))?;
        files.iter().try_for_each(|file| output::line(&file.display().to_string()))
    }

    /// Writes the files in a directory of their own, which a signal removes, and gives them their names when all are
    /// whole.
    fn write(&self, words: &Words<'_>) -> Result<(Vec<PathBuf>, Tokenized)> {
        // What is in the way is to be known now, not at the end.
        TokenWriter::new(&self.output, words.vocab, self.shard)?;
        let failed = || format!("{}: cannot write", self.output.display());
        let beside = self.output.parent().filter(|p| !p.as_os_str().is_empty());
        let beside = beside.unwrap_or(Path::new("."));
        let partial = tempfile::Builder::new().prefix(import::PARTIAL).tempdir_in(beside);
        let partial = partial.with_context(failed)?;
        let unfinished = scratch::Unfinished::new(partial.path());
        let to = partial.path().join(self.output.file_name().unwrap_or_default());
        let written = words.write(&self.data, &to, self.shard);
        let (files, done) = written.map_err(|error| {
            renamed(error, &partial.path().join(""), &self.output.with_file_name(""))
        })?;
        let name = |file: &PathBuf| Some(self.output.with_file_name(file.file_name()?));
        let names: Vec<PathBuf> = files.iter().filter_map(name).collect();
        let heeded = Heeded::new();
        drop(unfinished);
        for (i, (file, name)) in files.iter().zip(&names).enumerate() {
            if let Err(error) = fs::rename(file, name) {
                // What cannot be removed either stays; the first error says why.
                names[..i].iter().for_each(|name| drop(fs::remove_file(name)));
                return Err(error).with_context(failed);
            }
        }
        if cfg!(unix) {
            // The names too are to be on disk.
            File::open(beside).and_then(|dir| dir.sync_all()).with_context(failed)?;
        }
        drop(partial);
        heeded.act();
        Ok((names, done))
    }
}
