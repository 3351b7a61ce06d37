//! `rigel merge`: a model with an adapter added to its weights.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;
use import::{ModelFile, PeftAdapter};
use llm::{LoadOptions, Model};

use crate::loading::open_model;
use crate::{destination, interrupt, output, progress};

/// Add a LoRA adapter to the weights of a model
///
/// The result has the format of the model's own file. Adapted weights are rounded to the type that they had there, or to
/// half precision if that was quantised.
#[derive(Args)]
pub(crate) struct Merge {
    /// Path, alias or Hugging Face repository
    model: String,
    /// The adapter, a directory as PEFT saves it
    #[arg(long, value_name = "DIR")]
    adapter: PathBuf,
    /// What to write: a new directory, or a .gguf file, as the model is one
    #[arg(long, short, value_name = "PATH")]
    output: PathBuf,
}

impl Merge {
    pub(super) fn run(&self) -> Result<()> {
        let source = open_model(&self.model)?;
        destination::check(&self.output, false, source.path(), false)?;
        let to_gguf = self.output.extension().is_some_and(|e| e == "gguf");
        match (matches!(source, ModelFile::Gguf(_)), to_gguf) {
            (true, false) => {
                bail!("{}: the model is a .gguf file, and so is the result", self.output.display())
            }
            (false, true) => {
                bail!("{}: the model is a directory, and so is the result", self.output.display())
            }
            _ => {}
        }
        progress::spin("merging", || {
            let model = Model::from_file(source, LoadOptions::default())?;
            let adapter = model.adapter(&PeftAdapter::open(&self.adapter)?)?;
            ensure!(!adapter.layers().is_empty(), "the adapter changes no layer");
            let merged = model.merged(&adapter)?;
            Ok(interrupt::after(|| model.write_with(&self.output, &merged))?)
        })?;
        output::remark(&format!("wrote {}", self.output.display()));
        Ok(())
    }
}
