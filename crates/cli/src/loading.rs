//! From the arguments that name a model to a session that runs it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use analysis::units;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use cpu::CpuBackend;
use exec::Backend;
use import::ModelFile;
use llm::generate::Session;
use llm::{LoadOptions, Model, ModelConfig, Tokenizer};

use crate::{environment, output, progress};

/// Context if none is asked for, where the model allows more.
const DEFAULT_CONTEXT: usize = 8192;

/// More threads than any machine has processors only take memory.
const MAX_THREADS: i64 = 1024;

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
    /// What computes
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    device: Device,
    /// Threads of the CPU; all processors by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS))]
    threads: Option<u16>,
    /// Longest sequence in tokens; by default the model's own, but at most 8192
    #[arg(long, value_name = "N")]
    context: Option<usize>,
}

/// What computes.
#[derive(Clone, Copy, ValueEnum)]
enum Device {
    /// Native kernels on the CPU
    Cpu,
}

/// A model ready to run.
pub(crate) struct Loaded {
    /// What it is.
    pub(crate) config: ModelConfig,
    /// Its file.
    pub(crate) file: ModelFile,
    /// What runs it.
    pub(crate) session: Session,
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
        let path =
            environment::hub()?.resolve(&self.name.model, &progress::Downloads::default())?;
        let start = Instant::now();
        progress::spin("loading", || {
            let model = Model::load_with(path, LoadOptions::default())?;
            let config = model.config().clone();
            let context = self.context.unwrap_or(config.max_context.min(DEFAULT_CONTEXT));
            let program = model.specialize(context)?;
            let runnable = self.backend().prepare(&program).context("cannot prepare the model")?;
            let fallbacks = runnable.fallbacks();
            if let Some(first) = fallbacks.first() {
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
                time: start.elapsed(),
                explicit_tokenizer: self.name.tokenizer.clone(),
            })
        })
    }

    /// Whether a tokenizer file was asked for.
    pub(crate) fn names_tokenizer(&self) -> bool {
        self.name.tokenizer.is_some()
    }

    fn backend(&self) -> Box<dyn Backend> {
        match self.device {
            Device::Cpu => {
                let threads = self.threads.map_or_else(environment::threads, usize::from);
                Box::new(CpuBackend::new(threads))
            }
        }
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
