//! Why something cannot be read, run or compared.

use mil::ErrorKind;

/// Result of what this crate does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something cannot be read, run or compared. What it is of is said by [`Error::At`], outermost first.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something is wrong with what it names: a file, an input, an output.
    #[error("{place}")]
    At {
        /// What it is of.
        place: String,
        /// What is wrong.
        source: Box<Error>,
    },
    /// What was given does not fit.
    #[error("{0}")]
    Invalid(String),
    /// More than is taken.
    #[error("limit: {0}")]
    Limit(String),
    /// A program or one of its operations.
    #[error(transparent)]
    Program(#[from] mil::Error),
    /// A value of a program.
    #[error(transparent)]
    Value(#[from] mil::OpError),
    /// Elements that do not make a tensor.
    #[error(transparent)]
    Tensor(#[from] tensor::TensorError),
    /// A file.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// An archive of arrays.
    #[error(transparent)]
    Archive(#[from] zip::result::ZipError),
}

impl Error {
    /// What is wrong, without what it is of.
    pub fn cause(&self) -> &Error {
        match self {
            Error::At { source, .. } => source.cause(),
            own => own,
        }
    }

    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::At { source, .. } => source.kind(),
            Error::Program(e) => e.kind,
            Error::Value(e) => e.kind,
            Error::Limit(_) => ErrorKind::Limit,
            Error::Invalid(_) | Error::Tensor(_) | Error::Io(_) | Error::Archive(_) => {
                ErrorKind::Invalid
            }
        }
    }
}

/// Says what an error is of; of nothing where something is needed, that is the error.
pub(crate) trait Context<T> {
    /// The result, or an error that says so.
    fn context(self, place: impl Into<String>) -> Result<T>;

    /// As [`Context::context`], with words that are made when they are needed.
    fn with_context<S: Into<String>>(self, place: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn context(self, place: impl Into<String>) -> Result<T> {
        self.with_context(|| place)
    }

    fn with_context<S: Into<String>>(self, place: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|e| Error::At { place: place().into(), source: Box::new(e.into()) })
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, place: impl Into<String>) -> Result<T> {
        self.with_context(|| place)
    }

    fn with_context<S: Into<String>>(self, place: impl FnOnce() -> S) -> Result<T> {
        self.ok_or_else(|| Error::Invalid(place().into()))
    }
}

/// Returns [`Error::Invalid`] with the words given.
macro_rules! bail {
    ($($words:tt)*) => { return Err($crate::Error::Invalid(format!($($words)*))) };
}

/// Returns [`Error::Invalid`] with the words given if the condition does not hold.
macro_rules! ensure {
    ($condition:expr, $($words:tt)*) => { if !$condition { $crate::error::bail!($($words)*) } };
}

pub(crate) use {bail, ensure};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_the_cause() {
        let limit = Err::<(), _>(mil::OpError::limit("too large"));
        let error = limit.context("input x").unwrap_err();
        assert_eq!((error.to_string().as_str(), error.kind()), ("input x", ErrorKind::Limit));
        assert_eq!(None::<()>.context("missing").unwrap_err().kind(), ErrorKind::Invalid);
    }
}
