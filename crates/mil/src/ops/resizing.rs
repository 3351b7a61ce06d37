//! Resizing and cropping the last two axes.

use super::blocks::cropped;
use super::windows::sizes;
use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::exact::{Sum, quotient};
use crate::eval::{Array, Data, EvalCx, Value, bounded, strides};
use crate::{Dim, OpError, TensorType, Type};

/// Where along an axis samples are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Grid {
    /// First and last sample at first and last element; a single one at the first.
    StrictAlignCorners,
    /// The same, a single one in the middle.
    AlignCorners,
    /// Sample `i` at `i * size / count`.
    Default,
    /// Each sample in the middle of its part of the way between first and last element.
    OffsetCorners,
    /// Each sample in the middle of its part, elements being as wide as they are apart.
    UnalignCorners,
}

impl Grid {
    /// The grid that the constant string `sampling_mode` names.
    pub(super) fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        match op.str("sampling_mode")?.unwrap_or("DEFAULT") {
            "STRICT_ALIGN_CORNERS" => Ok(Grid::StrictAlignCorners),
            "ALIGN_CORNERS" => Ok(Grid::AlignCorners),
            "DEFAULT" => Ok(Grid::Default),
            "OFFSET_CORNERS" => Ok(Grid::OffsetCorners),
            "UNALIGN_CORNERS" => Ok(Grid::UnalignCorners),
            other => Err(OpError::invalid(format!("sampling_mode \"{other}\" is unknown"))),
        }
    }

    /// Places of `count` samples over an extent of `size` elements, which may be a fraction, counted
    /// from its first one.
    pub(super) fn points(self, size: f64, count: usize) -> impl Iterator<Item = Place> {
        let (last, n) = (size - 1.0, count as f64);
        // Place `i` is `(start + i * spacing) / parts`.
        let (start, spacing, parts) = match self {
            Grid::AlignCorners if count == 1 => (last, 0.0, 2.0),
            Grid::StrictAlignCorners | Grid::AlignCorners if count > 1 => (0.0, last, n - 1.0),
            Grid::StrictAlignCorners | Grid::AlignCorners => (0.0, 0.0, 1.0),
            Grid::Default => (0.0, size, n),
            Grid::OffsetCorners => (last.max(1.0), 2.0 * last.max(1.0), 2.0 * n),
            Grid::UnalignCorners => (size - n, 2.0 * size, 2.0 * n),
        };
        (0..count).map(move |i| {
            let at = (start + i as f64 * spacing).max(0.0).min(last * parts);
            Place { at, parts }
        })
    }
}

/// A place between elements, `at / parts`: a fraction, for many a third would be inexact, and where a
/// result lies in the middle of two numbers that is the difference.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) at: f64,
    pub(super) parts: f64,
}

impl Place {
    /// The last element that is not behind the place, and how many parts of the way to the next one
    /// lie between.
    pub(super) fn split(self) -> (f64, f64) {
        let low = (self.at / self.parts).floor();
        (low, self.at - low * self.parts)
    }
}

/// The value at place `row` and `column`, as parts behind the element before and of how many, which is
/// between four: `value` gives that of the first or second row and column.
pub(super) fn blend(row: [f64; 2], column: [f64; 2], value: impl Fn(usize, usize) -> f64) -> f64 {
    let mut sum = Sum::default();
    for (i, own) in [row[1] - row[0], row[0]].into_iter().enumerate() {
        for (j, other) in [column[1] - column[0], column[0]].into_iter().enumerate() {
            // What has no weight may be infinite, or nowhere.
            if own != 0.0 && other != 0.0 {
                sum.add(value(i, j) * (own * other));
            }
        }
    }
    quotient(sum.value(), row[1] * column[1])
}

/// The last two sizes of a shape.
fn plane(shape: &[usize]) -> Result<[usize; 2], OpError> {
    match *shape {
        [_, .., h, w] if h > 0 && w > 0 => Ok([h, w]),
        _ => Err(OpError::invalid(format!("x {shape:?} has no rows and columns"))),
    }
}

/// The elements of an axis of `size` on both sides of `place`, and its parts behind the first, and of
/// how many.
fn neighbours(place: Place, size: usize) -> ([usize; 2], [f64; 2]) {
    let (low, part) = place.split();
    let low = (low as usize).min(size - 1);
    ([low, (low + 1).min(size - 1)], [part, place.parts])
}

