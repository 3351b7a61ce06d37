//! Documents cut into pieces that fit a sequence, in the order of one epoch.

use super::dataset::{Dataset, Document};
use super::shuffle::{below, permutation, random};
use crate::{Result, TrainError};

/// Rows of one document: `len` tokens from `start` on, each with the token after it as target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) file: u32,
    pub(super) start: usize,
    pub(super) len: usize,
}

/// The pieces of one epoch and the order in which they are read.
#[derive(Clone, Debug)]
pub(super) struct Epoch {
    pub(super) pieces: Vec<Piece>,
    pub(super) order: Vec<u32>,
}

impl Epoch {
    /// The pieces of at most `most` rows. With a seed they are shuffled, and documents longer than `most` are
    /// cut at other places in each epoch.
    ///
    /// # Errors
    /// When there are more than 2^32.
    pub(super) fn new(data: &Dataset, most: usize, seed: Option<u64>, epoch: u64) -> Result<Self> {
        let seed = seed.map(|seed| random(seed, epoch));
        let mut pieces = Vec::new();
        for (number, document) in data.documents.iter().enumerate() {
            cut(document, most, seed.map(|s| random(s, number as u64)), &mut pieces);
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

fn cut(document: &Document, most: usize, random: Option<u64>, pieces: &mut Vec<Piece>) {
    let Document { file, start, len } = *document;
    // The last token has no target.
    let rows = len.saturating_sub(1);
    let shift = random.filter(|_| rows > most).map_or(0, |r| below(r, most as u64) as usize);
    let mut at = 0;
    while at < rows {
        let len = if at == 0 && shift > 0 { shift } else { most }.min(rows - at);
        pieces.push(Piece { file, start: start + at, len });
        at += len;
    }
}
