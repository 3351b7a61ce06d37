//! From text, JSON lines and chats to documents of tokens.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::TokenWriter;
use crate::{Result, TrainError};

/// From text to ids.
pub trait Encode {
    /// The ids of `text`; `special` says whether the names of special tokens in it stand for these.
    ///
    /// # Errors
    /// What is wrong with the text.
    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, String>;
}

impl<F: Fn(&str, bool) -> Result<Vec<u32>, String>> Encode for F {
    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        self(text, special)
    }
}

/// A part of a chat as the model sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its text.
    pub text: String,
    /// Whether it is to be predicted: the answers, with what ends them.
    pub counts: bool,
}

/// From the `messages` of a chat to its pieces, by the model's chat template.
pub type RenderChat<'a> = &'a dyn Fn(&Value) -> Result<Vec<Piece>, String>;

/// How text becomes documents.
pub struct Tokenization<'a> {
    /// The tokenizer.
    pub encode: &'a dyn Encode,
    /// The chat template; without one, chats are an error.
    pub chat: Option<RenderChat<'a>>,
    /// An id before each document. Not before chats, whose template says what is there.
    pub begin: Option<u32>,
    /// An id after each document, chats apart.
    pub end: Option<u32>,
    /// What parts documents in text files; without it, each file is one.
    pub separator: Option<&'a str>,
}

/// What was tokenized.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tokenized {
    /// Files read.
    pub files: usize,
    /// Documents written.
    pub documents: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Those of them that are to be predicted.
    pub counted: usize,
}

/// Writes the documents of `paths` to `writer`.
///
/// A path is a text file, a file of JSON lines (`.jsonl`, `.ndjson`), or a directory whose `.txt`, `.md` and JSON
/// lines files are read in the order of their paths, at any depth. A JSON line is an object with `text`;
/// with `prompt` and `completion`, of which the completion is to be predicted; or with `messages`, a chat.
///
/// # Errors
/// When a file cannot be read, a line is none of these or cannot be tokenized; says which.
pub fn tokenize(
    paths: &[PathBuf],
    how: &Tokenization<'_>,
    writer: &mut TokenWriter,
) -> Result<Tokenized> {
    let mut files = Vec::new();
    paths.iter().try_for_each(|path| collect(path, &mut files))?;
    let mut done = Tokenized { files: files.len(), ..Tokenized::default() };
    for file in &files {
        let mut add = |pieces: Pieces<'_>, place: &str| -> Result<()> {
            let (ids, counts) = pieces
                .tokens(how)
                .map_err(|why| TrainError::file(file, format!("{place}: {why}")))?;
            writer.document(&ids, Some(&counts))?;
            done.documents += usize::from(!ids.is_empty());
            done.tokens += ids.len();
            done.counted += counts.iter().filter(|&&c| c).count();
            Ok(())
        };
        if is_json_lines(file) {
            json_lines(file, &mut |value, place| {
                let wrong = |why: String| TrainError::file(file, format!("{place}: {why}"));
                add(Pieces::of(value, how).map_err(wrong)?, place)
            })?;
            continue;
        }
        let text = fs::read_to_string(file).map_err(TrainError::io(file, "read"))?;
        let documents: Vec<&str> = match how.separator.filter(|s| !s.is_empty()) {
            Some(separator) => text.split(separator).map(str::trim).collect(),
            None => vec![&text],
        };
        let filled = documents.into_iter().filter(|d| !d.is_empty()).enumerate();
        for (number, document) in filled {
            add(Pieces::Text(document), &format!("document {}", number + 1))?;
        }
    }
    Ok(done)
}

