//! Convolution over up to three spatial axes, and pooling.
//!
//! With enough outputs a group, a convolution is a product of the weights with the places that each
//! output sees, gathered while they are packed ([`crate::columns`]); of a kernel of one element that
//! is a copy. Otherwise (depthwise) rows of the input are added with their weights.

use std::ops::Range;

use crate::Pool;
use crate::arch::{Kernel, Simd};
use crate::columns::{Source, product};
use crate::matmul::Matrix;
use crate::panel::WIDTH;
use crate::share::Shared;

/// Outputs of a group from which on the product of matrices is faster.
const PRODUCT_ROWS: usize = 8;

/// One spatial axis: output `o` sees the elements `o * stride + k * dilation - before` for `k` in
/// `0..kernel`; those outside are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Elements of the input.
    pub size: usize,
    /// Elements of the kernel.
    pub kernel: usize,
    /// Outputs.
    pub out: usize,
    /// Padding in front.
    pub before: usize,
    /// Distance of the places of neighbouring outputs.
    pub stride: usize,
    /// Distance of the elements that a kernel sees.
    pub dilation: usize,
}

impl Axis {
    /// The element that output `o` sees at place `k` of the kernel.
    #[inline(always)]
    fn element(&self, o: usize, k: usize) -> Option<usize> {
        (o * self.stride + k * self.dilation).checked_sub(self.before).filter(|&e| e < self.size)
    }

    /// The outputs below `end` and from `first` on whose place `k` is an element.
    #[inline(always)]
    fn inside(&self, k: usize, first: usize, end: usize) -> Range<usize> {
        let shift = k * self.dilation;
        let low = self.before.saturating_sub(shift).div_ceil(self.stride).clamp(first, end);
        let high = (self.size + self.before).saturating_sub(shift).div_ceil(self.stride);
        low..high.clamp(low, end)
    }
}

/// Sizes of a convolution: `x` `[batch, groups * inputs, d, h, w]`, weight `[groups * outputs,
/// inputs * kernel]`, result `[batch, groups * outputs, d, h, w]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conv {
    /// Images.
    pub batch: usize,
    /// Groups of channels that do not mix.
    pub groups: usize,
    /// Input channels of a group.
    pub inputs: usize,
    /// Output channels of a group.
    pub outputs: usize,
    /// Depth, height and width; unused ones in front have one element.
    pub axes: [Axis; 3],
}

impl Conv {
    fn source(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }

    fn plane(&self) -> usize {
        self.axes.iter().map(|a| a.out).product()
    }

    fn taps(&self) -> usize {
        self.axes.iter().map(|a| a.kernel).product()
    }

    /// Whether every output sees the element in its place only.
    fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|a| (a.kernel, a.stride, a.before, a.out) == (1, 1, 0, a.size))
    }
}

/// The convolution of `x` with `weight` `[groups * outputs, inputs * kernel]` plus `bias`
/// `[groups * outputs]`.
///
/// # Panics
/// When a slice does not have the length that its shape says.
pub fn conv(
    pool: &Pool,
    args: &Conv,
    x: &[f32],
    weight: Matrix<'_>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let Conv { batch, groups, inputs, outputs, .. } = *args;
    let (source, plane, taps) = (args.source(), args.plane(), args.taps());
    assert_eq!(x.len(), batch * groups * inputs * source, "input does not fit {args:?}");
    assert_eq!(out.len(), batch * groups * outputs * plane, "output does not fit {args:?}");
    let shape = (weight.rows(), weight.cols());
    assert_eq!(shape, (groups * outputs, inputs * taps), "weight does not fit {args:?}");
    assert!(bias.is_none_or(|b| b.len() == groups * outputs), "bias does not fit {args:?}");
    if x.is_empty() || out.is_empty() {
        // Nothing but the bias, which an empty sum leaves.
        let planes = out.chunks_exact_mut(plane.max(1)).enumerate();
        planes.for_each(|(i, y)| y.fill(bias.map_or(0.0, |b| b[i % (groups * outputs)])));
        return;
    }
    if outputs < PRODUCT_ROWS && (taps > 1 || inputs < PRODUCT_ROWS) {
        return direct(pool, args, x, weight, bias, out);
    }
    for (i, out) in out.chunks_exact_mut(outputs * plane).enumerate() {
        let group = i % groups;
        let rows = group * outputs..(group + 1) * outputs;
        let x = &x[i * inputs * source..][..inputs * source];
        let right = Gathered { args, pointwise: args.is_pointwise(), x };
        let bias = bias.map(|b| &b[rows.clone()]);
        product(pool, weight.slice(rows), &right, bias, out);
    }
}

