//! Training runs: what `rigel train` and `rigel finetune` share.
//!
//! A run is a directory:
//! - `run.json`: its [settings](settings::Settings), all that `--resume` needs;
//! - `model/`: the model at the start, where one was made;
//! - `data/`: token files, where data was tokenized for it;
//! - `lock`: what the one process has locked that goes on with it;
//! - `checkpoints/`, `metrics.jsonl` and TensorBoard's event files, which [`train`] writes;
//! - `engine.jsonl`: what each step took of an engine;
//! - `metrics.jsonl.N`, `engine.jsonl.N`: such a file as it was, where not all of it could be gone on with;
//! - `final/`, `final.gguf` or `adapter/`: the result.
//!
//! Of several processes the first alone writes it, and all read it.
//!
//! The directory appears with the first three; every run then goes on from its newest checkpoint or, where there is
//! none, from its first step.

pub(crate) mod architecture;
mod changes;
pub(crate) mod corpus;
mod device;
mod dry_run;
mod engine_log;
mod lock;
mod processes;
pub(crate) mod recipe;
pub(crate) mod run;
pub(crate) mod settings;
mod task;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::scratch;
use changes::Given;
use corpus::DataArgs;
use device::ComputeArgs;
use recipe::Recipe;
use settings::Settings;

/// Where a run is and how it is begun.
#[derive(Args)]
#[command(next_help_heading = "Run")]
pub(crate) struct RunArgs {
    /// Directory of the run
    #[arg(long, value_name = "RUN", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    /// Go on with the run in --out; its settings are known. Steps (which stretch the learning rate's fall),
    /// evaluations, patience, checkpoints and threads may be given anew; any other option must be as it was
    #[arg(long, conflicts_with = "dry_run")]
    resume: bool,
    /// Take a few steps, write nothing, and say what the run would take: parameters, memory, tokens, time
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print a JSON object at the end
    #[arg(long)]
    json: bool,
}

impl RunArgs {
    /// What the run computes on.
    pub(crate) fn compute(&self) -> ComputeArgs {
        self.compute.clone()
    }

    /// Goes on with a run, changed as the options say: one that made its model, if that is what the command does.
    ///
    /// # Errors
    /// As for [`run::go_on`].
    pub(crate) fn resume(
        &self,
        makes_model: bool,
        data: &DataArgs,
        recipe: &Recipe,
    ) -> Result<ExitCode> {
        let given = Given { makes_model, data, recipe, compute: &self.compute };
        processes::together(|others| run::go_on(self.dir()?, Some(&given), self.json, others))
    }

    /// Begins the run whose directory is filled by what `prepare` returns, or says what it would take. Of several
    /// processes one alone does that.
    ///
    /// # Errors
    /// When there is something at its place, and those of `prepare`, of filling and of the run.
    pub(crate) fn begin<F>(&self, prepare: impl FnOnce() -> Result<F>) -> Result<ExitCode>
    where
        F: FnOnce(&Path) -> Result<Settings>,
    {
        processes::together(|others| {
            if self.dry_run {
                ensure!(others.is_none(), "--dry-run is for one process");
                let place = scratch::folder()?.join("dry-run");
                fs::create_dir(&place).with_context(|| format!("{}", place.display()))?;
                prepare()?(&place)?.write(&place)?;
                dry_run::dry_run(&place, self.json)?;
                return Ok(ExitCode::SUCCESS);
            }
            if processes::leads(others) {
                run::create(self.dir()?, processes::count(others), prepare()?)?;
            }
            processes::meet(others)?;
            run::go_on(self.dir()?, None, self.json, others)
        })
    }

    fn dir(&self) -> Result<&Path> {
        self.out.as_deref().context("--out is missing")
    }
}
