//! Documents cut into pieces that fit a sequence, in the order of one epoch.

use std::ops::Range;

use super::dataset::{Dataset, Document};
use super::shuffle::{below, permutation, random};
use crate::{Result, TrainError};

/// Rows of one document: `len` tokens from `start` on, each with the token after it as target, but for the first
/// `from` of them, which are there to be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) file: u32,
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) from: usize,
}

/// The pieces of one epoch and the order in which they are read.
#[derive(Clone, Debug)]
pub(super) struct Epoch {
    pub(super) pieces: Vec<Piece>,
    pub(super) order: Vec<u32>,
}

impl Epoch {
    /// The pieces of at most `most` rows. With a seed they are shuffled, and longer documents are cut at other places
    /// in each epoch; but those with answers so that these have what is before them.
    ///
    /// # Errors
    /// When there are more than 2^32.
    pub(super) fn new(data: &Dataset, most: usize, seed: Option<u64>, epoch: u64) -> Result<Self> {
        let seed = seed.map(|seed| random(seed, epoch));
        let mut pieces = Vec::new();
        for (number, document) in data.documents.iter().enumerate() {
            let file = &data.files[document.file as usize];
            let counts = |row: usize| file.counts(document.start + row + 1);
            // The last token has no target.
            let rows = document.len.saturating_sub(1);
            if rows > most && file.is_masked() && !(0..rows).all(counts) {
                cut_answers(document, rows, most, counts, &mut pieces);
            } else {
                cut(document, rows, most, seed.map(|s| random(s, number as u64)), &mut pieces);
            }
        }
        let count = u32::try_from(pieces.len())
            .map_err(|_| TrainError::Invalid(format!("{} pieces are too many", pieces.len())))?;
        let order = match seed {
            Some(seed) => permutation(!seed, count),
            None => (0..count).collect(),
        };
        Ok(Epoch { pieces, order })
    }
}

fn cut(
    document: &Document,
    rows: usize,
    most: usize,
    random: Option<u64>,
    pieces: &mut Vec<Piece>,
) {
    let Document { file, start, .. } = *document;
    let shift = random.filter(|_| rows > most).map_or(0, |r| below(r, most as u64) as usize);
    let mut at = 0;
    while at < rows {
        let len = if at == 0 && shift > 0 { shift } else { most }.min(rows - at);
        pieces.push(Piece { file, start: start + at, len, from: 0 });
        at += len;
    }
}

/// Cuts a document of which the rows that `counts` says are to be predicted: its answers. A piece holds an answer
/// whole, with at least half of `most` before it where the answer leaves room for that; then those answers after it
/// that fit whole too; and where these do not fill it, more of what is before. An answer longer than `most` is cut, and
/// each piece of it begins with half of `most` of what is before. Every row is looked at a bounded number of times.
fn cut_answers(
    document: &Document,
    rows: usize,
    most: usize,
    counts: impl Fn(usize) -> bool,
    pieces: &mut Vec<Piece>,
) {
    let Document { file, start, .. } = *document;
    let answer_from = |row: usize| {
        let first = (row..rows).find(|&r| counts(r))?;
        Some(first..(first..rows).find(|&r| !counts(r)).unwrap_or(rows))
    };
    let mut next = answer_from(0);
    while let Some(Range { start: first, end: answer_end }) = next {
        let before = first.saturating_sub(most / 2);
        let is_rest = first > 0 && counts(first - 1);
        let room = if is_rest { most - most / 2 } else { most };
        let (begin, end) = if answer_end - first > room {
            let end = before + most;
            next = Some(end..answer_end);
            (before, end)
        } else {
            let limit = before.max(answer_end.saturating_sub(most)) + most;
            let mut end = answer_end;
            next = answer_from(end);
            while let Some(answer) = next.as_ref().filter(|a| a.end <= limit) {
                end = answer.end;
                next = answer_from(end);
            }
            (end.saturating_sub(most), end)
        };
        pieces.push(Piece { file, start: start + begin, len: end - begin, from: first - begin });
    }
}