/// What the outputs of one image and group see: `[inputs * kernel, outputs of a plane]`.
struct Gathered<'a> {
    args: &'a Conv,
    pointwise: bool,
    x: &'a [f32],
}

impl Source for Gathered<'_> {
    fn columns(&self) -> usize {
        self.args.plane()
    }

    #[inline(always)]
    fn fill<S: Simd>(&self, _: S, first: usize, out: &mut [[f32; WIDTH]]) {
        let plane = self.args.plane();
        let end = plane.min(first + WIDTH);
        if self.pointwise {
            for (x, out) in self.x.chunks_exact(plane).zip(out) {
                let (now, rest) = out.split_at_mut(end - first);
                now.copy_from_slice(&x[first..end]);
                rest.fill(0.0);
            }
            return;
        }
        out.fill([0.0; WIDTH]);
        let [d, h, w] = &self.args.axes;
        let mut at = first;
        while at < end {
            // Outputs of one row.
            let (row, column) = (at / w.out, at % w.out);
            let count = (w.out - column).min(end - at);
            let (od, oh) = (row / h.out, row % h.out);
            let mut k = 0;
            for x in self.x.chunks_exact(self.args.source()) {
                for kd in 0..d.kernel {
                    for kh in 0..h.kernel {
                        if let (Some(id), Some(ih)) = (d.element(od, kd), h.element(oh, kh)) {
                            let x = &x[(id * h.size + ih) * w.size..][..w.size];
                            for (kw, out) in out[k..k + w.kernel].iter_mut().enumerate() {
                                let lanes = &mut out[at - first..][..count];
                                gather_row(w, kw, x, column, lanes);
                            }
                        }
                        k += w.kernel;
                    }
                }
            }
            at += count;
        }
    }
}

/// The elements of row `x` that outputs from `column` on see at place `k`.
#[inline(always)]
fn gather_row(w: &Axis, k: usize, x: &[f32], column: usize, out: &mut [f32]) {
    let inside = w.inside(k, column, column + out.len());
    if inside.is_empty() {
        return;
    }
    let out = &mut out[inside.start - column..inside.end - column];
    let from = &x[inside.start * w.stride + k * w.dilation - w.before..];
    if w.stride == 1 {
        out.copy_from_slice(&from[..out.len()]);
    } else {
        out.iter_mut().zip(from.iter().step_by(w.stride)).for_each(|(o, x)| *o = *x);
    }
}

/// One output plane a task: rows of the input are added with their weights.
fn direct(
    pool: &Pool,
    args: &Conv,
    x: &[f32],
    weight: Matrix<'_>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let Conv { groups, inputs, outputs, .. } = *args;
    let (source, plane) = (args.source(), args.plane());
    let planes = out.len() / plane;
    let out = Shared::new(out);
    pool.run(planes, |i| {
        // SAFETY: a plane belongs to one task.
        let out = unsafe { out.slice(i * plane..(i + 1) * plane) };
        let channel = i % (groups * outputs);
        let first = (i / (groups * outputs) * groups + channel / outputs) * inputs;
        out.fill(bias.map_or(0.0, |b| b[channel]));
        let x = &x[first * source..][..inputs * source];
        pool.isa().run(Direct { args, x, weight: weight.slice(channel..channel + 1), out });
    });
}

struct Direct<'a> {
    args: &'a Conv,
    x: &'a [f32],
    weight: Matrix<'a>,
    out: &'a mut [f32],
}

