//! Tests of the CPU backend against the reference interpreter.
#![allow(clippy::unwrap_used, reason = "a test")]

mod cases;
mod edges;
mod errors;
mod tiny;
mod transformer;
