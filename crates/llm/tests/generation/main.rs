//! Generation and evaluation over models whose every answer is known.
#![allow(clippy::unwrap_used, reason = "a test")]

mod eval;
mod fake;
mod generate;
mod stories;
