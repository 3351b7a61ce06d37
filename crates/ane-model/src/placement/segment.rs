//! The segmenter: the shortest path over operations in order, each on one backend.

use super::{Backend, PlacementError};
use crate::chip::Chip;

/// What the segmenter charges besides the operations.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prices {
    /// For starting a run of operations on the engine.
    pub launch_ms: f64,
    /// For each change of backend between neighbours.
    pub change_ms: f64,
    /// For a last operation on the engine, whose output is left there.
    pub output_ms: f64,
}

impl Prices {
    /// Those of a chip.
    ///
    /// # Errors
    /// When its file lacks one.
    pub fn of(chip: &Chip) -> Result<Self, PlacementError> {
        let c = &chip.coreml;
        let get = |fact: &Option<crate::chip::Fact<f64>>, field| {
            let unknown = || PlacementError::Unknown { chip: chip.name.clone(), field };
            fact.as_ref().map(|f| f.value).ok_or_else(unknown)
        };
        Ok(Prices {
            launch_ms: get(&c.launch_ms, "launch_ms")?,
            change_ms: get(&c.change_ms, "change_ms")?,
            output_ms: get(&c.output_ms, "output_ms")?,
        })
    }

    /// What it costs that an operation on `to` follows one on `from` (`None`: it is the first).
    fn step(&self, from: Option<usize>, to: usize) -> f64 {
        let change = from.is_some_and(|f| f != to);
        let launch = to == ANE && from != Some(ANE);
        f64::from(u8::from(change)) * self.change_ms + f64::from(u8::from(launch)) * self.launch_ms
    }

    fn end(&self, last: usize) -> f64 {
        if last == ANE { self.output_ms } else { 0.0 }
    }
}

/// The engine's place in [`Backend::ALL`].
const ANE: usize = 0;

/// The cheapest assignment of operations to backends.
#[derive(Clone, PartialEq, Debug)]
pub struct Shortest {
    /// Backend of each operation.
    pub backends: Vec<Backend>,
    /// Cost of the path.
    pub cost_ms: f64,
    /// For each operation, how much more the path costs if it moves to or from the engine; `None`
    /// where it cannot.
    pub margins: Vec<Option<f64>>,
}

/// Assigns each operation to a backend, given its time on each (in the order of [`Backend::ALL`];
/// `None`: it cannot run there). Of equal paths the one off the engine is taken.
pub fn shortest_path(times: &[[Option<f64>; 3]], prices: &Prices) -> Shortest {
    let cost = |i: usize, b: usize| times[i][b].unwrap_or(f64::INFINITY);
    let (to, rest) = (arrivals(times, prices), remainders(times, prices));
    // Walk forward, so that the path is one path even among equals.
    let mut backends: Vec<Backend> = Vec::with_capacity(times.len());
    let mut last = None;
    for (i, rest) in rest.iter().enumerate() {
        let total = |b: usize| prices.step(last, b) + cost(i, b) + rest[b];
        // The engine is tried last: it must be better.
        let best = [1, 2, ANE].into_iter().min_by(|&a, &b| total(a).total_cmp(&total(b)));
        let best = best.unwrap_or(1);
        backends.push(Backend::ALL[best]);
        last = Some(best);
    }
    let through = |i: usize, b: usize| to[i][b] + rest[i][b];
    // The last operation has nothing but the end behind it.
    let cost_ms =
        times.len().checked_sub(1).map_or(0.0, |last| least((0..3).map(|b| through(last, b))));
    let margins = backends.iter().enumerate().map(|(i, &chosen)| {
        let other = match chosen {
            Backend::Ane => through(i, 1).min(through(i, 2)),
            _ => through(i, ANE),
        };
        other.is_finite().then_some(other - cost_ms)
    });
    Shortest { margins: margins.collect(), backends, cost_ms }
}

fn least(costs: impl Iterator<Item = f64>) -> f64 {
    costs.fold(f64::INFINITY, f64::min)
}

