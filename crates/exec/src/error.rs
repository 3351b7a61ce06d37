//! Errors of preparing and running.

use mil::ErrorKind;

/// Result of preparing and running.
pub type Result<T, E = ExecError> = std::result::Result<T, E>;

/// Why a program could not be prepared or run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExecError {
    /// The program or one of its operations; says where.
    #[error(transparent)]
    Program(#[from] mil::Error),
    /// The function asked for does not exist.
    #[error("no function {0}")]
    NoFunction(String),
    /// An input of a run does not fit.
    #[error("function {function}, input {input}: {message}")]
    Input {
        /// Function that was to run.
        function: String,
        /// Input concerned.
        input: String,
        /// What is wrong, with types and shapes.
        message: String,
    },
    /// A state does not fit.
    #[error("state {state}: {message}")]
    State {
        /// State concerned.
        state: String,
        /// What is wrong.
        message: String,
    },
    /// The system does not give the memory that a program needs.
    #[error("not enough memory: {what} takes {bytes} bytes")]
    Memory {
        /// What it is for.
        what: String,
        /// How much was asked for.
        bytes: usize,
    },
    /// The device refused or failed.
    #[error("{device}: {}{message}", kind.prefix())]
    Device {
        /// Backend name.
        device: String,
        /// Whose fault: of what a device refuses, that it does not do it.
        kind: ErrorKind,
        /// What happened.
        message: String,
    },
}

impl ExecError {
    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ExecError::Program(e) => e.kind,
            ExecError::NoFunction(_) | ExecError::Input { .. } | ExecError::State { .. } => {
                ErrorKind::Invalid
            }
            ExecError::Memory { .. } => ErrorKind::Limit,
            ExecError::Device { kind, .. } => *kind,
        }
    }
}
