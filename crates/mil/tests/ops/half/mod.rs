//! Half precision: each result is the exact one, rounded once, ties to even. Elementwise operations are held
//! to it on all 65,536 numbers (`elementwise`), and what has exponentials or roots of sums in it on some
//! (`goldens`), against values with 200 bits (tests/golden/fp16.py); what is exact in fractions against
//! rational numbers, of all sizes (`sums`, `windows`, `images`). That this is all there is, `coverage` checks.

use half::f16;
use mil::eval::{Arithmetic, Array, Data, States};
use mil::{Literal, OpKind};
use tensor::{DType, Tensor};
use testkit::seeded;

use crate::common::{In, one};

mod case;
mod coverage;
mod elementwise;
mod goldens;
mod images;
mod rational;
mod sums;
mod windows;

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

/// The bits of all results, one behind the other.
fn run(kind: OpKind, args: Vec<(&str, In)>) -> Vec<u16> {
    let results = one(kind, args).unwrap().run_in(Arithmetic::Fp16, &mut States::new());
    results.iter().flat_map(bits).collect()
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
    halves(shape, values.into_iter().map(f16::from_f32))
}

fn constant(array: &Array) -> Literal {
    let values: Vec<f16> = array.floats().unwrap().iter().map(|&v| f16::from_f64(v)).collect();
    Literal::tensor(Tensor::from_slice(&array.shape, &values).unwrap())
}

fn scalar(value: f64) -> In {
    Literal::scalar(f16::from_f64(value)).into()
}

/// Finite numbers of all sizes.
fn finite(name: &str, count: usize) -> Vec<f16> {
    let all = any_bits(name, 2 * count).into_iter().map(f16::from_bits);
    all.filter(|v| v.is_finite()).take(count).collect()
}

/// A line of the golden: operation, arguments, the rest.
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

/// Whether these are digests of all numbers' results.
fn is_digests(words: &[String]) -> bool {
    words.len() == 64 && words.iter().all(|w| w.len() == 8)
}
