//! How far apart two arrays are, as numbers whatever their element types.

use half::f16;
use mil::eval::{Array, Data};
use serde::Serialize;
use tensor::DType;

use crate::statistics::{argmax, numbers};

/// Figures about the difference of two arrays.
///
/// Over the elements that are finite in both: `max_abs` is the largest `|a - b|`, `relative` that divided by the
/// largest `|a|` or `|b|`, `rms` the root of the mean of `(a - b)^2`, `cosine` that of the angle between the two.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Difference {
    /// Elements compared.
    pub elements: usize,
    /// How many are not the same number; NaN is the same as NaN.
    pub differing: usize,
    /// Largest distance.
    pub max_abs: f64,
    /// Index of the element with the largest distance, row-major.
    pub at: Option<usize>,
    /// Largest distance over the largest magnitude; 0 where both arrays are zeros.
    pub relative: f64,
    /// Root mean square of the distances.
    pub rms: f64,
    /// Cosine of the angle between the arrays; `None` if one is all zeros.
    pub cosine: Option<f64>,
    /// Largest distance in units in the last place, of floats of one type of 16 or 32 bits.
    pub ulps: Option<u64>,
    /// Elements NaN in one array alone.
    pub nan: usize,
    /// Elements infinite in one array alone, or of another sign.
    pub infinite: usize,
    /// Whether the elements are no floats, so that any difference is one too many.
    #[serde(skip)]
    discrete: bool,
}

/// In how many rows along the last axis the largest element has the same place.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Agreement {
    /// Rows with the same place.
    pub agree: usize,
    /// All rows.
    pub rows: usize,
}

impl Difference {
    /// The difference of two arrays; `None` if their shapes differ, or one holds strings and the other does not.
    pub fn new(a: &Array, b: &Array) -> Option<Self> {
        if a.shape != b.shape {
            return None;
        }
        if let (Data::Str(x), Data::Str(y)) = (&a.data, &b.data) {
            let differing = x.iter().zip(y).filter(|(x, y)| x != y).count();
            return Some(Difference {
                elements: x.len(),
                differing,
                discrete: true,
                ..Self::default()
            });
        }
        if matches!(a.data, Data::Str(_)) || matches!(b.data, Data::Str(_)) {
            return None;
        }
        let floats = |x: &Array| matches!(x.data, Data::Float(_));
        let discrete = !floats(a) && !floats(b);
        let mut d = Difference { elements: a.len(), discrete, ..Self::default() };
        let (mut scale, mut squares, mut finite) = (0f64, 0f64, 0usize);
        let (mut aa, mut bb, mut ab) = (0f64, 0f64, 0f64);
        for (i, (x, y)) in numbers(a).zip(numbers(b)).enumerate() {
            if x == y || (x.is_nan() && y.is_nan()) {
                // Equal infinities too.
            } else {
                d.differing += 1;
            }
            if !x.is_finite() || !y.is_finite() {
                if x.is_nan() != y.is_nan() {
                    d.nan += 1;
                } else if x != y && !x.is_nan() {
                    d.infinite += 1;
                }
                continue;
            }
            let distance = (x - y).abs();
            if distance > d.max_abs {
                (d.max_abs, d.at) = (distance, Some(i));
            }
            finite += 1;
            scale = scale.max(x.abs()).max(y.abs());
            squares += distance * distance;
            (aa, bb, ab) = (aa + x * x, bb + y * y, ab + x * y);
        }
        if scale > 0.0 {
            d.relative = d.max_abs / scale;
        }
        if finite > 0 {
            d.rms = (squares / finite as f64).sqrt();
        }
        // Rounding must not take it beyond what a cosine can be.
        d.cosine = (aa > 0.0 && bb > 0.0).then(|| (ab / (aa.sqrt() * bb.sqrt())).clamp(-1.0, 1.0));
        d.ulps = ulps(a, b);
        Some(d)
    }

    /// Whether no element differs.
    pub fn is_none(&self) -> bool {
        self.differing == 0
    }

    /// Whether the arrays are further apart than `tolerance`: floats by [`Difference::relative`] or by a NaN or
    /// infinity that only one has, other elements by any difference.
    pub fn exceeds(&self, tolerance: f64) -> bool {
        let apart = self.nan + self.infinite > 0 || self.relative > tolerance;
        if self.discrete { self.differing > 0 } else { apart }
    }
}

