//! A plan: the steps of one function at fixed sizes, with the memory each works on.

use std::ops::Range;
use std::time::Duration;

use mil::{OpId, OpKind, Program, ValueId};
use tensor::{DType, Tensor};

use crate::kernel::Kernel;

/// The steps of one function at fixed sizes.
pub(crate) struct Plan {
    /// The program with only this function, all sizes that can be known fixed.
    pub(crate) program: Program,
    /// The function's name.
    pub(crate) function: String,
    /// What is done, in order.
    pub(crate) steps: Vec<Step>,
    /// Constants that steps read.
    pub(crate) constants: Vec<Tensor>,
    /// Bytes of the arena.
    pub(crate) arena_bytes: usize,
    /// Bytes that all buffers would take without sharing memory.
    pub(crate) unshared_bytes: usize,
    /// Byte lengths of the outputs that steps write directly.
    pub(crate) direct: Vec<usize>,
    /// Names of the states whose memory steps read as it lies.
    pub(crate) states: Vec<String>,
    /// Outputs of the function, in the order in which they are done.
    pub(crate) outputs: Vec<Output>,
}

/// The time of a step.
#[derive(Clone, Debug)]
pub struct StepTime {
    /// The operation that the step stands for; it may compute those around it too.
    pub operation: String,
    /// Its kind.
    pub kind: OpKind,
    /// Whether a kernel runs it, not the interpreter.
    pub native: bool,
    /// Time spent.
    pub time: Duration,
}

impl Plan {
    /// What the steps are, with the time of each.
    pub(crate) fn times(&self, times: &[Duration]) -> Vec<StepTime> {
        let Some(function) = self.program.functions.get(&self.function) else { return Vec::new() };
        let step = |(step, time): (&Step, &Duration)| {
            let (op, native) = match step {
                Step::Native(step) => (step.op, true),
                Step::Interpreted(step) => (step.op, false),
            };
            let (operation, kind) = (function.describe(op), function.ops[op].kind);
            StepTime { operation, kind, native, time: *time }
        };
        self.steps.iter().zip(times).map(step).collect()
    }
}

/// An output of the function.
pub(crate) struct Output {
    /// Its name.
    pub(crate) name: String,
    /// Which value it is.
    pub(crate) value: ValueId,
    /// Where its bytes are in the end; `None` if only the interpreter holds it.
    pub(crate) held: Option<Held>,
    /// How many steps are done when it is: no later one reads or writes its memory.
    pub(crate) done: usize,
}

/// Where a tensor of known size lies.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// Its bytes.
    pub(crate) place: Place,
    /// Element type.
    pub(crate) dtype: DType,
    /// Dimensions.
    pub(crate) shape: Vec<usize>,
}

/// Bytes somewhere.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// In a constant.
    Const(usize, Range<usize>),
    /// In an input of the function, by its number.
    Input(usize, Range<usize>),
    /// In the arena.
    Arena(Range<usize>),
    /// In an output that steps write directly.
    Direct(usize, Range<usize>),
    /// In the memory of a state.
    State(usize, Range<usize>),
}

/// One step.
pub(crate) enum Step {
    /// A kernel's.
    Native(NativeStep),
    /// The reference interpreter's.
    Interpreted(InterpretedStep),
}

/// A kernel with the places of its operands.
pub(crate) struct NativeStep {
    /// The operation it belongs to, for errors.
    pub(crate) op: OpId,
    /// The code.
    pub(crate) kernel: Box<dyn Kernel>,
    /// What it reads.
    pub(crate) ins: Vec<Place>,
    /// What it writes: ranges of the arena and whole direct outputs.
    pub(crate) outs: Vec<Place>,
    /// Those of `outs` that lie in the arena.
    pub(crate) arena: Vec<Range<usize>>,
    /// The order that puts the lowest of `arena` first.
    pub(crate) sorted: Vec<usize>,
    /// The input that lies in the first output's memory.
    pub(crate) in_place: Option<usize>,
    /// States that it reads as they lie.
    pub(crate) states: Vec<usize>,
}

/// An operation evaluated by the reference interpreter.
pub(crate) struct InterpretedStep {
    /// Which.
    pub(crate) op: OpId,
    /// Values it uses that lie in memory.
    pub(crate) uses: Vec<(ValueId, Held)>,
    /// Values it uses that only the interpreter holds.
    pub(crate) dynamic: Vec<ValueId>,
    /// States it uses: the value and the state's name.
    pub(crate) states: Vec<(ValueId, String)>,
    /// Its results: where they go, or `None` if only the interpreter holds them.
    pub(crate) results: Vec<(ValueId, Option<Held>)>,
}

/// For each of `count` direct outputs, how many of `steps` are done when the last has touched it.
pub(crate) fn direct_ends(steps: &[Step], count: usize) -> Vec<usize> {
    let mut ends = vec![0; count];
    for (step, done) in steps.iter().zip(1..) {
        let mut touch = |place: &Place| {
            if let Place::Direct(i, _) = place {
                ends[*i] = done;
            }
        };
        match step {
            Step::Native(step) => step.ins.iter().chain(&step.outs).for_each(touch),
            Step::Interpreted(step) => {
                let results = step.results.iter().filter_map(|(_, held)| held.as_ref());
                let all = step.uses.iter().map(|(_, held)| held).chain(results);
                all.for_each(|held| touch(&held.place));
            }
        }
    }
    ends
}

impl Place {
    /// The range, if it is one of the arena.
    pub(crate) fn arena(&self) -> Option<Range<usize>> {
        match self {
            Place::Arena(range) => Some(range.clone()),
            _ => None,
        }
    }

    /// The state, if it lies in one.
    pub(crate) fn state(&self) -> Option<usize> {
        match self {
            Place::State(i, _) => Some(*i),
            _ => None,
        }
    }
}
