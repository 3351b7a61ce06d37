//! Root-mean-square normalisation.

use tensor::DType;

use crate::eval::{EvalCx, Value};
use crate::ops::emit::{Emit, value};
use crate::ops::{Domain, Param, elements};
use crate::{Arg, FunctionBuilder, OpDef, OpError, OpKind, OpView, Type, ValueId};

/// Root-mean-square normalisation over the last axis:
/// `x / sqrt(mean(x^2) + epsilon) * weight` (Zhang and Sennrich 2019).
///
/// `x` float `[..., D]`, `weight` `[D]`, `epsilon` a constant scalar; the result is as `x`.
pub(in crate::ops) struct LlmRmsNorm;

impl OpDef for LlmRmsNorm {
    fn name(&self) -> &'static str {
        "llm.rms_norm"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("weight", Domain::Weight),
                Param::new("epsilon", Domain::Float).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, weight) = (op.tensor("x")?, op.tensor("weight")?);
        let fits =
            weight.rank() == 1 && x.shape.last().is_some_and(|d| d.compatible(&weight.shape[0]));
        if !fits {
            return Err(OpError::invalid(format!(
                "weight {weight} does not fit the last axis of x {x}"
            )));
        }
        op.float("epsilon")?;
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, weight) = (cx.array("x")?, cx.array("weight")?);
        let epsilon = cx.op.float("epsilon")?.unwrap_or(0.0);
        let (xs, w) = (x.floats()?, weight.floats()?);
        if x.shape.last() != Some(&w.len()) {
            return Err(OpError::invalid(format!(
                "weight {:?} does not fit the last axis of x {:?}",
                weight.shape, x.shape
            )));
        }
        let mut out = Vec::with_capacity(xs.len());
        for row in xs.chunks_exact(w.len().max(1)) {
            let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
            let scale = 1.0 / (mean + epsilon).sqrt();
            out.extend(row.iter().zip(w).map(|(v, w)| v * scale * w));
        }
        Ok(vec![x.with_floats(out).into()])
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let x = op.required("x")?;
        let dtype = op.tensor("x")?.dtype;
        let epsilon = op.float("epsilon")?.unwrap_or(0.0);
        let mut e = Emit::new(b);
        let weight = e.plain_weight(op, "weight", dtype)?;
        let normal = match dtype {
            DType::F16 => scaled_first(&mut e, x, epsilon)?,
            _ => {
                let square = e.mul(x, x)?;
                let mean = over_last(&mut e, OpKind::ReduceMean, square)?;
                let epsilon = e.scalar(dtype, epsilon)?;
                let scale = e.op(OpKind::Rsqrt, [("x", mean), ("epsilon", epsilon)])?;
                e.mul(x, &scale)?
            }
        };
        e.mul(&normal, &weight).map(value)
    }

    /// Four an element: square, sum, and two products.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        4.0 * elements(results)
    }
}

/// The smallest number that rows are divided by in half precision: an epsilon of 1e-6 or more, divided
/// by its square, still is a normal number.
const SMALLEST_SCALE: f64 = 1.0 / 64.0;

/// `x / sqrt(mean(x^2) + epsilon)` in half precision, where the square of 256 overflows: with
/// `y = x / m`, whose elements are at most 1, it is `y / sqrt(mean(y^2) + epsilon / m^2)` whatever `m`
/// is; here the largest magnitude of the row.
fn scaled_first(e: &mut Emit<'_, '_>, x: &Arg, epsilon: f64) -> Result<Arg, OpError> {
    let magnitude = e.op(OpKind::Abs, [("x", x.clone())])?;
    let largest = over_last(e, OpKind::ReduceMax, magnitude)?;
    let smallest = e.scalar(DType::F16, SMALLEST_SCALE)?;
    let m = e.binary(OpKind::Maximum, &largest, &smallest)?;
    let y = e.binary(OpKind::RealDiv, x, &m)?;
    let square = e.mul(&y, &y)?;
    let mean = over_last(e, OpKind::ReduceMean, square)?;
    // Divided before it is squared, so that neither the square of m overflows nor that of a root is 0.
    let root = e.scalar(DType::F16, epsilon.sqrt())?;
    let root = e.binary(OpKind::RealDiv, &root, &m)?;
    let epsilon = e.mul(&root, &root)?;
    let sum = e.binary(OpKind::Add, &mean, &epsilon)?;
    let scale = e.op(OpKind::Rsqrt, [("x", sum)])?;
    e.mul(&y, &scale)
}

/// A reduction over the last axis, which stays with size 1.
fn over_last(e: &mut Emit<'_, '_>, kind: OpKind, x: Arg) -> Result<Arg, OpError> {
    let (last, keep) = (e.ints(&[-1]), e.bool(true));
    e.op(kind, [("x", x), ("axes", last), ("keep_dims", keep)])
}
