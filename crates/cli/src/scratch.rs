//! What nobody keeps: the folder of what this process alone writes, such as the programs of an emulated engine, and a
//! directory that is being made elsewhere.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use anyhow::{Context, Result};
use tempfile::TempDir;

static FOLDER: Mutex<Option<TempDir>> = Mutex::new(None);
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

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

/// A directory that has no name yet that anybody knows; as long as this lives, it is removed with the folder.
pub(crate) struct Unfinished;

impl Unfinished {
    pub(crate) fn new(dir: &Path) -> Self {
        *unfinished() = Some(dir.to_owned());
        Unfinished
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        *unfinished() = None;
    }
}

/// Removes the folder with all that is in it, if it was made, and what is unfinished.
pub(crate) fn remove() {
    drop(remove_last());
}

/// As [`remove`]. As long as what is returned lives, who else would remove or finish something waits.
pub(crate) fn remove_last() -> MutexGuard<'static, Option<PathBuf>> {
    let mut unfinished = unfinished();
    let (dir, folder) = (unfinished.take(), lock().take());
    for dir in [dir.as_deref(), folder.as_ref().map(TempDir::path)].into_iter().flatten() {
        let gone = || match fs::remove_dir_all(dir) {
            Err(e) => e.kind() == io::ErrorKind::NotFound,
            Ok(()) => false,
        };
        // Nobody is left to tell of an error.
        let _ = (0..ATTEMPTS).any(|_| gone());
    }
    unfinished
}

fn unfinished() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock() -> MutexGuard<'static, Option<TempDir>> {
    FOLDER.lock().unwrap_or_else(PoisonError::into_inner)
}
