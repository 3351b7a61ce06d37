//! What decoder-only language models are made of. A part holds its weights and appends its
//! operations to a function; it knows no file format and no architecture's name.

mod activation;
mod attention;
mod block;
mod decoder;
mod embedding;
mod head;
mod linear;
mod loss;
mod mlp;
mod norm;
mod rope;

pub(crate) use activation::Activation;
pub(crate) use attention::Attention;
pub(crate) use block::Block;
pub(crate) use decoder::Decoder;
pub(crate) use embedding::Embedding;
pub(crate) use head::Head;
pub(crate) use linear::Linear;
pub use loss::Batch;
pub(crate) use mlp::Mlp;
pub(crate) use norm::Norm;
pub(crate) use rope::{Rope, RopeScaling, inverse_frequencies};
