//! Bands of matrices, places that are not zero, one-hot vectors.

use tensor::DType;

use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, Data, EvalCx, Value, bounded};
use crate::{Dim, OpError, TensorType, Type};

/// The matrices in the last two axes of `x` with zeros but in a band around the diagonal: of the
/// constants `lower` diagonals below it and `upper` above; -1, the default of both, keeps all.
pub(super) struct BandPart;

impl OpDef for BandPart {
    fn name(&self) -> &'static str {
        "band_part"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Any),
                Param::new("lower", Domain::Int).optional().constant(),
                Param::new("upper", Domain::Int).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        if x.rank() < 2 {
            return Err(OpError::invalid(format!("x {x} is no matrix")));
        }
        op.int("lower")?;
        op.int("upper")?;
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let mut out = (*cx.array("x")?).clone();
        let bound = |name| Ok::<_, OpError>(cx.op.int(name)?.filter(|&n| n >= 0));
        let (lower, upper) = (bound("lower")?, bound("upper")?);
        let [.., rows, columns] = *out.shape else {
            return Err(OpError::invalid(format!("x {:?} is no matrix", out.shape)));
        };
        let outside = |at: usize| {
            let (row, column) = ((at / columns % rows) as i64, (at % columns) as i64);
            lower.is_some_and(|n| row - column > n) || upper.is_some_and(|n| column - row > n)
        };
        let cleared = (0..out.len()).filter(|&at| outside(at));
        match &mut out.data {
            Data::Float(v) => cleared.for_each(|at| v[at] = 0.0),
            Data::Int(v) => cleared.for_each(|at| v[at] = 0),
            Data::Bool(v) => cleared.for_each(|at| v[at] = false),
            Data::Str(_) => return Err(OpError::invalid("x is of strings")),
        }
        Ok(vec![out.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The indices, `int32` `[count, rank]`, of the elements of `x` that are not zero, in row-major order.
pub(super) struct NonZero;

impl OpDef for NonZero {
    fn name(&self) -> &'static str {
        "non_zero"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any)] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let rank = op.tensor("x")?.rank();
        Ok(vec![TensorType::new(DType::I32, [Dim::Unknown, Dim::Fixed(rank)]).into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let is_set = |at: usize| match &x.data {
            Data::Float(v) => v[at] != 0.0,
            Data::Int(v) => v[at] != 0,
            Data::Bool(v) => v[at],
            Data::Str(_) => false,
        };
        let steps: Vec<usize> =
            crate::eval::strides(&x.shape).iter().map(|&s| s as usize).collect();
        let places: Vec<usize> = (0..x.len()).filter(|&at| is_set(at)).collect();
        let index =
            |at: usize| x.shape.iter().zip(&steps).map(move |(n, step)| (at / step % n) as i64);
        let data = Data::Int(places.iter().flat_map(|&at| index(at)).collect());
        let shape = vec![places.len(), x.shape.len()];
        Ok(vec![Array { dtype: DType::I32, shape, data }.into()])
    }

    /// One for each element of `x`.
    fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
        op.tensor("x").map_or(0.0, |x| super::elements(&[x.clone().into()]))
    }
}

/// A new axis of `one_hot_vector_size` elements for each of `indices`: `on_value` at that place,
/// `off_value` elsewhere, which is everywhere if the index is out of range.
///
/// Constants: `axis` of the result (the last by default), the scalars `on_value` (`int32` 1) and
/// `off_value` (`int32` 0), whose element type the result has.
pub(super) struct OneHot;

impl OneHot {
    fn dtype(op: &OpView<'_>) -> Result<DType, OpError> {
        let (on, off) = (op.opt_tensor("on_value")?, op.opt_tensor("off_value")?);
        let dtype = |t: Option<&TensorType>| t.map_or(DType::I32, |t| t.dtype);
        let scalars = [on, off].into_iter().flatten().all(|t| t.rank() == 0);
        if !scalars || dtype(on) != dtype(off) {
            return Err(OpError::invalid(format!(
                "on_value of {} and off_value of {} are not scalars of one type",
                dtype(on),
                dtype(off)
            )));
        }
        Ok(dtype(on))
    }

    fn size(n: i64) -> Result<usize, OpError> {
        usize::try_from(n)
            .map_err(|_| OpError::invalid(format!("one_hot_vector_size {n} is negative")))
    }
}

impl OpDef for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("indices", Domain::Int),
                Param::new("one_hot_vector_size", Domain::Int),
                Param::new("axis", Domain::Int).optional().constant(),
                Param::new("on_value", Domain::Any).optional().constant(),
                Param::new("off_value", Domain::Any).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let indices = op.tensor("indices")?;
        let axis = op.axis(op.int("axis")?.unwrap_or(-1), indices.rank() + 1)?;
        let size = match op.literal("one_hot_vector_size") {
            Some(_) => Dim::Fixed(Self::size(op.int("one_hot_vector_size")?.unwrap_or_default())?),
            None => Dim::Unknown,
        };
        let mut shape = indices.shape.clone();
        shape.insert(axis, size);
        Ok(vec![TensorType { dtype: Self::dtype(op)?, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (indices, size) = (cx.array("indices")?, cx.array("one_hot_vector_size")?);
        let size = match size.ints()? {
            [n] => Self::size(*n)?,
            _ => return Err(OpError::invalid("one_hot_vector_size is not one integer")),
        };
        let axis = cx.op.axis(cx.op.int("axis")?.unwrap_or(-1), indices.shape.len() + 1)?;
        let dtype = Self::dtype(&cx.op)?;
        let value = |name, default: i64| match cx.opt_array(name)? {
            Some(array) => Ok::<_, OpError>((*array).clone()),
            None => Ok(Array { dtype, shape: vec![], data: Data::Int(vec![default]) }),
        };
        let (on, off) = (value("on_value", 1)?, value("off_value", 0)?);
        let mut shape = indices.shape.clone();
        shape.insert(axis, size);
        bounded(&shape)?;
        let inner: usize = indices.shape[axis..].iter().product();
        let places = indices.ints()?.iter().enumerate().filter_map(|(i, &index)| {
            let index = usize::try_from(index).ok().filter(|&n| n < size)?;
            Some((i / inner * size + index) * inner + i % inner)
        });
        let places: Vec<usize> = places.collect();
        let mut out = off.broadcast_to(&shape);
        out.data.put(places.iter().copied(), &on.broadcast_to(&[places.len()]).data)?;
        Ok(vec![out.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}
