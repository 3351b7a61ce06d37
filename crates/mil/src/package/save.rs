//! Writing packages and texts: whole, or not at all.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::blob::Layout;
use super::files::io_error;
use super::manifest;
use crate::{Error, ErrorKind, Result};
use tensor::WeightStore;

/// The folder of a model's weight files, and the one file that is written there: what
/// [`WEIGHTS_PATH`](super::blob::WEIGHTS_PATH) names.
const WEIGHTS_FOLDER: &str = "weights";
const WEIGHTS_FILE: &str = "weight.bin";

/// Writes the package of `model` and a weight file to `path`, in place of a package that is there.
///
/// It is written under another name beside `path`, synced and renamed, so that `path` never is a
/// part of a package; on an error nothing is left behind.
///
/// # Errors
/// Those of the file system, and when something that is no package is in the way.
pub(super) fn package(
    path: &Path,
    model: &[u8],
    weights: &WeightStore,
    layout: &Layout,
) -> Result<()> {
    let path = &resolved(path)?;
    let replaces = path.symlink_metadata().is_ok();
    if replaces && manifest::root_model(path).is_err() {
        let message = "is in the way: it is no package that could be replaced";
        return Err(Error::new(ErrorKind::Invalid, message).in_file(path));
    }
    let partial = hidden_folder(path).map_err(|e| io_error(path, "write", &e))?;
    let old = partial.with_extension("old");
    let written = write(&partial, model, weights, layout).and_then(|()| {
        if replaces {
            fs::rename(path, &old)?;
        }
        if let Err(e) = fs::rename(&partial, path) {
            if replaces {
                fs::rename(&old, path)?;
            }
            return Err(e);
        }
        sync(folder_of(path))
    });
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_dir_all(&partial);
    } else if replaces {
        fs::remove_dir_all(&old).map_err(|e| io_error(&old, "remove", &e))?;
    }
    written.map_err(|e| io_error(path, "write", &e))
}

/// Writes a program's text to `path` and its weight file to [`weight_file`], in place of files that
/// are there. `print` makes the text; it is given the folder in which the weight file lies under
/// the same relative path.
///
/// Both are written under another name beside `path`, synced and renamed, the text last: a text
/// that appears has its weights. On an error before that nothing is left behind.
///
/// # Errors
/// Those of `print` and of the file system.
pub(super) fn text(
    path: &Path,
    weights: &WeightStore,
    layout: &Layout,
    print: impl FnOnce(&Path) -> Result<String>,
) -> Result<()> {
    let path = &resolved(path)?;
    // Once the weights are in place nothing must keep the text from following.
    let weights_place = weight_file(path);
    for place in [path, &weights_place] {
        if place.is_dir() {
            let message = "is in the way: it is a folder";
            return Err(Error::new(ErrorKind::Invalid, message).in_file(place));
        }
    }
    let partial = hidden_folder(path).map_err(|e| io_error(path, "write", &e))?;
    let written = write_text(path, &partial, (weights, layout), print);
    // What is left of it after success is empty folders; the first error is the one to report.
    let _ = fs::remove_dir_all(&partial);
    written
}

fn write_text(
    path: &Path,
    partial: &Path,
    (weights, layout): (&WeightStore, &Layout),
    print: impl FnOnce(&Path) -> Result<String>,
) -> Result<()> {
    let io = |e: io::Error| io_error(path, "write", &e);
    let (own_weights, own_text) = (weight_file(&partial.join("text")), partial.join("text"));
    if !layout.is_empty() {
        fs::create_dir(folder_of(&own_weights)).map_err(io)?;
        file(&own_weights, |out| layout.write(weights, out)).map_err(io)?;
    }
    let text = print(partial)?;
    file(&own_text, |out| out.write_all(text.as_bytes())).map_err(io)?;
    if !layout.is_empty() {
        let place = weight_file(path);
        fs::create_dir_all(folder_of(&place)).map_err(io)?;
        fs::rename(&own_weights, &place).map_err(io)?;
        sync(folder_of(&place)).map_err(io)?;
    }
    fs::rename(&own_text, path).and_then(|()| sync(folder_of(path))).map_err(io)
}

/// Where the weights of the text at `path` lie.
pub(super) fn weight_file(path: &Path) -> PathBuf {
    folder_of(path).join(WEIGHTS_FOLDER).join(WEIGHTS_FILE)
}

fn name_of(path: &Path) -> Result<&OsStr> {
    path.file_name()
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "is no name for a model").in_file(path))
}

/// `path` in its folder's own name, which stays right when `path` is moved away. The folder is made
/// if need be.
fn resolved(path: &Path) -> Result<PathBuf> {
    let name = name_of(path)?;
    let folder = folder_of(path);
    let made = fs::create_dir_all(folder).and_then(|()| folder.canonicalize());
    Ok(made.map_err(|e| io_error(path, "write", &e))?.join(name))
}

/// A new, empty, hidden folder beside `path`. A name that is taken, such as by what a process that
/// was killed left behind, is passed over, and so is one whose `.old` is taken.
fn hidden_folder(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default();
    let mut number = 0u32;
    loop {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{number}.partial", std::process::id()));
        let folder = path.with_file_name(hidden);
        let free = folder.with_extension("old").symlink_metadata().is_err();
        match fs::create_dir(&folder) {
            Ok(()) if free => return Ok(folder),
            Ok(()) => fs::remove_dir(&folder)?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        number += 1;
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn write(root: &Path, model: &[u8], weights: &WeightStore, layout: &Layout) -> io::Result<()> {
    let folder = root.join(manifest::DATA).join(manifest::MODEL_FOLDER);
    fs::create_dir_all(&folder)?;
    file(&folder.join(manifest::MODEL), |out| out.write_all(model))?;
    if !layout.is_empty() {
        let weights_folder = folder.join(WEIGHTS_FOLDER);
        fs::create_dir(&weights_folder)?;
        file(&weights_folder.join(WEIGHTS_FILE), |out| layout.write(weights, out))?;
        sync(&weights_folder)?;
    }
    let json = manifest::write(model, !layout.is_empty())?;
    file(&root.join(manifest::NAME), |out| out.write_all(&json))?;
    sync(&folder)?;
    sync(&root.join(manifest::DATA))?;
    sync(root)
}

fn file(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(File::create_new(path)?);
    fill(&mut out)?;
    out.into_inner()?.sync_all()
}

/// Makes a folder's entries durable, where the system can.
fn sync(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
