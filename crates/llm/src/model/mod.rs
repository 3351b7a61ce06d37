//! A loaded model: what it is, and the program that computes it.

mod config;
mod gguf;
mod inspect;
mod save;

use std::collections::BTreeMap;
use std::path::Path;

use import::ModelFile;
use mil::Program;
use tensor::DType;

pub use config::ModelConfig;
pub use inspect::{Inspection, Problem, TensorSummary, inspect};
pub use save::initialise;

use crate::arch::{AdaptedLayer, Built, Planned, Stored};
use crate::parts::{Batch, Decoder};
use crate::{Error, Result, Tokenizer, interface};

/// How a model is loaded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadOptions {
    /// Element type of the key-value cache: fp16, or fp32 where results must be exact.
    pub cache_dtype: DType,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions { cache_dtype: DType::F16 }
    }
}

/// A model of any supported file, as a program.
#[derive(Clone, Debug)]
pub struct Model {
    file: ModelFile,
    config: ModelConfig,
    options: LoadOptions,
    decoder: Decoder,
    program: Program,
    /// How the file holds what the program holds otherwise, by name in the file.
    stored: BTreeMap<String, Stored>,
}

impl Model {
    /// Loads the model in a file or directory; see [`import::open`] for what those can be.
    ///
    /// Weights stay in the mapped file wherever its layout serves. New memory is taken for matrices
    /// that a checkpoint holds transposed, for int8 llama2.c files, and for vectors that are not fp32
    /// or that lack an offset.
    ///
    /// # Errors
    /// `invalid` for a file that breaks its format or lacks something, `unsupported` for an
    /// architecture, setting or type that Rigel does not implement.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(path, LoadOptions::default())
    }

    /// As [`Model::load`], with options.
    ///
    /// # Errors
    /// As [`Model::load`], and when the cache's type is none of floats.
    pub fn load_with(path: impl AsRef<Path>, options: LoadOptions) -> Result<Self> {
        Self::from_file(import::open(path)?, options)
    }

    /// The model in an open file.
    ///
    /// # Errors
    /// As [`Model::load_with`].
    pub fn from_file(file: ModelFile, options: LoadOptions) -> Result<Self> {
        let planned = Planned::new(&file)?;
        let config = planned.config();
        let Built { decoder, weights, stored } = planned.build()?;
        let program = decoder.program(weights, 1, options.cache_dtype)?;
        Ok(Model { file, config, options, decoder, program, stored })
    }

    /// The open file.
    pub fn file(&self) -> &ModelFile {
        &self.file
    }

    /// What the model is.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The program, its symbols free; see [`crate::interface`].
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program with a cache of `context` slots.
    ///
    /// # Errors
    /// When `context` is 0 or more than the model was made for.
    pub fn specialize(&self, context: usize) -> Result<Program> {
        self.with_context(&self.program, context)
    }

    /// The program for `sequences` at once, each with a cache of `context` slots.
    ///
    /// # Errors
    /// As [`Model::specialize`], and when there are no sequences.
    pub fn specialize_several(&self, context: usize, sequences: usize) -> Result<Program> {
        if sequences == 0 {
            return Err(Error::request("a program for no sequence"));
        }
        let weights = self.program.weights.clone();
        let program = self.decoder.program(weights, sequences, self.options.cache_dtype)?;
        self.with_context(&program, context)
    }

    fn with_context(&self, program: &Program, context: usize) -> Result<Program> {
        let max = self.config.max_context;
        if context == 0 || context > max {
            let why = format!("context of {context} tokens; this model takes 1 to {max}");
            return Err(Error::limit(why));
        }
        let sizes = BTreeMap::from([(interface::CONTEXT.to_owned(), context)]);
        Ok(program.specialize(&sizes)?)
    }

    /// Paths of all linear layers in Hugging Face's model.
    pub(crate) fn linear_layers(&self) -> Result<Vec<String>> {
        Ok(Planned::new(&self.file)?.linear_layers())
    }

    /// Whether a weight is the token embedding.
    pub(crate) fn is_embedding(&self, name: &str) -> bool {
        self.program.weights.find(name) == Some(self.decoder.embedding.tokens)
    }

    /// The linear layers at paths in Hugging Face's model.
    pub(crate) fn adapted_layers<'m>(
        &self,
        modules: impl Iterator<Item = &'m str>,
    ) -> Result<Vec<Option<AdaptedLayer>>> {
        Ok(Planned::new(&self.file)?.adapted_layers(modules))
    }

    /// The program to train the model with: the loss of a batch; see [`crate::interface`]. It shares the
    /// weights of [`Model::program`].
    ///
    /// # Errors
    /// When the batch is empty or its sequences are longer than the model was made for.
    pub fn loss_program(&self, batch: Batch) -> Result<Program> {
        let max = self.config.max_context;
        let Batch { sequences, tokens, .. } = batch;
        if sequences == 0 || tokens == 0 || tokens > max {
            let why = format!(
                "a batch of {sequences} sequences of {tokens} tokens; this model takes 1 to {max}"
            );
            return Err(Error::limit(why));
        }
        Ok(self.decoder.loss_program(self.program.weights.clone(), batch)?)
    }

    /// The tokenizer: the file `explicit` if given, else the one inside or beside the model's file.
    ///
    /// # Errors
    /// When there is none, it is unsupported or broken, or it does not belong to the model.
    pub fn tokenizer(&self, explicit: Option<&Path>) -> Result<Tokenizer> {
        let tokenizer = Tokenizer::for_model(&self.file, explicit)?;
        tokenizer.check_vocab(self.config.vocab)?;
        Ok(tokenizer)
    }

    /// Bytes of the key-value cache for `context` tokens of one sequence.
    pub fn kv_cache_bytes(&self, context: usize) -> usize {
        let ModelConfig { layers, kv_heads, head_dim, .. } = self.config;
        let elements = layers.saturating_mul(2 * kv_heads * head_dim).saturating_mul(context);
        self.options.cache_dtype.byte_len(elements).unwrap_or(usize::MAX)
    }
}
