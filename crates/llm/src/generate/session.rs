//! A prepared model with its cache: logits after a sequence, computing only what the cache lacks.

use std::collections::BTreeMap;

use exec::{Runnable, State, Tensors};
use tensor::Tensor;

use crate::interface::{DECODE, IDS, LOGITS, POSITIONS, PREFILL, SCORE};
use crate::{Error, Result};

/// Tokens of all sequences in one `prefill` call: long enough for matrix products to be fast, short enough for
/// activations to be small and for cancelling to be quick.
const PREFILL_CHUNK: usize = 512;

/// A prepared model, its key-value cache and what that cache holds.
pub struct Session {
    runnable: Box<dyn Runnable>,
    state: State,
    sequences: usize,
    context: usize,
    vocab: usize,
    /// Tokens whose keys and values are in the cache, by position: those that all sequences have in common.
    cached: Vec<u32>,
    /// Further inputs of functions, the same in each run.
    further: BTreeMap<String, Tensors>,
}

impl Session {
    /// A session with an empty cache. `runnable` follows [`crate::interface`], with a cache of `context`
    /// slots and logits over `vocab` tokens.
    ///
    /// # Errors
    /// When memory for the cache cannot be made.
    pub fn new(runnable: Box<dyn Runnable>, context: usize, vocab: usize) -> Result<Self> {
        Self::several(runnable, 1, context, vocab)
    }

    /// As [`Session::new`], of `sequences` that keep step, as `runnable` takes them.
    ///
    /// # Errors
    /// As [`Session::new`], and when there are no sequences.
    pub fn several(
        runnable: Box<dyn Runnable>,
        sequences: usize,
        context: usize,
        vocab: usize,
    ) -> Result<Self> {
        if sequences == 0 {
            return Err(Error::request("a session of no sequence"));
        }
        let state = runnable.new_state()?;
        let (cached, further) = (Vec::new(), BTreeMap::new());
        Ok(Session { runnable, state, sequences, context, vocab, cached, further })
    }

    /// Sequences that are computed together.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Longest sequence, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Tokens in the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Tokens in the cache.
    pub fn cached(&self) -> &[u32] {
        &self.cached
    }

    /// The prepared model.
    pub fn runnable(&self) -> &dyn Runnable {
        &*self.runnable
    }

    /// Bytes of the cache.
    pub fn cache_bytes(&self) -> usize {
        self.state.byte_len()
    }

    /// Gives functions, by name, further inputs than ids and positions from the next run on, such as an
    /// adapter's factors. What the cache holds was computed without them and is forgotten.
    pub fn set_further_inputs(&mut self, inputs: BTreeMap<String, Tensors>) {
        self.further = inputs;
        self.reset();
    }

    /// Forgets what the cache holds.
    pub fn reset(&mut self) {
        self.cached.clear();
    }

    /// The logits after `ids`, which are all sequences' own: `[vocab]` of each, one after the other. The longest beginning of `ids` that is in the cache is not
    /// computed again; what else the cache held is forgotten.
    ///
    /// # Errors
    /// When `ids` is empty, longer than the context or has an id outside the vocabulary, or the run fails.
    pub fn logits_after(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        self.extend(ids, || true)?.ok_or_else(|| Error::bug("a run stopped without being asked to"))
    }

    /// As [`Session::logits_after`], but asks `go_on` before each chunk, and returns `None` once it says no.
    pub(super) fn extend(
        &mut self,
        ids: &[u32],
        go_on: impl Fn() -> bool,
    ) -> Result<Option<Vec<f32>>> {
        self.check(ids)?;
        let mut done = self.reusable(ids);
        let most = (PREFILL_CHUNK / self.sequences).max(1);
        self.cached.truncate(done);
        loop {
            if !go_on() {
                return Ok(None);
            }
            let chunk = &ids[done..ids.len().min(done + most)];
            let function = if chunk.len() == 1 { DECODE } else { PREFILL };
            // A failed run leaves the whole state unspecified.
            let all = chunk.repeat(self.sequences);
            let logits = self.run(function, &all, done).inspect_err(|_| self.cached.clear())?;
            self.cached.extend_from_slice(chunk);
            done += chunk.len();
            if done == ids.len() {
                return Ok(Some(elements(&logits)?.to_vec()));
            }
        }
    }

