//! Sampling images at points: given ones, those of an affine map, those of boxes.

use super::resizing::{Grid, Place, blend};
use super::windows::sizes;
use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::{Array, Data, EvalCx, Value, bounded};
use crate::{Dim, OpError, Opset, TensorType, Type};

/// What lies outside of an image.
#[derive(Clone, Copy, PartialEq)]
enum Padding {
    /// A number.
    Constant(f64),
    /// The nearest element.
    Border,
    /// The image reflected at the middle of its outermost elements.
    Reflection,
    /// The image reflected at its edges.
    Symmetric,
}

impl Padding {
    fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        match op.str("padding_mode")?.unwrap_or_default() {
            "constant" => Ok(Padding::Constant(op.float("padding_value")?.unwrap_or(0.0))),
            "border" => Ok(Padding::Border),
            "reflection" => Ok(Padding::Reflection),
            "symmetric" => Ok(Padding::Symmetric),
            other => Err(OpError::invalid(format!("padding_mode \"{other}\" is unknown"))),
        }
    }

    /// The element that stands at `at` along an axis of `size`; `None` outside of it.
    fn element(self, at: f64, size: usize) -> Option<usize> {
        let (n, inside) = (size as f64, at >= 0.0 && at < size as f64);
        let at = match self {
            _ if inside => at,
            // Beyond all images of the axis, and nowhere.
            _ if !at.is_finite() => return None,
            Padding::Constant(_) => return None,
            Padding::Border => at.clamp(0.0, n - 1.0),
            Padding::Reflection if size == 1 => 0.0,
            Padding::Reflection => {
                let period = 2.0 * (n - 1.0);
                let at = at.rem_euclid(period);
                at.min(period - at)
            }
            Padding::Symmetric => {
                let at = at.rem_euclid(2.0 * n);
                at.min(2.0 * n - 1.0 - at)
            }
        };
        Some(at as usize)
    }
}

/// How the value at a point comes about.
#[derive(Clone, Copy)]
struct Sampler {
    linear: bool,
    padding: Padding,
}

impl Sampler {
    fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        let linear = match op.str("sampling_mode")?.unwrap_or_default() {
            "bilinear" => true,
            "nearest" => false,
            other => return Err(OpError::invalid(format!("sampling_mode \"{other}\" is unknown"))),
        };
        Ok(Sampler { linear, padding: Padding::of(op)? })
    }

    /// The value of the plane `[h, w]` at row `y` and column `x`.
    fn at(&self, plane: &[f64], [h, w]: [usize; 2], y: Place, x: Place) -> f64 {
        let value = |y: f64, x: f64| match (
            self.padding.element(y, h),
            self.padding.element(x, w),
            self.padding,
        ) {
            (Some(y), Some(x), _) => plane[y * w + x],
            (_, _, Padding::Constant(v)) => v,
            _ => f64::NAN,
        };
        if !self.linear {
            let nearest = |place: Place| (place.at / place.parts).round_ties_even();
            return value(nearest(y), nearest(x));
        }
        let ((top, down), (left, right)) = (y.split(), x.split());
        blend([down, y.parts], [right, x.parts], |i, j| value(top + i as f64, left + j as f64))
    }
}

/// The unit of coordinates along an axis.
#[derive(Clone, Copy)]
struct Coordinates {
    /// The coordinates of the first and last element or edge; `None` for elements counted from 0.
    range: Option<[f64; 2]>,
    align: bool,
}

