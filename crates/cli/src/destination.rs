//! Where a command may write what it makes of a model.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use mil::package::Package;
use mil::package::blob::WEIGHTS_PATH;

/// Whether the destination is MIL text and no package.
///
/// # Errors
/// When its name says neither.
pub(crate) fn is_text(path: &Path) -> Result<bool> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("mlpackage") => Ok(false),
        Some("mil") => Ok(true),
        _ => bail!("{}: the destination is named .mlpackage or .mil", path.display()),
    }
}

/// Refuses to write over what is there unless told to, and over or into the source always. `text` has its
/// weights beside it.
///
/// # Errors
/// What is in the way.
pub(crate) fn check(to: &Path, text: bool, source: &Path, force: bool) -> Result<()> {
    let mut places = vec![to.to_owned()];
    if text {
        places.push(Package::weight_file(to));
    }
    for place in &places {
        ensure!(!belongs(source, place), "{}: belongs to the source", place.display());
        let free = place.symlink_metadata().is_err();
        ensure!(free || force, "{}: is there already; --force replaces it", place.display());
    }
    if let Some(other) = places.get(1).filter(|w| w.exists()).and_then(|_| sharer(to)) {
        bail!(
            "{}: {} has its weights in {} too; write into another folder",
            to.display(),
            other.display(),
            places[1].display()
        );
    }
    Ok(())
}

/// Another MIL text in the folder of `to` that reads the weight file there.
fn sharer(to: &Path) -> Option<PathBuf> {
    let folder = to.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let texts = folder.read_dir().ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let others = texts.filter(|t| t.file_name() != to.file_name());
    let mut others = others.filter(|t| t.extension().is_some_and(|e| e == "mil"));
    others.find(|t| fs::read_to_string(t).is_ok_and(|text| text.contains(WEIGHTS_PATH)))
}

/// Whether the file or folder `place` is the model at `source`, would be a part of it, or holds it.
fn belongs(source: &Path, place: &Path) -> bool {
    let own = match source.is_dir() {
        true => vec![source.to_owned()],
        false => vec![source.to_owned(), Package::weight_file(source)],
    };
    let real = own.iter().filter_map(|path| path.canonicalize().ok());
    let (nearest, exists) = nearest(place);
    real.into_iter().any(|own| nearest.starts_with(&own) || exists && own.starts_with(&nearest))
}

/// The real name of `place`, or of the nearest folder above it that exists, and whether it is `place`.
fn nearest(place: &Path) -> (PathBuf, bool) {
    let mut at = Some(place);
    while let Some(path) = at {
        let named = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        if let Ok(real) = named.canonicalize() {
            return (real, path == place);
        }
        at = path.parent();
    }
    (PathBuf::new(), false)
}
