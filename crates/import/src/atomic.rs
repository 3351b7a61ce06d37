//! Files and directories that appear whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::source::dir_of;
use crate::{ImportError, Result};

/// Lets `fill` write a new file beside `path`, then puts it in place of `path` in one step.
pub(crate) fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<()> {
    let failed = |e| ImportError::io(path, "write", e);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".partial-");
    #[cfg(unix)]
    {
        // The default is readable by the owner alone; the umask still applies.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let file = builder.tempfile_in(dir_of(path)).map_err(failed)?;
    let mut out = BufWriter::with_capacity(1 << 20, file.as_file());
    fill(&mut out).and_then(|()| out.flush()).map_err(failed)?;
    drop(out);
    // The name must not point to the new file before its contents are on disk.
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

/// Lets `fill` write into a new directory, which then appears as `dir`.
///
/// # Errors
/// When there is something at `dir` already, or the system refuses; and those of `fill`.
pub fn write_directory(dir: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if dir.symlink_metadata().is_ok() {
        return Err(ImportError::invalid(dir, "is there already"));
    }
    let failed = |e| ImportError::io(dir, "write", e);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".partial-");
    #[cfg(unix)]
    {
        // Temporary directories are their owner's alone; this one is to stay. The umask still applies.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o777));
    }
    let partial = builder.tempdir_in(dir_of(dir)).map_err(failed)?;
    fill(partial.path())?;
    std::fs::rename(partial.path(), dir).map_err(failed)?;
    // It has another name now and is not to be removed.
    let _ = partial.keep();
    Ok(())
}
