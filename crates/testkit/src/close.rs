//! Tolerant comparison of tensors, reporting where they part.

use std::fmt;

use mil::eval::{Array, Data};
use tensor::Tensor;

/// How far apart two floats may be: `|actual - expected| <= abs + rel * |expected|`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Allowed absolute difference.
    pub abs: f64,
    /// Allowed difference as a part of the expected magnitude.
    pub rel: f64,
}

impl Tolerance {
    /// No difference at all.
    pub const EXACT: Tolerance = Tolerance { abs: 0.0, rel: 0.0 };
    /// What `fp32` engines that sum in different orders may differ by over a few operations.
    pub const F32: Tolerance = Tolerance { abs: 1e-5, rel: 1e-5 };
    /// What `fp16` results may differ by over a few operations.
    pub const F16: Tolerance = Tolerance { abs: 2e-3, rel: 2e-3 };
}

/// How two tensors differ.
#[derive(Clone, PartialEq, Debug)]
pub enum Mismatch {
    /// In element type or shape.
    Type {
        /// Type and shape found.
        actual: String,
        /// Type and shape wanted.
        expected: String,
    },
    /// In elements.
    Elements {
        /// How many are out of tolerance, of how many.
        count: (usize, usize),
        /// The first that is.
        first: Element,
        /// The one that exceeds its tolerance by most.
        worst: Element,
        /// The largest absolute difference anywhere.
        max_abs: f64,
        /// The tolerance applied.
        tolerance: Tolerance,
    },
}

