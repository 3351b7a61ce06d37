//! MIL text: printing and parsing, in both dialects that Apple's compiler writes.
//!
//! A printed program looks as `coremlc` would write it: arguments, attributes and parameters in
//! alphabetical order, floats in hexadecimal, large constants as references to a weight file.
//! Rigel adds operation names with a dot (`llm.rms_norm`), symbolic dimensions
//! (`tensor<fp32, [1, seq]>`) and GGUF's block formats as element types.

mod elements;
mod hexfloat;
mod lexer;
mod literals;
mod parser;
mod printer;
mod types;

use std::io::{self, Write};

use tensor::Tensor;

use crate::package::blob::{BlobFile, Layout, WEIGHTS_PATH};
use crate::{Error, OpError, Payload, Program, Result, TensorType};

pub(crate) use parser::KINDS;
pub use parser::{Parsed, parse};
pub use printer::print;
pub(crate) use types::{write_tensor, write_type};

/// A version of the language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// `program(1.0)`: scalars are spelled `tensor<int32, []>`. Models for iOS 15 to 17.
    V1_0,
    /// `program(1.3)`: scalars are spelled `int32`. Models for iOS 18 and later.
    V1_3,
}

impl Dialect {
    /// The version in the text's first line.
    pub fn version(self) -> &'static str {
        match self {
            Dialect::V1_0 => "1.0",
            Dialect::V1_3 => "1.3",
        }
    }
}

/// How deep types, values and blocks may nest; texts are read by recursive descent.
pub(crate) const MAX_DEPTH: usize = 64;

/// Finds the constants that a text refers to in weight files.
pub trait BlobSource {
    /// The tensor of type `ty` at `offset` of the file that the text calls `path`.
    ///
    /// # Errors
    /// When there is no such file or blob.
    fn tensor(&self, path: &str, offset: u64, ty: &TensorType) -> Result<Tensor, OpError>;
}

/// The one weight file of most models, whatever its path.
impl BlobSource for BlobFile {
    fn tensor(&self, _path: &str, offset: u64, ty: &TensorType) -> Result<Tensor, OpError> {
        BlobFile::tensor(self, offset, ty)
    }
}

/// For texts that refer to no weight file.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoBlobs;

impl BlobSource for NoBlobs {
    fn tensor(&self, path: &str, _offset: u64, _ty: &TensorType) -> Result<Tensor, OpError> {
        Err(OpError::invalid(format!("there is no weight file {path}")))
    }
}

/// Prints a program together with a new weight file for all weights that it uses, which is written
/// to `out`.
///
/// # Errors
/// As [`print()`], when a weight's type has no place in a weight file, and those of `out`.
pub fn print_with_weights(
    program: &Program,
    dialect: Dialect,
    out: &mut impl Write,
) -> Result<String, PrintError> {
    let place = |e: OpError| Error::new(e.kind, e.message);
    let layout = Layout::new(&program.weights, used_weights(program)).map_err(place)?;
    let text = printer::print_refs(program, &layout.refs(WEIGHTS_PATH), dialect)?;
    layout.write(&program.weights, out)?;
    Ok(text)
}

/// Why [`print_with_weights`] failed.
#[derive(Debug, thiserror::Error)]
pub enum PrintError {
    /// The program has no text form.
    #[error(transparent)]
    Program(#[from] Error),
    /// The weight file could not be written.
    #[error("weight file: {0}")]
    Io(#[from] io::Error),
}

/// The weights that a program's literals refer to, each once, in order of first use.
fn used_weights(program: &Program) -> Vec<tensor::WeightId> {
    let mut found = indexmap::IndexSet::new();
    program.for_each_literal(&mut |literal| {
        literal.payload.for_each(&mut |payload| {
            if let Payload::Weight(id) = payload {
                found.insert(*id);
            }
        });
    });
    found.into_iter().collect()
}
