//! The folder of what this process alone writes and nobody keeps: the programs of an emulated engine.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use anyhow::{Context, Result};
use tempfile::TempDir;

static FOLDER: Mutex<Option<TempDir>> = Mutex::new(None);

/// Times that removing is tried: another thread may still write there.
const ATTEMPTS: usize = 100;

/// The folder, made if need be.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn folder() -> Result<PathBuf> {
    let mut folder = lock();
    if let Some(made) = &*folder {
        return Ok(made.path().to_owned());
    }
    let made = tempfile::Builder::new().prefix("rigel-").tempdir();
    let made = made
        .with_context(|| format!("cannot make a folder in {}", std::env::temp_dir().display()))?;
    Ok(folder.insert(made).path().to_owned())
}

/// Removes the folder with all that is in it, if it was made.
pub(crate) fn remove() {
    let Some(folder) = lock().take() else { return };
    let gone = || match fs::remove_dir_all(folder.path()) {
        Err(e) => e.kind() == io::ErrorKind::NotFound,
        Ok(()) => false,
    };
    // Nobody is left to tell of an error.
    let _ = (0..ATTEMPTS).any(|_| gone());
}

fn lock() -> MutexGuard<'static, Option<TempDir>> {
    FOLDER.lock().unwrap_or_else(PoisonError::into_inner)
}
