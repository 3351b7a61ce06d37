//! The Neural Engine in software: [`Emulator`] implements the private framework's verbs with the
//! engine's rules, arithmetic, refusals and clock.
//!
//! It takes nothing from the fast kernels that it judges, and every limit it keeps is a value of a
//! chip's file or a rule of `ane-model`. It says of an error what the real engine would say, and
//! beside it the reason.

mod compiled;
mod engine;
mod machine;
mod port;
mod products;
mod tables;

pub use machine::{Arithmetic, Clock, Machine, RateClock};
pub use port::{Emulator, Model, Request, Surface};
