//! From the arguments that name a model to a session that runs it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use analysis::units;
use anyhow::{Context, Result};
use clap::Args;
use import::ModelFile;
use llm::generate::Session;
use llm::{LoadOptions, Model, ModelConfig, Tokenizer};

use crate::devices::{Device, DeviceArgs};
use crate::{environment, output, progress};

/// Context if none is asked for, where the model allows more.
const DEFAULT_CONTEXT: usize = 8192;

/// Which model.
#[derive(Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelName {
    /// Path, alias or Hugging Face repository
    #[arg(long, short, value_name = "M", default_value = hub::ALIASES[0].name)]
    pub(crate) model: String,
    /// Tokenizer file, where the model file carries none or another is wanted
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
}

/// Which model, and where and how it runs.
#[derive(Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    name: ModelName,
    #[command(flatten)]
    device: DeviceArgs,
    /// Longest sequence in tokens; by default the model's own, but at most 8192
    #[arg(long, value_name = "N")]
    context: Option<usize>,
}

/// A model ready to run.
pub(crate) struct Loaded {
    /// What it is.
    pub(crate) config: ModelConfig,
    /// Its file.
    pub(crate) file: ModelFile,
    /// What runs it.
    pub(crate) session: Session,
    /// What computes.
    pub(crate) device: Device,
    /// Time to open, prepare and read the tokenizer; not to fetch.
    pub(crate) time: Duration,
    explicit_tokenizer: Option<PathBuf>,
}

impl ModelName {
    /// Opens the model's file, fetched first if need be.
    ///
    /// # Errors
    /// When the name means nothing, or the file cannot be had or read.
    pub(crate) fn open(&self) -> Result<ModelFile> {
        let path = environment::hub()?.resolve(&self.model, &progress::Downloads::default())?;
        Ok(import::open(path)?)
    }
}

impl ModelArgs {
    /// Loads the model.
    ///
    /// # Errors
    /// When it cannot be had, read, or run on the device.
    pub(crate) fn load(&self) -> Result<Loaded> {
        let device = self.device.open()?;
        let path =
            environment::hub()?.resolve(&self.name.model, &progress::Downloads::default())?;
        let start = Instant::now();
        progress::spin("loading", || {
            let model = Model::load_with(path, LoadOptions::default())?;
            let config = model.config().clone();
            let context = self.context.unwrap_or(config.max_context.min(DEFAULT_CONTEXT));
            let program = model.specialize(context)?;
            let runnable = device.backend.prepare(&program).context("cannot prepare the model")?;
            let fallbacks = runnable.fallbacks();
            // On an engine the embedding stays on the host, always.
            if let Some(first) = fallbacks.first().filter(|_| !self.device.is_engine()) {
                eprintln!(
                    "note: {} operations run on the slow reference interpreter; first {} {:?} in {}: {}",
                    fallbacks.len(),
                    first.kind.name(),
                    first.operation,
                    first.function,
                    first.reason
                );
            }
            let session = Session::new(runnable, context, config.vocab)?;
            Ok(Loaded {
                config,
                file: model.file().clone(),
                session,
                device,
                time: start.elapsed(),
                explicit_tokenizer: self.name.tokenizer.clone(),
            })
        })
    }

    /// Whether a tokenizer file was asked for.
    pub(crate) fn names_tokenizer(&self) -> bool {
        self.name.tokenizer.is_some()
    }
}

impl Loaded {
    /// The model's tokenizer.
    ///
    /// # Errors
    /// When there is none, or it does not belong to the model.
    pub(crate) fn tokenizer(&mut self) -> Result<Tokenizer> {
        let start = Instant::now();
        let tokenizer = Tokenizer::for_model(&self.file, self.explicit_tokenizer.as_deref())?;
        tokenizer.check_vocab(self.config.vocab)?;
        self.time += start.elapsed();
        Ok(tokenizer)
    }

    /// Tells people what was loaded.
    pub(crate) fn introduce(&self) {
        let name = self.config.name.as_deref().unwrap_or(self.config.arch);
        output::remark(&format!(
            "{name}: {} parameters, context {}, loaded in {:.2} s",
            units::thousands(self.config.parameters),
            self.session.context(),
            self.time.as_secs_f64()
        ));
    }
}
