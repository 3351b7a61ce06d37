//! Files as shared bytes: mapping, and windows that are fit for typed views.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use tensor::{Bytes, DType};

use crate::{ImportError, Result};

/// Maps a file into memory, without reading it. The file must not be changed while it is in use.
///
/// # Errors
/// When it cannot be opened, is a directory, or is empty.
pub fn map_file(path: &Path) -> Result<Bytes> {
    let io = |e| ImportError::io(path, "open", e);
    check_regular(path)?;
    let file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if meta.len() == 0 {
        return Err(ImportError::invalid(path, "file is empty"));
    }
    Bytes::map(&file).map_err(|e| ImportError::io(path, "map", e))
}

/// Checks, before it is opened, that `path` is a file with contents of its own: to open a pipe would wait for
/// its writer, and neither a pipe nor a device can be mapped.
pub(crate) fn check_regular(path: &Path) -> Result<()> {
    let kind = std::fs::metadata(path).map_err(|e| ImportError::io(path, "open", e))?.file_type();
    match (kind.is_dir(), kind.is_file()) {
        (true, _) => Err(ImportError::invalid(path, "is a directory, not a file")),
        (_, true) => Ok(()),
        _ => Err(ImportError::invalid(path, "is a pipe or device, not a file that can be mapped")),
    }
}

/// The directory that holds `path`.
pub(crate) fn dir_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// `range` of `bytes` for elements of `dtype`: a window where the memory is aligned for them, else
/// a copy. `None` if it does not lie inside. Block formats have no alignment need.
pub(crate) fn window(bytes: &Bytes, range: Range<usize>, dtype: DType) -> Option<Bytes> {
    let window = bytes.slice(range)?;
    let align = if dtype.block_len() == 1 { dtype.block_bytes().max(1) } else { 1 };
    if (window.as_ptr() as usize).is_multiple_of(align) {
        Some(window)
    } else {
        Some(Bytes::copy_from(&window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_copy_only_when_misaligned() {
        let bytes = Bytes::copy_from(&[0u8; 64]);
        let shared = |range, dtype| {
            let w = window(&bytes, range, dtype).unwrap();
            (w.as_ptr() as usize - bytes.as_ptr() as usize) < 64
        };
        assert!(shared(4..8, DType::F32) && shared(1..2, DType::I8) && shared(2..22, DType::Q4_1));
        assert_eq!(window(&bytes, 2..6, DType::F32).unwrap().as_ptr() as usize % 4, 0);
        assert!(window(&bytes, 60..65, DType::I8).is_none());
    }
}
