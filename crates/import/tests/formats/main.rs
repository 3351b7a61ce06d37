//! Every file format: written and read back, real files, and broken ones.

mod common;
mod gguf;
mod real_files;
