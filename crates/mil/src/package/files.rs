//! The folder that a model lies in: reading its files without leaving it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use tensor::{Bytes, Tensor};

use super::blob::BlobFile;
use crate::text::BlobSource;
use crate::{Error, ErrorKind, OpError, Result, TensorType};

/// What paths of weight files begin with: the folder of the program.
const MODEL_PATH: &str = "@model_path/";

/// An error of the system about a file.
pub(super) fn io_error(path: &Path, what: &str, e: &io::Error) -> Error {
    Error::new(ErrorKind::Invalid, format!("cannot {what}: {e}")).in_file(path)
}

/// Maps a file into memory; an empty one is no map, but no bytes.
///
/// # Errors
/// When it cannot be opened or is no regular file.
pub(super) fn map(path: &Path) -> Result<Bytes> {
    let meta = fs::metadata(path).map_err(|e| io_error(path, "open", &e))?;
    if !meta.is_file() {
        return Err(Error::new(ErrorKind::Invalid, "is no regular file").in_file(path));
    }
    let file = File::open(path).map_err(|e| io_error(path, "open", &e))?;
    if meta.len() == 0 {
        return Ok(Bytes::copy_from(&[]));
    }
    Bytes::map(&file).map_err(|e| io_error(path, "map", &e))
}

/// Checks that `relative` names something inside of the folder it is relative to, links aside, and that
/// nothing else names the same: a file is mapped once for each name.
///
/// # Errors
/// When it is absolute, contains `..`, or parts that say nothing, such as `.`.
pub(super) fn check_relative(relative: &str) -> Result<(), OpError> {
    let path = Path::new(relative);
    let plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    if relative.is_empty() || !plain {
        return Err(escape(relative));
    }
    if path.components().collect::<PathBuf>().as_os_str() != relative {
        return Err(OpError::invalid(format!("path {relative:?} is not in its plainest form")));
    }
    Ok(())
}

fn escape(relative: &str) -> OpError {
    OpError::invalid(format!("path {relative:?} leads out of the model's folder"))
}

/// The file `relative` in the folder `root`.
///
/// # Errors
/// As [`check_relative`], when it does not exist, or a link leads out of the folder.
pub(super) fn inside(root: &Path, relative: &str) -> Result<PathBuf, OpError> {
    check_relative(relative)?;
    let missing = |e: io::Error| OpError::invalid(format!("cannot open {relative:?}: {e}"));
    let full = root.join(relative).canonicalize().map_err(missing)?;
    let root = root.canonicalize().map_err(missing)?;
    if full.starts_with(root) { Ok(full) } else { Err(escape(relative)) }
}

/// The weight files beside a program, each mapped when it is first named.
pub(super) struct WeightFiles {
    root: PathBuf,
    open: RefCell<HashMap<String, BlobFile>>,
}

impl WeightFiles {
    /// Of a program in the folder `root`.
    pub(super) fn new(root: &Path) -> Self {
        WeightFiles { root: root.to_owned(), open: RefCell::default() }
    }

    fn file(&self, path: &str) -> Result<BlobFile, OpError> {
        let relative = path.strip_prefix(MODEL_PATH).ok_or_else(|| {
            OpError::invalid(format!(
                "path {path:?} of a weight file does not begin with {MODEL_PATH}"
            ))
        })?;
        let bytes = map(&inside(&self.root, relative)?)?;
        BlobFile::new(bytes)
    }
}

impl BlobSource for WeightFiles {
    fn tensor(&self, path: &str, offset: u64, ty: &TensorType) -> Result<Tensor, OpError> {
        let mut open = self.open.borrow_mut();
        let file = match open.get(path) {
            Some(file) => file,
            None => {
                let file = self.file(path)?;
                open.entry(path.to_owned()).or_insert(file)
            }
        };
        file.tensor(offset, ty).map_err(|e| OpError {
            kind: e.kind,
            message: format!("weight file {path}: {}", e.message),
        })
    }
}
