//! `rigel plot`: the curves of training runs.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use train::metrics;
use train::plot::{Run, draw};

use crate::output;

/// Draw the curves of runs: loss, learning rate, norm of the gradient
#[derive(Args)]
pub(crate) struct Plot {
    /// Directories of runs
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// What to write, .svg or .png; by default curves.svg in the first run
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Plot {
    pub(super) fn run(&self) -> Result<()> {
        let runs = self.runs.iter().map(|dir| open(dir)).collect::<Result<Vec<_>>>()?;
        let to = self.output.clone().unwrap_or_else(|| self.runs[0].join("curves.svg"));
        draw(&to, &runs)?;
        output::line(&to.display().to_string())
    }
}

fn open(dir: &Path) -> Result<Run> {
    let name = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned();
    Ok(Run { name, records: metrics::read(&dir.join("metrics.jsonl"))? })
}
