//! The orders in which passes run.

use crate::Pass;
use crate::{
    cast_fusion, const_dedup, cse, dead_code, decompose, dequantize, fold, identity,
    linear_folding, merge_reshapes, merge_states, to_fp16, transpose_sinking,
};

/// For a backend that runs the dialect's operations whole: nothing is computed twice, at run time
/// instead of now, or for nothing.
pub const OPTIMIZE: &[&dyn Pass] = &[
    &dead_code::DeadCode,
    &fold::Fold,
    &identity::Identity,
    &cast_fusion::CastFusion,
    &merge_reshapes::MergeReshapes,
    &transpose_sinking::TransposeSinking,
    &linear_folding::LinearFolding,
    &identity::Identity,
    &const_dedup::ConstDedup,
    &cse::Cse,
    &dead_code::DeadCode,
];

/// Plain MIL: every composite operation is replaced by simpler ones, and what that leaves behind is tidied.
pub const PLAIN: &[&dyn Pass] = &[
    &dead_code::DeadCode,
    &decompose::Decompose,
    &identity::Identity,
    &fold::Fold,
    &const_dedup::ConstDedup,
    &cse::Cse,
    &dead_code::DeadCode,
];

/// For devices that compute in half precision and run plain MIL with few states: as [`PLAIN`], with
/// weights and arithmetic in half precision and the states of equal layers joined.
///
/// Precision comes before decomposing, so that decompositions know it: in half precision they scale
/// before they square, and keep angles in single.
pub const DEPLOY: &[&dyn Pass] = &[
    &dead_code::DeadCode,
    &dequantize::Dequantize,
    &to_fp16::ToFp16,
    &decompose::Decompose,
    &identity::Identity,
    &fold::Fold,
    &merge_states::MergeStates,
    &const_dedup::ConstDedup,
    &cse::Cse,
    &dead_code::DeadCode,
];

/// As [`DEPLOY`], in single precision.
pub const DEPLOY_FP32: &[&dyn Pass] = &[
    &dead_code::DeadCode,
    &decompose::Decompose,
    &identity::Identity,
    &fold::Fold,
    &merge_states::MergeStates,
    &const_dedup::ConstDedup,
    &cse::Cse,
    &dead_code::DeadCode,
];

/// The pipelines with their names on the command line.
pub const PIPELINES: &[(&str, &[&dyn Pass])] = &[("optimize", OPTIMIZE), ("plain", PLAIN)];
