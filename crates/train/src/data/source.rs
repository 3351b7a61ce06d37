//! From text, JSON lines and chats to documents of tokens.

use std::path::PathBuf;

use serde_json::Value;

use super::TokenWriter;
use super::paths::{Kind, files};
use super::text::{JsonLines, Record, are_tokens, read_text};
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
/// A path is a text file, a file of JSON lines, or a directory of those; which, say the names, as [`files`] has it. A
/// JSON line is an object with `text`; with `prompt` and `completion`, of which the completion is to be predicted; or
/// with `messages`, a chat. Empty texts are no documents.
///
/// # Errors
/// As for [`files`]; when a file is tokens already or cannot be read, a line is none of these or cannot be tokenized;
/// says which. When the separator is empty.
pub fn tokenize(
    paths: &[PathBuf],
    how: &Tokenization<'_>,
    writer: &mut TokenWriter,
) -> Result<Tokenized> {
    if how.separator == Some("") {
        return Err(TrainError::Invalid("the separator of documents is empty".to_owned()));
    }
    let files = files(paths)?;
    let mut done = Tokenized { files: files.len(), ..Tokenized::default() };
    for file in &files {
        let path = &file.path;
        let mut add = |record: &Record<'_>, place: &str| -> Result<()> {
            if matches!(record, Record::Text("")) {
                return Ok(());
            }
            let (ids, counts) = record
                .tokens(how)
                .map_err(|why| TrainError::file(path, format!("{place}: {why}")))?;
            writer.document(&ids, Some(&counts))?;
            done.documents += usize::from(!ids.is_empty());
            done.tokens += ids.len();
            done.counted += counts.iter().filter(|&&c| c).count();
            Ok(())
        };
        match file.kind {
            Kind::Tokens => return Err(are_tokens(path)),
            Kind::JsonLines => {
                for line in JsonLines::open(path)? {
                    let (place, value) = line?;
                    let record = Record::of(&value)
                        .map_err(|why| TrainError::file(path, format!("{place}: {why}")))?;
                    add(&record, &place)?;
                }
            }
            Kind::Text => {
                let text = read_text(path)?;
                let documents: Vec<&str> = match how.separator {
                    Some(separator) => text.split(separator).map(str::trim).collect(),
                    None => vec![&text],
                };
                let filled = documents.into_iter().filter(|d| !d.is_empty()).enumerate();
                for (number, document) in filled {
                    add(&Record::Text(document), &format!("document {}", number + 1))?;
                }
            }
        }
    }
    Ok(done)
}

impl Record<'_> {
    /// Ids, and whether each is to be predicted.
    fn tokens(&self, how: &Tokenization<'_>) -> Result<(Vec<u32>, Vec<bool>), String> {
        let (mut ids, mut counts) = (Vec::new(), Vec::new());
        let mut push = |new: Vec<u32>, count: bool| {
            counts.resize(counts.len() + new.len(), count);
            ids.extend(new);
        };
        let mark = |id: Option<u32>| id.into_iter().collect::<Vec<u32>>();
        match self {
            Record::Text(text) => {
                push(mark(how.begin), true);
                push(how.encode.encode(text, false)?, true);
                push(mark(how.end), true);
            }
            Record::Answer { prompt, completion } => {
                push(mark(how.begin), false);
                push(how.encode.encode(prompt, false)?, false);
                push(how.encode.encode(completion, false)?, true);
                push(mark(how.end), true);
            }
            Record::Chat(messages) => {
                let chat = how.chat.ok_or("is a chat, and there is no chat template")?;
                for piece in chat(messages)? {
                    push(how.encode.encode(&piece.text, true)?, piece.counts);
                }
            }
        }
        Ok((ids, counts))
    }
}
