//! One use of an operation and what it must give to the bit.

use mil::OpKind;
use mil::eval::Array;

use super::rational::{Exact, exact};
use super::{any_bits, constant, finite, halves, random, run};
use crate::common::In;
use half::f16;

/// Arguments of an operation.
pub(super) type Args = Vec<(&'static str, In)>;

/// An operation with arguments and its results, one behind the other.
pub(super) struct Case {
    pub(super) kind: OpKind,
    /// What is special about it.
    pub(super) label: String,
    pub(super) args: Args,
    pub(super) expected: Vec<u16>,
}

/// Runs all cases; gives how many numbers were compared. An exact zero has no sign.
pub(super) fn check(cases: Vec<Case>) -> usize {
    let unsigned = |bits: &u16| if *bits == 0x8000 { 0 } else { *bits };
    let mut compared = 0;
    let mut failures = Vec::new();
    for Case { kind, label, args, expected } in cases {
        let actual = run(kind, args);
        let place = format!("{} {label}", kind.name());
        assert_eq!(actual.len(), expected.len(), "{place}");
        for (i, (a, e)) in actual.iter().zip(&expected).enumerate() {
            if unsigned(a) != unsigned(e) {
                failures.push(format!("{place} at {i}: {a:04x} for {e:04x}"));
            }
        }
        compared += expected.len();
    }
    assert!(failures.is_empty(), "{} of {compared}\n{}", failures.len(), failures.join("\n"));
    compared
}

/// What numbers to try.
#[derive(Clone, Copy, Debug)]
pub(super) enum Numbers {
    /// Of one size.
    Plain,
    /// Of all sizes, subnormal ones and those whose squares overflow too.
    All,
    /// Whose sums and products lie in the middle of two numbers, or beside it by the least there is.
    Ties,
    /// On both sides of one, where the distance of numbers doubles.
    NearOne,
}

pub(super) const NUMBERS: [Numbers; 4] =
    [Numbers::Plain, Numbers::All, Numbers::Ties, Numbers::NearOne];

impl Numbers {
    /// An array of them, by the name of the argument it is for.
    pub(super) fn array(self, name: &str, shape: &[usize]) -> Array {
        let count = shape.iter().product();
        let least = 2f64.powi(-24);
        let ties = [2048.0, -2048.0, 1.0, 1.0, -1.0, 3.0, least, -least, 2050.0, 0.5, 0.0];
        match self {
            Numbers::Plain => random(name, shape),
            Numbers::All => halves(shape, finite(name, count)),
            Numbers::Ties => {
                let pick = |bits: u16| f16::from_f64(ties[bits as usize % ties.len()]);
                halves(shape, any_bits(name, count).into_iter().map(pick))
            }
            Numbers::NearOne => {
                let near = |bits: u16| f16::from_bits((0x3bf0 + bits % 0x18) | (bits & 0x8000));
                halves(shape, any_bits(name, count).into_iter().map(near))
            }
        }
    }
}

/// The constant that `array` is.
pub(super) fn fixed(array: &Array) -> In {
    constant(array).into()
}

/// Every index into an array of `shape`, in order.
pub(super) fn places(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, &size| {
        let longer = |index: Vec<usize>| {
            (0..size).map(move |i| index.iter().copied().chain([i]).collect::<Vec<_>>())
        };
        all.into_iter().flat_map(longer).collect()
    })
}

/// The element of `array` at `index`.
pub(super) fn element(array: &Array, index: &[usize]) -> Exact {
    assert_eq!(index.len(), array.shape.len());
    let flat = index.iter().zip(&array.shape).fold(0, |at, (&i, &size)| {
        assert!(i < size, "{index:?} of {:?}", array.shape);
        at * size + i
    });
    exact(array.floats().unwrap()[flat])
}
