//! The crate's one error type: what is wrong with a model, a tokenizer or a request, and where.

use std::path::{Path, PathBuf};

use mil::ErrorKind;

/// Result of loading, running or sampling a model.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a language model could not be loaded or run. `Display` is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read, or lacks something.
    #[error(transparent)]
    Import(#[from] import::ImportError),
    /// A program could not be built.
    #[error(transparent)]
    Program(#[from] mil::Error),
    /// A program could not be prepared or run.
    #[error(transparent)]
    Exec(#[from] exec::ExecError),
    /// A model file whose contents do not make a model that Rigel runs.
    #[error("{}: {}{message}", file.display(), kind.prefix())]
    Model {
        /// File or directory.
        file: PathBuf,
        /// Whose fault.
        kind: ErrorKind,
        /// What is wrong, with the key or tensor concerned.
        message: String,
    },
    /// A request that does not fit the model.
    #[error("{}{message}", kind.prefix())]
    Request {
        /// Whose fault.
        kind: ErrorKind,
        /// What is wrong.
        message: String,
    },
}

impl Error {
    /// A model file that contradicts itself or lacks something.
    pub(crate) fn invalid(file: &Path, message: impl Into<String>) -> Self {
        Error::Model { file: file.into(), kind: ErrorKind::Invalid, message: message.into() }
    }

    /// A sound model file that Rigel cannot run.
    pub(crate) fn unsupported(file: &Path, message: impl Into<String>) -> Self {
        Error::Model { file: file.into(), kind: ErrorKind::Unsupported, message: message.into() }
    }

    /// A request that makes no sense for this model.
    pub(crate) fn request(message: impl Into<String>) -> Self {
        Error::Request { kind: ErrorKind::Invalid, message: message.into() }
    }

    /// A request beyond what the model can hold.
    pub(crate) fn limit(message: impl Into<String>) -> Self {
        Error::Request { kind: ErrorKind::Limit, message: message.into() }
    }

    /// A broken promise between Rigel's own parts.
    pub(crate) fn bug(message: impl Into<String>) -> Self {
        Error::Request { kind: ErrorKind::Bug, message: message.into() }
    }

    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Import(e) => match e.kind {
                import::ErrorKind::Invalid | import::ErrorKind::Io => ErrorKind::Invalid,
                import::ErrorKind::Unsupported => ErrorKind::Unsupported,
                import::ErrorKind::Limit => ErrorKind::Limit,
            },
            Error::Program(e) => e.kind,
            Error::Exec(e) => e.kind(),
            Error::Model { kind, .. } | Error::Request { kind, .. } => *kind,
        }
    }
}
