//! MIL text against real files, random programs and damaged input.
#![allow(clippy::unwrap_used, reason = "a test")]

extern crate rigel_mil as mil;

mod artefacts;
mod blobs;
mod common;
mod errors;
mod hostile;
mod round_trip;
