//! Errors of passes.

use crate::Property;

/// Result of running passes.
pub type Result<T, E = PassError> = std::result::Result<T, E>;

/// Why passes could not run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PassError {
    /// The program handed in is invalid.
    #[error("before any pass: {0}")]
    Input(mil::Error),
    /// A pass met an operation that it cannot handle.
    #[error("pass {pass}: {error}")]
    Failed {
        /// The pass.
        pass: &'static str,
        /// What and where.
        error: mil::Error,
    },
    /// A pass left an invalid program behind.
    #[error("bug in rigel: pass {pass} broke the program: {error}")]
    Broke {
        /// The pass.
        pass: &'static str,
        /// The invariant broken, and where.
        error: mil::Error,
    },
    /// The order of the passes is wrong.
    #[error("bug in rigel: pass {pass} needs {property:?}, which no pass before it provides")]
    Order {
        /// The pass.
        pass: &'static str,
        /// What it needs.
        property: Property,
    },
}

impl From<PassError> for mil::Error {
    /// The program's error, with its place; a pass's own fault becomes one of kind `Bug`.
    fn from(e: PassError) -> Self {
        match e {
            PassError::Input(error) | PassError::Failed { error, .. } => error,
            PassError::Broke { .. } | PassError::Order { .. } => {
                mil::Error::new(mil::ErrorKind::Bug, e.to_string())
            }
        }
    }
}
