//! Why training could not begin or go on.

use std::io;
use std::path::{Path, PathBuf};

use exec::ExecError;
use import::ImportError;

/// Result of training.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// Why training could not begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The system refused; says which file and what was tried.
    #[error("{}: cannot {doing}: {source}", file.display())]
    Io {
        /// File or directory.
        file: PathBuf,
        /// What was tried, such as `read`.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file's contents are wrong; says where in it.
    #[error("{}: {message}", file.display())]
    File {
        /// File or directory.
        file: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Configuration, data and program do not fit each other.
    #[error("{0}")]
    Invalid(String),
    /// A checkpoint could not be written; those before it are as they were.
    #[error("checkpoint of step {step} is not written, {kept}: {source}")]
    NotSaved {
        /// The step.
        step: u64,
        /// What there is instead.
        kept: String,
        /// Why.
        source: Box<TrainError>,
    },
    /// A loss, gradient or parameter is NaN or infinite. The parameters are those before the step, or those
    /// behind it that were evaluated.
    #[error("step {step}: {what}{}", made_by(operation))]
    NotFinite {
        /// The step, counting from 1.
        step: u64,
        /// What is not finite.
        what: String,
        /// The operation that made the first such number, where the interpreter makes it too.
        operation: Option<String>,
    },
    /// The connection with the other processes of the run is lost.
    #[error("no connection with the other processes: {0}")]
    Exchange(String),
    /// Reading or writing tensors.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// Preparing or running the program.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

impl TrainError {
    /// An error about the contents of a file.
    pub(crate) fn file(file: &Path, message: impl Into<String>) -> Self {
        TrainError::File { file: file.to_owned(), message: message.into() }
    }

    /// An error of the system, as a function for `map_err`.
    pub(crate) fn io(file: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| TrainError::Io { file: file.to_owned(), doing, source }
    }
}

fn made_by(operation: &Option<String>) -> String {
    operation.as_ref().map_or_else(String::new, |o| format!("; first made by {o}"))
}
