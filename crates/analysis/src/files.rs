//! Files that appear whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Context, Result, ensure};

/// Writes `bytes` to `path`, under another name until all is there. A link stands for what it leads to.
///
/// # Errors
/// When something that is no regular file is in the way, and those of the file system.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let place = || format!("cannot write {}", path.display());
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Ok(meta) = fs::metadata(&real) {
        ensure!(meta.is_file(), "{}: it is no regular file", place());
    }
    let (partial, mut file) = hidden(&real).with_context(place)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let written = written.and_then(|()| fs::rename(&partial, &real));
    if written.is_err() {
        // The error above is what matters.
        let _ = fs::remove_file(&partial);
    }
    written.with_context(place)
}

/// A new hidden file beside `path`; names that are taken are passed over.
fn hidden(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut number = 0u32;
    loop {
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}-{number}.partial", std::process::id()));
        let partial = path.with_file_name(name);
        match File::create_new(&partial) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|file| (partial, file)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_and_devices_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (file, neighbour) = (dir.path().join("o.npz"), dir.path().join("o.npz.partial"));
        fs::write(&neighbour, "precious").unwrap();
        write(&file, b"one").unwrap();
        write(&file, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::read(&neighbour).unwrap(), b"precious");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        assert!(write(dir.path(), b"").is_err());
        assert!(write(Path::new("/dev/null"), b"").is_err());
    }
}
