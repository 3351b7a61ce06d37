//! The orders in which passes run.

use crate::Pass;
use crate::{const_dedup, cse, dead_code, decompose, fold, identity};

/// For a backend that runs the dialect's operations whole: nothing is computed twice, at run time
/// instead of now, or for nothing.
pub const OPTIMIZE: &[&dyn Pass] =
    &[&dead_code::DeadCode, &fold::Fold, &const_dedup::ConstDedup, &cse::Cse, &dead_code::DeadCode];

/// Plain MIL: as [`OPTIMIZE`], with every composite operation replaced by simpler ones first.
pub const PLAIN: &[&dyn Pass] = &[
    &dead_code::DeadCode,
    &decompose::Decompose,
    &identity::Identity,
    &fold::Fold,
    &const_dedup::ConstDedup,
    &cse::Cse,
    &dead_code::DeadCode,
];
