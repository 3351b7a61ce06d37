//! From logits to the next token: penalty, filters, temperature, and a seeded draw.
//!
//! The order is llama.cpp's: repetition penalty, top-k, top-p, min-p, and the temperature last, so that
//! the filters judge the model's own probabilities whatever the temperature. (Hugging Face `transformers`
//! applies the temperature before the filters; at temperature 1 both orders agree.) With a temperature of 0
//! the token of the largest penalised logit is taken, the lowest id among equals.

use std::cmp::Ordering;

use crate::{Error, Result};

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits of what the filters left; 0 always takes the most likely token.
    pub temperature: f32,
    /// Keep only this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most likely tokens whose probabilities sum to at least this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Positive logits of recent tokens are divided by this, negative ones multiplied; 1 changes nothing.
    pub repetition_penalty: f32,
    /// How many of the last tokens, prompt included, count as recent; `None` for all.
    pub repetition_window: Option<usize>,
    /// Start of the random numbers: the same logits and seed give the same tokens.
    pub seed: u64,
}

impl Default for SamplingParams {
    /// llama.cpp's defaults, with no seed but 0.
    fn default() -> Self {
        SamplingParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            repetition_window: Some(64),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Whether each value is in its range.
    ///
    /// # Errors
    /// Names the first value that is not, and its range.
    pub fn validate(&self) -> Result<()> {
        let out = |name: &str, value: f32, range: &str| {
            Err(Error::request(format!("{name} is {value}, but must be {range}")))
        };
        match self {
            p if !(p.temperature.is_finite() && p.temperature >= 0.0) => {
                out("temperature", p.temperature, "a finite number from 0")
            }
            p if !(p.top_p > 0.0 && p.top_p <= 1.0) => {
                out("top-p", p.top_p, "above 0 and at most 1")
            }
            p if !(0.0..=1.0).contains(&p.min_p) => out("min-p", p.min_p, "between 0 and 1"),
            p if !(0.01..=100.0).contains(&p.repetition_penalty) => {
                out("repetition penalty", p.repetition_penalty, "between 0.01 and 100")
            }
            _ => Ok(()),
        }
    }
}

/// A token that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    id: u32,
    logit: f32,
}

/// More likely first, equals by id: a total order, so that results never depend on a sort's inner ways.
fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Chooses tokens; holds the state of the random numbers.
pub struct Sampler {
    params: SamplingParams,
    random: Xoshiro256,
    /// Kept between calls: one entry per token of the vocabulary.
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler at the start of its seed's random numbers.
    ///
    /// # Errors
    /// When a parameter is out of its range.
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.validate()?;
        let random = Xoshiro256::from_seed(params.seed);
        Ok(Sampler { params, random, candidates: Vec::new() })
    }

    /// The next token after `history`. Draws one random number unless the temperature is 0.
    ///
    /// # Errors
    /// When the logits have a NaN or `+inf`, or no token is possible.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        let distribution = self.distribution(logits, history)?;
        // Greedy choice needs no chance. Otherwise one number per token, however many candidates there are.
        let drawn = if self.params.temperature == 0.0 { 0.0 } else { self.random.next_unit() };
        let mut cumulated = 0.0;
        for &(id, probability) in &distribution {
            cumulated += probability;
            if drawn < cumulated {
                return Ok(id);
            }
        }
        // Rounding may leave the sum a little below 1.
        let last = distribution.last().map(|&(id, _)| id);
        last.ok_or_else(|| Error::bug("an empty distribution was drawn from"))
    }

    /// The probabilities that [`Sampler::sample`] draws from: tokens that may come, most likely first.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn distribution(&mut self, logits: &[f32], history: &[u32]) -> Result<Vec<(u32, f64)>> {
        check(logits)?;
        let params = &self.params;
        self.candidates.clear();
        self.candidates.extend(logits.iter().zip(0..).map(|(&logit, id)| Candidate { id, logit }));
        penalise(&mut self.candidates, params, history);
        self.candidates.retain(|c| c.logit != f32::NEG_INFINITY);
        if params.temperature == 0.0 {
            let best = self.candidates.iter().min_by(|a, b| by_likelihood(a, b));
            let best = best.ok_or_else(impossible)?;
            return Ok(vec![(best.id, 1.0)]);
        }
        let kept = filter(&mut self.candidates, params);
        let largest = kept.first().ok_or_else(impossible)?.logit;
        let temperature = f64::from(params.temperature);
        let weights: Vec<f64> = kept
            .iter()
            .map(|c| ((f64::from(c.logit) - f64::from(largest)) / temperature).exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        Ok(kept.iter().zip(weights).map(|(c, w)| (c.id, w / sum)).collect())
    }
}

fn impossible() -> Error {
    Error::request("the logits leave no token possible: all are -inf")
}

/// Refuses logits that no probabilities follow from.
fn check(logits: &[f32]) -> Result<()> {
    if let Some(id) = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY) {
        return Err(Error::request(format!(
            "the model gave the logit {} to token {id}; its weights are damaged or its arithmetic overflowed",
            logits[id]
        )));
    }
    if logits.iter().all(|l| *l == f32::NEG_INFINITY) {
        return Err(impossible());
    }
    Ok(())
}

