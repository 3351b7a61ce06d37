//! What the Neural Engine allows and costs: chips, rules, and where Core ML places operations. Pure
//! functions of a program and a chip.

pub mod chip;

pub use chip::Chip;
