//! `metadata.json` of a compiled model: what of it the text does not say.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::files::map;
use super::proto::Metadata;
use crate::{Error, ErrorKind, Result};

/// Name of the program in a compiled model.
pub(super) const TEXT: &str = "model.mil";
/// Name of the metadata in a compiled model.
pub(super) const METADATA: &str = "metadata.json";

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    specification_version: Option<i32>,
    short_description: String,
    version: String,
    author: String,
    license: String,
    user_defined_metadata: BTreeMap<String, serde_json::Value>,
}

/// The version of the specification, if stated, and the metadata of the compiled model in `folder`;
/// nothing if it has no such file.
///
/// # Errors
/// When the file is damaged.
pub(super) fn metadata(folder: &Path) -> Result<(Option<i32>, Metadata)> {
    let path = folder.join(METADATA);
    if !path.exists() {
        return Ok((None, Metadata::default()));
    }
    let bytes = map(&path)?;
    let entries: Vec<Entry> = serde_json::from_slice(&bytes)
        .map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()).in_file(&path))?;
    let entry = entries.into_iter().next().unwrap_or_default();
    let text = |v: serde_json::Value| match v {
        serde_json::Value::String(s) => s,
        other => other.to_string(),
    };
    let user = entry.user_defined_metadata.into_iter().map(|(k, v)| (k, text(v))).collect();
    let metadata = Metadata {
        short_description: entry.short_description,
        version_string: entry.version,
        author: entry.author,
        license: entry.license,
        user_defined: user,
    };
    Ok((entry.specification_version, metadata))
}
