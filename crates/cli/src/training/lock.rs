//! One process at a time goes on with a run, or all would write the same files.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::run::remove;
use crate::output;

/// The file that is locked, which stays.
const NAME: &str = "lock";

/// The run in `dir` for this process until the file is dropped, where it can be locked without what those that were
/// killed left half written.
///
/// # Errors
/// When another process has it, or the file cannot be made.
pub(super) fn take(dir: &Path) -> Result<File> {
    let path = dir.join(NAME);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("{}: cannot write", path.display()))?;
    match file.try_lock() {
        Ok(()) => sweep(dir)?,
        Err(TryLockError::WouldBlock) => {
            bail!("{}: another process goes on with this run", dir.display())
        }
        // Some file systems have none. What is half written may then be another process's.
        Err(TryLockError::Error(error)) => output::note(&format!(
            "note: {}: cannot lock ({error}); nothing keeps another process from this run",
            path.display()
        )),
    }
    Ok(file)
}

/// Removes what is half written in `dir`.
fn sweep(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("{}", dir.display()))?.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(import::PARTIAL.as_bytes()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}
