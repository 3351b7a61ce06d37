//! The part of Core ML's protobuf schema that ML programs use, and what becomes of the rest.
//!
//! Field numbers are those of the public schema (`Model.proto`, `FeatureTypes.proto`, `MIL.proto`).
//! Every message is wrapped in [`Kept`], which keeps the fields that are not modelled here, byte for
//! byte: they survive reading and writing, see [`Package::save`](crate::package::Package::save).
//! Groups, which the schema does not have, are refused; the entries of maps, which protobuf defines to
//! be a key and a value, have no other fields.

mod interface;
mod kept;
mod program;
mod residue;

pub use interface::*;
pub use kept::{Fields, Kept};
pub use program::*;

use kept::fields;
pub(super) use residue::Residue;
