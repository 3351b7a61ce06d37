//! Files and directories that appear whole or not at all, and on disk.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::Path;

use tempfile::{Builder, NamedTempFile, TempDir};

use crate::source::dir_of;
use crate::{ImportError, Result};

/// How the names of unfinished files and directories begin; a killed process leaves them.
pub const PARTIAL: &str = ".partial-";

/// Lets `fill` write a new file beside `path`, then puts it in place of `path` in one step.
///
/// # Errors
/// When the system refuses, and those of `fill`; `path` is then as it was.
pub fn write_file(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<NamedTempFile>) -> io::Result<()>,
) -> Result<()> {
    let mut out = begin_file(path)?;
    fill(&mut out).map_err(|e| ImportError::io(path, "write", e))?;
    end_file(out, path)
}

/// A new file beside `path`, for [`end_file`]; it is removed when it is dropped.
///
/// # Errors
/// When the system refuses.
pub fn begin_file(path: &Path) -> Result<BufWriter<NamedTempFile>> {
    let file = partial(0o666).tempfile_in(dir_of(path));
    let file = file.map_err(|e| ImportError::io(path, "write", e))?;
    Ok(BufWriter::with_capacity(1 << 20, file))
}

/// Puts the file that [`begin_file`] began in place of `path` in one step.
///
/// # Errors
/// When the system refuses; `path` is then as it was.
pub fn end_file(out: BufWriter<NamedTempFile>, path: &Path) -> Result<()> {
    let failed = |e| ImportError::io(path, "write", e);
    let file = out.into_inner().map_err(|e| failed(e.into_error()))?;
    // The name must not point to the new file before its contents are on disk.
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    sync_names(dir_of(path)).map_err(failed)
}

/// Lets `fill` write into a new directory, which then appears as `dir`.
///
/// # Errors
/// When there is something at `dir` already, or the system refuses; and those of `fill`.
pub fn write_directory<E: From<ImportError>>(
    dir: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    if dir.symlink_metadata().is_ok() {
        return Err(ImportError::invalid(dir, "is there already").into());
    }
    let partial = fill_partial(dir, fill)?;
    Ok(name(partial, dir)?)
}

/// As [`write_directory`], but a directory that is there already gets the name `aside`, in the same directory, in
/// the moment before the new one gets its own.
///
/// # Errors
/// When the system refuses, and those of `fill`; what was at `dir` then still is.
pub fn replace_directory<E: From<ImportError>>(
    dir: &Path,
    aside: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let partial = fill_partial(dir, fill)?;
    if dir.symlink_metadata().is_err() {
        return Ok(name(partial, dir)?);
    }
    fs::rename(dir, aside).map_err(|e| ImportError::io(dir, "rename", e))?;
    Ok(name(partial, dir).inspect_err(|_| {
        // If that fails too, the old one is still there under its other name; the first error says why.
        let _ = fs::rename(aside, dir);
    })?)
}

/// A directory beside `dir` that `fill` wrote into and that is on disk.
fn fill_partial<E: From<ImportError>>(
    dir: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<TempDir, E> {
    let failed = |e| ImportError::io(dir, "write", e);
    let partial = partial(0o777).tempdir_in(dir_of(dir)).map_err(failed)?;
    fill(partial.path())?;
    sync_tree(partial.path()).map_err(failed)?;
    Ok(partial)
}

fn name(partial: TempDir, dir: &Path) -> Result<()> {
    let failed = |e| ImportError::io(dir, "write", e);
    fs::rename(partial.path(), dir).map_err(failed)?;
    // It has another name now and is not to be removed.
    let _ = partial.keep();
    sync_names(dir_of(dir)).map_err(failed)
}

#[cfg_attr(not(unix), allow(unused_variables, reason = "there are no modes"))]
fn partial(mode: u32) -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(PARTIAL);
    #[cfg(unix)]
    {
        // What is temporary is its owner's alone; this is to stay. The umask still applies.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(mode));
    }
    builder
}

/// Puts all that is in `dir` on disk, copies that other programs made included.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() && cfg!(unix) {
            // Elsewhere a file has to be writable for that.
            File::open(entry.path())?.sync_all()?;
        }
    }
    sync_names(dir)
}

/// Puts the names in `dir` on disk, where the system can.
fn sync_names(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_fails_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (file, dir, aside) =
            (root.path().join("f"), root.path().join("d"), root.path().join("a"));
        write_file(&file, |out| out.write_all(b"old")).unwrap();
        let fill = |text: &'static str| {
            move |at: &Path| {
                fs::create_dir(at.join("in")).unwrap();
                fs::write(at.join("in/g"), text).map_err(|e| ImportError::io(at, "write", e))
            }
        };
        write_directory(&dir, fill("old")).unwrap();
        let refused = |at: &Path| Err(ImportError::invalid(at, "no"));
        assert!(write_file(&file, |_| Err(io::Error::other("no"))).is_err());
        assert!(write_directory(&dir, fill("new")).is_err());
        assert!(replace_directory(&dir, &aside, refused).is_err());
        assert_eq!(names(root.path()), ["d", "f"]);
        assert_eq!(fs::read(&file).unwrap(), b"old");
        assert_eq!(fs::read(dir.join("in/g")).unwrap(), b"old");

        replace_directory(&dir, &aside, fill("new")).unwrap();
        assert_eq!(names(root.path()), ["a", "d", "f"]);
        assert_eq!(fs::read(dir.join("in/g")).unwrap(), b"new");
        assert_eq!(fs::read(aside.join("in/g")).unwrap(), b"old");
        // The name is taken, so the old one cannot be set aside.
        assert!(replace_directory(&dir, &aside, fill("newer")).is_err());
        assert_eq!(names(root.path()), ["a", "d", "f"]);
        assert_eq!(fs::read(dir.join("in/g")).unwrap(), b"new");
    }

    #[cfg(unix)]
    #[test]
    fn modes_are_as_the_umask_has_them() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let mode =
            |name: &str| fs::metadata(root.path().join(name)).unwrap().permissions().mode() & 0o777;
        fs::write(root.path().join("plain"), "").unwrap();
        write_file(&root.path().join("file"), |_| Ok(())).unwrap();
        fs::create_dir(root.path().join("folder")).unwrap();
        write_directory(&root.path().join("dir"), |_| Ok::<_, ImportError>(())).unwrap();
        assert_eq!((mode("file"), mode("dir")), (mode("plain"), mode("folder")));
    }
}
