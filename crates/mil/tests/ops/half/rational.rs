//! Exact numbers, and their rounding to half precision.

use half::f16;
use num_bigint::BigInt;
pub(super) use num_rational::BigRational as Exact;

/// The number that `value` is.
pub(super) fn exact(value: f64) -> Exact {
    Exact::from_float(value).unwrap()
}

/// `a / b`.
pub(super) fn ratio(a: i64, b: i64) -> Exact {
    Exact::new(a.into(), b.into())
}

pub(super) fn zero() -> Exact {
    ratio(0, 1)
}

pub(super) fn magnitude(value: &Exact) -> Exact {
    if *value < zero() { -value } else { value.clone() }
}

/// The bits of `value` rounded once, ties to even.
pub(super) fn rounded(value: &Exact) -> u16 {
    let sign = u16::from(*value < zero()) << 15;
    // In units of the least number, 2^-24.
    let size = magnitude(value) * exact(2f64.powi(24));
    // What the last of the 11 bits that are kept is worth.
    let last = size.to_integer().bits().saturating_sub(11);
    let scaled = size / Exact::from(BigInt::from(1) << last);
    let whole = scaled.to_integer();
    let rest = scaled - Exact::from(whole.clone());
    let whole = u64::try_from(whole).unwrap();
    let up = rest > ratio(1, 2) || (rest == ratio(1, 2) && whole % 2 == 1);
    let whole = whole + u64::from(up);
    let bits = if last == 0 { whole } else { (last << 10) + whole };
    sign | bits.min(0x7c00) as u16
}

/// The bits of the root of `value` rounded once, ties to even.
pub(super) fn rounded_root(value: &Exact) -> u16 {
    // Where numbers end, the next one would be 2^16.
    let number = |bits: u16| match bits {
        0x7c00 => exact(65536.0),
        _ => exact(f16::from_bits(bits).to_f64()),
    };
    // How the root compares with the middle of the numbers `bits` and the next one.
    let beyond = |bits: u16| {
        let middle = (number(bits) + number(bits + 1)) / ratio(2, 1);
        value.cmp(&(&middle * &middle))
    };
    let (mut low, mut high) = (0, 0x7c00);
    while low < high {
        let bits: u16 = (low + high) / 2;
        match beyond(bits) {
            std::cmp::Ordering::Greater => low = bits + 1,
            std::cmp::Ordering::Equal if bits % 2 == 1 => low = bits + 1,
            _ => high = bits,
        }
    }
    low
}

#[test]
fn rounding() {
    for bits in (0..0x7c00).step_by(5) {
        let x = exact(f16::from_bits(bits).to_f64());
        assert_eq!((rounded(&x), rounded_root(&(&x * &x))), (bits, bits));
    }
    let at = |v: f64| rounded(&exact(v));
    assert_eq!((at(65519.0), at(65520.0), at(-65520.0)), (0x7bff, 0x7c00, 0xfc00));
    assert_eq!((at(2f64.powi(-25)), at(2f64.powi(-25) + 2f64.powi(-60))), (0, 1));
    assert_eq!((at(2049.0), at(2051.0), at(-2049.0)), (0x6800, 0x6802, 0xe800));
    let beside = exact(2f64.powi(-1000));
    assert_eq!(rounded(&(exact(2049.0) + &beside)), 0x6801);
    let square = exact(2049.0 * 2049.0);
    assert_eq!((rounded_root(&square), rounded_root(&(square + beside))), (0x6800, 0x6801));
    assert_eq!(rounded_root(&exact(2f64.powi(32))), 0x7c00);
}
