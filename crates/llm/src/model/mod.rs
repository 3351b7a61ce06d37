//! Models: what they are.

mod config;

pub use config::ModelConfig;