impl Coordinates {
    fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        let range = match op.str("coordinates_mode")?.unwrap_or_default() {
            "unnormalized" => None,
            "normalized_minus_one_to_one" => Some([-1.0, 1.0]),
            "normalized_zero_to_one" => Some([0.0, 1.0]),
            other => {
                return Err(OpError::invalid(format!("coordinates_mode \"{other}\" is unknown")));
            }
        };
        Ok(Coordinates { range, align: op.bool_or("align_corners", false)? })
    }

    /// The place, in elements, of the coordinate `at / parts` along an axis of `size`.
    fn place(&self, Place { at, parts }: Place, size: usize) -> Place {
        let Some([low, high]) = self.range else { return Place { at, parts } };
        // The extents are 1 and 2, by which nothing is lost.
        let way = (at - low * parts) / (high - low);
        let at = match self.align {
            true => way * (size as f64 - 1.0),
            false => way * size as f64 - 0.5 * parts,
        };
        Place { at, parts }
    }

    /// The coordinate of element `i` of `size`, as a fraction too.
    fn coordinate(&self, i: usize, size: usize) -> Place {
        let (i, size) = (i as f64, size as f64);
        let Some([low, high]) = self.range else { return Place { at: i, parts: 1.0 } };
        let (way, parts) = match self.align {
            true if size == 1.0 => (0.0, 1.0),
            true => (i, size - 1.0),
            false => (2.0 * i + 1.0, 2.0 * size),
        };
        Place { at: low * parts + way * (high - low), parts }
    }
}

fn image(shape: &[usize]) -> Result<[usize; 4], OpError> {
    let sizes = <[usize; 4]>::try_from(shape).ok().filter(|s| s[2] > 0 && s[3] > 0);
    sizes.ok_or_else(|| OpError::invalid(format!("x {shape:?} is no image [n, c, h, w]")))
}

/// The type of images like `x` of other sizes.
fn image_type(x: &TensorType, first: Vec<Dim>, rows: Dim, columns: Dim) -> Result<Type, OpError> {
    if x.rank() != 4 {
        return Err(OpError::invalid(format!("x {x} is no image [n, c, h, w]")));
    }
    let shape = [first, vec![x.shape[1].clone(), rows, columns]].concat();
    Ok(TensorType { dtype: x.dtype, shape }.into())
}

/// Nine an element: linear interpolation is three times two products and a sum.
fn flops(results: &[Type]) -> f64 {
    9.0 * elements(results)
}

/// The image `x` `[b, c, h, w]` at `coordinates` `[b, h', w', 2]`, pairs of column and row: `[b, c,
/// h', w']`.
///
/// Constants: `sampling_mode` `bilinear` or `nearest` (ties to even); `coordinates_mode`
/// `unnormalized` (elements counted from 0), `normalized_minus_one_to_one` or
/// `normalized_zero_to_one`, whose ends are the middles of the outermost elements if `align_corners`,
/// else their edges; `padding_mode`, what lies outside: `constant` (`padding_value`), `border` (the
/// nearest element), `reflection` (at the middle of the outermost elements) or `symmetric` (at their
/// edges).
pub(super) struct Resample;

impl OpDef for Resample {
    fn name(&self) -> &'static str {
        "resample"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("coordinates", Domain::Number),
                Param::new("sampling_mode", Domain::Str).constant(),
                Param::new("padding_mode", Domain::Str).constant(),
                Param::new("padding_value", Domain::Float).constant(),
                Param::new("coordinates_mode", Domain::Str).constant(),
                Param::new("align_corners", Domain::Bool).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, at) = (op.tensor("x")?, op.tensor("coordinates")?);
        Sampler::of(op)?;
        Coordinates::of(op)?;
        let [batch, rows, columns, pair] = &*at.shape else {
            return Err(OpError::invalid(format!("coordinates {at} are not [b, h, w, 2]")));
        };
        let fits = x.rank() == 4 && batch.compatible(&x.shape[0]);
        if !fits || !pair.compatible(&Dim::Fixed(2)) {
            return Err(OpError::invalid(format!("coordinates {at} do not fit x {x}")));
        }
        Ok(vec![image_type(x, vec![x.shape[0].clone()], rows.clone(), columns.clone())?])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, at) = (cx.array("x")?, cx.array("coordinates")?);
        let (sampler, coordinates) = (Sampler::of(&cx.op)?, Coordinates::of(&cx.op)?);
        let [n, c, h, w] = image(&x.shape)?;
        let [rows, columns] = match *at.shape {
            [batch, rows, columns, 2] if batch == n => [rows, columns],
            _ => return Err(OpError::invalid(format!("coordinates {:?} do not fit", at.shape))),
        };
        let shape = vec![n, c, rows, columns];
        bounded(&shape)?;
        let (points, values) = (super::constant::numbers(&at)?, x.floats()?);
        let mut out = Vec::with_capacity(shape.iter().product());
        for (i, plane) in values.chunks_exact(h * w).enumerate() {
            let own = &points[i / c * rows * columns * 2..][..rows * columns * 2];
            for pair in own.chunks_exact(2) {
                let place = |at, size| coordinates.place(Place { at, parts: 1.0 }, size);
                out.push(sampler.at(plane, [h, w], place(pair[1], h), place(pair[0], w)));
            }
        }
        Ok(vec![Array { dtype: x.dtype, shape, data: Data::Float(out) }.into()])
    }

    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        flops(results)
    }
}

