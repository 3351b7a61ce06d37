//! Batches of packed documents.

use exec::Tensors;
use serde::{Deserialize, Serialize};
use tensor::Tensor;

use super::dataset::Dataset;
use super::pieces::{Epoch, Piece};
use crate::checkpoint::hex;
use crate::{Batch, BatchSource, Result, TrainError};

/// Pieces among which the one that fills a sequence best is looked for.
const WINDOW: usize = 64;

/// How sequences are made.
#[derive(Clone, PartialEq, Debug)]
pub struct Packing {
    /// Sequences of a batch.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub tokens: usize,
    /// Of the order; without one, documents come in the order of the files.
    pub seed: Option<u64>,
    /// Which of several processes this one is, and how many there are: each takes its share of the sequences of
    /// one large batch.
    pub rank: (usize, usize),
    /// Names of the program's inputs.
    pub names: InputNames,
}

/// Names of the inputs that a batch is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputNames {
    /// Token ids, `int32 [B, T]`.
    pub ids: String,
    /// The ids to be predicted, `int32 [B, T]`; -1 where none is.
    pub targets: String,
    /// Positions, `int32 [T]`: `0, 1, ...`.
    pub positions: String,
    /// Which document of its sequence a token is of, `int32 [B, T]`. Without it a sequence holds one
    /// piece of a document alone.
    pub segments: Option<String>,
}

/// Where in the data a loader stands: all that the batches to come depend on, the data itself apart.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Position {
    /// Tells data and packing from others.
    pub digest: String,
    /// CRC32C of each file of the data.
    pub files: Vec<u32>,
    /// Sequences of a batch, those of all processes, and tokens of a sequence.
    pub batch: [usize; 2],
    /// The seed of the order.
    pub seed: Option<u64>,
    /// Passes over the data that are complete.
    pub epoch: u64,
    /// Pieces of this pass that have been taken up.
    pub next: u64,
    /// Those of them that are in no batch yet.
    pub window: Vec<u32>,
}

/// Packs documents into batches.
///
/// A sequence begins with the piece that has waited longest, and is filled with the longest that fit among the
/// next ones. What nothing fits into is padding: no target, a segment of its own.
pub struct Loader {
    data: Dataset,
    packing: Packing,
    endless: bool,
    epoch: Epoch,
    position: Position,
    positions: Tensor,
}

/// The rows of a batch.
#[derive(Default)]
struct Rows {
    ids: Vec<i32>,
    targets: Vec<i32>,
    segments: Vec<i32>,
    tokens: usize,
    counted: usize,
}

impl Loader {
    /// Batches without end, one epoch after another.
    ///
    /// # Errors
    /// When sizes are zero or the data has nothing to predict.
    pub fn new(data: Dataset, packing: Packing) -> Result<Self> {
        Self::with(data, packing, true)
    }

    /// Batches of one pass after another, with `None` between them; the last is filled with padding.
    ///
    /// # Errors
    /// As [`Loader::new`].
    pub fn held_out(data: Dataset, packing: Packing) -> Result<Self> {
        Self::with(data, packing, false)
    }

    fn with(data: Dataset, packing: Packing, endless: bool) -> Result<Self> {
        let invalid = |why: &str| Err(TrainError::Invalid(why.to_owned()));
        let Packing { sequences, tokens, seed, rank: (rank, ranks), .. } = packing;
        if sequences == 0 || tokens == 0 || rank >= ranks || i32::try_from(tokens).is_err() {
            return invalid("a batch has at least one sequence of one token, for one process");
        }
        let epoch = Epoch::new(&data, tokens, seed, 0)?;
        let positions: Vec<i32> = (0..tokens as i32).collect();
        let positions = tensor(&[tokens], &positions)?;
        let mut identity = data.identity();
        // Not the rank: a checkpoint of one process serves all.
        let sizes = [sequences * ranks, tokens, usize::from(packing.names.segments.is_some())];
        sizes.iter().for_each(|&n| identity.extend((n as u64).to_le_bytes()));
        let digest = hex(&identity);
        let (files, batch) = (data.checksums().collect(), [sequences * ranks, tokens]);
        let position = Position { digest, files, batch, seed, ..Position::default() };
        let loader = Loader { data, packing, endless, epoch, position, positions };
        if !loader.epoch.pieces.iter().any(|p| loader.counts(p)) {
            return invalid("the data has no token to be predicted");
        }
        Ok(loader)
    }

    /// Batches that one pass takes at least: about as many as it does, whose sequences are nearly full.
    pub fn batches(&self) -> usize {
        let Packing { sequences, tokens, rank: (_, ranks), ref names, .. } = self.packing;
        let pieces = self.epoch.pieces.iter().filter(|p| self.counts(p));
        let filled = match names.segments {
            Some(_) => pieces.map(|p| p.len).sum::<usize>().div_ceil(tokens),
            None => pieces.count(),
        };
        filled.div_ceil(sequences * ranks)
    }

    /// Whether there is a target in the piece.
    fn counts(&self, piece: &Piece) -> bool {
        let file = &self.data.files[piece.file as usize];
        !file.is_masked() || (piece.from + 1..=piece.len).any(|i| file.counts(piece.start + i))
    }

    /// Takes up pieces until there is a choice, or the epoch has no more.
    fn refill(&mut self) {
        while self.position.window.len() < WINDOW {
            let Some(&piece) = self.epoch.order.get(self.position.next as usize) else { return };
            self.position.next += 1;
            if self.counts(&self.epoch.pieces[piece as usize]) {
                self.position.window.push(piece);
            }
        }
    }

