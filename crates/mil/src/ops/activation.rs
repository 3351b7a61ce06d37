//! Activations with options: GELU and softmax.

use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::{EvalCx, Value, functions};
use crate::{OpError, Type};

/// `x * P(X <= x)` for a standard normal `X`: by `mode` exact (`EXACT`, the default), by `tanh`
/// (`TANH_APPROXIMATION`) or by a sigmoid (`SIGMOID_APPROXIMATION`: `x * sigmoid(1.702 x)`).
pub(super) struct Gelu;

impl Gelu {
    fn function(op: &OpView<'_>) -> Result<fn(f64) -> f64, OpError> {
        match op.str("mode")?.unwrap_or("EXACT") {
            "EXACT" => Ok(functions::gelu),
            "TANH_APPROXIMATION" => Ok(functions::gelu_tanh),
            "SIGMOID_APPROXIMATION" => Ok(|x| x * functions::sigmoid(1.702 * x)),
            other => Err(OpError::invalid(format!("mode \"{other}\" is unknown"))),
        }
    }
}

impl OpDef for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Float), Param::new("mode", Domain::Str).optional().constant()] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        Self::function(op)?;
        Ok(vec![op.tensor("x")?.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let function = Self::function(&cx.op)?;
        let x = cx.array("x")?;
        Ok(vec![x.with_floats(x.floats()?.iter().map(|&a| function(a)).collect()).into()])
    }
}

/// `exp(x) / sum(exp(x))` along `axis`, a constant, by default the last.
pub(super) struct Softmax;

impl OpDef for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Float), Param::new("axis", Domain::Int).optional().constant()] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        op.axis(op.int("axis")?.unwrap_or(-1), x.rank())?;
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let axis = cx.op.axis(cx.op.int("axis")?.unwrap_or(-1), x.shape.len())?;
        let (size, inner) = (x.shape[axis], x.shape[axis + 1..].iter().product::<usize>());
        let mut out = x.floats()?.to_vec();
        for block in out.chunks_exact_mut((size * inner).max(1)) {
            for i in 0..inner {
                let lane = || (0..size).map(|k| k * inner + i);
                let max = lane().map(|k| block[k]).fold(f64::NEG_INFINITY, f64::max);
                let mut sum = 0.0;
                for k in lane() {
                    block[k] = (block[k] - max).exp();
                    sum += block[k];
                }
                lane().for_each(|k| block[k] /= sum);
            }
        }
        Ok(vec![x.with_floats(out).into()])
    }

    /// Three an element: exponential, sum, division.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        3.0 * elements(results)
    }
}
