//! Walking arrays: strides, broadcasting, picking and copying elements of any type.

use super::{Array, Data};
use crate::OpError;

/// The most elements that an operation may make from sizes that are values (2 GiB of `f64`).
const MAX_ELEMENTS: usize = 1 << 28;

/// Checks a shape that was computed from values, before memory is asked for.
///
/// # Errors
/// When it has too many elements.
pub(crate) fn bounded(shape: &[usize]) -> Result<(), OpError> {
    match tensor::element_count(shape) {
        Some(n) if n <= MAX_ELEMENTS => Ok(()),
        _ => Err(OpError::limit(format!("a result of shape {shape:?} is too large"))),
    }
}

/// Row-major strides of `shape`.
pub(crate) fn strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![0; shape.len()];
    let mut step = 1;
    for (stride, &size) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step *= size as isize;
    }
    strides
}

/// Flat indices into an array, in row-major order of a view of it.
pub(crate) struct Strided {
    shape: Vec<usize>,
    strides: Vec<isize>,
    counters: Vec<usize>,
    at: isize,
    left: usize,
}

impl Strided {
    /// The view of `shape` whose elements lie `strides` apart, starting at `offset`.
    pub(crate) fn new(shape: &[usize], strides: &[isize], offset: isize) -> Self {
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        let left = shape.iter().product();
        Strided { counters: vec![0; shape.len()], shape, strides, at: offset, left }
    }

    /// `from` broadcast to `to`, by the numpy rule.
    pub(crate) fn broadcast(from: &[usize], to: &[usize]) -> Self {
        let missing = to.len() - from.len();
        let mut view = vec![0; to.len()];
        for (i, stride) in strides(from).into_iter().enumerate() {
            if from[i] != 1 {
                view[missing + i] = stride;
            }
        }
        Self::new(to, &view, 0)
    }
}

impl Iterator for Strided {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let here = self.at as usize;
        for axis in (0..self.shape.len()).rev() {
            self.counters[axis] += 1;
            self.at += self.strides[axis];
            if self.counters[axis] < self.shape[axis] {
                break;
            }
            self.at -= self.strides[axis] * self.shape[axis] as isize;
            self.counters[axis] = 0;
        }
        Some(here)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

/// The shape that two shapes broadcast to, by the numpy rule.
///
/// # Errors
/// When they do not broadcast.
pub(crate) fn broadcast_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>, OpError> {
    let rank = a.len().max(b.len());
    let dim = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank)
        .map(|i| match (dim(a, i), dim(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, n) | (n, 1) => Ok(n),
            _ => Err(OpError::invalid(format!("shapes {a:?} and {b:?} do not broadcast"))),
        })
        .collect()
}

impl Data {
    /// The elements at `indices`.
    pub(crate) fn pick(&self, indices: impl Iterator<Item = usize>) -> Data {
        match self {
            Data::Float(v) => Data::Float(indices.map(|i| v[i]).collect()),
            Data::Int(v) => Data::Int(indices.map(|i| v[i]).collect()),
            Data::Bool(v) => Data::Bool(indices.map(|i| v[i]).collect()),
            Data::Str(v) => Data::Str(indices.map(|i| v[i].clone()).collect()),
        }
    }

    /// Writes the elements of `from` one after another to `places`.
    ///
    /// # Errors
    /// When the two are of different kinds.
    pub(crate) fn put(
        &mut self,
        places: impl Iterator<Item = usize>,
        from: &Data,
    ) -> Result<(), OpError> {
        match (self, from) {
            (Data::Float(v), Data::Float(f)) => places.zip(f).for_each(|(i, x)| v[i] = *x),
            (Data::Int(v), Data::Int(f)) => places.zip(f).for_each(|(i, x)| v[i] = *x),
            (Data::Bool(v), Data::Bool(f)) => places.zip(f).for_each(|(i, x)| v[i] = *x),
            (Data::Str(v), Data::Str(f)) => places.zip(f).for_each(|(i, x)| v[i].clone_from(x)),
            _ => return Err(OpError::invalid("elements of different kinds are mixed")),
        }
        Ok(())
    }
}

impl Array {
    /// The array of `shape` whose elements are those of this one at `indices`.
    pub(crate) fn pick(&self, shape: Vec<usize>, indices: impl Iterator<Item = usize>) -> Array {
        Array { dtype: self.dtype, shape, data: self.data.pick(indices) }
    }

    /// This array broadcast to `shape`, which it must broadcast to.
    pub(crate) fn broadcast_to(&self, shape: &[usize]) -> Array {
        self.pick(shape.to_vec(), Strided::broadcast(&self.shape, shape))
    }

    /// The array with axis `perm[i]` at place `i`.
    pub fn transposed(&self, perm: &[usize]) -> Array {
        let steps = strides(&self.shape);
        let shape: Vec<usize> = perm.iter().map(|&p| self.shape[p]).collect();
        let steps: Vec<isize> = perm.iter().map(|&p| steps[p]).collect();
        let indices = Strided::new(&shape, &steps, 0);
        self.pick(shape, indices)
    }

    /// The same elements under another shape of as many.
    ///
    /// # Errors
    /// When the numbers of elements differ.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Array, OpError> {
        if tensor::element_count(shape) != Some(self.len()) {
            return Err(OpError::invalid(format!(
                "{:?} does not have as many elements as {shape:?}",
                self.shape
            )));
        }
        Ok(Array { dtype: self.dtype, shape: shape.to_vec(), data: self.data.clone() })
    }
}
