//! From the arguments that name a model to a session that runs it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use analysis::units;
use anyhow::{Context, Result, ensure};
use clap::Args;
use exec::{Backend, Runnable, Tensors};
use import::{Gguf, ModelFile};
use llm::eval::Scoring;
use llm::generate::Session;
use llm::{LoadOptions, Model, ModelConfig, Tokenizer};
use mil::Program;
use tensor::Bytes;

use crate::adapters::{AdapterArgs, Slots, chosen};
use crate::devices::{Device, DeviceArgs};
use crate::{environment, output, progress};

/// Context if none is asked for, where the model allows more.
const DEFAULT_CONTEXT: usize = 8192;

/// The same on an engine, whose programs read and write all of their caches at every step.
const ENGINE_CONTEXT: usize = 1024;

/// Which model.
#[derive(Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelName {
    /// Path, alias or Hugging Face repository [default: rigel-stories, which is part of this
    /// program; for a chat smollm2-135m]
    #[arg(long, short, value_name = "M")]
    model: Option<String>,
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
    #[command(flatten)]
    adapters: AdapterArgs,
    /// Longest sequence in tokens; by default the model's own, but at most 8192, and 1024 on an
    /// engine, which handles all of it at every step
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
    /// The model without adapters.
    program: Program,
    adapters: Option<Slots>,
    /// The adapter in use.
    adapter: Option<String>,
    explicit_tokenizer: Option<PathBuf>,
}

impl ModelName {
    /// Opens the model's file, fetched first if need be.
    ///
    /// # Errors
    /// When the name means nothing, or the file cannot be had or read.
    pub(crate) fn open(&self) -> Result<ModelFile> {
        self.model.as_deref().map_or_else(|| open_embedded(&hub::STORIES), open_model)
    }
}

/// Opens the file of the model called `name`, fetched first if need be.
///
/// # Errors
/// When the name means nothing, or the file cannot be had or read.
pub(crate) fn open_model(name: &str) -> Result<ModelFile> {
    if let Some(model) = hub::embedded(name) {
        return open_embedded(model);
    }
    let path = environment::hub()?.resolve(name, &progress::Downloads::default())?;
    Ok(import::open(path)?)
}

fn open_embedded(model: &hub::Embedded) -> Result<ModelFile> {
    let bytes = Bytes::copy_from(model.bytes);
    Ok(ModelFile::Gguf(Gguf::from_bytes(model.name, bytes)?))
}

impl ModelArgs {
    /// Loads the model.
    ///
    /// # Errors
    /// When it cannot be had, read, or run on the device.
    pub(crate) fn load(&self) -> Result<Loaded> {
        self.load_from(1, || self.name.open())
    }

    /// Loads the model; without a name, one that was made for conversations.
    ///
    /// # Errors
    /// As for [`ModelArgs::load`].
    pub(crate) fn load_for_chat(&self) -> Result<Loaded> {
        self.load_from(1, || self.open_for_chat())
    }

    /// As [`ModelArgs::load`], or with `chat` [`ModelArgs::load_for_chat`], for several sequences at once.
    ///
    /// # Errors
    /// As for [`ModelArgs::load`], and when the device takes one sequence at a time.
    pub(crate) fn load_several(&self, sequences: usize, chat: bool) -> Result<Loaded> {
        ensure!(
            sequences == 1 || !self.device.is_engine(),
            "an engine takes one sequence at a time; several go together on --device cpu"
        );
        self.load_from(sequences, || if chat { self.open_for_chat() } else { self.name.open() })
    }

    fn open_for_chat(&self) -> Result<ModelFile> {
        open_model(self.name.model.as_deref().unwrap_or(hub::ALIASES[0].name))
    }

    fn load_from(
        &self,
        sequences: usize,
        file: impl FnOnce() -> Result<ModelFile>,
    ) -> Result<Loaded> {
        let open = self.device.find()?;
        let file = file()?;
        let start = Instant::now();
        progress::spin("loading", || {
            let model = Model::from_file(file, LoadOptions::default())?;
            let config = model.config().clone();
            let most = if self.device.is_engine() { ENGINE_CONTEXT } else { DEFAULT_CONTEXT };
            let adapters = self.adapters.open(&model)?;
            let device = open(adapters.as_ref().map(|a| a.slots().to_vec()).unwrap_or_default());
            let wanted = self.context.unwrap_or(config.max_context.min(most));
            let context = device.context(wanted, config.max_context);
            if context != wanted {
                output::note(&format!(
                    "note: --context {context} instead of {wanted}, which the engine does not take"
                ));
            }
            let program = match sequences {
                1 => model.specialize(context)?,
                _ => model.specialize_several(context, sequences)?,
            };
            let runnable = self.prepare(&program, adapters.as_ref(), &device)?;
            let session = Session::several(runnable, sequences, context, config.vocab)?;
            let mut loaded = Loaded {
                config,
                file: model.file().clone(),
                session,
                device,
                time: Duration::ZERO,
                program,
                adapters,
                adapter: None,
                explicit_tokenizer: self.name.tokenizer.clone(),
            };
            if let Some(first) = self.adapters.used().first() {
                loaded.use_adapter(first)?;
            }
            loaded.time = start.elapsed();
            Ok(loaded)
        })
    }

