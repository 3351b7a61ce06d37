//! Writing results to standard output, and colours on standard error.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// Writes `value` as indented JSON and a line's end.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// Writes `text` and a line's end.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn line(text: &str) -> Result<()> {
    write(&[text, "\n"])
}

/// Writes `text` at once, so that a stream shows as it comes.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn piece(text: &str) -> Result<()> {
    write(&[text])
}

fn write(texts: &[&str]) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = texts.iter().try_for_each(|t| out.write_all(t.as_bytes()));
    written.and_then(|()| out.flush()).context("cannot write to standard output")
}

/// What a text on standard error stands for.
#[derive(Clone, Copy)]
pub(crate) enum Style {
    /// The word before an error.
    Error,
    /// What can be overlooked.
    Faint,
}

/// `text` with the style's colours, if standard error is a terminal and `NO_COLOR` is not set.
pub(crate) fn on_stderr(text: &str, style: Style) -> String {
    if !wants_colours() || !io::stderr().is_terminal() {
        return text.to_owned();
    }
    let code = match style {
        Style::Error => "1;31",
        Style::Faint => "2",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Whether results may have colours: standard output is a terminal and `NO_COLOR` is not set.
pub(crate) fn colours() -> bool {
    wants_colours() && io::stdout().is_terminal()
}

fn wants_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// A line on standard error. Where that cannot be written, as after the end of what it was piped to, the work goes on.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// A remark on standard error for people; nothing if nobody watches.
pub(crate) fn remark(text: &str) {
    if io::stderr().is_terminal() {
        note(&on_stderr(text, Style::Faint));
    }
}