/// The image `x` `[b, c, h, w]` under the affine maps `transform_matrix` `[b or 1, 6]`: the result at
/// `(x, y)` is the image at `(a0 x + a1 y + a2, b0 x + b1 y + b2)`, for `[a0, a1, a2, b0, b1, b2]`.
///
/// Constants: `output_height` and `output_width`; the others as of `resample`, where coordinates of
/// the result are meant too. Core ML has only `bilinear`, `constant` 0, `normalized_minus_one_to_one`
/// and aligned corners.
pub(super) struct Affine;

impl OpDef for Affine {
    fn name(&self) -> &'static str {
        "affine"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("transform_matrix", Domain::Float),
                Param::new("output_height", Domain::Int).constant(),
                Param::new("output_width", Domain::Int).constant(),
                Param::new("sampling_mode", Domain::Str).constant(),
                Param::new("padding_mode", Domain::Str).constant(),
                Param::new("padding_value", Domain::Float).constant(),
                Param::new("coordinates_mode", Domain::Str).constant(),
                Param::new("align_corners", Domain::Bool).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, maps) = (op.tensor("x")?, op.tensor("transform_matrix")?);
        Sampler::of(op)?;
        Coordinates::of(op)?;
        let fits = x.rank() == 4
            && maps.rank() == 2
            && maps.shape[1].compatible(&Dim::Fixed(6))
            && (maps.shape[0] == Dim::Fixed(1) || maps.shape[0].compatible(&x.shape[0]));
        if !fits {
            return Err(OpError::invalid(format!("transform_matrix {maps} does not fit x {x}")));
        }
        let [rows, columns] = output(op, ["output_height", "output_width"])?;
        Ok(vec![image_type(x, vec![x.shape[0].clone()], rows.into(), columns.into())?])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, maps) = (cx.array("x")?, cx.array("transform_matrix")?);
        let (sampler, coordinates) = (Sampler::of(&cx.op)?, Coordinates::of(&cx.op)?);
        let [n, c, h, w] = image(&x.shape)?;
        let [rows, columns] = output(&cx.op, ["output_height", "output_width"])?;
        if ![[1, 6], [n, 6]].iter().any(|s| maps.shape == s) {
            return Err(OpError::invalid(format!("transform_matrix {:?}", maps.shape)));
        }
        let shape = vec![n, c, rows, columns];
        bounded(&shape)?;
        let (maps, values) = (maps.floats()?, x.floats()?);
        let mut out = Vec::with_capacity(shape.iter().product());
        for (i, plane) in values.chunks_exact(h * w).enumerate() {
            let map = if maps.len() == 6 { maps } else { &maps[i / c * 6..][..6] };
            for row in 0..rows {
                let v = coordinates.coordinate(row, rows);
                for column in 0..columns {
                    let u = coordinates.coordinate(column, columns);
                    let parts = u.parts * v.parts;
                    let mapped = |[a, b, c]: [f64; 3]| {
                        let at = a * u.at * v.parts + b * v.at * u.parts + c * parts;
                        Place { at, parts }
                    };
                    let x = coordinates.place(mapped([map[0], map[1], map[2]]), w);
                    let y = coordinates.place(mapped([map[3], map[4], map[5]]), h);
                    out.push(sampler.at(plane, [h, w], y, x));
                }
            }
        }
        Ok(vec![Array { dtype: x.dtype, shape, data: Data::Float(out) }.into()])
    }

    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        flops(results)
    }
}

/// The sizes that two constants give, 1 by default.
fn output(op: &OpView<'_>, names: [&str; 2]) -> Result<[usize; 2], OpError> {
    Ok([sizes(op, names[0], 1, 1, 1)?[0], sizes(op, names[1], 1, 1, 1)?[0]])
}

