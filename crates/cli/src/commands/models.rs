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
    /// Print a JSON array of objects: name, about, license, bytes, path (null if not fetched or embedded), embedded
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
    embedded: bool,
}

impl Models {
    pub(super) fn run(&self) -> Result<()> {
        let hub = environment::hub()?;
        let hub::Embedded { name, about, license, bytes } = hub::STORIES;
        let bytes = bytes.len() as u64;
        let mut rows = vec![Row { name, about, license, bytes, path: None, embedded: true }];
        rows.extend(hub::ALIASES.iter().map(|a| Row {
            name: a.name,
            about: a.about,
            license: a.license,
            bytes: a.bytes,
            path: hub.cached(a),
            embedded: false,
        }));
        if self.json {
            return output::json(&rows);
        }
        for row in rows {
            let here = match row.path {
                Some(path) => path.display().to_string(),
                None if row.embedded => "part of this program".to_owned(),
                None => "not fetched".to_owned(),
            };
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
