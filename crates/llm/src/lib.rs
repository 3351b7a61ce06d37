//! Language models over MIL programs: tokenizers, chat templates, architectures, generation.

pub mod adapter;
pub mod agreement;
mod arch;
mod error;
pub mod eval;
pub mod generate;
pub mod interface;
mod model;
mod parts;
pub mod sample;
pub mod template;
pub mod tokenizer;

pub use error::{Error, Result};
pub use model::{
    Inspection, LoadOptions, Model, ModelConfig, Problem, TensorSummary, initialise, inspect,
};
pub use parts::Batch;
pub use tokenizer::Tokenizer;
