//! Training against PyTorch, resuming, data, metrics.
#![allow(clippy::unwrap_used, reason = "a test")]

mod checkpoints;
mod common;
mod failures;
mod first_values;
mod lora;
mod packing;
mod processes;
mod pytorch;
mod records;
mod tokenizing;
