//! Each rule on a program that it accepts and on one that it refuses, and the engine that runs the rules.
#![allow(clippy::unwrap_used, reason = "a test")]

mod calls;
mod common;
mod engine;
mod golden;
mod placement;
mod programs;
mod seeds;