    /// Whether the epoch has been handed out.
    fn is_over(&mut self) -> bool {
        self.refill();
        self.position.window.is_empty()
    }

    /// Why `position` is not one of this loader.
    fn difference(&self, position: &Position) -> TrainError {
        let own = &self.position;
        let invalid = |why: String| TrainError::Invalid(format!("position in the data: {why}"));
        if position.seed != own.seed {
            let show = |seed: Option<u64>| seed.map_or("none".to_owned(), |s| s.to_string());
            let (was, is) = (show(position.seed), show(own.seed));
            return invalid(format!("is of another seed: {was}, not {is}"));
        }
        if position.batch != own.batch {
            let [[b, t], [own_b, own_t]] = [position.batch, own.batch];
            let is = format!("{own_b} sequences of {own_t} tokens");
            return invalid(format!(
                "is of batches of another size: {b} sequences of {t} tokens, not {is}"
            ));
        }
        let (was, is) = (position.files.len(), own.files.len());
        if was != is {
            return invalid(format!("is of other data: of {was} files, and there are {is}"));
        }
        let changed = position.files.iter().zip(&own.files).position(|(was, is)| was != is);
        match changed.and_then(|i| self.data.files.get(i)) {
            Some(file) => {
                let why = "has changed since the checkpoint, which cannot go on with other data";
                TrainError::file(file.path(), why)
            }
            None => invalid("is of other data, or of batches made in another way".to_owned()),
        }
    }

    fn begin(&mut self, epoch: u64) -> Result<()> {
        let Packing { tokens, seed, .. } = self.packing;
        // Without a seed all epochs are alike.
        if seed.is_some() && epoch != self.position.epoch {
            self.epoch = Epoch::new(&self.data, tokens, seed, epoch)?;
        }
        self.position.epoch = epoch;
        self.position.next = 0;
        self.position.window.clear();
        Ok(())
    }

    /// Adds one sequence.
    fn sequence(&mut self, rows: &mut Rows) -> Result<()> {
        let end = rows.ids.len() + self.packing.tokens;
        let mut segment = 0;
        loop {
            self.refill();
            let room = end - rows.ids.len();
            let window = self.position.window.iter().enumerate();
            let fits = window.map(|(i, &p)| (i, self.epoch.pieces[p as usize].len));
            let fits = fits.filter(|&(_, len)| len <= room);
            let chosen = match segment {
                0 => fits.min_by_key(|&(i, _)| i),
                // The longest, and the one that has waited longest among equals.
                _ => fits.max_by_key(|&(i, len)| (len, std::cmp::Reverse(i))),
            };
            let Some((at, _)) = chosen else { break };
            let piece = self.epoch.pieces[self.position.window.remove(at) as usize];
            self.piece(&piece, segment, rows)?;
            segment += 1;
            if rows.ids.len() == end || self.packing.names.segments.is_none() {
                break;
            }
        }
        rows.ids.resize(end, 0);
        rows.targets.resize(end, -1);
        rows.segments.resize(end, segment);
        Ok(())
    }

    fn piece(&self, piece: &Piece, segment: i32, rows: &mut Rows) -> Result<()> {
        let file = &self.data.files[piece.file as usize];
        let mut id = file.id(piece.start)?;
        for row in 0..piece.len {
            let next = piece.start + row + 1;
            rows.ids.push(id as i32);
            id = file.id(next)?;
            let counts = row >= piece.from && file.counts(next);
            rows.counted += usize::from(counts);
            rows.targets.push(if counts { id as i32 } else { -1 });
            rows.segments.push(segment);
        }
        rows.tokens += piece.len;
        Ok(())
    }
}

impl BatchSource for Loader {
    fn next_batch(&mut self) -> Result<Option<Batch>> {
        let Packing { sequences, tokens, rank: (rank, ranks), .. } = self.packing;
        if !self.endless && self.is_over() {
            self.begin(0)?;
            return Ok(None);
        }
        let mut own = Rows::default();
        for i in 0..sequences * ranks {
            if self.endless && self.is_over() {
                self.begin(self.position.epoch + 1)?;
            }
            // The sequences of others are passed over.
            let mut others = Rows::default();
            self.sequence(if i / sequences == rank { &mut own } else { &mut others })?;
        }
        let shape = [sequences, tokens];
        let names = &self.packing.names;
        let mut inputs = Tensors::from([
            (names.ids.clone(), tensor(&shape, &own.ids)?),
            (names.targets.clone(), tensor(&shape, &own.targets)?),
            (names.positions.clone(), self.positions.clone()),
        ]);
        if let Some(segments) = &names.segments {
            inputs.insert(segments.clone(), tensor(&shape, &own.segments)?);
        }
        Ok(Some(Batch { inputs, tokens: own.tokens, targets: own.counted }))
    }

    fn is_endless(&self) -> bool {
        self.endless
    }

    fn position(&self) -> Position {
        self.position.clone()
    }

    fn seek(&mut self, position: &Position) -> Result<()> {
        let Position { digest, seed, epoch, next, window, .. } = position;
        let invalid = |why: &str| Err(TrainError::Invalid(format!("position in the data: {why}")));
        if *digest != self.position.digest || *seed != self.position.seed {
            return Err(self.difference(position));
        }
        self.begin(*epoch)?;
        let count = self.epoch.pieces.len();
        if *next > count as u64 || window.iter().any(|&p| p as usize >= count) {
            return invalid("is not in the data");
        }
        self.position = position.clone();
        Ok(())
    }
}

fn tensor(shape: &[usize], values: &[i32]) -> Result<Tensor> {
    Tensor::from_slice(shape, values).map_err(|e| TrainError::Invalid(e.to_string()))
}
