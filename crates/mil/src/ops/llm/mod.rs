//! The language-model dialect: what MIL has no op for.
//!
//! Conventions: activations are `[B, T, d]` or, in heads, `[B, T, H, D]`; weights are `[out, in]`
//! in any storage format, block-quantised ones included; `positions` are `int32 [T]`.
//!
//! Operations for training have the gradient's name where they compute one: `llm.attention_grad` takes
//! what `llm.attention` takes, and the loss's derivative by its result as `grad`.

mod attention;
mod attention_grad;
mod attention_in_mil;
mod head_loss;
mod head_loss_in_mil;
mod mlp;
mod norm;
mod norm_grad;
mod rope;
mod weights;

pub(super) use attention::LlmAttention;
pub(super) use attention_grad::LlmAttentionGrad;
pub(super) use head_loss::{LlmHeadLoss, LlmHeadLossGrad};
pub(super) use mlp::LlmGatedMlp;
pub(super) use norm::LlmRmsNorm;
pub(super) use norm_grad::LlmRmsNormGrad;
pub(super) use rope::LlmRope;
pub(super) use weights::{LlmDequantize, LlmEmbedding, LlmLinear};
pub(super) use weights::{eval_linear, linear_flops, linear_type};
