//! Text and JSON lines as they are read, with the place of what is wrong.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::iter;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::paths::{DataFile, Kind, files};
use super::token_file::MAGIC;
use crate::{Result, TrainError};

/// The byte order mark that some programs begin UTF-8 with.
const MARK: &str = "\u{feff}";

/// The text of `file`, without a byte order mark.
pub(super) fn read_text(file: &Path) -> Result<String> {
    let bytes = fs::read(file).map_err(TrainError::io(file, "read"))?;
    if bytes.starts_with(MAGIC) {
        return Err(TrainError::file(file, "is a token file, whose name ends in .bin"));
    }
    let mut text = String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
        not_utf8(file, e.as_bytes(), e.utf8_error(), line, 0)
    })?;
    if text.starts_with(MARK) {
        text.drain(..MARK.len());
    }
    Ok(text)
}

/// What is wrong in `bytes`, which begin at `offset` of `file`; `line` is where the wrong byte is.
fn not_utf8(
    file: &Path,
    bytes: &[u8],
    error: std::str::Utf8Error,
    line: usize,
    offset: usize,
) -> TrainError {
    if offset == 0 && (bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")) {
        return TrainError::file(file, "is UTF-16; data is read as UTF-8");
    }
    let at = error.valid_up_to();
    let byte = bytes.get(at).copied().unwrap_or_default();
    let why = format!("line {line}: not UTF-8: byte {byte:#04x} at offset {}", offset + at);
    TrainError::file(file, why)
}

/// The values in the lines of a file, with the place of each, such as `line 2`. Empty lines are passed over.
pub(super) struct JsonLines {
    file: PathBuf,
    reader: BufReader<File>,
    line: usize,
    offset: usize,
}

impl JsonLines {
    pub(super) fn open(file: &Path) -> Result<Self> {
        let opened = File::open(file).map_err(TrainError::io(file, "read"))?;
        Ok(JsonLines { file: file.to_owned(), reader: BufReader::new(opened), line: 0, offset: 0 })
    }

    /// The value in line `self.line`, which begins at `self.offset`.
    fn value(&self, bytes: &[u8]) -> Result<Option<(String, Value)>> {
        let Self { file, line, offset, .. } = self;
        let text = std::str::from_utf8(bytes)
            .map_err(|e| not_utf8(file, bytes, e, *line, *offset))?
            .trim_end();
        let text = if *line == 1 { text.strip_prefix(MARK).unwrap_or(text) } else { text };
        if text.trim().is_empty() {
            return Ok(None);
        }
        match serde_json::from_str(text) {
            Ok(value) => Ok(Some((format!("line {line}"), value))),
            Err(e) => {
                // The parser's own line is 1 in every line.
                let (why, column) = (e.to_string(), e.column());
                let why = why.strip_suffix(&format!(" at line {} column {column}", e.line()));
                let why = why.map_or_else(|| e.to_string(), str::to_owned);
                Err(TrainError::file(file, format!("line {line}, column {column}: {why}")))
            }
        }
    }
}

impl Iterator for JsonLines {
    type Item = Result<(String, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut bytes = Vec::new();
            match self.reader.read_until(b'\n', &mut bytes) {
                Ok(0) => return None,
                Ok(_) => self.line += 1,
                Err(e) => return Some(Err(TrainError::io(&self.file, "read")(e))),
            }
            let value = self.value(&bytes);
            self.offset += bytes.len();
            if let Some(value) = value.transpose() {
                return Some(value);
            }
        }
    }
}

/// What a JSON line says.
pub(super) enum Record<'a> {
    Text(&'a str),
    Answer { prompt: &'a str, completion: &'a str },
    Chat(&'a Value),
}

impl<'a> Record<'a> {
    /// Which record `value` is.
    ///
    /// # Errors
    /// Why it is none: a key is missing, of the wrong type, or one too many.
    pub(super) fn of(value: &'a Value) -> Result<Self, String> {
        let object =
            value.as_object().ok_or_else(|| format!("is {}, not an object", name(value)))?;
        // What writes tables gives each record the keys of all, null where it has none.
        let field = |key: &str| object.get(key).filter(|value| !value.is_null());
        let string = |key: &str| match field(key) {
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(other) => Err(format!("{key} is {}, not a string", name(other))),
            None => Ok(None),
        };
        let [text, prompt, completion] = ["text", "prompt", "completion"].map(string);
        match (text?, prompt?, completion?, field("messages")) {
            (Some(text), None, None, None) => Ok(Record::Text(text)),
            (None, Some(prompt), Some(completion), None) => {
                Ok(Record::Answer { prompt, completion })
            }
            (None, None, None, Some(messages)) if messages.is_array() => Ok(Record::Chat(messages)),
            (None, None, None, Some(other)) => {
                Err(format!("messages is {}, not an array", name(other)))
            }
            (None, None, None, None) => {
                Err("has neither text, nor prompt and completion, nor messages".to_owned())
            }
            (None, Some(_), None, None) => Err("has a prompt and no completion".to_owned()),
            (None, None, Some(_), None) => Err("has a completion and no prompt".to_owned()),
            _ => Err("has more than one of: text; prompt and completion; messages".to_owned()),
        }
    }

    /// The texts in it, without what a template adds to a chat.
    fn texts(&self) -> Vec<String> {
        match self {
            Record::Text(text) => vec![(*text).to_owned()],
            Record::Answer { prompt, completion } => {
                vec![(*prompt).to_owned(), (*completion).to_owned()]
            }
            Record::Chat(messages) => {
                let messages = messages.as_array().into_iter().flatten();
                let contents = messages.filter_map(|m| m.get("content")?.as_str());
                contents.map(str::to_owned).collect()
            }
        }
    }
}

fn name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The texts at `paths`, which are as for [`tokenize`](super::tokenize), one after another: whole files, and of JSON
/// lines all that would be tokenized, chats without what a template adds.
///
/// # Errors
/// As for [`files`]; of a text, when it cannot be read, is no UTF-8, or a line is none of the three.
pub fn texts(paths: &[PathBuf]) -> Result<impl Iterator<Item = Result<String>> + Send> {
    Ok(files(paths)?.into_iter().flat_map(texts_of))
}

fn texts_of(DataFile { path, kind }: DataFile) -> Box<dyn Iterator<Item = Result<String>> + Send> {
    let lines = match kind {
        Kind::Tokens => return Box::new(iter::once(Err(are_tokens(&path)))),
        Kind::Text => return Box::new(iter::once(read_text(&path))),
        Kind::JsonLines => JsonLines::open(&path),
    };
    let texts = move |line: Result<(String, Value)>| {
        let (place, value) = line?;
        match Record::of(&value) {
            Ok(record) => Ok(record.texts()),
            Err(why) => Err(TrainError::file(&path, format!("{place}: {why}"))),
        }
    };
    match lines {
        Err(e) => Box::new(iter::once(Err(e))),
        Ok(lines) => Box::new(lines.flat_map(move |line| match texts(line) {
            Ok(texts) => texts.into_iter().map(Ok).collect(),
            Err(e) => vec![Err(e)],
        })),
    }
}

/// The error of tokens where text is wanted.
pub(super) fn are_tokens(file: &Path) -> TrainError {
    TrainError::file(file, "is tokens already, by its ending")
}
