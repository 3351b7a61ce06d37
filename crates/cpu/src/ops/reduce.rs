//! Reductions over axes.

use mil::OpError;
use tensor::DType;

use super::for_each_chunk;
use super::strided::{collapse, row_major};
use crate::kernel::{Kernel, Native, RunCx, f32s, f32s_mut, numbers_mut};
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
    /// The sum of their magnitudes.
    Norm1,
    /// The root of the sum of their squares.
    Norm2,
    /// The logarithm of their sum.
    LogSum,
    /// The logarithm of the sum of their exponentials.
    LogSumExp,
    /// Their product.
    Product,
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
    fn fold(&self, values: impl Iterator<Item = f32> + Clone) -> f32 {
        let wide = values.map(f64::from);
        let n = self.reduced.len() as f64;
        let reduced = match self.reduction {
            Reduction::Sum => wide.sum(),
            Reduction::Mean => wide.sum::<f64>() / n,
            Reduction::SumSquare => wide.map(|v| v * v).sum(),
            Reduction::Norm1 => wide.map(f64::abs).sum(),
            Reduction::Norm2 => wide.map(|v| v * v).sum::<f64>().sqrt(),
            Reduction::LogSum => wide.sum::<f64>().ln(),
            Reduction::LogSumExp => {
                let max = wide.clone().fold(f64::NEG_INFINITY, f64::max);
                match max.is_infinite() {
                    true => max,
                    false => max + wide.map(|v| (v - max).exp()).sum::<f64>().ln(),
                }
            }
            Reduction::Product => wide.product(),
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

/// Results computed together where the elements of one do not lie side by side.
const LANES: usize = 64;

impl Reduce {
    /// Whether neighbouring results read neighbouring elements, and their sums are all there is.
    fn runs_along(&self, results: usize) -> bool {
        let sums = matches!(
            self.reduction,
            Reduction::Sum | Reduction::Mean | Reduction::SumSquare | Reduction::Norm2
        );
        let contiguous = self.kept.strides.last() == Some(&1)
            && self.kept.shape.last().is_some_and(|n| n % LANES == 0 || *n == results);
        sums && contiguous && self.reduced.strides.last().is_some_and(|&s| s != 1)
    }

    /// Some neighbouring results at a time.
    fn lanes(&self, cx: &RunCx<'_>, x: &[f32], out: &mut [f32]) {
        let n = self.reduced.len();
        let offsets: Vec<usize> = (0..n).map(|k| self.reduced.offset(k)).collect();
        for_each_chunk(cx.pool, out, LANES, |i, out| {
            let x = &x[self.kept.offset(i * LANES)..];
            let mut sums = [0f64; LANES];
            for &at in &offsets {
                let row = &x[at..][..out.len()];
                match self.reduction {
                    Reduction::SumSquare | Reduction::Norm2 => {
                        let squares = row.iter().map(|&v| f64::from(v) * f64::from(v));
                        sums.iter_mut().zip(squares).for_each(|(sum, v)| *sum += v);
                    }
                    _ => sums.iter_mut().zip(row).for_each(|(sum, &v)| *sum += f64::from(v)),
                }
            }
            for (o, sum) in out.iter_mut().zip(sums) {
                *o = match self.reduction {
                    Reduction::Mean => sum / n as f64,
                    Reduction::Norm2 => sum.sqrt(),
                    _ => sum,
                } as f32;
            }
        });
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
        if self.runs_along(f32s_mut(outs[0]).len()) {
            self.lanes(cx, x, f32s_mut(outs[0]));
            return Ok(());
        }
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

/// Binds the search for the index of an extreme, `greatest` or least, along one axis.
pub(crate) fn extreme(cx: &mut OpCx<'_>, greatest: bool) -> Bind<Native> {
    let x = cx.float("x")?;
    let axis = cx.view.axis(cx.view.int("axis")?.unwrap_or(-1), x.shape.len())?;
    let (dtype, _) = cx.result(0)?;
    if x.len() == 0 {
        return Err("no elements".into());
    }
    let inner = x.shape[axis + 1..].iter().product();
    let narrow = dtype == DType::U16;
    Ok(Native::moves(Extreme { size: x.shape[axis], inner, greatest, narrow }, vec![x]))
}

struct Extreme {
    size: usize,
    /// Elements between neighbours along the axis.
    inner: usize,
    greatest: bool,
    /// Whether the results are `uint16`, not `int32`.
    narrow: bool,
}

impl Extreme {
    /// The first index of the best of the numbers.
    fn of(&self, lane: impl Iterator<Item = f32>) -> usize {
        let mut best = (0, f32::NAN);
        for (i, v) in lane.enumerate() {
            if i == 0 || (if self.greatest { v > best.1 } else { v < best.1 }) {
                best = (i, v);
            }
        }
        best.0
    }
}

impl Kernel for Extreme {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let x = f32s(ins[0]);
        let index = |i: usize| {
            let start = i / self.inner * self.size * self.inner + i % self.inner;
            self.of(x[start..].iter().step_by(self.inner).take(self.size).copied())
        };
        match self.narrow {
            true => for_each_chunk(cx.pool, numbers_mut::<u16>(outs[0]), 1, |i, out| {
                out[0] = index(i) as u16;
            }),
            false => for_each_chunk(cx.pool, numbers_mut::<i32>(outs[0]), 1, |i, out| {
                out[0] = index(i) as i32;
            }),
        }
        Ok(())
    }
}