/// Boxes of the image `x` `[b, c, h, w]`, each resized by linear interpolation to the constants
/// `target_height` and `target_width` (1 by default).
///
/// In iOS 17's form `boxes` is `[n, 4]` and `box_indices` `[n]` the image of each (0, 1, ... by
/// default): `[n, c, h', w']`. Before, `roi` is `[n, 1, 4, 1, 1]`, boxes of all images: `[n, b, c, h',
/// w']`, or `[n, 1, 5, 1, 1]`, the image's index first: `[n, 1, c, h', w']`.
///
/// Constants: `box_coordinate_mode`, `CORNERS_` (start and end, the default) or `CENTER_SIZE_` followed
/// by `HEIGHT_FIRST` (default) or `WIDTH_FIRST`; `normalized_coordinates` (false): they are from 0 to 1
/// of the way between the first and last element; `spatial_scale` (1) multiplies them;
/// `sampling_mode`, as of `resize_bilinear`, over the elements from start to end; `pad_value` (0),
/// what lies outside.
pub(super) struct CropResize;

/// First and last row and column of a box, in elements.
struct Bounds {
    rows: [f64; 2],
    columns: [f64; 2],
}

impl CropResize {
    /// Reads boxes as the options say.
    fn reader(op: &OpView<'_>, [h, w]: [usize; 2]) -> Result<impl Fn(&[f64]) -> Bounds, OpError> {
        let mode = op.str("box_coordinate_mode")?.unwrap_or("CORNERS_HEIGHT_FIRST");
        let (corners, height_first) = match mode {
            "CORNERS_HEIGHT_FIRST" => (true, true),
            "CORNERS_WIDTH_FIRST" => (true, false),
            "CENTER_SIZE_HEIGHT_FIRST" => (false, true),
            "CENTER_SIZE_WIDTH_FIRST" => (false, false),
            other => {
                return Err(OpError::invalid(format!(
                    "box_coordinate_mode \"{other}\" is unknown"
                )));
            }
        };
        let normalized = op.bool_or("normalized_coordinates", false)?;
        let scale = op.float("spatial_scale")?.unwrap_or(1.0);
        Ok(move |values: &[f64]| {
            let pair = |first: usize, size: usize| {
                let unit = scale * if normalized { size as f64 - 1.0 } else { 1.0 };
                let (a, b) = (values[first] * unit, values[first + 2] * unit);
                if corners { [a, b] } else { [a - b / 2.0, a + b / 2.0] }
            };
            let (row, column) = if height_first { (0, 1) } else { (1, 0) };
            Bounds { rows: pair(row, h), columns: pair(column, w) }
        })
    }

    /// The box argument, whether it is iOS 17's, and how many numbers a box has.
    fn boxes<'a>(op: &OpView<'a>) -> Result<(&'a TensorType, bool, usize), OpError> {
        let (new, name) = match op.arg("boxes") {
            Some(_) => (true, "boxes"),
            None => (false, "roi"),
        };
        let boxes = op.tensor(name)?;
        let fixed: Vec<Option<usize>> = boxes.shape.iter().map(Dim::fixed).collect();
        match (new, &*fixed) {
            (true, [_, Some(4)]) => Ok((boxes, true, 4)),
            (false, [_, Some(1), Some(n @ (4 | 5)), Some(1), Some(1)]) => Ok((boxes, false, *n)),
            _ => Err(OpError::invalid(format!("{name} {boxes} are no boxes"))),
        }
    }
}

