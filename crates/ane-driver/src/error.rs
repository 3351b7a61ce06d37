//! What the driver says when something fails, by whose fault it is.

use exec::ExecError;
use exec::port::PortError;
use mil::ErrorKind;

fn device(kind: ErrorKind, message: impl Into<String>) -> ExecError {
    ExecError::Device { device: "ane".into(), kind, message: message.into() }
}

/// What was given does not fit, or a file cannot be written.
pub(crate) fn invalid(message: impl Into<String>) -> ExecError {
    device(ErrorKind::Invalid, message)
}

/// What the engine, or the driver over it, does not do.
pub(crate) fn unsupported(message: impl Into<String>) -> ExecError {
    device(ErrorKind::Unsupported, message)
}

/// More than the engine takes.
pub(crate) fn limit(message: impl Into<String>) -> ExecError {
    device(ErrorKind::Limit, message)
}

/// What cannot be if the driver and the lowering are right.
pub(crate) fn bug(message: impl Into<String>) -> ExecError {
    device(ErrorKind::Bug, message)
}

/// A verb that failed on the program `label`.
pub(crate) fn failed(label: &str, e: &PortError) -> ExecError {
    unsupported(format!("{label}: {e}"))
}
