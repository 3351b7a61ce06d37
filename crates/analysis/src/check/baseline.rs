//! Findings of an earlier run that are put up with.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Options, Report, words};
use crate::error::{Context, Error, Result, ensure};
use crate::files;

/// The form of the file.
const VERSION: u32 = 1;

/// Findings that are known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    version: u32,
    chip: String,
    path: String,
    os: Option<String>,
    /// The findings.
    pub findings: Vec<Known>,
}

/// One known finding. Its fingerprint names it; the rest is for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// [`Finding::fingerprint`](super::Finding::fingerprint).
    pub fingerprint: String,
    /// The rule.
    pub rule: String,
    /// The function, unless it was about the program.
    pub function: Option<String>,
    /// The operation, if it was about one.
    pub op: Option<String>,
    /// What was the matter.
    pub message: String,
}

impl Baseline {
    /// The findings of a report.
    pub fn of(report: &Report<'_>) -> Baseline {
        let Options { chip, route, os, .. } = report.options;
        let known = |f: &super::Finding| Known {
            fingerprint: f.fingerprint.clone(),
            rule: f.diagnostic.rule.id.to_owned(),
            function: f.diagnostic.function.clone(),
            op: f.diagnostic.name.clone(),
            message: f.diagnostic.message.clone(),
        };
        Baseline {
            version: VERSION,
            chip: chip.name.clone(),
            path: words::route(route).to_owned(),
            os: os.map(|os| os.to_string()),
            findings: report.findings.iter().map(known).collect(),
        }
    }

    /// Reads a file that [`Baseline::write`] wrote.
    ///
    /// # Errors
    /// When it cannot be read or is no baseline.
    pub fn read(path: &Path) -> Result<Baseline> {
        let place = || path.display().to_string();
        let text = fs::read_to_string(path).with_context(place)?;
        let baseline: Baseline = serde_json::from_str(&text)
            .map_err(|e| Error::Invalid(format!("{}: no baseline: {e}", place())))?;
        let version = baseline.version;
        ensure!(version == VERSION, "{}: a baseline of version {version}", place());
        Ok(baseline)
    }

    /// Writes the file: JSON, a line for each part, in the order of the text.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::Invalid(e.to_string()))?;
        files::write(path, format!("{text}\n").as_bytes())
    }

    /// Refuses a baseline of another chip, path or system.
    pub(super) fn ensure_for(&self, options: &Options<'_>) -> Result<()> {
        let os = options.os.map(|os| os.to_string());
        let same = self.chip == options.chip.name
            && self.path == words::route(options.route)
            && self.os == os;
        ensure!(
            same,
            "the baseline is for {} by path {} on {}; a baseline is needed for each",
            self.chip,
            self.path,
            self.os.as_deref().unwrap_or("any system"),
        );
        Ok(())
    }
}
