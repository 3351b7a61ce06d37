//! Sums, quotients and roots that, rounded again to half or single precision, are rounded once.
//!
//! A result in `f64` that was rounded to nearest may lie in the middle between two numbers of half
//! precision where the exact one lies beside it. Results of this module are rounded to odd instead
//! ([Boldo and Melquiond 2008](https://doi.org/10.1109/TC.2007.70819)): an inexact one has an odd last
//! bit, so it is no such middle, and rounding it gives what rounding the exact one would.

/// What `nearest`, off from the exact value by `rest` (of which the sign counts), is when rounded to odd.
fn to_odd(nearest: f64, rest: f64) -> f64 {
    if rest == 0.0 || rest.is_nan() || !nearest.is_finite() || nearest.to_bits() & 1 == 1 {
        nearest
    } else if rest > 0.0 {
        nearest.next_up()
    } else {
        nearest.next_down()
    }
}

/// The sum and its rounding error (Knuth, The Art of Computer Programming 2, 4.2.2).
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let back = sum - a;
    (sum, (a - (sum - back)) + (b - back))
}

/// `a / b`, rounded to odd.
pub(crate) fn quotient(a: f64, b: f64) -> f64 {
    let nearest = a / b;
    // Nothing to round, and most divisors are 1.
    if b == 1.0 || nearest == 0.0 {
        return nearest;
    }
    let rest = (-nearest).mul_add(b, a);
    to_odd(nearest, if b < 0.0 { -rest } else { rest })
}

/// `sqrt(a)`, rounded to odd.
pub(crate) fn root(a: f64) -> f64 {
    let nearest = a.sqrt();
    to_odd(nearest, (-nearest).mul_add(nearest, a))
}

/// A sum that keeps the rounding errors apart (Ogita, Rump and Oishi 2005): of products of numbers of
/// half precision, which are multiples of 2^-48 below 2^32, it is exact for 8,192 of them at least.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Sum {
    high: f64,
    low: f64,
}

impl Sum {
    /// The sum of `x` alone.
    pub(crate) fn of(x: f64) -> Self {
        Sum { high: x, low: 0.0 }
    }

    /// Adds `x`.
    pub(crate) fn add(&mut self, x: f64) {
        let (high, rest) = two_sum(self.high, x);
        self.high = high;
        self.low += rest;
    }

    /// Adds another sum.
    fn join(&mut self, other: Sum) {
        self.add(other.high);
        self.low += other.low;
    }

    /// The sum, rounded to odd.
    pub(crate) fn value(self) -> f64 {
        if !self.high.is_finite() {
            return self.high;
        }
        let (nearest, rest) = two_sum(self.high, self.low);
        to_odd(nearest, rest)
    }
}

impl FromIterator<f64> for Sum {
    fn from_iter<I: IntoIterator<Item = f64>>(items: I) -> Self {
        let mut sum = Sum::default();
        items.into_iter().for_each(|x| sum.add(x));
        sum
    }
}

/// `start + sum a[i] * b[i]`, in eight partial sums, so that it vectorises.
pub(crate) fn dot(start: f64, a: &[f64], b: &[f64]) -> f64 {
    let (mut highs, mut lows) = ([0.0; 8], [0.0; 8]);
    let (a_chunks, a_rest) = a.as_chunks::<8>();
    let (b_chunks, b_rest) = b.as_chunks::<8>();
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for i in 0..8 {
            let (high, rest) = two_sum(highs[i], x[i] * y[i]);
            highs[i] = high;
            lows[i] += rest;
        }
    }
    let mut sum = Sum::of(start);
    highs.into_iter().zip(lows).for_each(|(high, low)| sum.join(Sum { high, low }));
    a_rest.iter().zip(b_rest).for_each(|(x, y)| sum.add(x * y));
    sum.value()
}

/// Many sums, of one number each at first.
pub(crate) struct Sums {
    highs: Vec<f64>,
    lows: Vec<f64>,
}

impl Sums {
    /// As many as `starts` has numbers.
    pub(crate) fn of(starts: Vec<f64>) -> Self {
        Sums { lows: vec![0.0; starts.len()], highs: starts }
    }

    /// Adds `factor` times each of `values` to the sum `first` and every `step`th behind it.
    pub(crate) fn add_products<'a>(
        &mut self,
        first: usize,
        step: usize,
        factor: f64,
        values: impl Iterator<Item = &'a f64>,
    ) {
        let add = |((high, low), value): ((&mut f64, &mut f64), &f64)| {
            let (sum, rest) = two_sum(*high, factor * value);
            *high = sum;
            *low += rest;
        };
        let sums = self.highs[first..].iter_mut().zip(&mut self.lows[first..]);
        // A step that is known to be one vectorises.
        match step {
            1 => sums.zip(values).for_each(add),
            _ => sums.step_by(step).zip(values).for_each(add),
        }
    }

    /// The sums, each rounded to odd.
    pub(crate) fn values(self) -> impl Iterator<Item = f64> {
        self.highs.into_iter().zip(self.lows).map(|(high, low)| Sum { high, low }.value())
    }
}

/// The product of any number of factors, which does not leave the range on the way.
pub(crate) fn product(factors: &[f64]) -> f64 {
    let (mut product, mut exponent) = (1.0f64, 0i32);
    for &factor in factors {
        let (mantissa, more) = libm::frexp(product * factor);
        product = mantissa;
        exponent = exponent.saturating_add(more);
    }
    libm::ldexp(product, exponent)
}
