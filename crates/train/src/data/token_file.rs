//! Token files: documents as ids, mapped into memory.
//!
//! All numbers are little-endian. A file has a header of 64 bytes,
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | `RIGELTOK` |
//! | 8 | 4 | version: 1 |
//! | 12 | 4 | bytes of a token id: 2 or 4, unsigned |
//! | 16 | 8 | size of the vocabulary; every id is below it |
//! | 24 | 8 | number of tokens, n |
//! | 32 | 8 | number of documents, d |
//! | 40 | 8 | 1 if there is a loss mask, else 0 |
//! | 48 | 8 | 2^32 + the CRC32C of all after the header and then of the header before this number; 0 in old files |
//! | 56 | 8 | zeros |
//!
//! then n ids, zeros up to a multiple of 8, d ends of documents (8 bytes each, ascending, counted in tokens; the
//! last one is n) and, if there is a mask, a bit a token, the lowest of a byte first: whether the token is
//! to be predicted. Without a mask all are. The first token of a document is never predicted.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tensor::Bytes;

use crate::{Result, TrainError};

pub(super) const MAGIC: &[u8; 8] = b"RIGELTOK";
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER: usize = 64;
/// Where in the header the checksum is, and what says that there is one.
pub(super) const CHECKSUM: usize = 48;
pub(super) const HAS_CHECKSUM: u64 = 1 << 32;

/// A mapped token file.
#[derive(Clone, Debug)]
pub struct TokenFile {
    path: PathBuf,
    bytes: Bytes,
    width: usize,
    vocab: usize,
    tokens: usize,
    documents: usize,
    /// Where the ends and the mask begin.
    ends: usize,
    mask: Option<usize>,
    checksum: u32,
}

impl TokenFile {
    /// Maps the file at `path`, which must not be changed meanwhile, and reads it once for its checksum.
    ///
    /// # Errors
    /// When it cannot be mapped, its header or table of documents is wrong, or its contents are not those that were
    /// written. Ids are checked when read.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = import::map_file(path)?;
        let wrong = |why: &str| TrainError::file(path, format!("is no token file: {why}"));
        if bytes.len() < HEADER || bytes[..8] != *MAGIC {
            return Err(wrong("it does not begin with RIGELTOK"));
        }
        let version = u32_at(&bytes, 8);
        if version != VERSION {
            return Err(wrong(&format!("version {version}, this program reads {VERSION}")));
        }
        let number = |at: usize| usize::try_from(u64_at(&bytes, at)).unwrap_or(usize::MAX);
        let (width, vocab) = (u32_at(&bytes, 12) as usize, number(16));
        let (tokens, documents) = (number(24), number(32));
        let masked = match number(40) {
            0 => false,
            1 => true,
            _ => return Err(wrong("unknown flags")),
        };
        if ![2, 4].contains(&width) || vocab == 0 || vocab > 1 << 31 {
            return Err(wrong(&format!("{width} bytes an id, {vocab} ids")));
        }
        let sizes = || {
            let ends =
                tokens.checked_mul(width)?.checked_add(HEADER)?.checked_next_multiple_of(8)?;
            let mask = ends.checked_add(documents.checked_mul(8)?)?;
            let end = mask.checked_add(if masked { tokens.div_ceil(8) } else { 0 })?;
            Some((ends, mask, end))
        };
        let found = sizes().filter(|&(_, _, end)| end == bytes.len());
        let (ends, mask, _) = found.ok_or_else(|| {
            wrong(&format!(
                "{tokens} tokens in {documents} documents do not fill {} bytes",
                bytes.len()
            ))
        })?;
        let path = path.to_owned();
        let mask = masked.then_some(mask);
        let body = crc32c::crc32c(&bytes[HEADER..]);
        let checksum = crc32c::crc32c_append(body, &bytes[..CHECKSUM]);
        let file = TokenFile { path, bytes, width, vocab, tokens, documents, ends, mask, checksum };
        let mut start = 0;
        for i in 0..documents {
            let end = file.end(i);
            if end < start {
                let why = format!("document {i} ends at token {end}, before it begins at {start}");
                return Err(TrainError::file(&file.path, why));
            }
            start = end;
        }
        if start != tokens {
            let why = format!("the documents end at token {start} of {tokens}");
            return Err(TrainError::file(&file.path, why));
        }
        let written = u64_at(&file.bytes, CHECKSUM);
        if written != 0 && written != HAS_CHECKSUM | u64::from(checksum) {
            let why = format!(
                "is damaged: its contents are not those that were written (CRC32C {checksum:08x}, not {:08x})",
                written as u32
            );
            return Err(TrainError::file(&file.path, why));
        }
        Ok(file)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of documents.
    pub fn documents(&self) -> usize {
        self.documents
    }

    /// The tokens of document `i`.
    ///
    /// # Panics
    /// When there is no such document.
    pub fn document(&self, i: usize) -> Range<usize> {
        assert!(i < self.documents, "document {i} of {}", self.documents);
        let start = if i == 0 { 0 } else { self.end(i - 1) };
        start..self.end(i)
    }

    fn end(&self, i: usize) -> usize {
        usize::try_from(u64_at(&self.bytes, self.ends + 8 * i)).unwrap_or(usize::MAX)
    }

    /// The id of token `i`.
    ///
    /// # Errors
    /// When it is not in the vocabulary.
    ///
    /// # Panics
    /// When there is no such token.
    pub fn id(&self, i: usize) -> Result<u32> {
        assert!(i < self.tokens, "token {i} of {}", self.tokens);
        let at = HEADER + i * self.width;
        let id = match self.width {
            2 => u32::from(self.bytes[at]) | u32::from(self.bytes[at + 1]) << 8,
            _ => u32_at(&self.bytes, at),
        };
        if (id as usize) < self.vocab {
            return Ok(id);
        }
        let why = format!("token {i} is {id}, the vocabulary has {} ids", self.vocab);
        Err(TrainError::file(&self.path, why))
    }

    /// Whether token `i` is to be predicted.
    ///
    /// # Panics
    /// When there is no such token.
    pub fn counts(&self, i: usize) -> bool {
        assert!(i < self.tokens, "token {i} of {}", self.tokens);
        self.mask.is_none_or(|mask| self.bytes[mask + i / 8] >> (i % 8) & 1 == 1)
    }

    /// Whether there is a loss mask.
    pub fn is_masked(&self) -> bool {
        self.mask.is_some()
    }

    /// Reads all ids.
    ///
    /// # Errors
    /// When one is not in the vocabulary.
    pub(super) fn check_ids(&self) -> Result<()> {
        let ids = &self.bytes[HEADER..HEADER + self.tokens * self.width];
        let vocab = self.vocab;
        let wrong = match self.width {
            2 => first_beyond(ids, |id| usize::from(u16::from_le_bytes(id)) >= vocab),
            _ => first_beyond(ids, |id| u32::from_le_bytes(id) as usize >= vocab),
        };
        wrong.map_or(Ok(()), |i| self.id(i).map(drop))
    }

    /// CRC32C of the contents.
    pub(super) fn checksum(&self) -> u32 {
        self.checksum
    }
}

/// The first of the ids of `N` bytes that `is_beyond` the vocabulary.
fn first_beyond<const N: usize>(ids: &[u8], is_beyond: impl Fn([u8; N]) -> bool) -> Option<usize> {
    ids.as_chunks().0.iter().position(|id| is_beyond(*id))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().copied().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().copied().map_or(0, u64::from_le_bytes)
}
