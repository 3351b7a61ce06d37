//! The gated feed-forward layer as the operations that it is made of. Unlike its decomposition into plain MIL
//! this leaves weights in their block formats.

use mil::{Arg, FunctionBuilder, Literal, OpError, OpKind, OpView, ValueId};

/// Emits linear layers, an activation and a product in place of the `llm.gated_mlp` `view`, whose result is
/// called `name`, and returns that result.
///
/// # Errors
/// When an operation is invalid.
pub(crate) fn split(
    view: &OpView<'_>,
    b: &mut FunctionBuilder<'_>,
    name: &str,
) -> Result<ValueId, OpError> {
    let x = view.required("x")?.clone();
    let activation = view.str("activation")?.unwrap_or_default();
    let linear = |b: &mut FunctionBuilder<'_>, x: Arg, parameter: &str| {
        let weight = view.required(parameter)?.clone();
        let op = b.op(OpKind::LlmLinear).arg("x", x).arg("weight", weight);
        Ok::<_, OpError>(op.name(format!("{name}_{parameter}")).result()?)
    };
    let gate = linear(b, x.clone(), "gate")?;
    let up = linear(b, x, "up")?;
    let activated = match activation {
        "silu" => b.op(OpKind::Silu).arg("x", gate),
        gelu => {
            let mode = if gelu == "gelu" { "EXACT" } else { "TANH_APPROXIMATION" };
            b.op(OpKind::Gelu).arg("x", gate).arg("mode", Literal::string(mode))
        }
    };
    let activated = activated.name(format!("{name}_active")).result()?;
    let hidden = b.op(OpKind::Mul).arg("x", activated).arg("y", up);
    let hidden = hidden.name(format!("{name}_hidden")).result()?;
    linear(b, hidden.into(), "down")
}
