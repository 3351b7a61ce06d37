//! Scalar functions of the interpreter in `f64`.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use half::{bf16, f16};

/// `x` rounded once to half precision, ties to even. (`f16::from_f64` goes by way of single precision
/// or of a cut mantissa, as the processor has it, and rounds some numbers twice.)
pub(crate) fn half(x: f64) -> f16 {
    f16::from_f32(odd_single(x))
}

/// The value of [`half`], without going through the type: what is added and taken away again leaves
/// multiples of half precision's last place.
#[inline]
pub(crate) fn half_value(x: f64) -> f64 {
    let magnitude = x.abs();
    const EXPONENT: u64 = 0x7ff0_0000_0000_0000;
    // Subnormal numbers have the last place of 2^-14.
    const LEAST: u64 = (1023 - 14) << 52;
    let power = (magnitude.to_bits() & EXPONENT).max(LEAST);
    let shift = f64::from_bits(power.wrapping_add(42 << 52));
    let near = (magnitude + shift) - shift;
    // From the middle between the largest number and what would follow, ties go to infinity. What is no
    // number compares false. Choices, not branches, so that a loop of this becomes vectors.
    let finite = if magnitude >= 65520.0 { f64::INFINITY } else { near };
    (if x.is_nan() { x } else { finite }).copysign(x)
}

/// `x` rounded once to bfloat16, ties to even.
pub(crate) fn brain(x: f64) -> bf16 {
    bf16::from_f32(odd_single(x))
}

/// `x` in single precision, rounded to the odd neighbour where it is between two: the last bit then says
/// that something was cut, and rounding to fewer bits gives what rounding `x` itself would
/// (Boldo and Melquiond 2008).
pub(super) fn odd_single(x: f64) -> f32 {
    let nearest = x as f32;
    let wide = f64::from(nearest);
    if wide == x || !nearest.is_finite() {
        return nearest;
    }
    let toward_zero = nearest.to_bits() - u32::from(wide.abs() > x.abs());
    f32::from_bits(toward_zero | 1)
}

/// `1 / (1 + exp(-x))`.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
pub(crate) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `x * P(X <= x)` for a standard normal `X`.
pub(crate) fn gelu(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x * FRAC_1_SQRT_2)
}

/// GELU by `tanh`: `x / 2 * (1 + tanh(u))` with `u = sqrt(2 / pi) * (x + 0.044715 x^3)`, written as
/// `x * sigmoid(2 u)`, which does not cancel where `tanh(u)` is close to -1.
pub(crate) fn gelu_tanh(x: f64) -> f64 {
    let u = (2.0 / PI).sqrt() * (x + 0.044_715 * x * x * x);
    x * sigmoid(2.0 * u)
}

/// `log(1 + exp(x))`.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The candidate nearest to `x`, the one with an even last bit between two.
    fn nearest(x: f64, candidates: impl Iterator<Item = (u16, f64)>) -> f64 {
        let key = |&(bits, value): &(u16, f64)| ((value - x).abs(), bits & 1);
        let order = |a: &(u16, f64), b: &(u16, f64)| {
            key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal)
        };
        candidates.min_by(order).map_or(f64::NAN, |(_, value)| value)
    }

    #[test]
    fn just_beside_a_tie() {
        // Halfway from 1 to the next number, and a little more.
        for more in [2f64.powi(-25), 2f64.powi(-40), f64::EPSILON] {
            assert_eq!(half(1.0 + 2f64.powi(-11) + more).to_f64(), 1.0 + 2f64.powi(-10));
            assert_eq!(half(-1.0 - 2f64.powi(-11) - more).to_f64(), -1.0 - 2f64.powi(-10));
            assert_eq!(brain(1.0 + 2f64.powi(-8) + more).to_f64(), 1.0 + 2f64.powi(-7));
        }
        assert_eq!(half(1.0 + 2f64.powi(-11)).to_f64(), 1.0);
        assert_eq!(half(2f64.powi(-25) * (1.0 + f64::EPSILON)).to_f64(), 2f64.powi(-24));
        assert_eq!(half(65520.0 * (1.0 - f64::EPSILON)).to_f64(), 65504.0);
        assert_eq!(half(65520.0), f16::INFINITY);
        assert_eq!(half(f64::MAX), f16::INFINITY);
        assert_eq!(brain(1e300), bf16::INFINITY);
        assert_eq!(brain(f64::MIN_POSITIVE).to_f64(), 0.0);
        assert!(half(f64::NAN).is_nan());
    }

    proptest! {
        #[test]
        fn halves_are_the_nearest(bits in 0u16..0x7bff, part in 0f64..=1.0, tie in any::<bool>()) {
            let [low, high] = [bits, bits + 1].map(|b| f16::from_bits(b).to_f64());
            let x = low + (high - low) * if tie { 0.5 + part * 1e-9 } else { part };
            let near = [bits, bits + 1].map(|b| (b, f16::from_bits(b).to_f64()));
            prop_assert_eq!(half(x).to_f64(), nearest(x, near.into_iter()));
        }
    }
}
