//! Where tests find files that are not committed.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn workspace_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of shared models, artefacts and corpora beside the workspace.
pub fn shared_dir() -> PathBuf {
    workspace_dir().join("../shared")
}

/// What `tests/fetch.py` downloads: `target/fixtures` of the workspace.
pub fn fixtures_dir() -> PathBuf {
    workspace_dir().join("target/fixtures")
}
