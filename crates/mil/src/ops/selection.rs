//! Choosing elements: by condition, and the greatest.

use super::reduction::index_dtype;
use super::sequence::order;
use super::{Domain, OpDef, OpView, Param, broadcast, elements};
use crate::eval::{Array, Data, EvalCx, Strided, Value, broadcast_shape};
use crate::{Dim, OpError, TensorType, Type};

/// `a` where `cond` holds, else `b`, elementwise with broadcasting; `a` and `b` have one type.
pub(super) struct Select;

impl OpDef for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("cond", Domain::Bool),
                Param::new("a", Domain::Any),
                Param::new("b", Domain::Any),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (cond, a, b) = (op.tensor("cond")?, op.tensor("a")?, op.tensor("b")?);
        let shape = broadcast(&a.shape, &b.shape).and_then(|s| broadcast(&cond.shape, &s));
        match shape {
            Ok(shape) if a.dtype == b.dtype => {
                Ok(vec![TensorType { dtype: a.dtype, shape }.into()])
            }
            _ => Err(OpError::invalid(format!("cond {cond}, a {a} and b {b} do not go together"))),
        }
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (cond, a, b) = (cx.array("cond")?, cx.array("a")?, cx.array("b")?);
        let shape = broadcast_shape(&cond.shape, &broadcast_shape(&a.shape, &b.shape)?)?;
        let chosen = cond.broadcast_to(&shape);
        let chosen = chosen.bools()?;
        let mut out = b.broadcast_to(&shape);
        let from_a = Strided::broadcast(&a.shape, &shape).zip(chosen).filter(|(_, c)| **c);
        let picked = a.data.pick(from_a.map(|(i, _)| i));
        let places = chosen.iter().enumerate().filter(|(_, c)| **c).map(|(i, _)| i);
        out.data.put(places, &picked)?;
        Ok(vec![out.into()])
    }
}

/// The `k` greatest elements of `x` along the constant `axis`, and their indices.
///
/// Constants: `k` (1 by default, -1 for all), `axis` (-1), `ascending` (false: greatest first; true:
/// the least, least first), `sort` (true; false allows any order and changes nothing here),
/// `return_indices` (true), `output_indices_dtype` (`int32` or `uint16`). Among equals the first
/// comes first.
pub(super) struct Topk;

impl Topk {
    /// The axis and the number of elements to take of it.
    fn options(op: &OpView<'_>, shape: &[Dim]) -> Result<(usize, Dim), OpError> {
        let axis = op.axis(op.int("axis")?.unwrap_or(-1), shape.len())?;
        let k = op.int("k")?.unwrap_or(1);
        let taken = match (usize::try_from(k), &shape[axis]) {
            (Err(_), size) if k == -1 => size.clone(),
            (Ok(k), size) if size.fixed().is_none_or(|n| k <= n) => Dim::Fixed(k),
            (_, size) => {
                return Err(OpError::invalid(format!("k {k} does not fit axis {axis} of {size}")));
            }
        };
        Ok((axis, taken))
    }
}

impl OpDef for Topk {
    fn name(&self) -> &'static str {
        "topk"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Number),
                Param::new("k", Domain::Int).optional().constant(),
                Param::new("axis", Domain::Int).optional().constant(),
                Param::new("ascending", Domain::Bool).optional().constant(),
                Param::new("sort", Domain::Bool).optional().constant(),
                Param::new("return_indices", Domain::Bool).optional().constant(),
                Param::new("output_indices_dtype", Domain::Str).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let (axis, taken) =
            Self::options(op, &x.shape).map_err(|e| OpError::invalid(format!("x {x}: {e}")))?;
        let indices = index_dtype(op, "output_indices_dtype")?;
        let mut shape = x.shape.clone();
        shape[axis] = taken;
        let mut types = vec![TensorType { dtype: x.dtype, shape: shape.clone() }.into()];
        if op.bool_or("return_indices", true)? {
            types.push(TensorType { dtype: indices, shape }.into());
        }
        Ok(types)
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let dims: Vec<Dim> = x.shape.iter().map(|&n| n.into()).collect();
        let (axis, taken) = Self::options(&cx.op, &dims)?;
        let (size, k) = (x.shape[axis], taken.fixed().unwrap_or(0));
        let ascending = cx.op.bool_or("ascending", false)?;
        let inner: usize = x.shape[axis + 1..].iter().product();
        let outer: usize = x.shape[..axis].iter().product();
        let mut shape = x.shape.clone();
        shape[axis] = k;
        let mut sources = vec![0; outer * k * inner];
        let mut indices = vec![0i64; sources.len()];
        for lane in 0..outer * inner {
            let (o, i) = (lane / inner, lane % inner);
            let at = |s: usize| (o * size + s) * inner + i;
            let mut ranks: Vec<usize> = (0..size).collect();
            ranks.sort_by(|&a, &b| {
                let order = order(&x.data, at(a), at(b));
                if ascending { order } else { order.reverse() }
            });
            for (n, &s) in ranks.iter().take(k).enumerate() {
                sources[(o * k + n) * inner + i] = at(s);
                indices[(o * k + n) * inner + i] = s as i64;
            }
        }
        let mut results = vec![x.pick(shape.clone(), sources.into_iter()).into()];
        if cx.op.bool_or("return_indices", true)? {
            let dtype = index_dtype(&cx.op, "output_indices_dtype")?;
            results.push(Array { dtype, shape, data: Data::Int(indices) }.into());
        }
        Ok(results)
    }

    /// One for each element of `x`.
    fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
        op.tensor("x").map_or(0.0, |x| elements(&[x.clone().into()]))
    }
}
