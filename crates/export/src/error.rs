//! Errors of exporting.

use mil::ErrorKind;

/// Result of exporting.
pub type Result<T, E = ExportError> = std::result::Result<T, E>;

/// Why a model could not be exported. `Display` is one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExportError {
    /// What was asked for.
    #[error("{message}")]
    Request {
        /// Whose fault.
        kind: ErrorKind,
        /// What is wrong.
        message: String,
    },
    /// A program could not be rewritten or written.
    #[error(transparent)]
    Program(#[from] mil::Error),
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] passes::PassError),
}

impl ExportError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        ExportError::Request { kind: ErrorKind::Invalid, message: message.into() }
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        ExportError::Request { kind: ErrorKind::Unsupported, message: message.into() }
    }

    pub(crate) fn limit(message: impl Into<String>) -> Self {
        ExportError::Request { kind: ErrorKind::Limit, message: message.into() }
    }
}