/// One element that differs.
#[derive(Clone, PartialEq, Debug)]
pub struct Element {
    /// Its index along each axis.
    pub index: Vec<usize>,
    /// Value found.
    pub actual: f64,
    /// Value wanted.
    pub expected: f64,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {:e} instead of {:e}", self.index, self.actual, self.expected)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Type { actual, expected } => write!(f, "{actual} instead of {expected}"),
            Mismatch::Elements { count: (bad, all), first, worst, max_abs, tolerance } => write!(
                f,
                "{bad} of {all} elements differ by more than {:e} + {:e} x |expected|; \
                 first at {first}; worst at {worst}; largest difference {max_abs:e}",
                tolerance.abs, tolerance.rel
            ),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Compares two tensors: equal types and shapes, floats within `tolerance` (block-quantised ones by
/// their values; NaN equals NaN, an infinity only itself), anything else equal.
///
/// # Errors
/// How they differ.
///
/// # Panics
/// When a type has no numeric meaning in the interpreter.
pub fn compare(actual: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Result<(), Mismatch> {
    if actual.dtype() != expected.dtype() || actual.shape() != expected.shape() {
        let describe = |t: &Tensor| format!("{} {:?}", t.dtype(), t.shape());
        return Err(Mismatch::Type { actual: describe(actual), expected: describe(expected) });
    }
    let float = expected.dtype().is_float() || expected.dtype().is_block_quantized();
    let tolerance = if float { tolerance } else { Tolerance::EXACT };
    compare_values(&numbers(actual), &numbers(expected), expected.shape(), tolerance)
}

/// Compares elements of a tensor of the given shape; see [`compare`].
///
/// # Errors
/// How they differ.
pub fn compare_values(
    actual: &[f64],
    expected: &[f64],
    shape: &[usize],
    tolerance: Tolerance,
) -> Result<(), Mismatch> {
    if actual.len() != expected.len() {
        let describe = |n: usize| format!("{n} elements");
        return Err(Mismatch::Type {
            actual: describe(actual.len()),
            expected: describe(expected.len()),
        });
    }
    let (mut bad, mut max_abs) = (0, 0f64);
    let (mut first, mut worst) = (None, (0, f64::NEG_INFINITY));
    for (i, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        if a == e || (a.is_nan() && e.is_nan()) {
            continue;
        }
        let difference = (a - e).abs();
        let difference = if difference.is_nan() { f64::INFINITY } else { difference };
        max_abs = max_abs.max(difference);
        let allowed = tolerance.abs + tolerance.rel * e.abs();
        if e.is_finite() && difference <= allowed {
            continue;
        }
        bad += 1;
        first.get_or_insert(i);
        let excess = if e.is_finite() { difference - allowed } else { f64::INFINITY };
        if excess > worst.1 {
            worst = (i, excess);
        }
    }
    let Some(first) = first else { return Ok(()) };
    let element =
        |i: usize| Element { index: index_of(i, shape), actual: actual[i], expected: expected[i] };
    Err(Mismatch::Elements {
        count: (bad, actual.len()),
        first: element(first),
        worst: element(worst.0),
        max_abs,
        tolerance,
    })
}

/// As [`compare`], for use in tests.
///
/// # Panics
/// When the tensors differ; the message says how.
#[track_caller]
pub fn assert_close(actual: &Tensor, expected: &Tensor, tolerance: Tolerance) {
    if let Err(mismatch) = compare(actual, expected, tolerance) {
        panic!("{mismatch}");
    }
}

/// As [`assert_close`], for plain slices of `fp32` numbers.
///
/// # Panics
/// When they differ; the message says how.
#[track_caller]
pub fn assert_close_f32(actual: &[f32], expected: &[f32], tolerance: Tolerance) {
    let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let (actual, expected) = (wide(actual), wide(expected));
    if let Err(mismatch) = compare_values(&actual, &expected, &[expected.len()], tolerance) {
        panic!("{mismatch}");
    }
}

/// The elements as numbers; integers beyond 2^53 lose low bits.
fn numbers(t: &Tensor) -> Vec<f64> {
    let array = Array::from_tensor(t).expect("a numeric tensor");
    match array.data {
        Data::Float(v) => v,
        Data::Int(v) => v.into_iter().map(|x| x as f64).collect(),
        Data::Bool(v) => v.into_iter().map(f64::from).collect(),
        Data::Str(_) => unreachable!("tensors hold no strings"),
    }
}

/// The index along each axis of element `i` in row-major order.
fn index_of(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (at, &n) in index.iter_mut().zip(shape).rev() {
        *at = i % n.max(1);
        i /= n.max(1);
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> Tensor {
        Tensor::from_slice(&[2, values.len() / 2], values).expect("two rows")
    }

    #[test]
    fn first_and_worst_are_reported() {
        let expected = f32s(&[1.0, 2.0, 3.0, 4.0]);
        let actual = f32s(&[1.0, 2.5, 3.0, 6.0]);
        let tolerance = Tolerance { abs: 0.1, rel: 0.1 };
        let Err(Mismatch::Elements { count, first, worst, max_abs, .. }) =
            compare(&actual, &expected, tolerance)
        else {
            panic!("they differ");
        };
        assert_eq!((count, max_abs), ((2, 4), 2.0));
        assert_eq!((first.index, worst.index), (vec![0, 1], vec![1, 1]));
        assert_eq!(compare(&actual, &expected, Tolerance { abs: 0.0, rel: 0.5 }), Ok(()));
    }

    #[test]
    fn not_a_number_and_infinity() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let same = f32s(&[nan, inf]);
        assert_eq!(compare(&same, &same, Tolerance::EXACT), Ok(()));
        let loose = Tolerance { abs: f64::MAX, rel: 1.0 };
        for (a, b) in [(nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf), (-inf, inf)] {
            assert!(compare(&f32s(&[a, 0.0]), &f32s(&[b, 0.0]), loose).is_err(), "{a} {b}");
        }
    }

    #[test]
    fn types_and_shapes_must_be_equal() {
        let a = f32s(&[1.0, 2.0]);
        let reshaped = a.reshaped(&[1, 2]).expect("two elements");
        assert!(matches!(compare(&a, &reshaped, Tolerance::F32), Err(Mismatch::Type { .. })));
    }
}
