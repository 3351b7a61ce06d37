//! Reads and writes model files: GGUF, safetensors, llama2.c, PEFT adapters, and the raw contents of
//! tokenizer files. Weights become [`tensor::Tensor`] windows of the mapped file; nothing is optimised here.
//!
//! Every reader takes hostile input: a broken file is one [`ImportError`] that names the file and
//! the byte offset, tensor or key, never a panic, and never an allocation out of proportion to
//! the file.

mod atomic;
mod error;
pub mod gguf;
mod hf;
mod json;
pub mod llama2c;
mod model_file;
pub mod peft;
mod reader;
pub mod safetensors;
mod source;
pub mod tokenizer_files;

pub use atomic::{PARTIAL, begin_file, end_file, replace_directory, write_directory, write_file};
pub use error::{ErrorKind, ImportError, Item, Result};
pub use gguf::Gguf;
pub use hf::{HfDir, SideFiles};
pub use json::read_json;
pub use llama2c::Llama2c;
pub use model_file::{ModelFile, TensorEntry, open};
pub use peft::PeftAdapter;
pub use safetensors::SafeTensors;
pub use source::map_file;
