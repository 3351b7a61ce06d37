//! How far two engines agree on a text: the same tokens before each, the likeliest next one and its
//! margin, and how far their logits are apart.

use std::time::{Duration, Instant};

use crate::Result;
use crate::eval::{Scoring, Text};
use crate::generate::Session;
use crate::sample::logprobs;

/// Two engines on one text.
#[derive(Clone, Debug)]
pub struct Agreement {
    /// Each predicted token of the text in order.
    pub positions: Vec<Position>,
    /// Largest difference of two logits.
    pub largest_difference: f32,
    /// Largest difference of two logits, as a part of the reference's largest logit, by magnitude, at that
    /// position.
    pub largest_relative_difference: f32,
    /// Time of the engine under test.
    pub time: Duration,
    /// Time of the reference.
    pub reference_time: Duration,
}

/// What two engines say of one token of a text.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Position {
    /// The token's place in the text.
    pub index: usize,
    /// The likeliest token.
    pub best: u32,
    /// The reference's likeliest token.
    pub reference_best: u32,
    /// How far the reference's largest logit is above its second.
    pub margin: f32,
    /// Negative natural log-likelihood of the text's own token.
    pub nll: f64,
    /// The reference's.
    pub reference_nll: f64,
}

impl Agreement {
    /// Positions at which the likeliest tokens differ.
    pub fn disagreements(&self) -> impl Iterator<Item = &Position> {
        self.positions.iter().filter(|p| p.best != p.reference_best)
    }

    /// The part of positions at which the likeliest tokens are equal.
    pub fn fraction(&self) -> f64 {
        1.0 - self.disagreements().count() as f64 / self.positions.len() as f64
    }

    /// The smallest and the median margin of the reference.
    pub fn margins(&self) -> Option<[f32; 2]> {
        let mut margins: Vec<f32> = self.positions.iter().map(|p| p.margin).collect();
        margins.sort_by(f32::total_cmp);
        Some([*margins.first()?, margins[margins.len() / 2]])
    }

    /// Means of both engines' negative log-likelihoods, the reference's second.
    pub fn mean_nlls(&self) -> [f64; 2] {
        let count = self.positions.len() as f64;
        let mean = |of: fn(&Position) -> f64| self.positions.iter().map(of).sum::<f64>() / count;
        [mean(|p| p.nll), mean(|p| p.reference_nll)]
    }
}

/// Scores a text with `session`, computed as `scoring` says, and with `reference`. `progress` is told how
/// many tokens are done.
///
/// # Errors
/// As for [`evaluate`](crate::eval::evaluate).
pub fn compare(
    (session, scoring): (&mut Session, Scoring),
    reference: &mut Session,
    text: &Text<'_>,
    mut progress: impl FnMut(usize),
) -> Result<Agreement> {
    let mut found = Agreement {
        positions: Vec::new(),
        largest_difference: 0.0,
        largest_relative_difference: 0.0,
        time: Duration::ZERO,
        reference_time: Duration::ZERO,
    };
    for window in text.windows(session)? {
        let timed = |session: &mut Session, scoring, time: &mut Duration| {
            let start = Instant::now();
            let logits = text.logits(session, scoring, &window);
            *time += start.elapsed();
            logits
        };
        let ours = timed(session, scoring, &mut found.time)?;
        let theirs = timed(reference, Scoring::Whole, &mut found.reference_time)?;
        let vocab = session.vocab().max(1);
        let rows = ours.chunks(vocab).zip(theirs.chunks(vocab)).zip(window.scored.clone());
        for ((row, reference), index) in rows {
            found.add(row, reference, (index, text.ids[index]))?;
        }
        progress(window.scored.end);
    }
    Ok(found)
}

impl Agreement {
    fn add(&mut self, row: &[f32], reference: &[f32], (index, id): (usize, u32)) -> Result<()> {
        let largest = reference.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let differences = row.iter().zip(reference).map(|(a, b)| (a - b).abs());
        let difference = differences.fold(0.0f32, f32::max);
        self.largest_difference = self.largest_difference.max(difference);
        let relative = difference / largest.max(f32::MIN_POSITIVE);
        self.largest_relative_difference = self.largest_relative_difference.max(relative);
        let ([best, _], [reference_best, second]) = (two_best(row), two_best(reference));
        self.positions.push(Position {
            index,
            best: best.0,
            reference_best: reference_best.0,
            margin: reference_best.1 - second.1,
            nll: -logprobs(row, id, 0)?.logprob,
            reference_nll: -logprobs(reference, id, 0)?.logprob,
        });
        Ok(())
    }
}

/// The two largest logits and their tokens, the first of equals.
fn two_best(logits: &[f32]) -> [(u32, f32); 2] {
    let mut best = [(0, f32::NEG_INFINITY); 2];
    for (id, &logit) in (0..).zip(logits) {
        if logit > best[0].1 {
            best = [(id, logit), best[0]];
        } else if logit > best[1].1 {
            best[1] = (id, logit);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_row() {
        let mut found = Agreement {
            positions: Vec::new(),
            largest_difference: 0.0,
            largest_relative_difference: 0.0,
            time: Duration::ZERO,
            reference_time: Duration::ZERO,
        };
        found.add(&[1.0, 4.0, 2.0], &[1.0, 3.0, 2.5], (1, 1)).unwrap();
        found.add(&[0.0, 0.0, 0.25], &[0.5, 0.125, 0.25], (2, 0)).unwrap();
        found.add(&[9.0, 1.0, 1.0], &[8.0, 1.0, 1.0], (3, 0)).unwrap();
        assert_eq!((found.largest_difference, found.largest_relative_difference), (1.0, 1.0));
        assert_eq!(found.margins(), Some([0.25, 0.5]));
        let differs: Vec<_> = found.disagreements().map(|p| (p.index, p.best)).collect();
        assert_eq!(differs, [(2, 2)]);
        assert!((found.fraction() - 2.0 / 3.0).abs() < 1e-9);
        let [ours, theirs] = found.mean_nlls();
        assert!(ours > 0.0 && theirs > 0.0 && ours != theirs);
        assert!(found.add(&[f32::NAN, 1.0, 1.0], &[8.0, 1.0, 1.0], (4, 1)).is_err());
    }
}
