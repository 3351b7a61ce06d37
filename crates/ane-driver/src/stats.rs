//! What a driver did.

use std::time::Duration;

/// Counts and times since a backend was made.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Stats {
    /// Programs compiled.
    pub compilations: usize,
    /// Programs loaded, again after an eviction included.
    pub loads: usize,
    /// Weight files overwritten and loaded again.
    pub reloads: usize,
    /// Programs unloaded to make room.
    pub evictions: usize,
    /// Evaluations.
    pub dispatches: usize,
    /// Bytes copied between host tensors and surfaces, or from surface to surface.
    pub copied: usize,
    /// Time spent in evaluations, as the host's clock has it.
    pub wall: Duration,
    /// Time of the evaluations on an emulated engine's clock, without compiling and loading; `None` on
    /// hardware, and where the chip's file lacks a rate.
    pub predicted: Option<Duration>,
    /// Time of compiling and loading on an emulated engine's clock; `None` as above.
    pub preparing: Option<Duration>,
}
