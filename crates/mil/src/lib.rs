//! The IR that every crate speaks: MIL, Apple's model intermediate language, and a dialect of it
//! for the parts of language models.

mod attributes;
mod builder;
mod error;
pub mod eval;
mod literal;
pub mod ops;
pub mod package;
mod program;
mod specialize;
pub mod text;
mod types;
mod verify;

pub use attributes::Attributes;
pub use builder::{FunctionBuilder, OpBuilder};
pub use error::{Error, ErrorKind, OpError, Result};
pub use literal::{Literal, Payload};
pub use ops::{Cost, Effect, Emit, OpDef, OpKind, OpView, Param, WindowAxis, Windows};
pub use program::{
    Arg, BlobRef, Block, Function, OpId, Operation, Program, Span, ValueData, ValueDef, ValueId,
};
pub use types::{Dim, Opset, TensorType, Type};
pub use verify::{verify, verify_function};
