//! llama2.c's `tokenizer.bin`: pieces of a SentencePiece vocabulary with their scores, and nothing
//! of how text is normalised.

use std::path::Path;

use tensor::Bytes;

use crate::Result;
use crate::reader::Reader;
use crate::source::map_file;

/// A vocabulary in order of ids.
#[derive(Clone, Debug)]
pub struct Llama2cVocab {
    max_piece_len: usize,
    bytes: Bytes,
    pieces: Vec<(f32, std::ops::Range<usize>)>,
}

impl Llama2cVocab {
    /// Reads `path`.
    ///
    /// # Errors
    /// When it cannot be mapped or breaks the format.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_bytes(path.as_ref(), map_file(path.as_ref())?)
    }

    /// Reads a file's contents from memory; `name` stands for the file in errors.
    ///
    /// # Errors
    /// When the bytes break the format.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: Bytes) -> Result<Self> {
        let mut r = Reader::new(name.as_ref(), &bytes);
        let max_piece_len = read_len(&mut r, "the longest piece's length")?;
        let mut pieces = Vec::new();
        while r.remaining() > 0 {
            let score = r.f32("a score")?;
            let at = r.pos();
            let len = read_len(&mut r, "a piece's length")?;
            if len > max_piece_len {
                let id = pieces.len();
                let why =
                    format!("piece {id} of {len} bytes, the file says at most {max_piece_len}");
                return Err(crate::ImportError::invalid(r.file, why).at(at));
            }
            r.take(len as u64, "a piece")?;
            pieces.push((score, r.pos() - len..r.pos()));
        }
        Ok(Llama2cVocab { max_piece_len, bytes, pieces })
    }

    /// Bytes of the longest piece.
    pub fn max_piece_len(&self) -> usize {
        self.max_piece_len
    }

    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there is no piece.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The pieces in order of ids: their bytes, with spaces as spaces, and their scores.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = (&[u8], f32)> {
        self.pieces.iter().map(|(score, range)| (&self.bytes[range.clone()], *score))
    }
}

/// A length, which the format keeps as a signed number.
fn read_len(r: &mut Reader<'_>, what: &str) -> Result<usize> {
    let at = r.pos();
    let v = r.i32(what)?;
    usize::try_from(v)
        .map_err(|_| crate::ImportError::invalid(r.file, format!("{what} is {v}")).at(at))
}