/// Calls `take` with each text in `paths`, which are as for [`tokenize`]: whole files, and of JSON lines all that
/// would be tokenized, chats without what a template adds.
///
/// # Errors
/// When a file cannot be read or a line is none of the three.
pub fn for_each_text(paths: &[PathBuf], take: &mut dyn FnMut(&str)) -> Result<()> {
    let mut files = Vec::new();
    paths.iter().try_for_each(|path| collect(path, &mut files))?;
    for file in &files {
        if !is_json_lines(file) {
            take(&fs::read_to_string(file).map_err(TrainError::io(file, "read"))?);
            continue;
        }
        json_lines(file, &mut |value, _| {
            let message = |m: &Value| m.get("content").and_then(Value::as_str).map(str::to_owned);
            let contents = value.get("messages").and_then(Value::as_array);
            let texts = ["text", "prompt", "completion"].iter();
            let texts = texts.filter_map(|key| value.get(key)?.as_str().map(str::to_owned));
            texts.chain(contents.into_iter().flatten().filter_map(message)).for_each(|t| take(&t));
            Ok(())
        })?;
    }
    Ok(())
}

/// Calls `take` with the object in each line of `file`, and where that is.
fn json_lines(file: &Path, take: &mut dyn FnMut(&Value, &str) -> Result<()>) -> Result<()> {
    let opened = fs::File::open(file).map_err(TrainError::io(file, "read"))?;
    for (number, line) in BufReader::new(opened).lines().enumerate() {
        let line = line.map_err(TrainError::io(file, "read"))?;
        if line.trim().is_empty() {
            continue;
        }
        let place = format!("line {}", number + 1);
        let value: Value = serde_json::from_str(&line)
            .map_err(|e| TrainError::file(file, format!("{place}: {e}")))?;
        take(&value, &place)?;
    }
    Ok(())
}

/// A document before it is tokenized.
enum Pieces<'a> {
    Text(&'a str),
    Answer { prompt: &'a str, completion: &'a str },
    Chat(Vec<Piece>),
}

impl<'a> Pieces<'a> {
    fn of(value: &'a Value, how: &Tokenization<'_>) -> Result<Self, String> {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        if let Some(messages) = value.get("messages") {
            let chat = how.chat.ok_or("is a chat, and there is no chat template")?;
            return Ok(Pieces::Chat(chat(messages)?));
        }
        match (text("text"), text("prompt"), text("completion")) {
            (Some(text), None, None) => Ok(Pieces::Text(text)),
            (None, Some(prompt), Some(completion)) => Ok(Pieces::Answer { prompt, completion }),
            _ => Err("has neither text, nor prompt and completion, nor messages".to_owned()),
        }
    }

    /// Ids, and whether each is to be predicted.
    fn tokens(&self, how: &Tokenization<'_>) -> Result<(Vec<u32>, Vec<bool>), String> {
        let (mut ids, mut counts) = (Vec::new(), Vec::new());
        let mut push = |new: Vec<u32>, count: bool| {
            counts.resize(counts.len() + new.len(), count);
            ids.extend(new);
        };
        let mark = |id: Option<u32>| id.into_iter().collect::<Vec<u32>>();
        match self {
            Pieces::Text(text) => {
                push(mark(how.begin), true);
                push(how.encode.encode(text, false)?, true);
                push(mark(how.end), true);
            }
            Pieces::Answer { prompt, completion } => {
                push(mark(how.begin), false);
                push(how.encode.encode(prompt, false)?, false);
                push(how.encode.encode(completion, false)?, true);
                push(mark(how.end), true);
            }
            Pieces::Chat(pieces) => {
                for piece in pieces {
                    push(how.encode.encode(&piece.text, true)?, piece.counts);
                }
            }
        }
        Ok((ids, counts))
    }
}

fn is_json_lines(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "jsonl" || e == "ndjson")
}

/// The files to read at `path`.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let entries = fs::read_dir(path).map_err(TrainError::io(path, "list"))?;
    let mut entries = entries
        .map(|entry| Ok(entry.map_err(TrainError::io(path, "list"))?.path()))
        .collect::<Result<Vec<_>>>()?;
    entries.sort();
    for entry in entries {
        let text = entry.extension().is_some_and(|e| e == "txt" || e == "md");
        let folder = entry.is_dir() && !entry.is_symlink();
        if folder || text || is_json_lines(&entry) {
            collect(&entry, files)?;
        }
    }
    Ok(())
}
