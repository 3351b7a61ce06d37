//! Language models over MIL programs: tokenizers, chat templates, architectures, generation.

mod error;
pub mod sample;
pub mod tokenizer;

pub use error::{Error, Result};
pub use tokenizer::Tokenizer;
