//! Hexadecimal floats as C's `%a` writes them: the form of every float in MIL text.

use std::fmt::{self, Write};

/// Writes `x` in the shortest hexadecimal form: `0x1.8p+1`, `-0x0p+0`, `inf`, `nan`. Subnormal
/// numbers are normalised.
pub(super) fn write(out: &mut impl Write, x: f64) -> fmt::Result {
    if x.is_nan() {
        return out.write_str("nan");
    }
    if x.is_sign_negative() {
        out.write_char('-')?;
    }
    if x.is_infinite() {
        return out.write_str("inf");
    }
    if x == 0.0 {
        return out.write_str("0x0p+0");
    }
    let bits = x.to_bits();
    let (mut exponent, mut fraction) = ((bits >> 52 & 0x7ff) as i32 - 1023, bits << 12);
    if exponent == -1023 {
        // Subnormal: drop the leading zeros and the first one, which becomes the implicit bit.
        let zeros = fraction.leading_zeros();
        exponent = -1022 - (zeros as i32 + 1);
        fraction = fraction << zeros << 1;
    }
    out.write_str("0x1")?;
    if fraction != 0 {
        out.write_char('.')?;
        while fraction != 0 {
            out.write_char(char::from_digit((fraction >> 60) as u32, 16).unwrap_or('0'))?;
            fraction <<= 4;
        }
    }
    write!(out, "p{exponent:+}")
}

/// The number that `text` writes, rounded to nearest even: `0x1.8p+1`, `-0x1p-3`. `None` if it is
/// not a hexadecimal float.
pub(super) fn parse(text: &str) -> Option<f64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let digits = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"))?;
    let (digits, exponent) = digits.split_once(['p', 'P'])?;
    let exponent: i32 = exponent.parse().ok()?;
    let (mut mantissa, mut sticky, mut scale) = (0u64, false, 0i32);
    let (mut point, mut any) = (false, false);
    for c in digits.chars() {
        if c == '.' && !point {
            point = true;
            continue;
        }
        let digit = u64::from(c.to_digit(16)?);
        any = true;
        if mantissa >> 60 == 0 {
            mantissa = mantissa << 4 | digit;
            scale = scale.saturating_sub(if point { 4 } else { 0 });
        } else {
            sticky |= digit != 0;
            scale = scale.saturating_add(if point { 0 } else { 4 });
        }
    }
    let magnitude = any.then(|| assemble(mantissa, sticky, exponent.saturating_add(scale)))?;
    Some(if negative { -magnitude } else { magnitude })
}

/// `mantissa * 2^exponent` rounded to nearest even; `sticky` says that nonzero digits were cut.
fn assemble(mantissa: u64, sticky: bool, exponent: i32) -> f64 {
    if mantissa == 0 {
        return 0.0;
    }
    let zeros = mantissa.leading_zeros();
    let mantissa = mantissa << zeros;
    // The exponent of the leading bit.
    let exponent = exponent.saturating_add(63 - zeros as i32);
    if exponent > 1023 {
        return f64::INFINITY;
    }
    // Bits that do not fit: 11 of 64 for a normal number, more below the smallest one.
    let drop = 11 + (-1022i32).saturating_sub(exponent).max(0);
    if drop > 64 {
        return 0.0;
    }
    let wide = u128::from(mantissa);
    let (kept, rest, half) = ((wide >> drop) as u64, wide & ((1 << drop) - 1), 1u128 << (drop - 1));
    let up = rest > half || (rest == half && (sticky || kept & 1 == 1));
    let kept = kept + u64::from(up);
    if exponent < -1022 {
        // A carry out of the fraction makes the smallest normal number, as it should.
        return f64::from_bits(kept);
    }
    // The implicit bit adds one to the exponent field, and so does a carry.
    f64::from_bits((((exponent + 1022) as u64) << 52) + kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(x: f64) -> String {
        let mut s = String::new();
        write(&mut s, x).unwrap();
        s
    }

    #[test]
    fn known_forms() {
        for (x, text) in [
            (1.0, "0x1p+0"),
            (-2.0, "-0x1p+1"),
            (0.0, "0x0p+0"),
            (-0.0, "-0x0p+0"),
            (3.0, "0x1.8p+1"),
            (half::f16::from_f64(1e-5).to_f64(), "0x1.5p-17"),
            (f64::from(0.1f32), "0x1.99999ap-4"),
            (f64::from_bits(1), "0x1p-1074"),
            (f64::MAX, "0x1.fffffffffffffp+1023"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(written(x), text);
        }
        assert_eq!(parse("0x10p0"), Some(16.0));
        assert_eq!(parse("0x.8p1"), Some(1.0));
        // Ties go to even; a cut digit breaks the tie upwards.
        assert_eq!(parse("0x1.00000000000008p0"), Some(1.0));
        assert_eq!(parse("0x1.000000000000080001p0"), Some(1.0 + f64::EPSILON));
        assert_eq!(parse("0x1p-1075"), Some(0.0));
        assert_eq!(parse("0x1.8p-1075"), Some(f64::from_bits(1)));
        assert_eq!(parse("0x1p+99999"), Some(f64::INFINITY));
        for bad in ["", "0x", "0xp1", "0x1", "1p0", "0x1.2.3p0", "0x1p", "0x1g0p0"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_finite_number_round_trips(bits in any::<u64>()) {
            let x = f64::from_bits(bits);
            prop_assume!(x.is_finite());
            prop_assert_eq!(parse(&written(x)).map(f64::to_bits), Some(bits));
        }
    }
}
