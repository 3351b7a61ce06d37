//! Every file format: written and read back, real files, and broken ones.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
mod gguf;
mod gguf_broken;
mod hf;
mod hostile;
mod llama2c;
mod open;
mod peft;
mod real_files;
mod safetensors;
mod tokenizer_files;
