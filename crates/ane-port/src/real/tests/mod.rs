//! The port over fake classes: a program's life with data, what is missing or different, and planted faults.
//!
//! They run where Objective-C is not at home; on a Mac the same names would be those of the real framework.
#![cfg(not(target_vendor = "apple"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod fakes;
mod faults;
mod life;
mod machine;
mod opening;
mod small;