/// Largest distance in units in the last place of the arrays' type, over elements finite in both.
fn ulps(a: &Array, b: &Array) -> Option<u64> {
    let steps: fn(f64) -> i64 = match (a.dtype, b.dtype) {
        (DType::F16, DType::F16) => |x| {
            let bits = i64::from(f16::from_f64(x).to_bits());
            if bits & 0x8000 == 0 { bits } else { -(bits & 0x7fff) }
        },
        (DType::F32, DType::F32) => |x| {
            let bits = i64::from((x as f32).to_bits());
            if bits & 0x8000_0000 == 0 { bits } else { -(bits & 0x7fff_ffff) }
        },
        _ => return None,
    };
    let finite = numbers(a).zip(numbers(b)).filter(|(x, y)| x.is_finite() && y.is_finite());
    finite.map(|(x, y)| steps(x).abs_diff(steps(y))).max()
}

/// In how many rows the largest element has the same place; `None` if the shapes differ.
pub fn agreement(a: &Array, b: &Array) -> Option<Agreement> {
    let place = |array| argmax(array).into_iter().map(|row| row.map(|r| r.index));
    let same = a.shape == b.shape;
    let agree = same.then(|| place(a).zip(place(b)).filter(|(x, y)| x == y).count())?;
    Some(Agreement { agree, rows: argmax(a).len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(dtype: DType, values: &[f64]) -> Array {
        Array { dtype, shape: vec![values.len()], data: Data::Float(values.to_vec()) }
    }

    #[test]
    fn figures() {
        let a = floats(DType::F32, &[3.0, -4.0, 0.0]);
        let b = floats(DType::F16, &[3.0, -4.0, 0.5]);
        let d = Difference::new(&a, &b).unwrap();
        assert_eq!((d.elements, d.differing, d.max_abs, d.at), (3, 1, 0.5, Some(2)));
        assert_eq!((d.relative, d.rms, d.ulps), (0.125, (0.25f64 / 3.0).sqrt(), None));
        assert!((d.cosine.unwrap() - 25.0 / (5.0 * 25.25f64.sqrt())).abs() < 1e-15);
        assert!(d.exceeds(0.1) && !d.exceeds(0.125));
    }

    #[test]
    fn equal_arrays_do_not_differ() {
        let a = floats(DType::F32, &[f64::NAN, f64::INFINITY, 0.1]);
        let d = Difference::new(&a, &a).unwrap();
        assert!(d.is_none() && !d.exceeds(0.0) && d.ulps == Some(0), "{d:?}");
        let empty = Difference::new(&floats(DType::F32, &[]), &floats(DType::F16, &[])).unwrap();
        assert!(empty.is_none() && empty.cosine.is_none());
    }

    #[test]
    fn what_is_no_number_is_counted_apart() {
        let a = floats(DType::F32, &[f64::NAN, f64::INFINITY, f64::INFINITY, 1.0]);
        let b = floats(DType::F32, &[1.0, f64::NEG_INFINITY, 2.0, 1.0]);
        let d = Difference::new(&a, &b).unwrap();
        assert_eq!((d.nan, d.infinite, d.differing, d.max_abs), (1, 2, 3, 0.0));
        assert!(d.exceeds(f64::MAX));
    }

    #[test]
    fn last_places_count_across_zero() {
        let (a, b) = (floats(DType::F16, &[6e-8]), floats(DType::F16, &[-6e-8]));
        assert_eq!(Difference::new(&a, &b).unwrap().ulps, Some(2));
        let one = floats(DType::F32, &[1.0]);
        let next = floats(DType::F32, &[f64::from(1.0f32.next_up())]);
        assert_eq!(Difference::new(&one, &next).unwrap().ulps, Some(1));
    }

    #[test]
    fn integers_differ_at_all_or_not() {
        let ints =
            |v: &[i64]| Array { dtype: DType::I32, shape: vec![2], data: Data::Int(v.to_vec()) };
        let d = Difference::new(&ints(&[1, 1000]), &ints(&[1, 1001])).unwrap();
        assert!(d.exceeds(1.0) && d.max_abs == 1.0);
        let strings =
            |s: &str| Array { dtype: DType::Str, shape: vec![1], data: Data::Str(vec![s.into()]) };
        assert!(Difference::new(&strings("a"), &strings("b")).unwrap().exceeds(1.0));
        assert!(Difference::new(&strings("a"), &ints(&[1, 2])).is_none());
    }

    #[test]
    fn rows_agree_by_their_largest() {
        let rows = |v: &[f64]| Array { shape: vec![2, 2], ..floats(DType::F32, v) };
        let agreed = agreement(&rows(&[1.0, 2.0, 3.0, 4.0]), &rows(&[1.0, 9.0, 5.0, 4.0]));
        assert_eq!(agreed, Some(Agreement { agree: 1, rows: 2 }));
    }
}
