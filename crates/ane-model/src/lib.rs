//! What the Neural Engine allows and costs: chips, rules, and where Core ML places operations. Pure
//! functions of a program and a chip.

pub mod chip;
pub mod os;
pub mod placement;
pub mod rules;

pub use chip::Chip;
pub use os::Os;
pub use rules::{CheckOptions, Diagnostic, Path, Rule, Severity, check};
