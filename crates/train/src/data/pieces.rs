//! Documents cut into pieces that fit a sequence, in the order of one epoch.

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
/// whole, those after it that fit too, and before it as much as there is room for; of an answer longer than `most`,
/// each piece has what is before it in its first half.
fn cut_answers(
    document: &Document,
    rows: usize,
    most: usize,
    counts: impl Fn(usize) -> bool,
    pieces: &mut Vec<Piece>,
) {
    let Document { file, start, .. } = *document;
    let first_from = |row: usize| (row..rows).find(|&r| counts(r));
    let end_from = |row: usize| (row..rows).find(|&r| !counts(r)).unwrap_or(rows);
    let mut next = first_from(0);
    while let Some(first) = next {
        let mut end = end_from(first);
        let half = most - most / 2;
        let continued = first > 0 && counts(first - 1);
        let whole = end - first <= if continued { half } else { most };
        let room = if whole { end - first } else { half };
        let begin = (first + room).saturating_sub(most);
        let limit = begin + most;
        end = end.min(limit);
        next = first_from(end);
        while let Some(answer) = next.filter(|_| whole)
            && end_from(answer) <= limit
        {
            end = end_from(answer);
            next = first_from(end);
        }
        pieces.push(Piece { file, start: start + begin, len: end - begin, from: first - begin });
    }
}
