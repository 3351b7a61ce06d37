//! What can be said of a program and of a run of it, for people: listings, inputs and arrays from files, figures.

pub mod check;
mod constants;
pub mod diff;
pub mod difference;
mod encoding;
pub mod equivalence;
mod error;
pub mod files;
pub mod graph;
pub mod inputs;
pub mod nonfinite;
pub mod npy;
pub mod outputs;
pub mod package_listing;
mod padding;
pub mod statistics;
pub mod units;
mod written;

pub use error::{Error, Result};
