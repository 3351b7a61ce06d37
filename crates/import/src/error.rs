//! The crate's one error type: which file, where in it, of what kind, and why.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Result of reading or writing a model file.
pub type Result<T, E = ImportError> = std::result::Result<T, E>;

/// What is to blame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The file breaks its own format, or lacks what was asked for.
    Invalid,
    /// The file is sound, but uses something this crate cannot represent.
    Unsupported,
    /// A count or size is beyond a fixed bound.
    Limit,
    /// The operating system refused.
    Io,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Limit => "limit",
            ErrorKind::Io => "i/o",
        })
    }
}

/// The named part of a file that an error is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A tensor.
    Tensor(String),
    /// A metadata or configuration key.
    Key(String),
}

/// Why a file could not be read or written. `Display` is one line:
/// `FILE: offset N: tensor "NAME": KIND: message`, leaving out what is not known.
#[derive(Debug, thiserror::Error)]
pub struct ImportError {
    /// The file or directory.
    pub file: PathBuf,
    /// Byte offset in the file.
    pub offset: Option<u64>,
    /// The tensor or key at fault.
    pub item: Option<Item>,
    /// What is to blame.
    pub kind: ErrorKind,
    /// What is wrong, in words.
    pub message: String,
    /// The operating system's error, for [`ErrorKind::Io`].
    #[source]
    pub source: Option<io::Error>,
}

impl ImportError {
    pub(crate) fn new(kind: ErrorKind, file: &Path, message: impl Into<String>) -> Self {
        ImportError {
            file: file.to_path_buf(),
            offset: None,
            item: None,
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn invalid(file: &Path, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, file, message)
    }

    pub(crate) fn unsupported(file: &Path, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, file, message)
    }

    pub(crate) fn limit(file: &Path, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Limit, file, message)
    }

    /// `doing` completes "cannot …".
    pub(crate) fn io(file: &Path, doing: &str, source: io::Error) -> Self {
        let mut e = Self::new(ErrorKind::Io, file, format!("cannot {doing}: {source}"));
        e.source = Some(source);
        e
    }

    pub(crate) fn at(mut self, offset: usize) -> Self {
        self.offset = Some(offset as u64);
        self
    }

    pub(crate) fn tensor(mut self, name: &str) -> Self {
        self.item = Some(Item::Tensor(name.to_owned()));
        self
    }

    pub(crate) fn key(mut self, name: &str) -> Self {
        self.item = Some(Item::Key(name.to_owned()));
        self
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", one_line(&self.file.to_string_lossy()))?;
        if let Some(offset) = self.offset {
            write!(f, "offset {offset}: ")?;
        }
        match &self.item {
            Some(Item::Tensor(name)) => write!(f, "tensor {}: ", quoted(name))?,
            Some(Item::Key(name)) => write!(f, "key {}: ", quoted(name))?,
            None => {}
        }
        // The message of an I/O error says that it is one.
        if self.kind != ErrorKind::Io {
            write!(f, "{}: ", self.kind)?;
        }
        let message = one_line(&self.message);
        match message.char_indices().nth(MAX_MESSAGE) {
            Some((cut, _)) => write!(f, "{}…", &message[..cut]),
            None => f.write_str(&message),
        }
    }
}

/// Characters of a message that are shown; libraries quote what they find in a file.
const MAX_MESSAGE: usize = 1000;

/// A name out of a file, fit for one line of a message: escaped, and cut when absurdly long.
pub(crate) fn quoted(name: &str) -> String {
    const MAX_CHARS: usize = 96;
    match name.char_indices().nth(MAX_CHARS) {
        Some((cut, _)) => format!("{:?}…", &name[..cut]),
        None => format!("{name:?}"),
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line() {
        let e = ImportError::invalid(Path::new("a\nb.gguf"), "bad\nthing").at(7).tensor("x\ny");
        assert_eq!(e.to_string(), r#"a b.gguf: offset 7: tensor "x\ny": invalid: bad thing"#);
        let e = ImportError::io(Path::new("m"), "read", io::Error::other("disk on fire"));
        assert_eq!(e.to_string(), "m: cannot read: disk on fire");
        let long =
            ImportError::unsupported(Path::new("m"), "no").key(&"k".repeat(5000)).to_string();
        let quoting = ImportError::invalid(Path::new("m"), "x".repeat(5000)).to_string();
        assert!(quoting.len() < 1100 && quoting.ends_with("xxx…"), "{quoting}");
        assert!(long.len() < 200 && long.ends_with("…: unsupported: no"), "{long}");
    }
}
