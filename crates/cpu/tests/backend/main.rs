//! Tests of the CPU backend against the reference interpreter.
#![allow(clippy::unwrap_used, reason = "a test")]

mod cases;
mod coreml;
mod edges;
mod errors;
mod shapes;
mod tiny;
mod training;
mod transformer;
