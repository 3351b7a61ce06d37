//! Arrays with longer axes: what was there first along each, and behind it what must have no effect.

use mil::eval::{Array, Data};

/// What no program may look at: as an index it is out of range.
const NO_INTEGER: i64 = i64::MIN;

/// `array` in the corner of an array of `shape`, whose axes are as long or longer. What is new is no number, or
/// no integer that fits anything.
pub(crate) fn grown(array: &Array, shape: &[usize]) -> Array {
    let from = places(&array.shape, shape);
    let len = shape.iter().product();
    let data = match &array.data {
        Data::Float(v) => Data::Float(put(v, f64::NAN, &from, len)),
        Data::Int(v) => Data::Int(put(v, NO_INTEGER, &from, len)),
        Data::Bool(v) => Data::Bool(put(v, true, &from, len)),
        Data::Str(v) => Data::Str(put(v, String::new(), &from, len)),
    };
    Array { dtype: array.dtype, shape: shape.to_vec(), data }
}

/// The corner of `shape` of an array whose axes are as long or longer.
pub(crate) fn cut(array: &Array, shape: &[usize]) -> Array {
    let from = places(shape, &array.shape);
    let data = match &array.data {
        Data::Float(v) => Data::Float(take(v, &from)),
        Data::Int(v) => Data::Int(take(v, &from)),
        Data::Bool(v) => Data::Bool(take(v, &from)),
        Data::Str(v) => Data::Str(take(v, &from)),
    };
    Array { dtype: array.dtype, shape: shape.to_vec(), data }
}

/// Whether `small` is a corner of `large`.
pub(crate) fn fits(small: &[usize], large: &[usize]) -> bool {
    small.len() == large.len() && small.iter().zip(large).all(|(s, l)| s <= l)
}

/// For each element of the corner `small`, row-major, its place in `large`.
fn places(small: &[usize], large: &[usize]) -> Vec<usize> {
    let mut places = vec![0];
    for (&s, &l) in small.iter().zip(large) {
        places = places.iter().flat_map(|&p| (0..s).map(move |i| p * l + i)).collect();
    }
    places
}

fn put<T: Clone>(values: &[T], fill: T, places: &[usize], len: usize) -> Vec<T> {
    let mut out = vec![fill; len];
    for (&place, value) in places.iter().zip(values) {
        out[place] = value.clone();
    }
    out
}

fn take<T: Clone>(values: &[T], places: &[usize]) -> Vec<T> {
    places.iter().map(|&p| values[p].clone()).collect()
}

#[cfg(test)]
mod tests {
    use tensor::DType;

    use super::*;

    #[test]
    fn a_corner_comes_back() {
        let data = Data::Float((1..=6).map(f64::from).collect());
        let small = Array { dtype: DType::F32, shape: vec![2, 3], data };
        let large = grown(&small, &[3, 4]);
        let row = large.floats().unwrap()[4..8].to_vec();
        assert_eq!(row[..3], [4.0, 5.0, 6.0]);
        assert!(row[3].is_nan());
        assert_eq!(cut(&large, &[2, 3]), small);
        assert!(fits(&[2, 3], &[2, 4]) && !fits(&[2, 3], &[4, 2]) && !fits(&[2], &[2, 1]));
    }
}
