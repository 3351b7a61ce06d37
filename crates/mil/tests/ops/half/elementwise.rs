//! Operations on each number: against values with 200 bits for all numbers, or against integers.

use half::f16;
use mil::{Literal, OpKind};

use super::{NAN, any_bits, finite, golden, halves, is_digests, run};
use crate::common::{In, f32s};

/// 32-bit FNV-1a of the little-endian bytes of each 1,024 numbers.
fn digests(values: &[u16]) -> Vec<String> {
    let step = |h: u32, byte: u8| (h ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let digest = |part: &[u16]| part.iter().flat_map(|v| v.to_le_bytes()).fold(0x811c_9dc5, step);
    values.chunks(1024).map(|part| format!("{:08x}", digest(part))).collect()
}

/// Which thousands of the results do not have their digests.
fn differing(expected: &[String], actual: &[u16]) -> Vec<usize> {
    let actual = digests(actual);
    assert_eq!(actual.len(), expected.len());
    let differ = |(i, (a, e)): (usize, (&String, &String))| (a != e).then_some(i);
    actual.iter().zip(expected).enumerate().filter_map(differ).collect()
}

#[test]
fn elementwise_on_all_numbers() {
    let mut seen = 0;
    let mut failures = Vec::new();
    for (name, args, expected) in golden().into_iter().filter(|(_, _, rest)| is_digests(rest)) {
        // Those with a constant for each channel take one channel.
        let by_channel = ["prelu", "softplus_parametric"].contains(&name.as_str());
        let x = halves(
            if by_channel { &[1, 1, 65536] } else { &[65536] },
            (0..=u16::MAX).map(f16::from_bits),
        );
        let mut given: Vec<(&str, In)> = vec![("x", x.into())];
        for (argument, value) in &args {
            let literal = match u16::from_str_radix(value, 16).map(f16::from_bits) {
                Ok(value) if by_channel => Literal::vector(&[value]),
                Ok(value) => Literal::scalar(value),
                Err(_) => Literal::string(value.as_str()),
            };
            given.push((argument, literal.into()));
        }
        let actual = run(OpKind::from_name(&name).unwrap(), given);
        let differ = differing(&expected, &actual);
        if !differ.is_empty() {
            failures.push(format!("{name} {args:?} differs in the thousands {differ:?}"));
        }
        seen += 1;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(seen >= 40, "{seen} operations");
}

#[test]
fn powers() {
    let (_, _, expected) = golden().into_iter().find(|(name, ..)| name == "pow").unwrap();
    let mut x = any_bits("x", 8192);
    x.iter_mut().step_by(2).for_each(|v| *v = 0x3c00 + *v % 512);
    let [x, y] =
        [x, any_bits("y", 8192)].map(|v| halves(&[8192], v.into_iter().map(f16::from_bits)));
    let differ = differing(&expected, &run(OpKind::Pow, vec![("x", x.into()), ("y", y.into())]));
    assert!(differ.is_empty(), "differs in the thousands {differ:?}");
}

/// An exact number: so many times 2^-48.
fn exact(value: f64) -> i128 {
    // Of half precision: a multiple of 2^-24.
    (value * 2f64.powi(24)) as i128
}

/// `units` times 2^-48, rounded once.
fn rounded(units: i128) -> u16 {
    let sign = u16::from(units < 0) << 15;
    let size = units.unsigned_abs();
    let bits = 128 - size.leading_zeros();
    // What the last bit of the result is worth: 11 bits are kept, none below 2^-24.
    let last = bits.saturating_sub(11).max(24);
    let (whole, rest, tie) = (size >> last, size & ((1 << last) - 1), 1u128 << (last - 1));
    let whole = whole + u128::from(rest > tie || (rest == tie && whole & 1 == 1));
    let magnitude = if last == 24 { whole } else { (u128::from(last - 24) << 10) + whole };
    sign | magnitude.min(0x7c00) as u16
}

#[test]
fn rounding_of_exact_sums() {
    let units = |v: f64| exact(v) << 24;
    for bits in (0..0x7c00).step_by(5) {
        let x = f16::from_bits(bits).to_f64();
        assert_eq!(rounded(units(x)), bits);
    }
    assert_eq!((rounded(units(65519.0)), rounded(units(65520.0))), (0x7bff, 0x7c00));
    assert_eq!((rounded(1 << 23), rounded((1 << 23) + 1)), (0, 1));
    assert_eq!(rounded(units(2049.0)), f16::from_f64(2048.0).to_bits());
    assert_eq!(rounded(units(2051.0)), f16::from_f64(2052.0).to_bits());
}

/// Pairs of numbers of all sizes, special ones, and such as are close to each other.
fn pairs() -> (Vec<f16>, Vec<f16>) {
    let special =
        [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x3c01, 0x7bff, 0xfbff];
    let special: Vec<f16> = special.into_iter().map(f16::from_bits).collect();
    let mut pairs: Vec<(f16, f16)> =
        finite("a", 20_000).into_iter().zip(finite("b", 20_000)).collect();
    pairs.extend(special.iter().flat_map(|&a| special.iter().map(move |&b| (a, b))));
    // Close to each other, whose sums and differences cancel or tie.
    let near = finite("a", 5_000).into_iter().map(|a| (a, f16::from_bits(a.to_bits() ^ 0x8003)));
    pairs.extend(near.filter(|(_, b)| b.is_finite()));
    pairs.into_iter().unzip()
}

fn of_two(kind: OpKind, x: &[f16], y: &[f16]) -> Vec<u16> {
    let [x, y] = [x, y].map(|v| halves(&[v.len()], v.iter().copied()));
    run(kind, vec![("x", x.into()), ("y", y.into())])
}

/// The operations of which this file has all numbers or pairs of all sizes.
pub(super) const KINDS: [OpKind; 8] = [
    OpKind::Add,
    OpKind::Sub,
    OpKind::Mul,
    OpKind::RealDiv,
    OpKind::FloorDiv,
    OpKind::Mod,
    OpKind::Pow,
    OpKind::Cast,
];

/// The quotient rounded down, and what it leaves, in integers.
#[test]
fn division_with_remainder() {
    let (x, y) = pairs();
    let quotients = of_two(OpKind::FloorDiv, &x, &y);
    let rests = of_two(OpKind::Mod, &x, &y);
    for (i, (a, b)) in x.iter().zip(&y).enumerate() {
        let place = format!("{a:e} and {b:e}");
        let (n, d) = (exact(a.to_f64()), exact(b.to_f64()));
        if d == 0 {
            // As the quotient: infinite with both signs, or none.
            let quotient = f16::from_f64(a.to_f64() / b.to_f64());
            let quotient = if quotient.is_nan() { NAN } else { quotient.to_bits() };
            assert_eq!((quotients[i], rests[i]), (quotient, NAN), "{place}");
            continue;
        }
        let whole = n.div_euclid(d) - i128::from(d < 0 && n.rem_euclid(d) != 0);
        // Integers are of units of 2^-48, beyond 2^16 of which all are infinite.
        let whole_bits = rounded(whole.clamp(-1 << 20, 1 << 20) << 48);
        let zero = |bits: u16| if bits == 0x8000 { 0 } else { bits };
        assert_eq!(zero(quotients[i]), zero(whole_bits), "{place}");
        let rest = n - whole * d;
        let sign = u16::from(d < 0) << 15;
        assert_eq!(rests[i], if rest == 0 { sign } else { rounded(rest << 24) }, "{place}");
    }
    // Infinities, as numpy has them.
    let one = |kind, a: f16, b: f16| of_two(kind, &[a], &[b])[0];
    let (inf, two) = (f16::INFINITY, f16::from_f64(2.0));
    assert_eq!(one(OpKind::Mod, two, inf), two.to_bits());
    assert_eq!(one(OpKind::Mod, -two, inf), inf.to_bits());
    assert_eq!(one(OpKind::Mod, inf, two), NAN);
    assert_eq!(one(OpKind::FloorDiv, inf, -two), f16::NEG_INFINITY.to_bits());
    assert_eq!(one(OpKind::FloorDiv, inf, inf), NAN);
}

#[test]
fn arithmetic_of_two() {
    let (x, y) = pairs();
    let kinds = [OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::RealDiv];
    let results = kinds.map(|kind| of_two(kind, &x, &y));
    for (i, (a, b)) in x.iter().zip(&y).map(|(a, b)| (a.to_f64(), b.to_f64())).enumerate() {
        let zero_sign = |bits: u16| if bits == 0x8000 { 0 } else { bits };
        let sums = [(exact(a) + exact(b)) << 24, (exact(a) - exact(b)) << 24, exact(a) * exact(b)];
        for (result, units) in results.iter().zip(sums) {
            assert_eq!(zero_sign(result[i]), zero_sign(rounded(units)), "{a:e} and {b:e}");
        }
        // The quotient q of two integers is nearest if 2 |a - q b| is no more than the step of q times b.
        let quotient = f16::from_bits(results[3][i]);
        if b == 0.0 || !quotient.is_finite() {
            assert!(b == 0.0 || (a / b).abs() >= 65520.0, "{a:e} / {b:e} = {quotient}");
            assert_eq!(quotient.is_nan(), a == 0.0 && b == 0.0);
            continue;
        }
        let magnitude = f16::from_bits(quotient.to_bits() & 0x7fff);
        let off = |q: f16| ((exact(a.abs()) << 24) - exact(q.to_f64()) * exact(b.abs())).abs();
        let below = f16::from_bits(magnitude.to_bits().saturating_sub(1));
        let above = f16::from_bits(magnitude.to_bits() + 1);
        let above = if above.is_finite() { off(above) } else { i128::MAX };
        assert!(
            off(magnitude) <= off(below) && off(magnitude) <= above,
            "{a:e} / {b:e} = {quotient}"
        );
        let even = magnitude.to_bits().is_multiple_of(2);
        let tie = off(magnitude) == above || (off(magnitude) == off(below) && below != magnitude);
        assert!(!tie || even, "{a:e} / {b:e} = {quotient} is not the even one");
    }
}

/// Numbers of single precision on and beside the middle of every two neighbours.
#[test]
fn casts() {
    let mut given = Vec::new();
    let mut expected = Vec::new();
    for bits in 0u16..0x7c00 {
        let low = f16::from_bits(bits).to_f64();
        let high = if bits == 0x7bff { 65536.0 } else { f16::from_bits(bits + 1).to_f64() };
        let middle = ((low + high) / 2.0) as f32;
        let even = bits + bits % 2;
        let below = f32::from_bits(middle.to_bits() - 1);
        let above = f32::from_bits(middle.to_bits() + 1);
        for (value, result) in [(below, bits), (middle, even), (above, bits + 1)] {
            given.extend([f64::from(value), -f64::from(value)]);
            expected.extend([result, result | 0x8000]);
        }
    }
    let x = f32s(&[given.len()], given);
    let cast = run(OpKind::Cast, vec![("x", x.into()), ("dtype", Literal::string("fp16").into())]);
    assert!(cast == expected);
}
