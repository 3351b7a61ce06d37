//! Errors of the IR: what is wrong, of which kind, and where.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// Whose fault it is, which decides what the reader can do about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The input breaks a rule of the language.
    Invalid,
    /// The input is right, but Rigel does not handle it.
    Unsupported,
    /// The input exceeds a size that Rigel accepts.
    Limit,
    /// Rigel broke its own rules.
    Bug,
}

impl ErrorKind {
    /// What stands before a message of this kind.
    pub const fn prefix(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "",
            ErrorKind::Unsupported => "unsupported: ",
            ErrorKind::Limit => "limit: ",
            ErrorKind::Bug => "bug in rigel: ",
        }
    }
}

/// What an operation's own rules have to say, before it is known where the operation stands.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct OpError {
    /// Whose fault.
    pub kind: ErrorKind,
    /// What is wrong, with the names and shapes concerned.
    pub message: String,
}

impl OpError {
    /// A broken rule of the language.
    pub fn invalid(message: impl Into<String>) -> Self {
        OpError { kind: ErrorKind::Invalid, message: message.into() }
    }

    /// Something Rigel does not handle.
    pub fn unsupported(message: impl Into<String>) -> Self {
        OpError { kind: ErrorKind::Unsupported, message: message.into() }
    }

    /// A size beyond what Rigel accepts.
    pub fn limit(message: impl Into<String>) -> Self {
        OpError { kind: ErrorKind::Limit, message: message.into() }
    }
}

impl From<Error> for OpError {
    /// The error of a part, such as an operation that a decomposition adds; its place becomes text.
    fn from(e: Error) -> Self {
        let message = e.to_string();
        OpError { kind: e.kind, message }
    }
}

/// What to say of operations that are not in the catalogue; those that coremltools knows are told
/// from misspelled ones.
pub(crate) fn missing_operations(names: &BTreeSet<&str>) -> String {
    let described = |name: &&str| match crate::ops::UNSUPPORTED.contains(name) {
        true => format!("{name} (of coremltools, not supported yet)"),
        false => (*name).to_owned(),
    };
    let names: Vec<String> = names.iter().map(described).collect();
    format!("operations that Rigel does not have: {}", names.join(", "))
}

/// An error with its place: file, position for text, function and operation for programs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Error {
    /// Whose fault.
    pub kind: ErrorKind,
    /// What is wrong.
    pub message: String,
    /// File concerned.
    pub file: Option<Box<str>>,
    /// Line and column in the text, from 1.
    pub position: Option<(u32, u32)>,
    /// Function concerned.
    pub function: Option<Box<str>>,
    /// Operation concerned, as `kind "name"`.
    pub operation: Option<Box<str>>,
}

/// Result of the IR's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` without a place.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error {
            kind,
            message: message.into(),
            file: None,
            position: None,
            function: None,
            operation: None,
        }
    }

    /// An operation's error, placed.
    pub fn at_op(error: OpError, function: &str, operation: String) -> Self {
        let mut e = Error::new(error.kind, error.message);
        e.function = Some(function.into());
        e.operation = Some(operation.into());
        e
    }

    /// The same error, in the file at `path`, unless it names one.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Self {
        self.file.get_or_insert_with(|| path.display().to_string().into());
        self
    }

    /// The same error, in `function`.
    #[must_use]
    pub fn in_function(mut self, function: &str) -> Self {
        self.function = Some(function.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        if let Some((line, column)) = self.position {
            write!(f, "line {line}, column {column}: ")?;
        }
        if let Some(function) = &self.function {
            write!(f, "function {function}: ")?;
        }
        if let Some(operation) = &self.operation {
            write!(f, "op {operation}: ")?;
        }
        f.write_str(self.kind.prefix())?;
        f.write_str(&self.message)
    }
}
