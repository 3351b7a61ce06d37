//! `rigel train`: a new model from text.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::training::RunArgs;
use crate::training::architecture::{Architecture, CONFIG};
use crate::training::corpus::{self, DataArgs, TokenizerArgs, Words};
use crate::training::recipe::{Defaults, Recipe};
use crate::training::run::renamed;
use crate::training::settings::{MODEL, Settings, Task};
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
        let Some(arch) = &self.arch else { return self.run.resume(true, &self.data, &self.recipe) };
        self.run.begin(|| {
            let architecture = Architecture::find(arch)?;
            Ok(move |dir: &Path| self.prepare(arch, architecture, dir))
        })
    }

    /// Writes the model as it begins, of the architecture that the user calls `arch`, and tokenized data into the
    /// directory `dir` of a new run.
    fn prepare(&self, arch: &str, mut architecture: Architecture, dir: &Path) -> Result<Settings> {
        let DataArgs { data, eval_data, separator } = &self.data;
        let (max_context, evaluated) = (architecture.max_context()?, !eval_data.is_empty());
        let defaults = Defaults { rate: 3e-4, decay: 0.1, max_context, eval_data: evaluated };
        let recipe = self.recipe.or(&architecture.recipe)?.resolve(defaults)?;
        let task = Task::Full { model: MODEL.into() };
        let mut settings = Settings::new(task, recipe, self.run.compute(), &self.data);
        corpus::are_tokens(&[&data[..], eval_data].concat())?;
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
        let made = llm::initialise(&plan, settings.recipe.seed, dir.join(MODEL));
        made.map_err(|error| renamed(error.into(), &plan.join(CONFIG), Path::new(arch)))?;
        Ok(settings)
    }
}
