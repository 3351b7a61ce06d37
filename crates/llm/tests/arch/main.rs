//! Architectures against Hugging Face's own classes, across formats, and on real files.
#![allow(clippy::unwrap_used, reason = "a test")]

mod adapters;
mod common;
mod errors;
mod gguf;
mod gguf_written;
mod gradients;
mod huggingface;
mod real;
mod saving;
