//! Documents of several token files, and the part that is held out.

use std::path::PathBuf;
use std::sync::Arc;

use super::paths::{Kind, files};
use super::token_file::TokenFile;
use crate::{Result, TrainError};

/// Documents, or parts of them, of one or more token files.
#[derive(Clone, Debug)]
pub struct Dataset {
    pub(super) files: Arc<[TokenFile]>,
    pub(super) documents: Vec<Document>,
}

/// Consecutive tokens of one document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Document {
    pub(super) file: u32,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Dataset {
    /// The documents of `paths`, each a token file or a directory of such, for a model with `vocab` ids.
    ///
    /// # Errors
    /// As for [`files`] and [`TokenFile::open`]; when there is no document, a file is not named as one of tokens, has
    /// more ids than the model, or an id that is not in its vocabulary.
    pub fn open(paths: &[PathBuf], vocab: usize) -> Result<Self> {
        let mut token_files = Vec::new();
        for file in files(paths)? {
            let path = file.path;
            if file.kind != Kind::Tokens {
                return Err(TrainError::file(&path, "is no token file, by its ending"));
            }
            let file = TokenFile::open(&path)?;
            if file.vocab() > vocab {
                let has = file.vocab();
                let why = format!("is of a vocabulary of {has} ids, the model's has {vocab}");
                return Err(TrainError::file(&path, why));
            }
            file.check_ids()?;
            token_files.push(file);
        }
        let mut documents = Vec::new();
        for (file, number) in token_files.iter().zip(0u32..) {
            documents.extend((0..file.documents()).map(|i| {
                let range = file.document(i);
                Document { file: number, start: range.start, len: range.len() }
            }));
        }
        if documents.is_empty() {
            let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
            return Err(TrainError::Invalid(format!("no documents in {}", names.join(", "))));
        }
        Ok(Dataset { files: token_files.into(), documents })
    }

    /// Number of documents.
    pub fn documents(&self) -> usize {
        self.documents.len()
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.documents.iter().map(|d| d.len).sum()
    }

    /// Number of documents that do not fit a sequence of `tokens`, and are cut.
    pub fn longer_than(&self, tokens: usize) -> usize {
        // The last token of a document is a target alone.
        self.documents.iter().filter(|d| d.len > tokens + 1).count()
    }

    /// Cuts off the last `part` of all tokens, to be held out: `(to train on, held out)`. A document on
    /// the border is cut in two.
    ///
    /// # Errors
    /// When either would be empty.
    pub fn split(self, part: f64) -> Result<(Self, Self)> {
        let total = self.tokens();
        let mut left = (total as f64 * (1.0 - part.clamp(0.0, 1.0))).round() as usize;
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for document in self.documents {
            let len = document.len.min(left);
            left -= len;
            let (start, rest) = (document.start + len, document.len - len);
            first.extend((len > 0).then_some(Document { len, ..document }));
            last.extend((rest > 0).then_some(Document { start, len: rest, ..document }));
        }
        if first.is_empty() || last.is_empty() {
            let why = format!("{part} of {total} tokens held out leaves one side empty");
            return Err(TrainError::Invalid(why));
        }
        let files = self.files;
        Ok((Dataset { files: files.clone(), documents: first }, Dataset { files, documents: last }))
    }

    /// What tells this data from other data.
    pub(super) fn identity(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.checksums().flat_map(u32::to_le_bytes).collect();
        for document in [self.documents.first(), self.documents.last()].into_iter().flatten() {
            let Document { file, start, len } = *document;
            let numbers = [u64::from(file), start as u64, len as u64];
            numbers.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        }
        bytes.extend((self.documents.len() as u64).to_le_bytes());
        bytes
    }

    /// Of the contents of each file.
    pub(super) fn checksums(&self) -> impl Iterator<Item = u32> {
        self.files.iter().map(TokenFile::checksum)
    }
}
