//! The files that paths of data stand for.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Result, TrainError};

/// What a file of data holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Text.
    Text,
    /// A JSON object in each line.
    JsonLines,
    /// Documents as ids: a [`TokenFile`](super::TokenFile).
    Tokens,
}

/// A file of data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataFile {
    /// Where it is.
    pub path: PathBuf,
    /// What its name says that it holds.
    pub kind: Kind,
}

/// Endings of names, in either case.
const ENDINGS: [(&str, Kind); 5] = [
    ("txt", Kind::Text),
    ("md", Kind::Text),
    ("jsonl", Kind::JsonLines),
    ("ndjson", Kind::JsonLines),
    ("bin", Kind::Tokens),
];

/// The files at `paths`, in their order. Of a directory those whose names end in `.txt`, `.md`, `.jsonl`, `.ndjson` or
/// `.bin`, at any depth and in the order of their paths; names that begin with a dot are passed over. A file that is
/// named itself is text where its ending is none of these.
///
/// # Errors
/// When one is not there, a directory has no such file, one there is a pipe or device, or a named file is `.json`.
pub fn files(paths: &[PathBuf]) -> Result<Vec<DataFile>> {
    let mut files = Vec::new();
    for path in paths {
        if fs::metadata(path).map_err(TrainError::io(path, "read"))?.is_dir() {
            let before = files.len();
            list(path, &mut files)?;
            if files.len() == before {
                let endings = ENDINGS.map(|(ending, _)| format!(".{ending}")).join(", ");
                return Err(TrainError::file(path, format!("no file there ends in {endings}")));
            }
        } else {
            if ends_in(path, "json") {
                let why = "data in JSON is one object a line, in a file named .jsonl";
                return Err(TrainError::file(path, why));
            }
            let kind = kind_of(path).unwrap_or(Kind::Text);
            files.push(DataFile { path: path.clone(), kind });
        }
    }
    Ok(files)
}

/// Adds the files of data in the directory `dir`.
fn list(dir: &Path, files: &mut Vec<DataFile>) -> Result<()> {
    let entries = fs::read_dir(dir).map_err(TrainError::io(dir, "list"))?;
    let mut entries = entries
        .map(|entry| Ok(entry.map_err(TrainError::io(dir, "list"))?.path()))
        .collect::<Result<Vec<_>>>()?;
    entries.sort();
    let hidden = |p: &Path| p.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
    for path in entries.into_iter().filter(|p| !hidden(p)) {
        if path.is_dir() {
            // One that is linked could lead back to where it is.
            if !path.is_symlink() {
                list(&path, files)?;
            }
        } else if let Some(kind) = kind_of(&path) {
            if !fs::metadata(&path).map_err(TrainError::io(&path, "read"))?.is_file() {
                return Err(TrainError::file(&path, "is a pipe or device, not a file of data"));
            }
            files.push(DataFile { path, kind });
        }
    }
    Ok(())
}

fn kind_of(path: &Path) -> Option<Kind> {
    ENDINGS.iter().find(|(ending, _)| ends_in(path, ending)).map(|&(_, kind)| kind)
}

fn ends_in(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending))
}
