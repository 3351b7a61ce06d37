//! The gradient of root-mean-square normalisation.

use crate::eval::{EvalCx, Value};
use crate::ops::emit::{Emit, value};
use crate::ops::{Domain, Param, elements};
use crate::{FunctionBuilder, OpDef, OpError, OpKind, OpView, Type, ValueId};

/// The gradient of `llm.rms_norm` by `x` and by `weight`.
///
/// `x`, `weight` (of a float type) and `epsilon` are those of `llm.rms_norm`, `grad` is as its result.
/// With `r = 1 / sqrt(mean(x^2) + epsilon)`, `n = x r` and `u = grad weight` the results are
/// `r (u - n mean(u n))`, as `x`, and the sum of `grad n` over all rows, as `weight`.
pub(in crate::ops) struct LlmRmsNormGrad;

impl OpDef for LlmRmsNormGrad {
    fn name(&self) -> &'static str {
        "llm.rms_norm_grad"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("weight", Domain::Float),
                Param::new("grad", Domain::Float),
                Param::new("epsilon", Domain::Float).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, weight, grad) = (op.tensor("x")?, op.tensor("weight")?, op.tensor("grad")?);
        let fits =
            weight.rank() == 1 && x.shape.last().is_some_and(|d| d.compatible(&weight.shape[0]));
        if !fits || !grad.compatible(x) {
            return Err(OpError::invalid(format!(
                "weight {weight} or grad {grad} does not fit x {x}"
            )));
        }
        op.float("epsilon")?;
        Ok(vec![x.clone().into(), weight.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, weight, grad) = (cx.array("x")?, cx.array("weight")?, cx.array("grad")?);
        let epsilon = cx.op.float("epsilon")?.unwrap_or(0.0);
        let (w, size) = (weight.floats()?, weight.len());
        if x.shape.last() != Some(&size) || grad.shape != x.shape {
            return Err(OpError::invalid(format!(
                "weight {:?} or grad {:?} does not fit x {:?}",
                weight.shape, grad.shape, x.shape
            )));
        }
        let (mut by_x, mut by_weight) = (Vec::with_capacity(x.len()), vec![0.0; size]);
        let rows = x.floats()?.chunks_exact(size.max(1));
        for (row, grad) in rows.zip(grad.floats()?.chunks_exact(size.max(1))) {
            let square = row.iter().map(|v| v * v).sum::<f64>() / size as f64;
            let scale = 1.0 / (square + epsilon).sqrt();
            let products = row.iter().zip(grad).zip(w).map(|((x, g), w)| x * scale * g * w);
            let mean = products.sum::<f64>() / size as f64;
            for (i, (&x, &g)) in row.iter().zip(grad).enumerate() {
                let normal = x * scale;
                by_x.push(scale * (g * w[i] - normal * mean));
                by_weight[i] += g * normal;
            }
        }
        Ok(vec![x.with_floats(by_x).into(), weight.with_floats(by_weight).into()])
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let (x, weight, grad) = (op.required("x")?, op.required("weight")?, op.required("grad")?);
        let (ty, stored) = (op.tensor("x")?, op.tensor("weight")?.dtype);
        let (last, dtype) = (ty.rank() - 1, ty.dtype);
        let e = &mut Emit::new(b);
        let square = e.mul(x, x)?;
        let mean = e.reduce(OpKind::ReduceMean, &square, &[last], true)?;
        let epsilon = e.scalar(dtype, op.float("epsilon")?.unwrap_or(0.0))?;
        let scale = e.op(OpKind::Rsqrt, [("x", mean), ("epsilon", epsilon)])?;
        let normal = e.mul(x, &scale)?;
        let weight = e.cast(weight.clone(), dtype)?;
        let weighted = e.mul(grad, &weight)?;
        let product = e.mul(&weighted, &normal)?;
        let mean = e.reduce(OpKind::ReduceMean, &product, &[last], true)?;
        let along = e.mul(&normal, &mean)?;
        let across = e.sub(&weighted, &along)?;
        let by_x = e.mul(&across, &scale)?;
        let mut by_weight = e.mul(grad, &normal)?;
        if last > 0 {
            let rows: Vec<usize> = (0..last).collect();
            by_weight = e.reduce(OpKind::ReduceSum, &by_weight, &rows, false)?;
        }
        let by_weight = e.cast(by_weight, stored)?;
        Ok([by_x, by_weight].into_iter().flat_map(value).collect())
    }

    /// Ten an element of `x`.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        results.first().map_or(0.0, |x| 10.0 * elements(std::slice::from_ref(x)))
    }
}
