//! Data types, shapes, owned and memory-mapped buffers, and the weight store; knows no op.

#![allow(unsafe_code, reason = "byte views of buffers and mapped files")]

mod block;
mod buffer;
mod dtype;
mod tensor;
mod weights;

pub use block::{IQ4_NL_VALUES, dequantize, quantize_q8_0};
pub use buffer::{AlignedBuf, Bytes, Element};
pub use dtype::DType;
pub use tensor::{Tensor, TensorError, element_count};
pub use weights::{Weight, WeightId, WeightStore};