/// `x` with the last two axes interpolated linearly at points that `grid` spreads over them.
fn bilinear(x: &Array, [rows, columns]: [usize; 2], grid: Grid) -> Result<Array, OpError> {
    let [h, w] = plane(&x.shape)?;
    let outer = &x.shape[..x.shape.len() - 2];
    let shape = [outer, &[rows, columns]].concat();
    bounded(&shape)?;
    let cells = |size, count| -> Vec<([usize; 2], [f64; 2])> {
        grid.points(size as f64, count).map(|place| neighbours(place, size)).collect()
    };
    let (ys, xs) = (cells(h, rows), cells(w, columns));
    let mut out = Vec::with_capacity(shape.iter().product());
    for plane in x.floats()?.chunks_exact(h * w) {
        for (rows, row) in &ys {
            for (columns, column) in &xs {
                out.push(blend(*row, *column, |i, j| plane[rows[i] * w + columns[j]]));
            }
        }
    }
    Ok(Array { dtype: x.dtype, shape, data: Data::Float(out) })
}

/// `x` with the last two axes sampled: place `i` of `count` is element `i * size / count`, rounded
/// down.
fn nearest(x: &Array, [rows, columns]: [usize; 2]) -> Result<Array, OpError> {
    let [h, w] = plane(&x.shape)?;
    let outer = &x.shape[..x.shape.len() - 2];
    let shape = [outer, &[rows, columns]].concat();
    bounded(&shape)?;
    let planes: usize = outer.iter().product();
    let sources = (0..planes).flat_map(|p| {
        (0..rows).flat_map(move |r| {
            let start = (p * h + r * h / rows) * w;
            (0..columns).map(move |c| start + c * w / columns)
        })
    });
    Ok(x.pick(shape, sources))
}

/// The sizes that the constants `names` give the last two axes, 1 by default.
fn target(op: &OpView<'_>, names: [&str; 2]) -> Result<[usize; 2], OpError> {
    Ok([sizes(op, names[0], 1, 1, 1)?[0], sizes(op, names[1], 1, 1, 1)?[0]])
}

const TARGET: [&str; 2] = ["target_size_height", "target_size_width"];

/// The type of `x` with other last two sizes.
fn resized(op: &OpView<'_>, sizes: [Dim; 2]) -> Result<Vec<Type>, OpError> {
    let x = op.tensor("x")?;
    if x.rank() < 3 {
        return Err(OpError::invalid(format!("x {x} has fewer than three axes")));
    }
    let shape = [&x.shape[..x.rank() - 2], &sizes].concat();
    Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
}

/// The constant scalars `scale_factor_height` and `scale_factor_width`, floats or integers, 1 by
/// default.
fn factors(op: &OpView<'_>) -> Result<[f64; 2], OpError> {
    let factor = |name: &str| {
        let factor = match op.opt_tensor(name)? {
            Some(t) if t.dtype.is_int() => op.int(name)?.unwrap_or(1) as f64,
            _ => op.float(name)?.unwrap_or(1.0),
        };
        match factor > 0.0 && factor.is_finite() {
            true => Ok(factor),
            false => Err(OpError::invalid(format!("{name} {factor} is no factor"))),
        }
    };
    Ok([factor("scale_factor_height")?, factor("scale_factor_width")?])
}

/// `floor(factor * size)`.
fn scaled(factor: f64, size: usize) -> Result<usize, OpError> {
    match (factor * size as f64).floor() {
        n if (1.0..4294967296.0).contains(&n) => Ok(n as usize),
        n => Err(OpError::invalid(format!("a factor {factor} makes {n} of {size} elements"))),
    }
}

fn upsampled(op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
    let (x, [fh, fw]) = (op.tensor("x")?, factors(op)?);
    let [.., h, w] = &*x.shape else {
        return Err(OpError::invalid(format!("x {x} has fewer than three axes")));
    };
    let size = |dim: &Dim, factor: f64| match dim.fixed() {
        Some(n) => scaled(factor, n).map(Dim::Fixed),
        None if factor == 1.0 => Ok(dim.clone()),
        None => Ok(Dim::Unknown),
    };
    resized(op, [size(h, fh)?, size(w, fw)?])
}

