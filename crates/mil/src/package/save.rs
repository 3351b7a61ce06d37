//! Writing packages: whole, or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::blob::Layout;
use super::files::io_error;
use super::manifest;
use crate::{Error, ErrorKind, Result};
use tensor::WeightStore;

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
    let name = path
        .file_name()
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "is no name for a package").in_file(path))?;
    let replaces = path.symlink_metadata().is_ok();
    if replaces && !path.join(manifest::NAME).is_file() {
        let message = "is in the way: it is no package that could be replaced";
        return Err(Error::new(ErrorKind::Invalid, message).in_file(path));
    }
    let beside = |ending: &str| -> PathBuf {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.{ending}", std::process::id()));
        path.with_file_name(hidden)
    };
    let (partial, old) = (beside("partial"), beside("old"));
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

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn write(root: &Path, model: &[u8], weights: &WeightStore, layout: &Layout) -> io::Result<()> {
    let folder = root.join(manifest::DATA).join(manifest::MODEL_FOLDER);
    fs::create_dir_all(&folder)?;
    file(&folder.join(manifest::MODEL), |out| out.write_all(model))?;
    if !layout.is_empty() {
        let weights_folder = folder.join("weights");
        fs::create_dir(&weights_folder)?;
        file(&weights_folder.join("weight.bin"), |out| layout.write(weights, out))?;
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
