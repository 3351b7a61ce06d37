//! Where Core ML runs each operation: what the engine supports, what each backend is estimated to
//! take, and the shortest path that its segmenter takes over the operations.
//!
//! Source: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6, `notes/coreml_dispatch.md`: 482 models
//! on an M4 under macOS 27.0.1, of which the path explains 440, and 41 more are ties. Estimates are
//! a fit to a few published ones: Apple's own come from a decision tree for each operation.

mod estimate;
mod segment;
mod support;

use mil::{OpId, Program};

pub use estimate::Estimates;
pub use segment::{Prices, shortest_path};
pub use support::{Support, support};

use crate::chip::Chip;
use crate::os::Os;
use crate::rules::{CheckOptions, FunctionCx, OpCx, Path, ProgramCx};

/// A backend of Core ML, the GPU apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Backend {
    /// The Neural Engine.
    Ane,
    /// The CPU, by Accelerate's BNNS.
    Bnns,
    /// The CPU, by the older kernels.
    ClassicCpu,
}

impl Backend {
    /// All of them, in the order of [`Estimates`].
    pub const ALL: [Backend; 3] = [Backend::Ane, Backend::Bnns, Backend::ClassicCpu];

    /// The name in Apple's analysis files.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Ane => "ane",
            Backend::Bnns => "bnns",
            Backend::ClassicCpu => "classic_cpu",
        }
    }
}

/// Where one operation runs, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct OpPlacement {
    /// The operation.
    pub op: OpId,
    /// Its number in the order of the text, from 0, constants counted.
    pub index: usize,
    /// Whether the engine can run it.
    pub supported: Support,
    /// What keeps it off the engine: a rule's id and what it found.
    pub why_not: Vec<(&'static str, String)>,
    /// Estimated time on each backend.
    pub estimates: Estimates,
    /// The backend that the segmenter takes.
    pub chosen: Backend,
    /// What the whole path costs more if this operation moves to or from the engine; near zero is a
    /// tie. `None` where it cannot move.
    pub margin_ms: Option<f64>,
}

/// Where the operations of one function run.
#[derive(Clone, PartialEq, Debug)]
pub struct Placement {
    /// Every operation that computes, in order.
    pub ops: Vec<OpPlacement>,
    /// The segmenter's cost of the path, changes of backend included. It is no prediction of time.
    pub cost_ms: f64,
}

impl Placement {
    /// Runs of operations on the engine.
    pub fn ane_segments(&self) -> usize {
        let runs = self.ops.chunk_by(|a, b| a.chosen == b.chosen);
        runs.filter(|run| run[0].chosen == Backend::Ane).count()
    }

    /// Operations on the engine.
    pub fn on_ane(&self) -> usize {
        self.ops.iter().filter(|op| op.chosen == Backend::Ane).count()
    }
}

/// Why a placement cannot be predicted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlacementError {
    /// There is no such function.
    #[error("the program has no function \"{0}\"")]
    NoFunction(String),
    /// The chip's file lacks a number of Core ML's estimates.
    #[error("it is unknown what Core ML estimates for {chip}: no coreml.{field}")]
    Unknown {
        /// The chip.
        chip: String,
        /// The field that is absent.
        field: &'static str,
    },
}

/// Predicts where Core ML runs the operations of a function.
///
/// # Errors
/// When there is no such function, or the chip's file does not hold what Core ML estimates with.
pub fn placement(
    program: &Program,
    function: &str,
    chip: &Chip,
    os: Option<Os>,
) -> Result<Placement, PlacementError> {
    let options = CheckOptions { chip, path: Path::CoreMl, os };
    let cx = ProgramCx::new(program, &options);
    let f = cx.functions.iter().find(|f| f.name == function);
    let f = f.ok_or_else(|| PlacementError::NoFunction(function.to_owned()))?;
    let prices = Prices::of(chip)?;
    let rates = estimate::Rates::of(chip)?;
    let mut ops: Vec<OpPlacement> = Vec::new();
    for (id, _) in f.computing() {
        let op = OpCx::new(f, id);
        let why_not = support::obstacles(&op, &options);
        let supported = if why_not.is_empty() { support(op.kind()) } else { Support::No };
        ops.push(OpPlacement {
            op: id,
            index: f.position(id).unwrap_or_default(),
            supported,
            why_not,
            estimates: rates.estimate(&op),
            chosen: Backend::Bnns,
            margin_ms: None,
        });
    }
    let times: Vec<[Option<f64>; 3]> = ops.iter().map(times).collect();
    let path = shortest_path(&times, &prices);
    for ((op, backend), margin) in ops.iter_mut().zip(path.backends).zip(path.margins) {
        op.chosen = backend;
        op.margin_ms = margin;
    }
    Ok(Placement { ops, cost_ms: path.cost_ms })
}

/// Estimated times by backend; `None` where an operation cannot run.
fn times(op: &OpPlacement) -> [Option<f64>; 3] {
    let e = &op.estimates;
    let ane = (op.supported != Support::No).then_some(e.ane_ms);
    [ane, Some(e.bnns_ms), Some(e.classic_ms)]
}

/// Whether a function has sizes that are not known when compiling.
fn is_dynamic(f: &FunctionCx<'_>) -> bool {
    let open = |ty: &mil::TensorType| ty.fixed_shape().is_none();
    f.inputs().chain(f.states()).any(|(_, ty)| open(ty))
}
