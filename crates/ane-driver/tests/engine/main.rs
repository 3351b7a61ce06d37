//! Language models through the driver on emulated engines, against the CPU.
#![allow(clippy::unwrap_used, reason = "a test")]

mod adapters;
mod common;
mod families;
mod machines;
mod peft;
mod plain;
mod shapes;
mod stories;
mod training;
mod updates;
