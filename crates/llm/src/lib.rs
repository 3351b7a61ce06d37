//! Language models over MIL programs: tokenizers, chat templates, architectures, generation.

mod error;
pub mod sample;

pub use error::{Error, Result};