impl Kernel for Direct<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let [d, h, w] = &self.args.axes;
        let mut row = crate::scratch::Scratch::new(self.weight.cols());
        let weights = &mut row[..];
        crate::convert::Decode { matrix: self.weight, row: 0, first: 0, out: weights }.run(s);
        let taps = self.args.taps();
        for (x, weights) in self.x.chunks_exact(self.args.source()).zip(weights.chunks(taps)) {
            for (place, weights) in weights.chunks_exact(w.kernel).enumerate() {
                let (kd, kh) = (place / h.kernel, place % h.kernel);
                for od in d.inside(kd, 0, d.out) {
                    let id = od * d.stride + kd * d.dilation - d.before;
                    for oh in h.inside(kh, 0, h.out) {
                        let ih = oh * h.stride + kh * h.dilation - h.before;
                        let x = &x[(id * h.size + ih) * w.size..][..w.size];
                        let out = &mut self.out[(od * h.out + oh) * w.out..][..w.out];
                        for (k, weight) in weights.iter().enumerate() {
                            add_row(w, k, x, *weight, out);
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn add_row(w: &Axis, k: usize, x: &[f32], weight: f32, out: &mut [f32]) {
    let inside = w.inside(k, 0, w.out);
    if inside.is_empty() {
        return;
    }
    let from = &x[inside.start * w.stride + k * w.dilation - w.before..];
    let out = &mut out[inside];
    if w.stride == 1 {
        out.iter_mut().zip(from).for_each(|(o, x)| *o += weight * x);
    } else {
        out.iter_mut().zip(from.iter().step_by(w.stride)).for_each(|(o, x)| *o += weight * x);
    }
}

/// What pooling makes of the elements that an output sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pooling {
    /// The greatest; NaN if one is.
    Max,
    /// Their sum.
    Sum,
    /// The sum of their squares.
    SumSquare,
}

/// Pools every plane of `x` `[planes, d, h, w]` over the windows of `axes`; padding does not count.
///
/// # Panics
/// When a slice does not have the length that its shape says.
pub fn pool_windows(pool: &Pool, pooling: Pooling, axes: &[Axis; 3], x: &[f32], out: &mut [f32]) {
    let source: usize = axes.iter().map(|a| a.size).product();
    let plane: usize = axes.iter().map(|a| a.out).product();
    let planes = out.len().checked_div(plane).unwrap_or(0);
    assert_eq!(out.len(), planes * plane, "output is not whole planes");
    assert_eq!(x.len(), planes * source, "input does not fit {axes:?}");
    let out = Shared::new(out);
    pool.run(planes, |i| {
        // SAFETY: a plane belongs to one task.
        let out = unsafe { out.slice(i * plane..(i + 1) * plane) };
        pool.isa().run(Pooled { pooling, axes, x: &x[i * source..][..source], out });
    });
}

struct Pooled<'a> {
    pooling: Pooling,
    axes: &'a [Axis; 3],
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Pooled<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        match self.pooling {
            Pooling::Max => {
                self.each(f32::NEG_INFINITY, |m, x| if x > m || x.is_nan() { x } else { m });
            }
            Pooling::Sum => self.each(0.0, |sum, x| sum + x),
            Pooling::SumSquare => self.each(0.0, |sum, x| sum + x * x),
        }
    }
}

impl Pooled<'_> {
    #[inline(always)]
    fn each(self, start: f32, f: impl Fn(f32, f32) -> f32 + Copy) {
        let [d, h, w] = self.axes;
        for (row, out) in self.out.chunks_exact_mut(w.out).enumerate() {
            out.fill(start);
            let (od, oh) = (row / h.out, row % h.out);
            for id in (0..d.kernel).filter_map(|k| d.element(od, k)) {
                for ih in (0..h.kernel).filter_map(|k| h.element(oh, k)) {
                    let x = &self.x[(id * h.size + ih) * w.size..][..w.size];
                    for k in 0..w.kernel {
                        fold_row(w, k, x, out, f);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn fold_row(w: &Axis, k: usize, x: &[f32], out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    let inside = w.inside(k, 0, w.out);
    if inside.is_empty() {
        return;
    }
    let from = &x[inside.start * w.stride + k * w.dilation - w.before..];
    let out = &mut out[inside];
    if w.stride == 1 {
        out.iter_mut().zip(from).for_each(|(o, x)| *o = f(*o, *x));
    } else {
        out.iter_mut().zip(from.iter().step_by(w.stride)).for_each(|(o, x)| *o = f(*o, *x));
    }
}
