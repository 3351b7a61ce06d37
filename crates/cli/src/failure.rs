//! How an error is shown: one line with its causes, and the exit status.

use std::io;
use std::process::ExitCode;

use anyhow::Result;

use crate::output::{self, Style, on_stderr};

/// Shows `error` and returns the exit status. A reader of our output who has left is no failure.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if reader_is_gone(error) {
        return ExitCode::SUCCESS;
    }
    show(error);
    ExitCode::FAILURE
}

/// Exit status of commands that judge when there is nothing to judge, as diff and cmp have it, and as for wrong
/// usage.
const TROUBLE: u8 = 2;

/// The exit status of a command that judges: success or failure as `verdict` has it, another one for errors, which
/// are shown. A reader of our output who has left is an error for the caller.
///
/// # Errors
/// That the reader has left.
pub(crate) fn verdict(verdict: Result<bool>) -> Result<ExitCode> {
    match verdict {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        Err(error) if reader_is_gone(&error) => Err(error),
        Err(error) => {
            show(&error);
            Ok(ExitCode::from(TROUBLE))
        }
    }
}

/// Whether the error is that nobody reads our output any more.
pub(crate) fn reader_is_gone(error: &anyhow::Error) -> bool {
    let gone = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(gone))
}

/// Shows `error`.
pub(crate) fn show(error: &anyhow::Error) {
    output::note(&format!("{} {}", on_stderr("error:", Style::Error), line(error)));
}

/// The error and its causes, outermost first, leaving out what the one before already says.
fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let words = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if line.is_empty() {
            line = words;
        } else if !line.contains(&words) {
            line = format!("{line}: {words}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn causes_are_told_once_and_in_one_line() {
        let inner = io::Error::other("no\n such thing");
        let error = Err::<(), _>(inner).context("a: no such thing").context("outer").unwrap_err();
        assert_eq!(line(&error), "outer: a: no such thing");
    }
}
