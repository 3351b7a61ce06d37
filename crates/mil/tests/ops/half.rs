//! Half precision: each result is the exact one, rounded once, ties to even. Elementwise operations are held
//! to it on all 65,536 numbers, against values with 200 bits (tests/golden/fp16.py); sums of products against
//! integers, in which they are exact.

use half::f16;
use mil::eval::{Arithmetic, Array, Data, States};
use mil::{Literal, OpKind};
use tensor::{DType, Tensor};
use testkit::seeded;

use crate::common::{In, one};

const NAN: u16 = 0x7e00;

fn halves(shape: &[usize], values: impl IntoIterator<Item = f16>) -> Array {
    let data = Data::Float(values.into_iter().map(f16::to_f64).collect());
    Array { dtype: DType::F16, shape: shape.to_vec(), data }
}

/// The bits of results, any NaN as one.
fn bits(array: &Array) -> Vec<u16> {
    assert_eq!(array.dtype, DType::F16);
    let half = |&v: &f64| {
        let half = f16::from_f64(v);
        assert!(half.to_f64() == v || v.is_nan(), "{v} is no number of half precision");
        if v.is_nan() { NAN } else { half.to_bits() }
    };
    array.floats().unwrap().iter().map(half).collect()
}

fn run(kind: OpKind, args: Vec<(&str, In)>) -> Vec<u16> {
    let results = one(kind, args).unwrap().run_in(Arithmetic::Fp16, &mut States::new());
    bits(&results[0])
}

