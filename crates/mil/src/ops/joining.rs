//! Joining, splitting, repeating and padding tensors.

use std::rc::Rc;

use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, Data, EvalCx, Strided, Value, bounded, strides};
use crate::{Dim, OpError, TensorType, Type};

/// The items of `values` one after another along the constant `axis`; with `interleave` (false by
/// default) element by element in turn, for items of equal size.
pub(super) struct Concat;

impl OpDef for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("values", Domain::Any).variadic(),
                Param::new("axis", Domain::Int).constant(),
                Param::new("interleave", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let values = op.tensors("values")?;
        let Some((first, rest)) = values.split_first() else {
            return Err(OpError::invalid("values are missing"));
        };
        let axis = op.axis(op.int("axis")?.unwrap_or(0), first.rank())?;
        let interleave = op.bool_or("interleave", false)?;
        let mut shape = first.shape.clone();
        for item in rest {
            let fits = item.dtype == first.dtype
                && item.rank() == first.rank()
                && (0..item.rank()).all(|i| {
                    (i == axis && !interleave) || item.shape[i].compatible(&first.shape[i])
                });
            if !fits {
                return Err(OpError::invalid(format!(
                    "values {first} and {item} do not join along axis {axis}"
                )));
            }
            for (i, size) in shape.iter_mut().enumerate() {
                match (&*size, &item.shape[i]) {
                    (Dim::Fixed(a), Dim::Fixed(b)) if i == axis => {
                        *size = Dim::Fixed(a.saturating_add(*b))
                    }
                    _ if i == axis => *size = Dim::Unknown,
                    // A known size decides over an unknown one.
                    (Dim::Unknown, other) | (Dim::Symbol(_), other @ Dim::Fixed(_)) => {
                        *size = other.clone();
                    }
                    _ => {}
                }
            }
        }
        Ok(vec![TensorType { dtype: first.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let values = cx.arrays("values")?;
        let Some(first) = values.first() else {
            return Err(OpError::invalid("values are missing"));
        };
        let axis = cx.op.axis(cx.op.int("axis")?.unwrap_or(0), first.shape.len())?;
        if cx.op.bool_or("interleave", false)? {
            // Stacking behind the axis and merging the two puts the elements in turn.
            let mut stacked = stack(&values, axis + 1)?;
            let items = stacked.shape.remove(axis + 1);
            stacked.shape[axis] *= items;
            return Ok(vec![stacked.into()]);
        }
        Ok(vec![concat(&values, axis)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// Arrays one after another along `axis`.
fn concat(values: &[Rc<Array>], axis: usize) -> Result<Array, OpError> {
    let mut shape = values[0].shape.clone();
    shape[axis] = values.iter().map(|v| v.shape.get(axis).copied().unwrap_or(0)).sum();
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let row = shape[axis] * inner;
    let blank = match &values[0].data {
        Data::Float(_) => Data::Float(vec![0.0; outer * row]),
        Data::Int(_) => Data::Int(vec![0; outer * row]),
        Data::Bool(_) => Data::Bool(vec![false; outer * row]),
        Data::Str(_) => Data::Str(vec![String::new(); outer * row]),
    };
    let mut out = Array { dtype: values[0].dtype, shape, data: blank };
    let mut start = 0;
    for value in values {
        let mut expected = out.shape.clone();
        expected[axis] = value.shape.get(axis).copied().unwrap_or(0);
        if value.shape != expected {
            return Err(OpError::invalid(format!(
                "{:?} and {:?} do not join along axis {axis}",
                values[0].shape, value.shape
            )));
        }
        let run = value.shape[axis] * inner;
        let places = (0..outer).flat_map(|o| o * row + start..o * row + start + run);
        out.data.put(places, &value.data)?;
        start += run;
    }
    Ok(out)
}

/// Arrays of one shape along a new axis.
fn stack(values: &[Rc<Array>], axis: usize) -> Result<Array, OpError> {
    let expanded: Vec<Rc<Array>> = values
        .iter()
        .map(|v| {
            let mut a = (**v).clone();
            a.shape.insert(axis, 1);
            Rc::new(a)
        })
        .collect();
    concat(&expanded, axis)
}

/// The items of `values`, of one shape, along a new constant `axis`.
pub(super) struct Stack;

impl OpDef for Stack {
    fn name(&self) -> &'static str {
        "stack"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("values", Domain::Any).variadic(),
                Param::new("axis", Domain::Int).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let values = op.tensors("values")?;
        let Some(first) = values.first() else {
            return Err(OpError::invalid("values are missing"));
        };
        if let Some(other) = values.iter().find(|v| !v.compatible(first)) {
            return Err(OpError::invalid(format!("values {first} and {other} differ")));
        }
        let axis = op.axis(op.int("axis")?.unwrap_or(0), first.rank() + 1)?;
        let mut shape = first.shape.clone();
        shape.insert(axis, Dim::Fixed(values.len()));
        Ok(vec![TensorType { dtype: first.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let values = cx.arrays("values")?;
        let rank = values.first().map_or(0, |v| v.shape.len());
        let axis = cx.op.axis(cx.op.int("axis")?.unwrap_or(0), rank + 1)?;
        if values.is_empty() {
            return Err(OpError::invalid("values are missing"));
        }
        Ok(vec![stack(&values, axis)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `x` cut along the constant `axis` into `num_splits` equal parts, or parts of `split_sizes`.
pub(super) struct Split;

impl Split {
    /// The parts' sizes, for an axis of `size`.
    fn sizes(op: &OpView<'_>, size: &Dim) -> Result<Vec<Dim>, OpError> {
        let count = op.int("num_splits")?.map(|n| usize::try_from(n).unwrap_or(0));
        let bad = |what: String| Err(OpError::invalid(format!("{what} do not split size {size}")));
        if let Some(sizes) = op.ints("split_sizes")? {
            let fixed: Option<Vec<usize>> =
                sizes.iter().map(|&n| usize::try_from(n).ok()).collect();
            let total = fixed
                .as_ref()
                .map(|f| Dim::Fixed(f.iter().fold(0, |sum: usize, n| sum.saturating_add(*n))));
            return match fixed {
                Some(f)
                    if total.is_some_and(|t| t.compatible(size))
                        && count.is_none_or(|c| c == f.len()) =>
                {
                    Ok(f.into_iter().map(Dim::Fixed).collect())
                }
                _ => bad(format!("split_sizes {sizes:?}")),
            };
        }
        match (count, size) {
            (Some(n), Dim::Fixed(size)) if n > 0 && size.is_multiple_of(n) => {
                Ok(vec![Dim::Fixed(size / n); n])
            }
            (Some(1), size) => Ok(vec![size.clone()]),
            (Some(n), Dim::Symbol(_) | Dim::Unknown) if n > 0 => Ok(vec![Dim::Unknown; n]),
            (Some(n), _) => bad(format!("{n} equal parts")),
            (None, _) => Err(OpError::invalid("num_splits or split_sizes must be given")),
        }
    }
}

impl OpDef for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("num_splits", Domain::Int).optional().constant(),
                Param::new("split_sizes", Domain::Int).optional().constant(),
                Param::new("axis", Domain::Int).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let axis = op.axis(op.int("axis")?.unwrap_or(0), x.rank())?;
        let sizes = Self::sizes(op, &x.shape[axis])?;
        let part = |size| {
            let mut shape = x.shape.clone();
            shape[axis] = size;
            TensorType { dtype: x.dtype, shape }.into()
        };
        Ok(sizes.into_iter().map(part).collect())
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let axis = cx.op.axis(cx.op.int("axis")?.unwrap_or(0), x.shape.len())?;
        let steps = strides(&x.shape);
        let mut start = 0;
        let mut parts = Vec::new();
        for size in Self::sizes(&cx.op, &Dim::Fixed(x.shape[axis]))? {
            let size = size.fixed().unwrap_or(0);
            let mut shape = x.shape.clone();
            shape[axis] = size;
            let view = Strided::new(&shape, &steps, start as isize * steps[axis]);
            parts.push(x.pick(shape, view).into());
            start += size;
        }
        Ok(parts)
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `x` repeated `reps[i]` times along each axis `i`.
pub(super) struct Tile;

impl OpDef for Tile {
    fn name(&self) -> &'static str {
        "tile"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any), Param::new("reps", Domain::Int)] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, reps) = (op.tensor("x")?, op.tensor("reps")?);
        if reps.rank() != 1 || !reps.shape[0].compatible(&Dim::Fixed(x.rank())) {
            return Err(OpError::invalid(format!("reps {reps} do not fit x {x}")));
        }
        let shape = match op.literal("reps") {
            None => vec![Dim::Unknown; x.rank()],
            Some(_) => {
                let reps = op.ints("reps")?.unwrap_or_default();
                let tiled = x.shape.iter().zip(&reps).map(|(size, &n)| match (size, n) {
                    (size, 1) => Ok(size.clone()),
                    (Dim::Fixed(size), n) if n > 0 => {
                        Ok(Dim::Fixed(size.saturating_mul(n as usize)))
                    }
                    (_, n) if n > 0 => Ok(Dim::Unknown),
                    _ => Err(OpError::invalid(format!("reps {reps:?} are not positive"))),
                });
                tiled.collect::<Result<_, _>>()?
            }
        };
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, reps) = (cx.array("x")?, cx.array("reps")?);
        let reps = reps.ints()?;
        if reps.len() != x.shape.len() || reps.iter().any(|&n| n < 1) {
            return Err(OpError::invalid(format!("reps {reps:?} do not fit x {:?}", x.shape)));
        }
        // Axis `i` becomes the pair (repetition, element).
        let (mut view, mut view_steps, mut shape) = (Vec::new(), Vec::new(), Vec::new());
        for ((&size, step), &n) in x.shape.iter().zip(strides(&x.shape)).zip(reps) {
            view.extend([n as usize, size]);
            view_steps.extend([0, step]);
            shape.push(size.saturating_mul(n as usize));
        }
        bounded(&shape)?;
        Ok(vec![x.pick(shape, Strided::new(&view, &view_steps, 0)).into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `x` with elements added before and after its last axes: `pad` holds two numbers an axis. By the
/// constant `mode`: `constant` (default) adds `constant_val` (0 by default), `reflect` the mirrored
/// elements without the edge, `replicate` the edge.
pub(super) struct Pad;

impl Pad {
    /// Numbers before and after every axis.
    fn amounts(pad: &[i64], rank: usize) -> Result<Vec<[usize; 2]>, OpError> {
        let given: Option<Vec<usize>> = pad.iter().map(|&n| usize::try_from(n).ok()).collect();
        let given = given.filter(|g| g.len().is_multiple_of(2) && g.len() <= 2 * rank);
        let given = given
            .ok_or_else(|| OpError::invalid(format!("pad {pad:?} does not fit {rank} axes")))?;
        let mut amounts = vec![[0, 0]; rank - given.len() / 2];
        amounts.extend_from_slice(given.as_chunks::<2>().0);
        Ok(amounts)
    }

    /// The size of an axis of `size` with the numbers before and after it.
    fn padded(mode: &str, size: usize, [before, after]: [usize; 2]) -> Result<usize, OpError> {
        if mode == "reflect" && before.max(after) > 0 && before.max(after) >= size {
            return Err(OpError::invalid(format!(
                "pad [{before}, {after}] reflects more than size {size} has"
            )));
        }
        Ok(size.saturating_add(before).saturating_add(after))
    }

    /// For each place along an axis the element it comes from; `None` for the constant.
    fn sources(mode: &str, size: usize, [before, after]: [usize; 2]) -> Vec<Option<usize>> {
        let last = size as i64 - 1;
        (0..before + size + after)
            .map(|i| {
                let at = i as i64 - before as i64;
                let inside = match mode {
                    "reflect" if at < 0 => -at,
                    "reflect" if at > last => 2 * last - at,
                    "replicate" => at.clamp(0, last.max(0)),
                    _ => at,
                };
                usize::try_from(inside).ok().filter(|&s| s < size)
            })
            .collect()
    }
}

impl OpDef for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Number),
                Param::new("pad", Domain::Int),
                Param::new("mode", Domain::Str).optional().constant(),
                Param::new("constant_val", Domain::Number).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, pad) = (op.tensor("x")?, op.tensor("pad")?);
        let mode = op.str("mode")?.unwrap_or("constant");
        if !["constant", "reflect", "replicate"].contains(&mode) {
            return Err(OpError::invalid(format!("mode \"{mode}\" is unknown")));
        }
        let shape = match op.literal("pad") {
            None if pad.fixed_shape() == Some(vec![2 * x.rank()]) => vec![Dim::Unknown; x.rank()],
            None => return Err(OpError::invalid(format!("pad {pad} does not fit x {x}"))),
            Some(_) => {
                let amounts = Self::amounts(&op.ints("pad")?.unwrap_or_default(), x.rank())
                    .map_err(|e| OpError::invalid(format!("x {x}: {e}")))?;
                let padded = x.shape.iter().zip(&amounts).map(|(size, [before, after])| match size
                    .fixed()
                {
                    Some(n) => Self::padded(mode, n, [*before, *after]).map(Dim::Fixed),
                    None if [*before, *after] == [0, 0] => Ok(size.clone()),
                    None => Ok(Dim::Unknown),
                });
                padded.collect::<Result<_, _>>()?
            }
        };
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, pad, value) = (cx.array("x")?, cx.array("pad")?, cx.opt_array("constant_val")?);
        let mode = cx.op.str("mode")?.unwrap_or("constant");
        let amounts = Self::amounts(pad.ints()?, x.shape.len())?;
        let sizes = x.shape.iter().zip(&amounts);
        let shape = sizes.map(|(&n, &amount)| Self::padded(mode, n, amount));
        let shape = shape.collect::<Result<Vec<usize>, _>>()?;
        bounded(&shape)?;
        // The array is extended axis by axis; the constant is one element behind all others.
        let blank = match (&x.data, value) {
            (_, Some(v)) => v.data.clone(),
            (Data::Int(_), None) => Data::Int(vec![0]),
            (_, None) => Data::Float(vec![0.0]),
        };
        let mut extended = match (x.data.clone(), blank) {
            (Data::Float(mut v), Data::Float(b)) => {
                v.extend(b);
                Array { dtype: x.dtype, shape: vec![], data: Data::Float(v) }
            }
            (Data::Int(mut v), Data::Int(b)) => {
                v.extend(b);
                Array { dtype: x.dtype, shape: vec![], data: Data::Int(v) }
            }
            _ => return Err(OpError::invalid("constant_val is not of x's type")),
        };
        let mut indices = vec![Some(0)];
        for ((&size, step), &amount) in x.shape.iter().zip(strides(&x.shape)).zip(&amounts) {
            let sources = Self::sources(mode, size, amount);
            indices = indices
                .iter()
                .flat_map(|&base| sources.iter().map(move |&s| Some(base? + s? * step as usize)))
                .collect();
        }
        let constant = x.len();
        extended = extended.pick(shape, indices.into_iter().map(|i| i.unwrap_or(constant)));
        Ok(vec![extended.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}