/// The cheapest way to and including each operation on each backend.
fn arrivals(times: &[[Option<f64>; 3]], prices: &Prices) -> Vec<[f64; 3]> {
    let mut before: Option<[f64; 3]> = None;
    let arrive = |times: &[Option<f64>; 3]| {
        let here = std::array::from_fn(|b| {
            let step = match before {
                None => prices.step(None, b),
                Some(before) => least((0..3).map(|a| before[a] + prices.step(Some(a), b))),
            };
            step + times[b].unwrap_or(f64::INFINITY)
        });
        before = Some(here);
        here
    };
    times.iter().map(arrive).collect()
}

/// The cheapest way from behind each operation on each backend to the end.
fn remainders(times: &[[Option<f64>; 3]], prices: &Prices) -> Vec<[f64; 3]> {
    let mut rest = vec![std::array::from_fn(|b| prices.end(b)); times.len()];
    for i in (1..times.len()).rev() {
        let after = rest[i];
        rest[i - 1] = std::array::from_fn(|b| {
            let via = |c: usize| {
                prices.step(Some(b), c) + times[i][c].unwrap_or(f64::INFINITY) + after[c]
            };
            least((0..3).map(via))
        });
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices { launch_ms: 0.125, change_ms: 0.125, output_ms: 0.125 };

    fn path(times: &[(Option<f64>, f64)]) -> (String, f64) {
        let times: Vec<_> = times.iter().map(|&(a, c)| [a, Some(c), Some(c * 1.1)]).collect();
        let shortest = shortest_path(&times, &PRICES);
        let letters = shortest.backends.iter().map(|b| if *b == Backend::Ane { 'A' } else { 'C' });
        (letters.collect(), shortest.cost_ms)
    }

    #[test]
    fn a_segment_must_save_its_price() {
        // The whole graph: launch and output, 0.25 ms.
        assert_eq!(path(&[(Some(0.0), 0.24)]).0, "C");
        assert_eq!(path(&[(Some(0.0), 0.26)]), ("A".into(), 0.25));
        // At the start: launch and one change.
        assert_eq!(path(&[(Some(0.0), 0.24), (None, 0.0)]).0, "CC");
        assert_eq!(path(&[(Some(0.0), 0.26), (None, 0.0)]).0, "AC");
        // Inside: launch and two changes, 0.375 ms.
        assert_eq!(path(&[(None, 0.0), (Some(0.0), 0.37), (None, 0.0)]).0, "CCC");
        assert_eq!(path(&[(None, 0.0), (Some(0.0), 0.38), (None, 0.0)]).0, "CAC");
    }

    #[test]
    fn one_operation_can_pull_a_network_to_the_cpu() {
        assert_eq!(path(&[(Some(0.01), 0.2), (Some(0.0), 0.001), (Some(0.01), 0.2)]).0, "AAA");
        assert_eq!(path(&[(Some(0.01), 0.2), (None, 0.001), (Some(0.01), 0.2)]).0, "CCC");
    }

    #[test]
    fn equal_paths_are_ties() {
        let times = [[Some(0.0), Some(0.25), Some(0.3)]];
        let shortest = shortest_path(&times, &PRICES);
        assert_eq!((shortest.backends[0], shortest.margins[0]), (Backend::Bnns, Some(0.0)));
        assert_eq!(shortest_path(&[], &PRICES).cost_ms, 0.0);
    }

    /// Every assignment is tried.
    #[test]
    fn no_assignment_is_cheaper() {
        let mut seed = 7_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as f64 / f64::from(1_u32 << 31)
        };
        for _ in 0..50 {
            let times: Vec<[Option<f64>; 3]> = (0..6)
                .map(|_| {
                    [
                        (random() > 0.2).then(|| random() / 4.0),
                        Some(random() / 2.0),
                        Some(random() / 2.0),
                    ]
                })
                .collect();
            let mut best = f64::INFINITY;
            for code in 0..3_usize.pow(6) {
                let picks: Vec<usize> = (0..6).map(|i| code / 3_usize.pow(i) % 3).collect();
                let mut cost = PRICES.end(picks[5]);
                for (i, &b) in picks.iter().enumerate() {
                    let last = i.checked_sub(1).map(|j| picks[j]);
                    cost += PRICES.step(last, b) + times[i][b].unwrap_or(f64::INFINITY);
                }
                best = best.min(cost);
            }
            assert!((shortest_path(&times, &PRICES).cost_ms - best).abs() < 1e-12);
        }
    }
}
