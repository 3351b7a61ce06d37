//! Program to program: one file a pass.
//!
//! A pass rewrites one function at a time and keeps its meaning: inputs, outputs, their names and
//! every effect on states (`merge_states` alone arranges those anew). The [driver](run) removes what
//! a pass left without use of its arguments, verifies the program after each pass, and counts.
//! Adding a pass is one file and one line in [`PASSES`].

mod affine;
pub mod ane;
mod bind;
mod cast_fusion;
mod const_dedup;
mod cse;
mod dead_code;
mod decompose;
mod dequantize;
mod driver;
mod error;
pub mod fixes;
mod fold;
mod gated_mlp;
pub mod grad;
mod half;
mod identity;
mod linear_folding;
pub mod low_rank;
mod merge_reshapes;
mod merge_states;
pub mod pipelines;
mod rebuild;
mod rewrite;
mod to_fp16;
mod transpose_rules;
mod transpose_sinking;

use mil::Program;

pub use bind::bind_inputs;
pub use driver::{PassStats, run, with_requirements};
pub use error::{PassError, Result};

/// A rewriting of programs.
pub trait Pass: Sync {
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// What it does, with a program before and after.
    fn doc(&self) -> &'static str;

    /// What must hold before it runs.
    fn requires(&self) -> &'static [Property] {
        &[]
    }

    /// What holds after it.
    fn establishes(&self) -> &'static [Property] {
        &[]
    }

    /// What it may break.
    fn breaks(&self) -> &'static [Property] {
        &[]
    }

    /// Whether results keep every bit where each operation's results are rounded to their types. If
    /// not, they keep their meaning up to rounding: sums in another order, folded weights rounded once.
    fn exact(&self) -> bool {
        true
    }

    /// Rewrites function `function` of `program` and returns how many things it changed: 0 means
    /// that the function is as it was.
    ///
    /// # Errors
    /// When an operation is invalid or has no form that the pass needs.
    fn run(&self, program: &mut Program, function: &str) -> mil::Result<usize>;
}

/// What passes rely on and provide.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Property {
    /// Every operation's results are used, or it changes a state.
    NoDeadCode,
    /// Equal constants are one constant.
    UniqueConstants,
    /// Every operation is one of Core ML's.
    PlainMil,
}

/// Every pass.
pub const PASSES: &[&dyn Pass] = &[
    &dead_code::DeadCode,
    &identity::Identity,
    &fold::Fold,
    &const_dedup::ConstDedup,
    &cse::Cse,
    &decompose::Decompose,
    &decompose::DecomposeComposites,
    &decompose::DecomposeAttention,
    &cast_fusion::CastFusion,
    &linear_folding::LinearFolding,
    &merge_reshapes::MergeReshapes,
    &transpose_sinking::TransposeSinking,
    &dequantize::Dequantize,
    &to_fp16::ToFp16,
    &merge_states::MergeStates,
];

/// The pass called `name`.
pub fn pass(name: &str) -> Option<&'static dyn Pass> {
    PASSES.iter().copied().find(|p| p.name() == name)
}
