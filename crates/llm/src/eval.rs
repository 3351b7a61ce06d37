//! How well a model predicts a text: negative log-likelihoods and perplexity.
//!
//! A text longer than the window is scored in windows that overlap by half, so that every token but the
//! first is predicted exactly once: the first window scores all its tokens, each later one only its second half, of
//! which every token has at least half a window before it. A text that begins with BOS keeps it at the
//! beginning of every window, because models trained with it predict badly without.

use std::ops::Range;

use crate::generate::{Session, elements};
use crate::sample::{TokenLogprobs, logprobs};
use crate::{Error, Result};

/// Bound on the logits of one window, in elements: 256 MiB of fp32.
const WINDOW_LOGITS: usize = 64 << 20;

/// How well a text was predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Negative natural log-likelihood of each token but the first: `nll[i]` is of `ids[i + 1]` given what
    /// comes before it in its window.
    pub nll: Vec<f64>,
    /// The likeliest tokens after the text and their log-probabilities, most likely first.
    pub top: Vec<(u32, f64)>,
}

impl Evaluation {
    /// Mean of the negative log-likelihoods.
    pub fn mean_nll(&self) -> f64 {
        self.nll.iter().sum::<f64>() / self.nll.len() as f64
    }

    /// `exp` of the mean.
    pub fn perplexity(&self) -> f64 {
        self.mean_nll().exp()
    }
}

/// The longest window for a session: its context, or less where the logits would take too much memory.
pub fn largest_window(session: &Session) -> usize {
    session.context().min((WINDOW_LOGITS / session.vocab().max(1)).max(2))
}

/// A text to be scored.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Its tokens.
    pub ids: &'a [u32],
    /// Most tokens of a window; see the module's head.
    pub window: usize,
    /// The token that every window begins with if the text does.
    pub bos: Option<u32>,
}

/// How the logits of a window are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scoring {
    /// All in one run of `score`.
    Whole,
    /// Token after token through the cache by `decode`, as texts are generated: the way of engines, whose
    /// programs have no `score`.
    Cached,
}

/// Scores a text. `progress` is told how many tokens are done.
///
/// # Errors
/// When the text has less than two tokens or an id outside the vocabulary, the window is below 4 tokens or above
/// the context, or a run fails.
pub fn evaluate(
    session: &mut Session,
    scoring: Scoring,
    text: &Text<'_>,
    top: usize,
    mut progress: impl FnMut(usize),
) -> Result<Evaluation> {
    let ids = text.ids;
    let mut evaluation =
        Evaluation { nll: Vec::with_capacity(ids.len().saturating_sub(1)), top: Vec::new() };
    for window in text.windows(session)? {
        let logits = text.logits(session, scoring, &window)?;
        let mut rows = logits.chunks(session.vocab().max(1));
        // The range comes first: what is zipped with it loses no row when it ends.
        for (target, row) in window.scored.clone().zip(rows.by_ref()) {
            evaluation.nll.push(-logprobs(row, ids[target], 0)?.logprob);
        }
        if let Some(row) = rows.next() {
            let TokenLogprobs { top, .. } = logprobs(row, ids[window.tokens.end - 1], top)?;
            evaluation.top = top;
        }
        progress(window.scored.end);
    }
    Ok(evaluation)
}

impl Text<'_> {
    pub(crate) fn windows(&self, session: &Session) -> Result<Vec<Window>> {
        let Text { ids, window, .. } = *self;
        if ids.len() < 2 {
            let has =
                if ids.is_empty() { "no tokens" } else { "one token, which nothing predicts" };
            return Err(Error::request(format!(
                "there is nothing to evaluate: the text has {has}"
            )));
        }
        let seen = ids.len().min(window);
        if seen > session.context() || (seen < ids.len() && seen < 4) {
            return Err(Error::request(format!(
                "cannot evaluate in windows of {seen} tokens; they must have from 4 to {} (the context)",
                session.context()
            )));
        }
        Ok(windows(ids.len(), window, self.keep()))
    }

    /// How many tokens of the beginning every window has.
    fn keep(&self) -> usize {
        usize::from(self.ids.first().is_some_and(|id| Some(*id) == self.bos))
    }

    /// The logits that predict each scored token of a window, and those after its last token.
    pub(crate) fn logits(
        &self,
        session: &mut Session,
        scoring: Scoring,
        window: &Window,
    ) -> Result<Vec<f32>> {
        let Window { tokens, scored } = window;
        let kept = if tokens.start == 0 { 0 } else { self.keep() };
        let input = [&self.ids[..kept], &self.ids[tokens.clone()]].concat();
        // The logits that predict a token are those after the one before it.
        let first = (kept + scored.start - tokens.start).saturating_sub(1);
        match scoring {
            Scoring::Whole => {
                let logits = session.score(&input)?;
                Ok(elements(&logits)?[first * session.vocab()..].to_vec())
            }
            Scoring::Cached => {
                let mut all = Vec::with_capacity((input.len() - first) * session.vocab());
                for end in first..input.len() {
                    all.extend(session.logits_after(&input[..=end])?);
                }
                Ok(all)
            }
        }
    }
}

/// One run of the model.
#[derive(Debug, PartialEq)]
pub(crate) struct Window {
    /// Tokens seen, besides those kept from the beginning.
    pub(crate) tokens: Range<usize>,
    /// Tokens whose predictions count.
    pub(crate) scored: Range<usize>,
}

/// Windows over `len` tokens of at most `size`, of which each but the first has its first `keep` from the beginning.
fn windows(len: usize, size: usize, keep: usize) -> Vec<Window> {
    let first = len.min(size);
    let mut all = vec![Window { tokens: 0..first, scored: 1..first }];
    let mut done = first;
    while done < len {
        let end = len.min(done + size / 2);
        all.push(Window { tokens: end - (size - keep)..end, scored: done..end });
        done = end;
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn windows_overlap_by_half() {
        let w = |tokens, scored| Window { tokens, scored };
        assert_eq!(windows(5, 8, 0), [w(0..5, 1..5)]);
        assert_eq!(
            windows(18, 8, 0),
            [w(0..8, 1..8), w(4..12, 8..12), w(8..16, 12..16), w(10..18, 16..18)]
        );
        assert_eq!(windows(12, 8, 1), [w(0..8, 1..8), w(5..12, 8..12)]);
    }

    proptest! {
        #[test]
        fn every_token_but_the_first_is_scored_once(len in 1usize..500, size in 4usize..100, keep in 0usize..2) {
            let all = windows(len, size, keep);
            let scored: Vec<usize> = all.iter().flat_map(|w| w.scored.clone()).collect();
            prop_assert_eq!(scored, (1..len).collect::<Vec<_>>());
            for (i, w) in all.iter().enumerate() {
                let kept = if i == 0 { 0 } else { keep };
                prop_assert!(kept + w.tokens.len() <= size && w.tokens.end <= len);
                // Each has a token before it to be predicted from, and half a window except in the first.
                prop_assert!(w.tokens.start < w.scored.start);
                prop_assert!(i == 0 || kept + w.scored.start - w.tokens.start >= size / 2);
            }
        }
    }
}