fn upsampled_sizes(op: &OpView<'_>, x: &Array) -> Result<[usize; 2], OpError> {
    let ([h, w], [fh, fw]) = (plane(&x.shape)?, factors(op)?);
    Ok([scaled(fh, h)?, scaled(fw, w)?])
}

/// Defines resizing operations by what they make of `x`.
macro_rules! resizings {
    ($($(#[$doc:meta])* $kind:ident $name:literal [$($param:expr),*] $infer:expr, $eval:expr,
       $flops:literal;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $kind;

            impl OpDef for $kind {
                fn name(&self) -> &'static str {
                    $name
                }

                fn params(&self) -> &'static [Param] {
                    const { &[Param::new("x", Domain::Float), $($param),*] }
                }

                fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
                    let infer: fn(&OpView<'_>) -> Result<Vec<Type>, OpError> = $infer;
                    infer(op)
                }

                fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
                    let eval: fn(&OpView<'_>, &Array) -> Result<Array, OpError> = $eval;
                    Ok(vec![eval(&cx.op, &*cx.array("x")?)?.into()])
                }

                /// Of linear interpolation, nine an element: three times two products and a sum.
                fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
                    $flops * elements(results)
                }
            }
        )*
    };
}

/// How the constants `align_corners` and `half_pixel_centers` place the samples.
fn corners(op: &OpView<'_>) -> Result<Grid, OpError> {
    let align = op.bool_or("align_corners", true)?;
    match (align, op.bool_or("half_pixel_centers", !align)?) {
        (true, false) => Ok(Grid::StrictAlignCorners),
        (false, true) => Ok(Grid::UnalignCorners),
        (false, false) => Ok(Grid::Default),
        (true, true) => Err(OpError::invalid("align_corners and half_pixel_centers both hold")),
    }
}

resizings! {
    /// The last two axes made larger by the constants `scale_factor_height` and `scale_factor_width`
    /// (1 by default), sizes rounded down: place `i` is element `i * size / new size`, rounded down.
    UpsampleNearestNeighbor "upsample_nearest_neighbor"
        [Param::new("scale_factor_height", Domain::Number).optional().constant(),
         Param::new("scale_factor_width", Domain::Number).optional().constant()]
        upsampled, |op, x| nearest(x, upsampled_sizes(op, x)?), 0.0;
    /// The last two axes made larger by the constants `scale_factor_height` and `scale_factor_width`
    /// (1 by default), sizes rounded down, by linear interpolation.
    ///
    /// Constants: `align_corners` (true by default) places the first and last sample on the first
    /// and last element; else `half_pixel_centers` (its opposite by default) makes `(i + 1/2) * size /
    /// new size - 1/2` of place `i`, and else it is `i * size / new size`.
    UpsampleBilinear "upsample_bilinear"
        [Param::new("scale_factor_height", Domain::Number).optional().constant(),
         Param::new("scale_factor_width", Domain::Number).optional().constant(),
         Param::new("align_corners", Domain::Bool).optional().constant(),
         Param::new("half_pixel_centers", Domain::Bool).optional().constant()]
        |op| corners(op).and_then(|_| upsampled(op)),
        |op, x| bilinear(x, upsampled_sizes(op, x)?, corners(op)?), 9.0;
    /// The last two axes sampled to the constants `target_size_height` and `target_size_width`: place
    /// `i` is element `i * size / new size`, rounded down.
    ResizeNearestNeighbor "resize_nearest_neighbor"
        [Param::new("target_size_height", Domain::Int).constant(),
         Param::new("target_size_width", Domain::Int).constant()]
        |op| resized(op, target(op, TARGET)?.map(Dim::Fixed)),
        |op, x| nearest(x, target(op, TARGET)?), 0.0;
    /// The last two axes interpolated linearly to the constants `target_size_height` and
    /// `target_size_width` (1 by default).
    ///
    /// The constant `sampling_mode` places the samples: `DEFAULT` at `i * size / new size`,
    /// `STRICT_ALIGN_CORNERS` with first and last on first and last element, `ALIGN_CORNERS` also, but
    /// a single one in the middle, `UNALIGN_CORNERS` at `(i + 1/2) * size / new size - 1/2`,
    /// `OFFSET_CORNERS` at `(i + 1/2) * max(1, size - 1) / new size`; all confined to the elements.
    ResizeBilinear "resize_bilinear"
        [Param::new("target_size_height", Domain::Int).optional().constant(),
         Param::new("target_size_width", Domain::Int).optional().constant(),
         Param::new("sampling_mode", Domain::Str).optional().constant()]
        |op| Grid::of(op).and_then(|_| resized(op, target(op, TARGET)?.map(Dim::Fixed))),
        |op, x| bilinear(x, target(op, TARGET)?, Grid::of(op)?), 9.0;
    /// `x` without rows and columns at its sides: the constants `crop_height` and `crop_width` say how
    /// many before and behind.
    Crop "crop"
        [Param::new("crop_height", Domain::Int).constant(),
         Param::new("crop_width", Domain::Int).constant()]
        crop_type, |op, x| cropped(x, crops(op)?), 0.0;
}

