//! `rigel train`: a new model from text.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::training::RunArgs;
use crate::training::architecture::Architecture;
use crate::training::corpus::{self, DataArgs, TokenizerArgs, Words};
use crate::training::recipe::{Defaults, Recipe};
use crate::training::settings::{Settings, Task};
use crate::{output, scratch};

/// Train a new model
///
/// RUN is a new directory: run.json with every setting, model/ as it begins, data/ where text was tokenized,
/// checkpoints/, metrics.jsonl and TensorBoard's event files, and at the end final/, a directory in the form of
/// Hugging Face. Ctrl-C saves a checkpoint and ends; --resume goes on, to the same weights bit for bit.
#[derive(Args)]
pub(crate) struct Train {
    /// tiny, stories110m, gpt2-124m, or a file: config.json, or its keys in .toml, which may have tables
    /// [train] and [tokenizer] with the options below
    #[arg(
        long,
        value_name = "ARCH",
        required_unless_present = "resume",
        conflicts_with = "resume"
    )]
    arch: Option<String>,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    tokenizer: TokenizerArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    recipe: Recipe,
}

impl Train {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let Some(arch) = &self.arch else { return self.run.resume(&self.data, &self.recipe) };
        self.run.begin(|| {
            let architecture = Architecture::find(arch)?;
            Ok(move |dir: &Path| self.prepare(architecture, dir))
        })
    }

    /// Writes the model as it begins and tokenized data into the directory `dir` of a new run.
    fn prepare(&self, mut architecture: Architecture, dir: &Path) -> Result<Settings> {
        let defaults =
            Defaults { rate: 3e-4, decay: 0.1, max_context: architecture.max_context()? };
        let recipe = self.recipe.or(&architecture.recipe)?.resolve(defaults)?;
        let task = Task::Full { model: "model".into() };
        let mut settings = Settings::new(task, recipe, self.run.compute(), &self.data);
        let DataArgs { data, eval_data, separator } = &self.data;
        let plan = scratch::folder()?.join("plan");
        fs::create_dir(&plan).with_context(|| format!("{}", plan.display()))?;
        let choice = self.tokenizer.or_of(&architecture.tokenizer, data)?;
        match choice.place(data, &plan)? {
            Some(tokenizer) => {
                let vocab = tokenizer.vocab_size();
                architecture.set_ends(tokenizer.bos(), tokenizer.eos());
                if let Some(own) = architecture.set_vocab(vocab) {
                    output::note(&format!(
                        "note: the vocabulary has {vocab} ids by the tokenizer, not {own}"
                    ));
                }
                let separator = separator.separator.as_deref();
                let words = Words { tokenizer: &tokenizer, model: None, vocab, separator };
                settings.data = words.place(data, dir, "train")?;
                settings.eval_data = words.place(eval_data, dir, "held-out")?;
            }
            None => {
                separator.for_text(false)?;
                let vocab = corpus::vocab_of(data)?.max(corpus::vocab_of(eval_data)?);
                architecture.set_vocab(vocab);
                settings.data = corpus::tokens(data)?;
                settings.eval_data = corpus::tokens(eval_data)?;
            }
        }
        architecture.write(&plan)?;
        llm::initialise(&plan, settings.recipe.seed, dir.join("model"))?;
        Ok(settings)
    }
}