    fn prepare(
        &self,
        program: &Program,
        adapters: Option<&Slots>,
        device: &Device,
    ) -> Result<Box<dyn Runnable>> {
        let mut program = program.clone();
        if let Some(adapters) = adapters {
            adapters.prepare(&mut program, &|function| device.is_on_host(function))?;
        }
        let runnable = device.backend.prepare(&program).context("cannot prepare the model")?;
        let fallbacks = runnable.fallbacks();
        // On an engine the embedding stays on the host, always.
        if let Some(first) = fallbacks.first().filter(|_| !self.device.is_engine()) {
            output::note(&format!(
                "note: {} operations run on the slow reference interpreter; first {} {:?} in {}: {}",
                fallbacks.len(),
                first.kind.name(),
                first.operation,
                first.function,
                first.reason
            ));
        }
        Ok(runnable)
    }

    /// The same model with the adapter in use on the CPU, to compare with.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn on_cpu(&self, loaded: &Loaded) -> Result<Session> {
        let mut program = loaded.program.clone();
        if let Some(adapters) = &loaded.adapters {
            adapters.prepare(&mut program, &|_| true)?;
        }
        let runnable = self.device.cpu().prepare(&program).context("cannot prepare the model")?;
        let mut session = Session::new(runnable, loaded.session.context(), loaded.config.vocab)?;
        if let Some(adapters) = &loaded.adapters {
            let inputs = adapters.inputs(loaded.adapter.as_deref())?;
            session.set_further_inputs(for_each_function(&program, inputs, &|_| true));
        }
        Ok(session)
    }

    /// How a device gives the logits of a whole text.
    ///
    /// # Errors
    /// When no way leads to an engine.
    pub(crate) fn scoring(&self) -> Result<Scoring> {
        ensure!(
            self.device.decodes(),
            "--mode prefill leaves the logits of all tokens but the last to the CPU"
        );
        Ok(if self.device.is_engine() { Scoring::Cached } else { Scoring::Whole })
    }

    /// The adapters to use, one after the other; `None` stands for a model without.
    pub(crate) fn used_adapters(&self) -> Vec<Option<&str>> {
        match self.adapters.used() {
            none if none.is_empty() => vec![None],
            some => some.into_iter().map(Some).collect(),
        }
    }

    /// Refuses several adapters for a command that uses one.
    ///
    /// # Errors
    /// When there are several.
    pub(crate) fn one_adapter(&self) -> Result<()> {
        ensure!(self.adapters.used().len() < 2, "--use may be given once here");
        Ok(())
    }

    /// Whether a tokenizer file was asked for.
    pub(crate) fn names_tokenizer(&self) -> bool {
        self.name.tokenizer.is_some()
    }
}

/// The same further inputs for each function that has them.
fn for_each_function(
    program: &Program,
    inputs: Tensors,
    has: &dyn Fn(&str) -> bool,
) -> BTreeMap<String, Tensors> {
    let functions = program.functions.keys().filter(|name| has(name));
    functions.map(|name| (name.clone(), inputs.clone())).collect()
}

impl Loaded {
    /// Answers with another adapter from now on, or with none. Nothing is prepared or compiled anew.
    ///
    /// # Errors
    /// When there is no adapter of that name.
    pub(crate) fn use_adapter(&mut self, name: &str) -> Result<()> {
        let name = chosen(name);
        let Some(adapters) = &self.adapters else {
            ensure!(name.is_none(), "there are no adapters; --adapter NAME=DIR brings one");
            return Ok(());
        };
        let inputs = adapters.inputs(name)?;
        adapters.give(&self.device, name)?;
        let on_host = |function: &str| self.device.is_on_host(function);
        self.session.set_further_inputs(for_each_function(&self.program, inputs, &on_host));
        self.adapter = name.map(str::to_owned);
        Ok(())
    }

    /// The names of the adapters.
    pub(crate) fn adapter_names(&self) -> &[String] {
        self.adapters.as_ref().map_or(&[], Slots::names)
    }

    /// The adapter in use.
    pub(crate) fn adapter(&self) -> Option<&str> {
        self.adapter.as_deref()
    }

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
