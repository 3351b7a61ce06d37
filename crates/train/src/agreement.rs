//! Whether what a run goes on with is what it was begun with: settings field by field, files by their contents.

use std::path::Path;

use serde_json::Value;

use crate::{Result, TrainError};

/// Relative difference of two numbers that are one but for having been written and read.
const ROUNDING: f64 = 1e-12;

/// Says of the first field that differs between the `saved` and the run's `own` settings what it is in both, apart
/// from the fields that `may_differ`, by paths. What only one of them has is of another version of the program.
pub(crate) fn difference(saved: &Value, own: &Value, may_differ: &[&str]) -> Option<String> {
    below("", saved, own, may_differ)
}

fn below(at: &str, saved: &Value, own: &Value, may_differ: &[&str]) -> Option<String> {
    if let (Value::Object(saved), Value::Object(own)) = (saved, own) {
        return saved.iter().find_map(|(key, value)| {
            let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            let own = own.get(key).filter(|_| !may_differ.contains(&&*at))?;
            below(&at, value, own, may_differ)
        });
    }
    (!same(saved, own)).then(|| format!("{at} is {saved} in the checkpoint, {own} in the run"))
}

/// Whether two settings are one; floats apart from rounding.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64().zip(b.as_f64()), a.is_f64() || b.is_f64()) {
        (Some((a, b)), true) => (a - b).abs() <= ROUNDING * a.abs(),
        _ => a == b,
    }
}

/// Size and CRC-32C of `files` one after another, as text: what tells files of a model from others, cheaply, and
/// is no seal against forgers.
///
/// # Errors
/// When one cannot be read.
pub fn fingerprint<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<String> {
    let (mut size, mut digest) = (0, 0);
    for file in files {
        let bytes = import::map_file(file)?;
        size += bytes.len();
        digest = crc32c::crc32c_append(digest, &bytes);
    }
    Ok(format!("{size} bytes of CRC-32C {digest:08x}"))
}

impl crate::Checkpoint {
    /// Makes sure that the caller's settings are those that the checkpoint was written with, in each field that
    /// both have.
    ///
    /// # Errors
    /// When one is another; says which.
    pub fn check_settings(&self, settings: &Value) -> Result<()> {
        match difference(&self.saved.settings, settings, &[]) {
            Some(what) => Err(TrainError::file(&self.path, what)),
            None => Ok(()),
        }
    }
}
