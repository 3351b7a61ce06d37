//! `rigel models`: the aliases and whether their models are here.

use std::path::PathBuf;

use analysis::units;
use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::{environment, output};

/// List the models that have an alias: size, whether fetched, licence
#[derive(Args)]
pub(crate) struct Models {
    /// Print a JSON array of objects: name, about, license, bytes, path (null if not fetched)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    about: &'static str,
    license: &'static str,
    bytes: u64,
    path: Option<PathBuf>,
}

impl Models {
    pub(super) fn run(&self) -> Result<()> {
        let hub = environment::hub()?;
        let rows: Vec<Row> = hub::ALIASES
            .iter()
            .map(|a| Row {
                name: a.name,
                about: a.about,
                license: a.license,
                bytes: a.bytes,
                path: hub.cached(a),
            })
            .collect();
        if self.json {
            return output::json(&rows);
        }
        for row in rows {
            let here = row.path.map_or("not fetched".to_owned(), |p| p.display().to_string());
            output::line(&format!(
                "{:<14} {:>9}  {}; {}\n{:26}{here}",
                row.name,
                units::size(row.bytes),
                row.about,
                row.license,
                ""
            ))?;
        }
        Ok(())
    }
}
