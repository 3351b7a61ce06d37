//! The kernels on every instruction set of this machine against their definitions in double precision.
#![allow(clippy::unwrap_used, reason = "a test")]

mod attention;
mod common;
mod conv;
mod gradients;
mod matmul;
mod optimizer;
mod rows;
