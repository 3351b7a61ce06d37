//! From what is trained to gradients and first values, and from trained values to files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use exec::Tensors;
use import::ModelFile;
use llm::adapter::Factors;
use llm::{Batch, Model, interface};
use passes::ane::AdapterSlot;
use passes::grad::{By, Gradients, Request, differentiate};
use passes::low_rank::{input_names, low_rank_inputs};
use tensor::Tensor;

use super::recipe::Resolved;
use super::settings::{Lora, Task};

/// What is trained, ready for a trainer.
pub(super) struct Trained {
    /// The program.
    pub(super) gradients: Gradients,
    /// First values of what is no weight, by inputs.
    pub(super) first: Tensors,
}

/// What tells the files of `model` from those of another one.
///
/// # Errors
/// When one cannot be read.
pub(super) fn fingerprint(model: &Model) -> Result<String> {
    let tensors = model.file().tensors();
    let mut files: BTreeSet<PathBuf> = tensors.iter().map(|t| t.file.to_owned()).collect();
    // Other formats have it in the same file.
    if let ModelFile::HuggingFace(dir) = model.file() {
        files.insert(dir.path().join("config.json"));
    }
    Ok(train::fingerprint(files.iter().map(PathBuf::as_path))?)
}

/// A parameter's name in checkpoints: the adapted weight's and which factor it is.
fn factor_names(weight: &str) -> [String; 2] {
    [format!("{weight}.lora_a"), format!("{weight}.lora_b")]
}

impl Task {
    /// The gradients of `model`'s loss on such batches, with an input of a scale if they are to be `scaled`.
    ///
    /// # Errors
    /// When the batch or the adapter does not fit the model, or an operation has no gradient.
    pub(super) fn gradients(
        &self,
        model: &Model,
        batch: Batch,
        recipe: &Resolved,
        scaled: bool,
    ) -> Result<Trained> {
        let mut program = model.loss_program(batch)?;
        let layers = if recipe.recompute { model.config().layers } else { 0 };
        let checkpoints: Vec<String> = (0..layers).map(interface::layer_output).collect();
        let request = |by| Request {
            function: interface::LOSS,
            loss: interface::LOSS,
            by,
            checkpoints: &checkpoints,
            scaled,
        };
        let Task::Lora { lora: Lora { r, alpha, targets }, .. } = self else {
            let gradients = differentiate(&program, &request(By::Weights(&|_| true)))?;
            return Ok(Trained { gradients, first: Tensors::new() });
        };
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        let adapter = model.new_adapter(&targets, *r, recipe.seed)?;
        let slot = |weight: &String| AdapterSlot { weight: weight.clone(), rank: *r };
        let slots: Vec<AdapterSlot> = adapter.layers().keys().map(slot).collect();
        let scale = (alpha / *r as f64) as f32;
        low_rank_inputs(&mut program, &slots, scale, &|_| true)?;
        let inputs: Vec<String> = (0..slots.len()).flat_map(input_names).collect();
        let names: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut gradients = differentiate(&program, &request(By::Inputs(&names)))?;
        let own = adapter.layers().keys().flat_map(|weight| factor_names(weight));
        gradients.parameters.iter_mut().zip(own).for_each(|(p, name)| p.name = name);
        let values = adapter.layers().values().flat_map(|f| [f.a.clone(), f.b.clone()]);
        Ok(Trained { gradients, first: inputs.iter().cloned().zip(values).collect() })
    }

    /// Where in the run `dir` the result is.
    pub(super) fn result(&self, dir: &Path, model: &Model) -> PathBuf {
        dir.join(match (self, model.file()) {
            (Task::Lora { .. }, _) => "adapter",
            (Task::Full { .. }, ModelFile::Gguf(_)) => "final.gguf",
            (Task::Full { .. }, _) => "final",
        })
    }

    /// Writes what training has made of `model`, values by the names of parameters, to `to`, where nothing is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn write(
        &self,
        model: &Model,
        values: &BTreeMap<String, Tensor>,
        to: &Path,
    ) -> Result<()> {
        let Task::Lora { base, lora: Lora { r, alpha, .. }, .. } = self else {
            return Ok(model.write_with(to, values)?);
        };
        let mut factors = BTreeMap::new();
        let weights = values.keys().filter_map(|name| name.strip_suffix(".lora_a"));
        for weight in weights {
            let [a, b] = factor_names(weight).map(|name| values.get(&name).cloned());
            let (a, b) = a.zip(b).context("a factor of the adapter is missing")?;
            factors.insert(weight.to_owned(), Factors { a, b });
        }
        let layers = model.low_rank(&factors, alpha / *r as f64)?;
        Ok(import::peft::write(to, Some(base), &layers)?)
    }
}
