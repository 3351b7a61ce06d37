//! The language-model dialect: what MIL has no op for.
//!
//! Conventions: activations are `[B, T, d]` or, in heads, `[B, T, H, D]`; weights are `[out, in]`
//! in any storage format, block-quantised ones included; `positions` are `int32 [T]`.

mod attention;
mod attention_in_mil;
mod mlp;
mod norm;
mod rope;
mod weights;

pub(super) use attention::LlmAttention;
pub(super) use mlp::LlmGatedMlp;
pub(super) use norm::LlmRmsNorm;
pub(super) use rope::LlmRope;
pub(super) use weights::{LlmDequantize, LlmEmbedding, LlmLinear};
pub(super) use weights::{eval_linear, linear_flops, linear_type};
