//! What can be said of a program and of a run of it, for people: listings, inputs and arrays from files, figures.

pub mod inputs;
pub mod nonfinite;
pub mod npy;
pub mod package_listing;
pub mod statistics;
pub mod units;