fn crops(op: &OpView<'_>) -> Result<[usize; 4], OpError> {
    let (h, w) = (sizes(op, "crop_height", 2, 0, 0)?, sizes(op, "crop_width", 2, 0, 0)?);
    Ok([h[0], h[1], w[0], w[1]])
}

fn crop_type(op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
    let (x, [top, bottom, left, right]) = (op.tensor("x")?, crops(op)?);
    let [.., h, w] = &*x.shape else {
        return Err(OpError::invalid(format!("x {x} has fewer than three axes")));
    };
    let size = |dim: &Dim, [a, b]: [usize; 2]| match dim.fixed() {
        Some(n) => n
            .checked_sub(a)
            .and_then(|n| n.checked_sub(b))
            .filter(|&n| n > 0)
            .map(Dim::Fixed)
            .ok_or_else(|| OpError::invalid(format!("x {x} is too small to be cropped"))),
        None if [a, b] == [0, 0] => Ok(dim.clone()),
        None => Ok(Dim::Unknown),
    };
    resized(op, [size(h, [top, bottom])?, size(w, [left, right])?])
}

/// The last `resized_dims` (a constant) axes of `x` resized to the last items of the vector `shape`, 0
/// keeping a size.
///
/// Constants: `interpolation_mode` `LINEAR` (default), along each of them, kept sizes too, or
/// `NEAREST_NEIGHBOR`; `sampling_mode` as of `resize_bilinear`. Where the nearest element is, coremltools
/// says for `DEFAULT` only: as in `resize_nearest_neighbor`.
pub(super) struct Resize;

impl Resize {
    /// Whether to interpolate, and where.
    fn mode(op: &OpView<'_>) -> Result<Option<Grid>, OpError> {
        let grid = Grid::of(op)?;
        match op.str("interpolation_mode")?.unwrap_or("LINEAR") {
            "LINEAR" if op.tensor("x")?.dtype.is_float() => Ok(Some(grid)),
            "LINEAR" => Err(OpError::unsupported("interpolation of integers")),
            "NEAREST_NEIGHBOR" if grid == Grid::Default => Ok(None),
            "NEAREST_NEIGHBOR" => Err(OpError::unsupported(
                "the nearest element in another sampling_mode than DEFAULT",
            )),
            other => Err(OpError::invalid(format!("interpolation_mode \"{other}\" is unknown"))),
        }
    }

    /// The shape of the result, the vector `shape` having `given` for items.
    fn shape<T: Clone>(
        op: &OpView<'_>,
        x: &[T],
        items: usize,
        given: impl Fn(usize) -> Result<Option<T>, OpError>,
    ) -> Result<Vec<T>, OpError> {
        let count = sizes(op, "resized_dims", 1, 1, 0)?[0];
        if count > items || items > x.len() {
            return Err(OpError::invalid(format!(
                "{count} of {items} sizes for an x of {} axes",
                x.len()
            )));
        }
        let mut shape = x.to_vec();
        for (i, size) in shape[x.len() - count..].iter_mut().enumerate() {
            if let Some(new) = given(items - count + i)? {
                *size = new;
            }
        }
        Ok(shape)
    }
}

