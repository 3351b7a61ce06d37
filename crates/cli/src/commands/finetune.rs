//! `rigel finetune`: trains a model on, as a whole or by a low-rank adapter.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::Args;
use import::ModelFile;
use llm::{LoadOptions, Model, Tokenizer};

use crate::loading::open_model;
use crate::training::RunArgs;
use crate::training::corpus::{self, DataArgs, Words};
use crate::training::recipe::{Defaults, Recipe};
use crate::training::settings::{Lora, Settings, Task};

/// The embedded model in the directory of its run.
const BASE: &str = "base.gguf";

/// Train a model on, by a LoRA adapter or as a whole
///
/// Chats are written by the model's own template, and only the assistant's answers, or completions, are to be
/// predicted. The result is RUN/adapter as PEFT saves it, whose base may be quantised and stays as it is; of --full it is
/// the model in its own format, RUN/final or RUN/final.gguf.
#[derive(Args)]
pub(crate) struct Finetune {
    /// Path, alias or Hugging Face repository
    #[arg(required_unless_present = "resume", conflicts_with = "resume")]
    model: Option<String>,
    /// Tokenizer file, where the model file carries none or another is wanted
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    method: Method,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    recipe: Recipe,
}

/// What of the model is trained.
#[derive(Args)]
#[group(multiple = false, conflicts_with = "resume")]
struct Method {
    /// An adapter of rank r for the layers whose names end so, scaled by alpha / r [default: r=16,alpha=32,targets=q,v;
    /// of GPT-2 targets=c_attn]
    #[arg(long, value_name = "r=N,alpha=A,targets=NAME,…")]
    lora: Option<Lora>,
    /// All weights
    #[arg(long)]
    full: bool,
}

impl Default for Lora {
    /// No targets stand for the usual ones of the model.
    fn default() -> Self {
        Lora { r: 16, alpha: 32.0, targets: Vec::new() }
    }
}

impl FromStr for Lora {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut lora = Lora::default();
        let mut alpha = None;
        let mut targets: Option<Vec<String>> = None;
        let mut said = Vec::new();
        for part in text.split(',') {
            if let Some((key, _)) = part.split_once('=') {
                if said.contains(&key) {
                    return Err(format!("{key}= is there twice"));
                }
                said.push(key);
            }
            match (part.split_once('='), &mut targets) {
                (Some(("r", n)), _) => lora.r = n.parse().map_err(|e| format!("r={n}: {e}"))?,
                (Some(("alpha", a)), _) => {
                    let number = a.parse().ok().filter(|a: &f64| a.is_finite());
                    alpha = Some(number.ok_or_else(|| format!("alpha={a} is no number"))?);
                }
                (Some(("targets", first)), None) => targets = Some(vec![first.to_owned()]),
                (None, Some(targets)) => targets.push(part.to_owned()),
                _ => return Err(format!("{part:?} is none of r=, alpha= and targets=")),
            }
        }
        if lora.r == 0 {
            return Err("r is 0".to_owned());
        }
        lora.alpha = alpha.unwrap_or(2.0 * lora.r as f64);
        let (alpha, r) = (lora.alpha, lora.r);
        if !((alpha / r as f64) as f32).is_finite() {
            return Err(format!("alpha / r is {alpha:e} / {r}, which fp32 does not hold"));
        }
        lora.targets = targets.unwrap_or(lora.targets);
        Ok(lora)
    }
}

impl Finetune {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let Some(name) = &self.model else {
            return self.run.resume(false, &self.data, &self.recipe);
        };
        self.run.begin(|| {
            let file = open_model(name)?;
            Ok(move |dir: &Path| self.prepare(name, file, dir))
        })
    }

    /// Writes tokenized data into the directory `dir` of a new run of the model in `file`.
    fn prepare(&self, name: &str, file: ModelFile, dir: &Path) -> Result<Settings> {
        let path = match hub::embedded(name) {
            None => {
                let path = file.path();
                path.canonicalize().with_context(|| format!("{}", path.display()))?
            }
            // A later Rigel may carry another.
            Some(model) => {
                fs::write(dir.join(BASE), model.bytes)?;
                BASE.into()
            }
        };
        let model = Model::from_file(file, LoadOptions::default())?;
        let (max_context, vocab) = (model.config().max_context, model.config().vocab);
        let rate = if self.method.full { 2e-5 } else { 2e-4 };
        let eval_data = !self.data.eval_data.is_empty();
        let defaults = Defaults { rate, decay: 0.0, max_context, eval_data };
        let recipe = self.recipe.resolve(defaults)?;
        let task = match self.method.full {
            true => {
                let llama2c = matches!(model.file(), ModelFile::Llama2c(_));
                ensure!(!llama2c, "{}: llama2.c files are read, not written", path.display());
                Task::Full { model: path }
            }
            false => {
                let mut lora = self.method.lora.clone().unwrap_or_default();
                if lora.targets.is_empty() {
                    lora.targets = model.usual_targets()?.iter().map(|&t| t.to_owned()).collect();
                }
                let targets: Vec<&str> = lora.targets.iter().map(String::as_str).collect();
                // What does not fit is said before anything is tokenized.
                model.new_adapter(&targets, lora.r, recipe.seed)?;
                Task::Lora { model: path, base: name.to_owned(), lora }
            }
        };
        let mut settings = Settings::new(task, recipe, self.run.compute(), &self.data);
        let DataArgs { data, eval_data, separator } = &self.data;
        if corpus::are_tokens(&[&data[..], eval_data].concat())? {
            ensure!(
                self.tokenizer.is_none(),
                "--tokenizer is for text, and the data is tokens already"
            );
            separator.for_text(false)?;
            settings.data = corpus::tokens(data)?;
            settings.eval_data = corpus::tokens(eval_data)?;
            return Ok(settings);
        }
        let tokenizer = Tokenizer::for_model(model.file(), self.tokenizer.as_deref())?;
        tokenizer.check_vocab(vocab)?;
        let words = Words {
            tokenizer: &tokenizer,
            model: Some(model.file()),
            vocab: vocab.min(tokenizer.vocab_size()),
            separator: separator.separator.as_deref(),
        };
        settings.data = words.place(data, dir, "train")?;
        settings.eval_data = words.place(eval_data, dir, "held-out")?;
        Ok(settings)
    }
}
