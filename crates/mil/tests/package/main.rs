//! Packages: reading and writing real ones, and refusing damaged ones.

#![allow(clippy::unwrap_used, reason = "a test")]

extern crate rigel_mil as mil;

mod chain;
#[path = "../text/common.rs"]
mod common;
mod forms;
mod hostile;
mod limits;
mod third_parties;
mod unknown;