/// Makes recent tokens less likely (Keskar et al. 2019, CTRL, section 4.1); candidates are still in order of ids.
fn penalise(candidates: &mut [Candidate], params: &SamplingParams, history: &[u32]) {
    if params.repetition_penalty == 1.0 {
        return;
    }
    let window = params.repetition_window.unwrap_or(history.len()).min(history.len());
    let mut recent = history[history.len() - window..].to_vec();
    recent.sort_unstable();
    recent.dedup();
    for id in recent {
        if let Some(c) = candidates.get_mut(id as usize) {
            if c.logit > 0.0 {
                c.logit /= params.repetition_penalty;
            } else {
                c.logit *= params.repetition_penalty;
            }
        }
    }
}

/// Applies top-k, top-p and min-p; what is left comes back most likely first.
fn filter<'c>(candidates: &'c mut [Candidate], params: &SamplingParams) -> &'c [Candidate] {
    let mut kept = candidates.len();
    if params.top_k > 0 && params.top_k < kept {
        kept = params.top_k;
        candidates.select_nth_unstable_by(kept - 1, by_likelihood);
    }
    let candidates = &mut candidates[..kept];
    if params.top_p < 1.0 {
        kept = nucleus(candidates, f64::from(params.top_p));
    } else {
        candidates.sort_unstable_by(by_likelihood);
    }
    if params.min_p > 0.0
        && let Some(first) = candidates.first()
    {
        // p_i >= min_p * p_max, as a bound on the logit.
        let least = f64::from(first.logit) + f64::from(params.min_p).ln();
        kept = candidates[..kept].partition_point(|c| f64::from(c.logit) >= least);
    }
    &candidates[..kept]
}

/// Sorts the most likely candidates to the front until their probabilities sum to `top_p`; returns how
/// many that takes, at least one. Only as much is sorted as needed: most vocabularies are far larger than their nucleus.
fn nucleus(candidates: &mut [Candidate], top_p: f64) -> usize {
    let Some(largest) = candidates.iter().map(|c| c.logit).max_by(f32::total_cmp) else {
        return 0;
    };
    let weight = |c: &Candidate| (f64::from(c.logit) - f64::from(largest)).exp();
    let bound = top_p * candidates.iter().map(weight).sum::<f64>();
    let (mut sorted, mut cumulated) = (0, 0.0);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let next = (sorted * 4).max(256).min(rest.len());
        if next < rest.len() {
            rest.select_nth_unstable_by(next - 1, by_likelihood);
        }
        rest[..next].sort_unstable_by(by_likelihood);
        for (i, c) in rest[..next].iter().enumerate() {
            cumulated += weight(c);
            if cumulated >= bound {
                return sorted + i + 1;
            }
        }
        sorted += next;
    }
    sorted
}

/// What the model thought of a token it was made to take, and of the likeliest ones.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token taken.
    pub id: u32,
    /// Its natural log-probability under the raw logits (no penalty, filter or temperature).
    pub logprob: f64,
    /// The likeliest tokens and their log-probabilities, most likely first.
    pub top: Vec<(u32, f64)>,
}

/// The log-probability of `id` and of the `top` likeliest tokens: log-softmax of the raw logits, in f64.
///
/// # Errors
/// When the logits are not finite enough for probabilities, or `id` is not one of them.
pub fn logprobs(logits: &[f32], id: u32, top: usize) -> Result<TokenLogprobs> {
    check(logits)?;
    let logit = logits.get(id as usize).ok_or_else(|| {
        Error::request(format!("token {id} is outside the vocabulary of {}", logits.len()))
    })?;
    let normaliser = log_sum_exp(logits);
    let top = likeliest(logits, top);
    let top = top.into_iter().map(|c| (c.id, f64::from(c.logit) - normaliser)).collect();
    Ok(TokenLogprobs { id, logprob: f64::from(*logit) - normaliser, top })
}

/// `ln Σ exp(logit)`, shifted by the largest logit so that nothing overflows.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |m, &l| m.max(l));
    let largest = f64::from(largest);
    largest + logits.iter().map(|&l| (f64::from(l) - largest).exp()).sum::<f64>().ln()
}

fn likeliest(logits: &[f32], count: usize) -> Vec<Candidate> {
    if count == 0 {
        return Vec::new();
    }
    let mut all: Vec<_> =
        logits.iter().zip(0..).map(|(&logit, id)| Candidate { id, logit }).collect();
    if count < all.len() {
        all.select_nth_unstable_by(count - 1, by_likelihood);
        all.truncate(count);
    }
    all.sort_unstable_by(by_likelihood);
    all
}

/// xoshiro256++ 1.0 (Blackman and Vigna, 2018). Own code because a library's generator may change with
/// its version, and a seed must give the same numbers for ever.
struct Xoshiro256 {
    state: [u64; 4],
}

impl Xoshiro256 {
    /// The state is the first four outputs of splitmix64, as the authors advise.
    fn from_seed(seed: u64) -> Self {
        let mut counter = seed;
        let state = [(); 4].map(|()| {
            counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (counter ^ (counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Xoshiro256 { state }
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in [0, 1): the top 53 bits.
    fn next_unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published first outputs for the state 1, 2, 3, 4.
    #[test]
    fn generator_matches_its_published_values() {
        let mut random = Xoshiro256 { state: [1, 2, 3, 4] };
        let expected = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
        ];
        assert_eq!([(); 5].map(|()| random.next()), expected);
    }

    #[test]
    fn units_are_in_range_and_seeds_differ() {
        let (mut a, mut b) = (Xoshiro256::from_seed(0), Xoshiro256::from_seed(1));
        let firsts: Vec<f64> = (0..1000).map(|_| a.next_unit()).collect();
        assert!(firsts.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = firsts.iter().sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.03, "{mean}");
        assert!(firsts.iter().any(|&u| u != b.next_unit()));
    }
}
