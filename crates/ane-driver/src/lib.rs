//! A [`Backend`](exec::Backend) over any [`Port`](exec::port::Port): what the engine takes runs there,
//! the rest on a host backend.
//!
//! It holds no rule and no limit of its own: those are the chip's. Programs are compiled once, kept
//! in a cache, loaded and unloaded within the engine's limits; surfaces and requests are made once
//! and used again; caches stay on the engine between calls.

mod backend;
mod constants;
mod error;
mod executable;
mod packing;
mod programs;
mod selftest;
mod stats;

pub use backend::{AneBackend, AneRunnable, Options};
pub use constants::ConstantInputs;
pub use programs::{Exhausted, Update};
pub use selftest::{SelfTest, self_test};
pub use stats::Stats;
