//! Fixes keep what programs compute: random programs before and after agree in exact arithmetic.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;
mod interface;
mod operations;
mod products;
mod weights;
