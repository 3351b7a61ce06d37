//! Reductions over axes.

use mil::OpError;

use super::for_each_chunk;
use super::strided::{collapse, row_major};
use crate::kernel::{Kernel, Native, RunCx, f32s, f32s_mut};
use crate::op_cx::{Bind, OpCx};

/// What the elements become.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Reduction {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The greatest.
    Max,
    /// The least.
    Min,
    /// The sum of their squares.
    SumSquare,
}

/// Binds a reduction.
pub(crate) fn reduce(cx: &mut OpCx<'_>, reduction: Reduction) -> Bind<Native> {
    let x = cx.float("x")?;
    let rank = x.shape.len();
    let axes = match cx.view.ints("axes")? {
        None => (0..rank).collect(),
        Some(axes) => axes.iter().map(|&a| cx.view.axis(a, rank)).collect::<Result<Vec<_>, _>>()?,
    };
    if x.shape.contains(&0) {
        return Err("no elements".into());
    }
    let strides = row_major(&x.shape);
    let part = |reduced: bool| {
        let chosen = (0..rank).filter(|a| axes.contains(a) == reduced);
        let (shape, strides): (Vec<_>, Vec<_>) = chosen.map(|a| (x.shape[a], strides[a])).unzip();
        let (shape, [strides]) = collapse(&shape, [strides]);
        Axes { shape, strides }
    };
    let kernel = Reduce { reduction, kept: part(false), reduced: part(true) };
    Ok(Native::floats(kernel, vec![x]))
}

/// Axes of the argument with their strides.
struct Axes {
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Axes {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Offset of place number `n`.
    fn offset(&self, mut n: usize) -> usize {
        let mut offset = 0;
        for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
            offset += n % size * stride;
            n /= size;
        }
        offset
    }
}

struct Reduce {
    reduction: Reduction,
    kept: Axes,
    reduced: Axes,
}

impl Reduce {
    fn fold(&self, values: impl Iterator<Item = f32>) -> f32 {
        let wide = values.map(f64::from);
        let n = self.reduced.len() as f64;
        let reduced = match self.reduction {
            Reduction::Sum => wide.sum(),
            Reduction::Mean => wide.sum::<f64>() / n,
            Reduction::SumSquare => wide.map(|v| v * v).sum(),
            Reduction::Max => {
                wide.fold(f64::NEG_INFINITY, |m, v| if v > m || v.is_nan() { v } else { m })
            }
            Reduction::Min => {
                wide.fold(f64::INFINITY, |m, v| if v < m || v.is_nan() { v } else { m })
            }
        };
        reduced as f32
    }
}

impl Kernel for Reduce {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let x = f32s(ins[0]);
        let n = self.reduced.len();
        for_each_chunk(cx.pool, f32s_mut(outs[0]), 1, |i, out| {
            let x = &x[self.kept.offset(i)..];
            out[0] = match self.reduced.strides[..] {
                [] => self.fold(x[..1].iter().copied()),
                [1] => self.fold(x[..n].iter().copied()),
                _ => self.fold((0..n).map(|k| x[self.reduced.offset(k)])),
            };
        });
        Ok(())
    }
}
