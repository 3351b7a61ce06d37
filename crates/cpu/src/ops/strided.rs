//! Walking through tensors by strides, in elements; a step back is a stride that wraps around.

use crate::op_cx::Bind;

/// Strides of a row-major tensor.
pub(crate) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// Strides of a row-major tensor of `shape` seen as the `wider` shape that it broadcasts to: 0 where
/// it is repeated.
pub(crate) fn strides_in(shape: &[usize], wider: &[usize]) -> Vec<usize> {
    let own = row_major(shape);
    let lead = wider.len() - shape.len();
    (0..wider.len())
        .map(|i| match i.checked_sub(lead) {
            Some(j) if shape[j] != 1 => own[j],
            _ => 0,
        })
        .collect()
}

/// The same walk with as few axes as possible: axes of size 1 are dropped, and neighbours joined that
/// every operand goes through in one step width.
pub(crate) fn collapse<const N: usize>(
    shape: &[usize],
    strides: [Vec<usize>; N],
) -> (Vec<usize>, [Vec<usize>; N]) {
    let mut out: Vec<usize> = Vec::new();
    let mut kept = [(); N].map(|()| Vec::new());
    for axis in 0..shape.len() {
        if shape[axis] == 1 {
            continue;
        }
        let joins = !out.is_empty()
            && strides.iter().zip(&kept).all(|(s, k): (_, &Vec<usize>)| {
                k[k.len() - 1] == s[axis].wrapping_mul(shape[axis])
            });
        if joins {
            let last = out.len() - 1;
            out[last] *= shape[axis];
            kept.iter_mut().zip(&strides).for_each(|(k, s)| k[last] = s[axis]);
        } else {
            out.push(shape[axis]);
            kept.iter_mut().zip(&strides).for_each(|(k, s)| k.push(s[axis]));
        }
    }
    (out, kept)
}

/// A copy out of a strided walk through a tensor.
pub(crate) struct Walk {
    /// First element.
    pub(crate) start: usize,
    /// Dimensions of the copy, as few as possible.
    shape: Vec<usize>,
    strides: Vec<usize>,
    element: usize,
}

impl Walk {
    /// A walk from element `start` through `shape` by `strides`, over elements of `element` bytes.
    pub(crate) fn new(
        start: usize,
        shape: &[usize],
        strides: Vec<usize>,
        element: usize,
    ) -> Bind<Self> {
        if !matches!(element, 1 | 2 | 4 | 8) {
            return Err(format!("elements of {element} bytes").into());
        }
        let (shape, [strides]) = collapse(shape, [strides]);
        Ok(Walk { start, shape, strides, element })
    }

    /// Whether the elements lie one after another.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.shape.is_empty() || self.shape.contains(&0) || self.strides == [1]
    }

    /// Copies from `x` into `out`.
    pub(crate) fn copy(&self, pool: &kernels::Pool, x: &[u8], out: &mut [u8]) {
        if self.shape.contains(&0) {
            return;
        }
        let size = self.element;
        let Some(last) = self.shape.len().checked_sub(1) else {
            out.copy_from_slice(&x[self.start * size..][..size]);
            return;
        };
        let (row, step) = (self.shape[last], self.strides[last]);
        super::for_each_chunk(pool, out, row * size, |mut r, out| {
            let mut at = self.start;
            for axis in (0..last).rev() {
                at = at.wrapping_add((r % self.shape[axis]).wrapping_mul(self.strides[axis]));
                r /= self.shape[axis];
            }
            if (step as isize) < 0 {
                for (k, o) in out.chunks_exact_mut(size).enumerate() {
                    let at = at.wrapping_add(k.wrapping_mul(step));
                    o.copy_from_slice(&x[at * size..][..size]);
                }
                return;
            }
            let x = &x[at * size..];
            match (step, size) {
                (0, _) => out.chunks_exact_mut(size).for_each(|o| o.copy_from_slice(&x[..size])),
                (1, _) => out.copy_from_slice(&x[..row * size]),
                (_, 2) => spread::<2>(x, step, out),
                (_, 4) => spread::<4>(x, step, out),
                (_, 8) => spread::<8>(x, step, out),
                _ => spread::<1>(x, step, out),
            }
        });
    }
}

/// Copies elements of `N` bytes that lie `step` apart.
fn spread<const N: usize>(x: &[u8], step: usize, out: &mut [u8]) {
    let elements = x.as_chunks::<N>().0.iter().step_by(step);
    out.as_chunks_mut::<N>().0.iter_mut().zip(elements).for_each(|(o, v)| *o = *v);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasts_collapse() {
        let out = [2, 3, 4, 5];
        let strides = [strides_in(&[2, 3, 4, 5], &out), strides_in(&[4, 5], &out)];
        assert_eq!(collapse(&out, strides), (vec![6, 20], [vec![20, 1], vec![0, 1]]));
        let strides = [strides_in(&[2, 1, 4, 5], &[2, 1, 4, 5])];
        assert_eq!(collapse(&[2, 1, 4, 5], strides), (vec![40], [vec![1]]));
    }

    #[test]
    fn a_walk_transposes() {
        let walk = Walk::new(0, &[3, 2], vec![1, 3], 1).unwrap();
        let mut out = [0; 6];
        walk.copy(&kernels::Pool::new(1), &[1, 2, 3, 4, 5, 6], &mut out);
        assert_eq!(out, [1, 4, 2, 5, 3, 6]);
    }
}
