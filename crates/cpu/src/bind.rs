//! The table of operations: which kernel runs each, or why none does.

use mil::OpKind;

use crate::kernel::Binding;
use crate::op_cx::{Bind, OpCx};
use crate::ops::{attention, linear, norm};

/// How an operation at fixed sizes runs, or why it is left to the reference interpreter.
pub(crate) fn bind(cx: &mut OpCx<'_>) -> Bind<Binding> {
    use OpKind::*;
    Ok(match cx.op.kind {
        LlmRmsNorm => norm::rms_norm(cx)?.into(),
        LlmLinear => linear::linears(vec![linear::parts(cx)?])?.into(),
        LlmEmbedding => linear::embedding(cx)?.into(),
        LlmDequantize => linear::dequantize(cx)?.into(),
        LlmRope => attention::rope(cx)?.into(),
        LlmAttention => attention::attention(cx)?.into(),
        LlmGatedMlp => linear::gated_mlp(cx)?.into(),
        _ => return Err("no native kernel".into()),
    })
}

/// Whether `kind` is a linear layer, which can share a step with others of the same input.
pub(crate) fn is_linear(kind: OpKind) -> bool {
    matches!(kind, OpKind::LlmLinear)
}
