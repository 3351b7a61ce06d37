//! `rigel pull`: fetches a model.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use crate::progress::Downloads;
use crate::{environment, output};

/// Fetch a model, checked by digest, and print its path
///
/// A model with an alias that is here already is checked, and fetched again if it is damaged.
#[derive(Args)]
pub(crate) struct Pull {
    /// Alias (see `rigel models`) or Hugging Face repository OWNER/REPOSITORY[:FILE]
    name: String,
    /// Print a JSON object: name, path
    #[arg(long)]
    json: bool,
}

impl Pull {
    pub(super) fn run(&self) -> Result<()> {
        if let Some(model) = hub::embedded(&self.name) {
            bail!("{} is part of this program: there is nothing to fetch", model.name);
        }
        let path = environment::hub()?.pull(&self.name, &Downloads::default())?;
        if self.json {
            return output::json(&json!({ "name": self.name, "path": path }));
        }
        output::line(&path.display().to_string())
    }
}