/// 32-bit FNV-1a of the little-endian bytes of each 1,024 numbers.
fn digests(values: &[u16]) -> Vec<String> {
    let step = |h: u32, byte: u8| (h ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let digest = |part: &[u16]| part.iter().flat_map(|v| v.to_le_bytes()).fold(0x811c_9dc5, step);
    values.chunks(1024).map(|part| format!("{:08x}", digest(part))).collect()
}

/// 64-bit FNV-1a.
fn fnv(text: &str) -> u64 {
    let step = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Numbers whose bits are as likely one as the other: splitmix64, as `bits` of the script.
fn any_bits(name: &str, count: usize) -> Vec<u16> {
    let mut state = fnv(name) ^ 16;
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 48) as u16
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn random(name: &str, shape: &[usize]) -> Array {
    let values = seeded::tensor(16, name, shape.iter().product(), 4.0);
    let values = values.into_iter().map(f16::from_f32);
    match name {
        "variance" => halves(shape, values.map(|v| f16::from_f32(v.to_f32() + 5.0))),
        _ => halves(shape, values),
    }
}

fn constant(array: &Array) -> Literal {
    let values: Vec<f16> = array.floats().unwrap().iter().map(|&v| f16::from_f64(v)).collect();
    Literal::tensor(Tensor::from_slice(&array.shape, &values).unwrap())
}

fn scalar(value: f64) -> In {
    Literal::scalar(f16::from_f64(value)).into()
}

/// A line of the golden: operation, constant arguments, the rest.
type Line = (String, Vec<(String, String)>, Vec<String>);

fn golden() -> Vec<Line> {
    let path = testkit::workspace_dir().join("tests/golden/fp16.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let name = words.next().unwrap();
        let (args, rest): (Vec<String>, Vec<String>) = words.partition(|w| w.contains('='));
        let pair =
            |a: &String| a.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).unwrap();
        (name, args.iter().map(pair).collect(), rest)
    };
    text.lines().map(line).collect()
}

/// Which thousands of the results do not have their digests.
fn differing(expected: &[String], actual: &[u16]) -> Vec<usize> {
    let actual = digests(actual);
    assert_eq!(actual.len(), expected.len());
    let differ = |(i, (a, e)): (usize, (&String, &String))| (a != e).then_some(i);
    actual.iter().zip(expected).enumerate().filter_map(differ).collect()
}

/// Whether these are digests of all numbers' results.
fn is_digests(words: &[String]) -> bool {
    words.len() == 64 && words.iter().all(|w| w.len() == 8)
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

#[test]
fn norms_and_reductions() {
    let x = random("x", &[2, 4, 8]);
    let mut seen = 0;
    for (name, _, expected) in golden() {
        let last = || -> In { Literal::vector(&[-1i32]).into() };
        let affine = |n: usize| {
            let constants =
                ["gamma", "beta"].map(|name| (name, constant(&random(name, &[n])).into()));
            constants.into_iter().chain([("epsilon", scalar(1e-3))])
        };
        let mut args: Vec<(&str, In)> = vec![("x", x.clone().into())];
        match name.as_str() {
            "softmax" => {}
            "cumsum" => args.push(("axis", Literal::scalar(-1i32).into())),
            "layer_norm" => {
                args.push(("axes", last()));
                args.extend(affine(8));
            }
            "instance_norm" => args.extend(affine(4)),
            "batch_norm" => {
                let of = |name| (name, constant(&random(name, &[4])).into());
                args.extend([of("mean"), of("variance")].into_iter().chain(affine(4)));
            }
            "reduce_log_sum" => {
                let magnitudes = x.floats().unwrap().iter().map(|v| f16::from_f64(v.abs()));
                args = vec![("x", halves(&x.shape, magnitudes).into()), ("axes", last())];
            }
            reduction if reduction.starts_with("reduce_") => args.push(("axes", last())),
            _ => continue,
        }
        let actual: Vec<String> = run(OpKind::from_name(&name).unwrap(), args)
            .iter()
            .map(|b| format!("{b:04x}"))
            .collect();
        assert_eq!(actual, expected, "{name}");
        seen += 1;
    }
    assert!(seen >= 14, "{seen} operations");
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

/// Finite numbers of all sizes.
fn finite(name: &str, count: usize) -> Vec<f16> {
    let all = any_bits(name, 2 * count).into_iter().map(f16::from_bits);
    all.filter(|v| v.is_finite()).take(count).collect()
}

#[test]
fn arithmetic_of_two() {
    let special =
        [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x3c01, 0x7bff, 0xfbff];
    let special: Vec<f16> = special.into_iter().map(f16::from_bits).collect();
    let mut pairs: Vec<(f16, f16)> =
        finite("a", 20_000).into_iter().zip(finite("b", 20_000)).collect();
    pairs.extend(special.iter().flat_map(|&a| special.iter().map(move |&b| (a, b))));
    // Close to each other, whose sums and differences cancel or tie.
    let near = finite("a", 5_000).into_iter().map(|a| (a, f16::from_bits(a.to_bits() ^ 0x8003)));
    pairs.extend(near.filter(|(_, b)| b.is_finite()));
    let (x, y): (Vec<f16>, Vec<f16>) = pairs.into_iter().unzip();
    let apply = |kind| {
        let [x, y] = [&x, &y].map(|v| halves(&[v.len()], v.iter().copied()));
        run(kind, vec![("x", x.into()), ("y", y.into())])
    };
    let results = [OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::RealDiv].map(apply);
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

/// The rounded sums of products, which are exact in integers.
fn products(pairs: impl Iterator<Item = (f64, f64)>, start: f64) -> u16 {
    rounded(pairs.map(|(a, b)| exact(a) * exact(b)).sum::<i128>() + (exact(start) << 24))
}

#[test]
fn sums_of_products() {
    let (m, k, n) = (7, 300, 5);
    let [x, w, bias] = [("x", vec![m, k]), ("w", vec![n, k]), ("bias", vec![n])]
        .map(|(name, shape)| random(name, &shape));
    let [xs, ws, bs] = [&x, &w, &bias].map(|a| a.floats().unwrap().to_vec());
    let row = |v: &[f64], i: usize| v[i * k..][..k].to_vec();
    let expect = |bias: bool| -> Vec<u16> {
        let cell = |(i, j): (usize, usize)| {
            products(row(&xs, i).into_iter().zip(row(&ws, j)), if bias { bs[j] } else { 0.0 })
        };
        (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(cell).collect()
    };
    let args =
        |second: &'static str| vec![("x", x.clone().into()), (second, In::from(constant(&w)))];
    let mut linear = args("weight");
    linear.push(("bias", constant(&bias).into()));
    assert_eq!(run(OpKind::Linear, linear), expect(true), "linear");
    let mut matmul = args("y");
    matmul.push(("transpose_y", Literal::bool(true).into()));
    assert_eq!(run(OpKind::Matmul, matmul), expect(false), "matmul");
    let squares: Vec<u16> =
        (0..m).map(|i| products(row(&xs, i).into_iter().zip(row(&xs, i)), 0.0)).collect();
    let last = || Literal::vector(&[-1i32]).into();
    let sum_square = run(OpKind::ReduceSumSquare, vec![("x", x.clone().into()), ("axes", last())]);
    assert_eq!(sum_square, squares, "reduce_sum_square");
    // A kernel as long as the row makes of a convolution the same products: x as one image of k channels.
    let image = |a: &Array, shape: &[usize]| Array { shape: shape.to_vec(), ..a.clone() };
    let conv = run(
        OpKind::Conv,
        vec![
            ("x", image(&x, &[m, k / 3, 3]).into()),
            ("weight", constant(&image(&w, &[n, k / 3, 3])).into()),
            ("bias", constant(&bias).into()),
            ("pad_type", Literal::string("valid").into()),
        ],
    );
    assert_eq!(conv, expect(true), "conv");
}

/// Sums of numbers of all sizes are exact in double precision, so in any order, and round once.
#[test]
fn sums_of_all_sizes() {
    let values = finite("sums", 64 * 512);
    let x = halves(&[64, 512], values.iter().copied());
    let expected: Vec<u16> = values
        .chunks(512)
        .map(|row| rounded(row.iter().map(|v| exact(v.to_f64())).sum::<i128>() << 24))
        .collect();
    let args = vec![("x", x.into()), ("axes", Literal::vector(&[1i32]).into())];
    assert_eq!(run(OpKind::ReduceSum, args), expected);
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
    let x = crate::common::f32s(&[given.len()], given);
    let cast = run(OpKind::Cast, vec![("x", x.into()), ("dtype", Literal::string("fp16").into())]);
    assert!(cast == expected);
}
