//! `Manifest.json`: which files of a package are what.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::files::{check_relative, inside, map};
use crate::{Error, ErrorKind, Result};

/// Name of the manifest in a package.
pub(super) const NAME: &str = "Manifest.json";
/// The folder that paths in the manifest are relative to.
pub(super) const DATA: &str = "Data";
/// The folder of the model and its weights, in [`DATA`].
pub(super) const MODEL_FOLDER: &str = "com.apple.CoreML";
/// Name of the model in [`MODEL_FOLDER`].
pub(super) const MODEL: &str = "model.mlmodel";
/// The largest manifest that is read, in bytes; real ones have less than a thousand.
const MAX_SIZE: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    file_format_version: String,
    item_info_entries: BTreeMap<String, Item>,
    root_model_identifier: String,
}

#[derive(Serialize, Deserialize)]
struct Item {
    author: Option<String>,
    description: Option<String>,
    name: Option<String>,
    path: String,
}

/// The path of a package's root model.
///
/// # Errors
/// When the manifest is damaged, of another version, does not list its root model, or an item's
/// path leads out of the package.
pub(super) fn root_model(package: &Path) -> Result<PathBuf> {
    let path = package.join(NAME);
    let error = |kind, message: String| Error::new(kind, message).in_file(&path);
    let invalid = |message: String| error(ErrorKind::Invalid, message);
    let bytes = map(&path)?;
    if bytes.len() > MAX_SIZE {
        return Err(error(ErrorKind::Limit, format!("a manifest of {} bytes", bytes.len())));
    }
    let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| invalid(e.to_string()))?;
    if manifest.file_format_version.split('.').next() != Some("1") {
        let message = format!("package format version {:?}", manifest.file_format_version);
        return Err(error(ErrorKind::Unsupported, message));
    }
    let data = package.join(DATA);
    for (id, item) in &manifest.item_info_entries {
        check_relative(&item.path).map_err(|e| invalid(format!("item {id}: {e}")))?;
    }
    let root = &manifest.root_model_identifier;
    let item = manifest.item_info_entries.get(root);
    let item =
        item.ok_or_else(|| invalid(format!("root model {root:?} is not among the items")))?;
    inside(&data, &item.path).map_err(|e| invalid(e.message))
}

/// The manifest of a package that holds `model` and, if `weights`, a folder of weights. Identifiers
/// are digests of the model, so that equal models have equal manifests.
pub(super) fn write(model: &[u8], weights: bool) -> serde_json::Result<Vec<u8>> {
    let digest = Sha256::digest(model);
    let item = |name: &str, description: &str| Item {
        author: Some(MODEL_FOLDER.into()),
        description: Some(description.into()),
        name: Some(name.into()),
        path: format!("{MODEL_FOLDER}/{name}"),
    };
    let root = uuid(&digest[..16]);
    let mut entries = BTreeMap::new();
    entries.insert(root.clone(), item(MODEL, "CoreML Model Specification"));
    if weights {
        entries.insert(uuid(&digest[16..]), item("weights", "CoreML Model Weights"));
    }
    serde_json::to_vec_pretty(&Manifest {
        file_format_version: "1.0.0".into(),
        item_info_entries: entries,
        root_model_identifier: root,
    })
}

/// A UUID of version 8 (of the maker's own rule, RFC 9562) from 16 bytes.
fn uuid(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (i, &b) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        let b = match i {
            6 => b & 0x0f | 0x80,
            8 => b & 0x3f | 0x80,
            _ => b,
        };
        out.push_str(&format!("{b:02x}"));
    }
    out
}
