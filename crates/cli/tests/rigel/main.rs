//! The `rigel` binary as its users run it.
#![allow(clippy::unwrap_used, reason = "a test")]

mod adapters;
mod bench;
mod check;
mod convert;
mod coreml;
mod data;
mod diff;
mod embedded;
mod engine;
mod errors;
mod help;
#[cfg(feature = "mpi")]
mod mpi;
mod opt;
mod run;
mod runs;
mod smollm2;
mod stories;
mod training;
