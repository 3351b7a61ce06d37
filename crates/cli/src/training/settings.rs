//! What is kept of a run in `run.json`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::corpus::DataArgs;
use super::device::ComputeArgs;
use super::recipe::Resolved;

/// The version of the layout.
const FORMAT: u32 = 1;
const NAME: &str = "run.json";
/// The model of a run that made it, in the run's directory.
pub(crate) const MODEL: &str = "model";

/// All that a run depends on besides its data, model and checkpoints. Paths are the run's own where they are
/// relative.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Version of the layout.
    format: u32,
    /// The Rigel that began it.
    rigel: String,
    /// Processes, each with batches of its own.
    #[serde(default = "one")]
    pub(super) processes: usize,
    /// What is trained.
    pub(crate) task: Task,
    /// What tells the files of its model from others.
    #[serde(default)]
    pub(super) base: Option<String>,
    /// The data that it was begun with, by absolute paths.
    #[serde(default)]
    pub(super) given: DataArgs,
    /// Token files.
    pub(crate) data: Vec<PathBuf>,
    /// Token files to evaluate on, where they are others.
    pub(crate) eval_data: Vec<PathBuf>,
    /// How.
    pub(crate) recipe: Resolved,
    /// On what.
    pub(super) compute: ComputeArgs,
}

/// Of runs of versions that knew no more.
fn one() -> usize {
    1
}

/// What is trained.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Task {
    /// All weights of a model.
    Full {
        /// The model at the start.
        model: PathBuf,
    },
    /// A low-rank adapter.
    Lora {
        /// The model, which stays as it is.
        model: PathBuf,
        /// The name that it was given by.
        base: String,
        /// The adapter.
        #[serde(flatten)]
        lora: Lora,
    },
}

/// The form of a low-rank adapter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Lora {
    /// Rank.
    pub(crate) r: usize,
    /// The change is scaled by `alpha / r`.
    pub(crate) alpha: f64,
    /// Ends of the layers' paths, or their short names.
    pub(crate) targets: Vec<String>,
}

impl Settings {
    /// Settings of this version.
    pub(crate) fn new(
        task: Task,
        recipe: Resolved,
        compute: ComputeArgs,
        given: &DataArgs,
    ) -> Self {
        Settings {
            format: FORMAT,
            rigel: env!("CARGO_PKG_VERSION").to_owned(),
            processes: 1,
            task,
            base: None,
            given: given.absolute(),
            data: Vec::new(),
            eval_data: Vec::new(),
            recipe,
            compute,
        }
    }

    /// What stays as it is in the whole run, for its checkpoints. Paths may become others.
    ///
    /// # Errors
    /// Never in practice: all of it is JSON.
    pub(super) fn lasting(&self) -> Result<Value> {
        let mut task = serde_json::to_value(&self.task)?;
        if let Some(task) = task.as_object_mut() {
            task.retain(|key, _| !["model", "base"].contains(&&**key));
        }
        let Resolved { batch, seq_len, seed, held_out, recompute, .. } = &self.recipe;
        Ok(json!({
            "processes": self.processes,
            "task": task,
            "compute": self.compute.lasting(),
            "recipe": {
                "batch": batch,
                "seq_len": seq_len,
                "seed": seed,
                "held_out": held_out,
                "recompute": recompute,
            },
        }))
    }

    /// Writes them into the directory `dir`.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        Ok(import::write_file(&dir.join(NAME), |out| out.write_all(text.as_bytes()))?)
    }

    /// Those of the run in `dir`.
    ///
    /// # Errors
    /// When there is no run, or it is of another version.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(NAME);
        let text = fs::read(&path).with_context(|| format!("{}: no run there", dir.display()))?;
        let settings: Value =
            serde_json::from_slice(&text).with_context(|| format!("{}", path.display()))?;
        ensure!(
            settings["format"] == FORMAT,
            "{}: is of version {}, this program reads {FORMAT}",
            path.display(),
            settings["format"]
        );
        serde_json::from_value(settings).with_context(|| format!("{}", path.display()))
    }
}

impl Task {
    /// Whether its model was made with the run.
    pub(super) fn is_new(&self) -> bool {
        matches!(self, Task::Full { model } if model == Path::new(MODEL))
    }

    /// The model at the start.
    pub(crate) fn model(&self) -> &Path {
        match self {
            Task::Full { model } | Task::Lora { model, .. } => model,
        }
    }
}
