//! Language models over MIL programs: tokenizers, chat templates, architectures, generation.

mod error;
pub mod eval;
pub mod generate;
pub mod interface;
mod model;
pub mod sample;
pub mod tokenizer;

pub use error::{Error, Result};
pub use model::ModelConfig;
pub use tokenizer::Tokenizer;
