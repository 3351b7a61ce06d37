//! Activations with options: GELU and softmax.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use super::emit::{Emit, value};
use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::{EvalCx, Value, functions};
use crate::{Arg, FunctionBuilder, OpError, OpKind, Type, ValueId};

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

    fn is_composite(&self) -> bool {
        true
    }

    /// As the doc of the operation has it.
    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let (x, dtype) = (op.required("x")?, op.tensor("x")?.dtype);
        let e = &mut Emit::new(b);
        let times = |e: &mut Emit<'_, '_>, x: &Arg, factor: f64| {
            let factor = e.scalar(dtype, factor)?;
            e.mul(x, &factor)
        };
        let mode = op.str("mode")?.unwrap_or("EXACT");
        if mode == "SIGMOID_APPROXIMATION" {
            let scaled = times(e, x, 1.702)?;
            let gate = e.op(OpKind::Sigmoid, [("x", scaled)])?;
            return e.mul(x, &gate).map(value);
        }
        // Both others are x / 2 * (1 + f(x)) with an odd f.
        let inner = if mode == "EXACT" {
            let scaled = times(e, x, FRAC_1_SQRT_2)?;
            e.op(OpKind::Erf, [("x", scaled)])?
        } else {
            let square = e.mul(x, x)?;
            let cubic = times(e, &square, 0.044_715)?;
            let one = e.scalar(dtype, 1.0)?;
            let factor = e.binary(OpKind::Add, &cubic, &one)?;
            let line = times(e, x, (2.0 / PI).sqrt())?;
            let argument = e.mul(&line, &factor)?;
            e.op(OpKind::Tanh, [("x", argument)])?
        };
        let (one, half) = (e.scalar(dtype, 1.0)?, times(e, x, 0.5)?);
        let sum = e.binary(OpKind::Add, &inner, &one)?;
        e.mul(&half, &sum).map(value)
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