impl OpDef for Resize {
    fn name(&self) -> &'static str {
        "resize"
    }

    fn opset(&self) -> crate::Opset {
        crate::Opset::Ios17
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Number),
                Param::new("shape", Domain::Int),
                Param::new("resized_dims", Domain::Int).constant(),
                Param::new("interpolation_mode", Domain::Str).optional().constant(),
                Param::new("sampling_mode", Domain::Str).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, target) = (op.tensor("x")?, op.tensor("shape")?);
        Self::mode(op)?;
        let items = match target.fixed_shape().as_deref() {
            Some(&[n]) => n,
            _ => return Err(OpError::invalid(format!("shape {target} is no vector"))),
        };
        let values = op.literal("shape").map(|_| op.ints("shape")).transpose()?.flatten();
        let shape = Self::shape(op, &x.shape, items, |i| match &values {
            Some(values) => Ok(item(values[i])?.map(Dim::Fixed)),
            None => Ok(Some(Dim::Unknown)),
        })?;
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, target) = (cx.array("x")?, cx.array("shape")?);
        let values = target.ints()?;
        let shape = Self::shape(&cx.op, &x.shape, values.len(), |i| item(values[i]))?;
        bounded(&shape)?;
        let mode = Self::mode(&cx.op)?;
        if shape.iter().zip(&x.shape).any(|(&new, &old)| new != 0 && old == 0) {
            return Err(OpError::invalid(format!("x {:?} is empty", x.shape)));
        }
        let count = sizes(&cx.op, "resized_dims", 1, 1, 0)?[0];
        let out = match mode {
            Some(grid) => linear_of(&x, shape, count, grid)?,
            None => nearest_of(&x, shape),
        };
        Ok(vec![out.into()])
    }

    /// Three an element and axis.
    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        let axes = op.int("resized_dims").ok().flatten().unwrap_or(1);
        3.0 * axes as f64 * elements(results)
    }
}

/// A size in the vector `shape`; `None` for 0, which keeps the one there is.
fn item(value: i64) -> Result<Option<usize>, OpError> {
    match usize::try_from(value) {
        Ok(0) => Ok(None),
        Ok(n) => Ok(Some(n)),
        Err(_) => Err(OpError::invalid(format!("a size of {value}"))),
    }
}

/// `x` sampled to `shape`, of as many axes, at the nearest element before.
fn nearest_of(x: &Array, shape: Vec<usize>) -> Array {
    let steps = strides(&x.shape);
    let mut sources = vec![0];
    for (axis, &size) in shape.iter().enumerate() {
        let old = x.shape[axis];
        let step = steps[axis] as usize;
        let own = |from: usize| (0..size).map(move |i| from + i * old / size * step);
        sources = sources.into_iter().flat_map(own).collect();
    }
    x.pick(shape, sources.into_iter())
}

/// `x` interpolated linearly to `shape`, of as many axes, along the last `count` ones at the points of
/// a grid.
fn linear_of(x: &Array, shape: Vec<usize>, count: usize, grid: Grid) -> Result<Array, OpError> {
    let steps = strides(&x.shape);
    let grids: Vec<Vec<([usize; 2], [f64; 2])>> = shape
        .iter()
        .enumerate()
        .map(|(axis, &size)| match axis + count >= shape.len() {
            true => {
                let old = x.shape[axis];
                grid.points(old as f64, size).map(|place| neighbours(place, old)).collect()
            }
            false => (0..size).map(|i| ([i, i], [0.0, 1.0])).collect(),
        })
        .collect();
    let values = x.floats()?;
    let elements = shape.iter().product();
    let mut data = Vec::with_capacity(elements);
    let mut at = vec![0; shape.len()];
    // Where the neighbours of an element lie and what each weighs, and the product of the whole weights.
    let (mut corners, mut longer): (Vec<(usize, f64)>, Vec<_>) = (Vec::new(), Vec::new());
    for _ in 0..elements {
        corners.clear();
        corners.push((0, 1.0));
        let mut whole = 1.0;
        for (axis, &i) in at.iter().enumerate() {
            let ([low, high], [part, parts]) = grids[axis][i];
            let sides = [(low, parts - part), (high, part)];
            for (place, weight) in sides.into_iter().filter(|(_, weight)| *weight != 0.0) {
                let step = place * steps[axis] as usize;
                longer.extend(corners.iter().map(|&(from, own)| (from + step, own * weight)));
            }
            std::mem::swap(&mut corners, &mut longer);
            longer.clear();
            whole *= parts;
        }
        let sum: Sum = corners.iter().map(|&(from, weight)| values[from] * weight).collect();
        data.push(quotient(sum.value(), whole));
        for axis in (0..shape.len()).rev() {
            at[axis] += 1;
            if at[axis] < shape[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
    Ok(Array { dtype: x.dtype, shape, data: Data::Float(data) })
}
