//! The gated feed-forward layer.

use super::weights::{eval_linear, linear_type};
use crate::eval::{EvalCx, Value, functions};
use crate::ops::emit::{Emit, value};
use crate::ops::{Domain, Param, elements};
use crate::{Arg, FunctionBuilder, OpDef, OpError, OpKind, OpView, Type, ValueId};

/// The gated feed-forward layer `down(act(gate x) * (up x))` (Shazeer 2020).
///
/// `x` float `[..., d]`, `gate` and `up` `[f, d]`, `down` `[d, f]`, all possibly block-quantised;
/// `activation` a constant: `silu`, `gelu_tanh` or `gelu`. The result is as `x`.
pub(in crate::ops) struct LlmGatedMlp;

/// The function that the argument `activation` names.
fn activation(op: &OpView<'_>) -> Result<fn(f64) -> f64, OpError> {
    match op.str("activation")?.unwrap_or_default() {
        "silu" => Ok(functions::silu),
        "gelu_tanh" => Ok(functions::gelu_tanh),
        "gelu" => Ok(functions::gelu),
        other => Err(OpError::invalid(format!(
            "activation \"{other}\" is none of silu, gelu_tanh, gelu"
        ))),
    }
}

impl OpDef for LlmGatedMlp {
    fn name(&self) -> &'static str {
        "llm.gated_mlp"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("gate", Domain::Weight),
                Param::new("up", Domain::Weight),
                Param::new("down", Domain::Weight),
                Param::new("activation", Domain::Str).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        activation(op)?;
        let x = op.tensor("x")?;
        let (gate, up) = (op.tensor("gate")?, op.tensor("up")?);
        let hidden = linear_type(x, gate, None)?;
        if !hidden.compatible(&linear_type(x, up, None)?) {
            return Err(OpError::invalid(format!("gate {gate} and up {up} differ in shape")));
        }
        let y = linear_type(&hidden, op.tensor("down")?, None)?;
        Ok(vec![y.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let act = activation(&cx.op)?;
        let x = cx.array("x")?;
        let gate = eval_linear(&x, &*cx.array("gate")?, None)?;
        let up = eval_linear(&x, &*cx.array("up")?, None)?;
        let hidden = gate.floats()?.iter().zip(up.floats()?).map(|(&g, &u)| act(g) * u).collect();
        let y = eval_linear(&gate.with_floats(hidden), &*cx.array("down")?, None)?;
        Ok(vec![y.into()])
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let dtype = op.tensor("x")?.dtype;
        let x = op.required("x")?.clone();
        let activation = op.str("activation")?.unwrap_or_default();
        let mut e = Emit::new(b);
        let linear = |e: &mut Emit<'_, '_>, x: &Arg, name| {
            let weight = e.plain_weight(op, name, dtype)?;
            e.op(OpKind::Linear, [("x", x.clone()), ("weight", weight)])
        };
        let gate = linear(&mut e, &x, "gate")?;
        let up = linear(&mut e, &x, "up")?;
        let active = match activation {
            "silu" => e.op(OpKind::Silu, [("x", gate)])?,
            gelu => {
                let exact = gelu == "gelu";
                let mode = e.str(if exact { "EXACT" } else { "TANH_APPROXIMATION" });
                e.op(OpKind::Gelu, [("x", gate), ("mode", mode)])?
            }
        };
        let hidden = e.mul(&active, &up)?;
        linear(&mut e, &hidden, "down").map(value)
    }

    /// Two flops for each weight and row; those of activation and product are not counted.
    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        let hidden = op.tensor("gate").ok().and_then(|g| g.shape.first()?.fixed()).unwrap_or(1);
        6.0 * elements(results) * hidden as f64
    }
}