impl OpDef for CropResize {
    fn name(&self) -> &'static str {
        "crop_resize"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("roi", Domain::Float).optional(),
                Param::new("boxes", Domain::Number).optional(),
                Param::new("box_indices", Domain::Int).optional(),
                Param::new("target_height", Domain::Int).optional().constant(),
                Param::new("target_width", Domain::Int).optional().constant(),
                Param::new("normalized_coordinates", Domain::Bool).optional().constant(),
                Param::new("spatial_scale", Domain::Float).optional().constant(),
                Param::new("box_coordinate_mode", Domain::Str).optional().constant(),
                Param::new("sampling_mode", Domain::Str).optional().constant(),
                Param::new("pad_value", Domain::Float).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let (boxes, new, numbers) = Self::boxes(op)?;
        Self::reader(op, [1, 1]).map(drop)?;
        Grid::of(op)?;
        op.float("pad_value")?;
        if new != (op.function.opset >= Opset::Ios17) {
            let opset = op.function.opset;
            return Err(OpError::invalid(format!("boxes {boxes} are not of the form of {opset}")));
        }
        if let Some(indices) = op.opt_tensor("box_indices")?
            && !(new && indices.rank() == 1 && indices.shape[0].compatible(&boxes.shape[0]))
        {
            return Err(OpError::invalid(format!("box_indices {indices} do not fit {boxes}")));
        }
        let [rows, columns] = output(op, ["target_height", "target_width"])?;
        let mut first = vec![boxes.shape[0].clone()];
        match (new, numbers, x.shape.first()) {
            (false, 4, Some(batch)) => first.push(batch.clone()),
            (false, _, _) => first.push(Dim::Fixed(1)),
            _ => {}
        }
        Ok(vec![image_type(x, first, rows.into(), columns.into())?])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let [n, c, h, w] = image(&x.shape)?;
        let (_, new, width) = Self::boxes(&cx.op)?;
        let boxes = cx.array(if new { "boxes" } else { "roi" })?;
        let boxes = super::constant::numbers(&boxes)?;
        let (read, grid) = (Self::reader(&cx.op, [h, w])?, Grid::of(&cx.op)?);
        let count = boxes.len() / width;
        let images = box_images(cx, &boxes, width, new, n)?;
        let [rows, columns] = output(&cx.op, ["target_height", "target_width"])?;
        let shape = match (new, width) {
            (true, _) => vec![count, c, rows, columns],
            (false, 4) => vec![count, n, c, rows, columns],
            _ => vec![count, 1, c, rows, columns],
        };
        bounded(&shape)?;
        let padding = Padding::Constant(cx.op.float("pad_value")?.unwrap_or(0.0));
        let sampler = Sampler { linear: true, padding };
        let values = x.floats()?;
        let mut out = Vec::with_capacity(shape.iter().product());
        for (numbers, images) in boxes.chunks_exact(width).zip(images) {
            let bounds = read(&numbers[width - 4..]);
            let points = |[start, end]: [f64; 2], count| -> Vec<Place> {
                let behind = |p: Place| Place { at: start * p.parts + p.at, ..p };
                grid.points(end - start + 1.0, count).map(behind).collect()
            };
            let (ys, xs) = (points(bounds.rows, rows), points(bounds.columns, columns));
            for plane in images.flat_map(|i| i * c..(i + 1) * c) {
                let plane = &values[plane * h * w..][..h * w];
                let row = |&y: &Place| xs.iter().map(move |&x| sampler.at(plane, [h, w], y, x));
                out.extend(ys.iter().flat_map(row));
            }
        }
        Ok(vec![Array { dtype: x.dtype, shape, data: Data::Float(out) }.into()])
    }

    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        flops(results)
    }
}

/// The images, of `n`, that each box is cut from.
fn box_images(
    cx: &EvalCx<'_, '_>,
    boxes: &[f64],
    width: usize,
    new: bool,
    n: usize,
) -> Result<Vec<std::ops::Range<usize>>, OpError> {
    let count = boxes.len() / width;
    let single = |i: i64| {
        let image = usize::try_from(i).ok().filter(|&i| i < n);
        let image = image.ok_or_else(|| OpError::invalid(format!("image {i} of {n}")))?;
        Ok(image..image + 1)
    };
    match (new, width, cx.opt_array("box_indices")?) {
        (true, _, Some(indices)) if indices.len() == count => {
            indices.ints()?.iter().map(|&i| single(i)).collect()
        }
        (true, _, Some(indices)) => {
            Err(OpError::invalid(format!("{} indices of {count} boxes", indices.len())))
        }
        (true, _, None) => (0..count as i64).map(single).collect(),
        (false, 5, _) => boxes.chunks_exact(width).map(|b| single(b[0] as i64)).collect(),
        (false, ..) => Ok(vec![0..n; count]),
    }
}
