//! What a training step is fed with.

use exec::Tensors;

use crate::Result;
use crate::data::Position;

/// The inputs of one run besides the parameters.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Tensors by the name of the input.
    pub inputs: Tensors,
    /// Tokens that are not padding.
    pub tokens: usize,
    /// How many targets the loss is the mean over.
    pub targets: usize,
}

/// Gives batches, and can say and take up where it stands.
pub trait BatchSource {
    /// The next batch; `None` at the end of a pass over held-out data. A source to train from has no end.
    ///
    /// # Errors
    /// When the data is damaged.
    fn next_batch(&mut self) -> Result<Option<Batch>>;

    /// Whether [`BatchSource::next_batch`] never gives `None`.
    fn is_endless(&self) -> bool;

    /// Where the next batch begins.
    fn position(&self) -> Position;

    /// Goes on from `position` as the source that gave it would have.
    ///
    /// # Errors
    /// When it is of other data or settings.
    fn seek(&mut self, position: &Position) -> Result<()>;
}
