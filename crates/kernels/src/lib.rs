//! Fast loops over slices: matrix products, attention, norms, activations and their thread pool.
//!
//! A kernel knows slices, shapes and element types; it never knows a graph or a program. Every kernel
//! takes the [`Pool`] it may use, which also fixes the instruction set ([`Isa`]), so that one process
//! can run the same kernel on every path it has and compare.
//!
//! Invariants that callers rely on:
//! - Results do not depend on the number of threads, bit for bit: work is split over outputs only.
//! - Products of matrices round their operands to bfloat16 if the pool says so ([`Precision`]), except where so
//!   few rows are multiplied that the other side is read in place; nothing else is rounded.
//! - Activations are `f32` everywhere; weights and caches may be narrower and are read in place,
//!   without any alignment.
//! - Slices of the wrong length are a bug of the caller and panic. What depends on a file or on
//!   user data ([`Matrix::new`], [`gather`]) returns a [`KernelError`] instead.

#![allow(unsafe_code, reason = "vector instructions")]

mod activation;
mod arch;
mod attention;
mod chain;
mod columns;
mod conv;
mod convert;
mod elementwise;
mod error;
mod format;
mod gemm;
mod gemv;
mod head_loss;
mod isa;
mod math;
mod matmul;
mod norm;
mod optimizer;
mod panel;
mod pool;
mod rope;
mod scratch;
mod share;

pub use activation::{Activation, activate, activate_in_place, gate, gate_in_place};
pub use attention::{
    Attention, AttentionGrad, Cache, CacheMut, Sequence, attention, attention_grad, store_cache,
};
pub use chain::{Chain, ChainFunction, ChainOperand, ChainStep, chain};
pub use columns::{matmul_columns, matmul_turned};
pub use conv::{Axis, Conv, Pooling, conv, pool_windows};
pub use convert::{decode, gather, narrow, widen};
pub use elementwise::{
    add, add_in_place, add_scaled_in_place, argmax, mul, mul_in_place, scale, scale_in_place,
};
pub use error::KernelError;
pub use head_loss::{HeadGrad, HeadLoss, head_loss, logits_len};
pub use isa::Isa;
pub use matmul::{Linear, Matrix, matmul, matmul_many};
pub use norm::{layer_norm, rms_norm, rms_norm_grad, softmax};
pub use optimizer::{Adamw, Sgd, adamw, sgd, sum_of_squares};
pub use pool::{Pool, Precision};
pub use rope::{Pairing, Rope, rope, rope_in_place};