    /// The logits after one more token of each sequence, at `position`; `[vocab]` of each, one after the other.
    pub(super) fn step(&mut self, ids: &[u32], position: usize) -> Result<Vec<f32>> {
        self.cached.truncate(position);
        let logits = self.run(DECODE, ids, position).inspect_err(|_| self.cached.clear())?;
        Ok(elements(&logits)?.to_vec())
    }

    /// How many of the first `ids` need no computing. The last one always does: its logits are wanted.
    pub(super) fn reusable(&self, ids: &[u32]) -> usize {
        let same = self.cached.iter().zip(ids).take_while(|(a, b)| a == b).count();
        same.min(ids.len().saturating_sub(1))
    }

    /// The logits `[sequences, ids, vocab]`, fp32, after every token of `ids`. The cache is neither read nor changed.
    ///
    /// # Errors
    /// As for [`Session::logits_after`].
    pub fn score(&mut self, ids: &[u32]) -> Result<Tensor> {
        self.check(ids)?;
        self.run(SCORE, &ids.repeat(self.sequences), 0)
    }

    pub(super) fn check(&self, ids: &[u32]) -> Result<()> {
        if ids.is_empty() {
            return Err(Error::request(
                "the prompt is empty, and the model has no token to begin a text with",
            ));
        }
        if ids.len() > self.context {
            return Err(Error::limit(format!(
                "the prompt has {} tokens, but the context only {}",
                ids.len(),
                self.context
            )));
        }
        let outside = ids.iter().find(|&&id| id as usize >= self.vocab);
        outside.map_or(Ok(()), |id| {
            Err(Error::request(format!(
                "token {id} is outside the model's vocabulary of {}",
                self.vocab
            )))
        })
    }

    /// Runs `function` over the sequences' `ids`, one after the other, at positions from `start`, and returns its
    /// logits.
    fn run(&mut self, function: &str, ids: &[u32], start: usize) -> Result<Tensor> {
        let tokens = ids.len() / self.sequences;
        let ids: Vec<i32> = ids.iter().map(|&id| id.cast_signed()).collect();
        let positions: Vec<i32> =
            (start..start + tokens).map(|p| i32::try_from(p).unwrap_or(i32::MAX)).collect();
        let ids = Tensor::from_slice(&[self.sequences, tokens], &ids).map_err(unexpected)?;
        let positions = Tensor::from_slice(&[tokens], &positions).map_err(unexpected)?;
        let mut inputs = self.further.get(function).cloned().unwrap_or_default();
        inputs.extend([(IDS.to_owned(), ids), (POSITIONS.to_owned(), positions)]);
        let mut outputs = self.runnable.run(function, &inputs, &mut self.state)?;
        let logits = outputs
            .remove(LOGITS)
            .ok_or_else(|| Error::bug(format!("function {function} has no output {LOGITS}")))?;
        let rows = if function == SCORE { tokens } else { 1 };
        let expected = [self.sequences, rows, self.vocab];
        if logits.shape() != expected {
            let shape = logits.shape();
            return Err(Error::bug(format!(
                "function {function} returned logits of shape {shape:?}, expected {expected:?}"
            )));
        }
        Ok(logits)
    }
}

/// The logits' elements.
pub(crate) fn elements(logits: &Tensor) -> Result<&[f32]> {
    logits.as_slice().map_err(unexpected)
}

/// A tensor of the run's own making that is not what the interface says.
fn unexpected(e: tensor::TensorError) -> Error {
    Error::bug(e.to_string())
}
