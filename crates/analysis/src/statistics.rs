//! Figures about an array: range, mean, numbers that are none, largest elements.

use mil::eval::{Array, Data};
use serde::Serialize;

/// Elements shown.
const SHOWN: usize = 6;

/// What is said of an array.
#[derive(Serialize)]
pub struct Summary {
    /// Smallest finite element.
    pub min: Option<f64>,
    /// Largest finite element.
    pub max: Option<f64>,
    /// Mean of the finite elements.
    pub mean: Option<f64>,
    /// How many elements are NaN.
    pub nan: usize,
    /// How many elements are infinite.
    pub infinite: usize,
    /// The first elements; NaN and infinities as strings.
    pub first: Vec<serde_json::Value>,
}

/// The largest element of a row.
#[derive(Serialize, PartialEq, Debug)]
pub struct Argmax {
    /// Its place in the row.
    pub index: usize,
    /// How far the second largest is below it; `None` in a row of one.
    pub margin: Option<f64>,
}

/// The elements as numbers, truth values as 0 and 1; none for strings.
pub(crate) fn numbers(array: &Array) -> Box<dyn Iterator<Item = f64> + '_> {
    match &array.data {
        Data::Float(v) => Box::new(v.iter().copied()),
        Data::Int(v) => Box::new(v.iter().map(|&i| i as f64)),
        Data::Bool(v) => Box::new(v.iter().map(|&b| f64::from(u8::from(b)))),
        Data::Str(_) => Box::new(std::iter::empty()),
    }
}

/// How many elements are NaN, and how many infinite.
pub fn nonfinite(array: &Array) -> (usize, usize) {
    let Data::Float(values) = &array.data else { return (0, 0) };
    values.iter().fold((0, 0), |(nan, infinite), x| {
        (nan + usize::from(x.is_nan()), infinite + usize::from(x.is_infinite()))
    })
}

/// Figures about `array`; minimum, maximum and mean are of its finite elements.
pub fn summary(array: &Array) -> Summary {
    let (nan, infinite) = nonfinite(array);
    let finite = || numbers(array).filter(|x| x.is_finite());
    let count = finite().count();
    let first = match &array.data {
        Data::Str(v) => v.iter().take(SHOWN).map(|s| s.as_str().into()).collect(),
        Data::Int(v) => v.iter().take(SHOWN).map(|&i| i.into()).collect(),
        Data::Bool(v) => v.iter().take(SHOWN).map(|&b| b.into()).collect(),
        // JSON has no NaN and no infinity: they are strings.
        Data::Float(v) => v
            .iter()
            .take(SHOWN)
            .map(|&x| match serde_json::Number::from_f64(x) {
                Some(number) => number.into(),
                None => x.to_string().into(),
            })
            .collect(),
    };
    Summary {
        min: finite().reduce(f64::min),
        max: finite().reduce(f64::max),
        mean: (count > 0).then(|| finite().sum::<f64>() / count as f64),
        nan,
        infinite,
        first,
    }
}

/// The largest element of each row along the last axis, the first of equal ones; `None` for rows without a
/// number.
pub fn argmax(array: &Array) -> Vec<Option<Argmax>> {
    let width = array.shape.last().copied().unwrap_or(1).max(1);
    let values: Vec<f64> = numbers(array).collect();
    values.chunks(width).map(row_argmax).collect()
}

fn row_argmax(row: &[f64]) -> Option<Argmax> {
    let mut best: Option<(usize, f64)> = None;
    let mut second: Option<f64> = None;
    for (i, &x) in row.iter().enumerate().filter(|(_, x)| !x.is_nan()) {
        match best {
            Some((_, largest)) if x <= largest => second = Some(second.map_or(x, |s| s.max(x))),
            _ => {
                second = best.map(|(_, x)| x);
                best = Some((i, x));
            }
        }
    }
    best.map(|(index, x)| Argmax { index, margin: second.map(|s| x - s) })
}

#[cfg(test)]
mod tests {
    use tensor::DType;

    use super::*;

    fn floats(shape: &[usize], values: &[f64]) -> Array {
        Array { dtype: DType::F32, shape: shape.to_vec(), data: Data::Float(values.to_vec()) }
    }

    #[test]
    fn figures_are_of_finite_elements() {
        let s = summary(&floats(&[4], &[1.0, f64::NAN, 3.0, f64::NEG_INFINITY]));
        assert_eq!((s.min, s.max, s.mean), (Some(1.0), Some(3.0), Some(2.0)));
        assert_eq!((s.nan, s.infinite), (1, 1));
        assert_eq!(serde_json::to_string(&s.first).unwrap(), r#"[1.0,"NaN",3.0,"-inf"]"#);
        let empty = summary(&floats(&[0], &[]));
        assert!(empty.min.is_none() && empty.mean.is_none());
    }

    #[test]
    fn largest_of_each_row() {
        let rows =
            floats(&[4, 3], &[1.0, 5.0, 3.0, 2.0, 2.0, 0.0, f64::NAN, -1.0, -3.0, 4.0, 1.0, 9.0]);
        let expected = [(1, 2.0), (0, 0.0), (1, 2.0), (2, 5.0)];
        let expected = expected.map(|(index, m)| Some(Argmax { index, margin: Some(m) }));
        assert_eq!(argmax(&rows), expected);
        assert_eq!(argmax(&floats(&[2], &[f64::NAN; 2])), [None]);
        assert_eq!(argmax(&floats(&[], &[7.0])), [Some(Argmax { index: 0, margin: None })]);
    }
}
