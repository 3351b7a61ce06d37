//! Lowering for the Neural Engine's direct path: one function becomes a sequence of engine programs
//! and host programs, with a manifest of what goes in and out of each.
//!
//! A tensor of tokens `[1, T, D]` (or `[1, T, H, D]`) is `[1, D, 1, S]` on the engine, fp16, channels
//! first, with `S >= T` columns of which the first `T` hold tokens. Products by constant weights are
//! 1x1 convolutions, attention is written out with an additive mask, a key-value cache is an input
//! `[1, G D, 1, C]` and an output of the same shape that replaces it.
//!
//! A function of plain MIL keeps its tensors' order of elements: each has four axes, leading ones
//! added, and crosses between host and engine in rows of a width that surfaces may have. Its states
//! are the host's.
//!
//! What the engine does not take stays on the host: whatever has no form here, and whatever the rules
//! of `ane-model` refuse.

mod dialect;
mod emitter;
mod host;
mod lowering;
mod partition;
mod plain;
mod weights;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use ane_model::rules::{CheckOptions, Path, Severity, check};
use ane_model::{Chip, Os};
use mil::{Error, ErrorKind, OpId, Program, Result, TensorType, ValueId};

pub use plain::computes_in_half;
pub use weights::{HalfWeights, halves as half_precision};

/// What to lower for.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The chip, with its limits and switches.
    pub chip: &'a Chip,
    /// The operating system.
    pub os: Os,
    /// Columns of a program: the most tokens of a call. A multiple of the chip's
    /// [`width_multiple`](ane_model::chip::Io::width_multiple) lest data go wrong.
    pub columns: usize,
}

impl Target<'_> {
    /// What widths of inputs and outputs are multiples of, in elements.
    fn width_multiple(&self) -> usize {
        width_multiple(self.chip)
    }

    fn padded(&self, width: usize) -> usize {
        width.next_multiple_of(self.width_multiple())
    }
}

/// What widths of inputs and outputs of `chip` are multiples of, in elements: the slots of caches and
/// the [ranks](AdapterSlot::rank) of adapters, which are padded, among them.
pub fn width_multiple(chip: &Chip) -> usize {
    chip.io.width_multiple.as_ref().map_or(1, |f| (f.value as usize).max(1))
}

/// In what language a function is written, hence how its tensors lie on the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// With operations of the language-model dialect.
    Dialect,
    /// In plain MIL.
    Plain {
        /// It computes in fp16; what it has in fp32 stays on the host.
        half: bool,
    },
}

/// A low-rank change of a linear layer, or of one of a gated MLP, that is an input of the program: `y += B (A x)` with `A`
/// `[rank, in]` and `B` `[out, rank]`, the factor `alpha / rank` in `B`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdapterSlot {
    /// Name of the weight of the linear layer.
    pub weight: String,
    /// Columns of `B`, padded to a multiple of the chip's width. Adapters of lower rank are padded with
    /// zeros.
    pub rank: usize,
}

/// What of a program may change without compiling it again, being inputs.
#[derive(Clone, Default, Debug)]
pub struct Variable {
    /// Layers that adapters change.
    pub adapters: Vec<AdapterSlot>,
    /// Names of weights of linear layers and of gated MLPs.
    pub weights: Vec<String>,
}

/// A tensor that goes from one step to another, or in or out of the function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Wire(pub usize);

/// What fills an input of an engine program, or where an output goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A tensor of tokens: `[1, T, D]` on the host, `[1, D, 1, S]` here.
    Tokens(Wire),
    /// A tensor that the host makes in the engine's shape and type.
    Raw(Wire),
    /// A tensor whose rows, along its last axis, are padded with zeros: `[1, R, 1, W]` here.
    Rows(Wire),
    /// A state, by its number: an input reads it, an output replaces it.
    State(usize),
    /// A weight `[out, in]` that is an input, its rows padded with zeros: `[1, out, 1, W]` here.
    Weight(usize),
    /// `A` of an adapter turned, `[in, rank]` row-major in `[1, in, 1, rank]`.
    AdapterA(usize),
    /// `B` of an adapter, `[out, rank]` row-major in `[1, out, 1, rank]`.
    AdapterB(usize),
}

/// An input or output of an engine program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binding {
    /// Name in the program.
    pub name: String,
    /// What it is bound to.
    pub source: Source,
    /// Its shape; the type is fp16. Data lie packed from byte 0 of the surface.
    pub shape: [usize; 4],
}

/// A program for the engine, one function `main`.
#[derive(Clone, Debug)]
pub struct EngineStep {
    /// What it is of, for messages: its first and last operation.
    pub label: String,
    /// The program.
    pub program: Program,
    /// Inputs in the order in which their surfaces are bound.
    pub inputs: Vec<Binding>,
    /// Outputs in the order in which their surfaces are bound.
    pub outputs: Vec<Binding>,
}

impl EngineStep {
    /// Bytes that each surface of `bindings` must have: all of one request are of equal size, and
    /// none below the chip's minimum.
    pub fn surface_bytes(bindings: &[Binding], chip: &Chip) -> usize {
        let largest = bindings.iter().map(|b| b.shape.iter().product::<usize>() * 2).max();
        let least = chip.io.surface_bytes.as_ref().map_or(0, |b| b.value as usize);
        largest.unwrap_or(0).max(least)
    }
}

/// What fills an input of a host program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostSource {
    /// The tensor as it is.
    Wire(Wire),
    /// A vector `[T]` of int32, lengthened to the columns with -1.
    Padded(Wire),
}

/// A program for the host, one function `main`.
#[derive(Clone, Debug)]
pub struct HostStep {
    /// The program.
    pub program: Program,
    /// Inputs by name.
    pub inputs: Vec<(String, HostSource)>,
    /// Outputs by name.
    pub outputs: Vec<(String, Wire)>,
}

/// A part of a lowered function.
#[derive(Clone, Debug)]
pub enum Step {
    /// On the host.
    Host(HostStep),
    /// On the engine.
    Engine(EngineStep),
}

/// A state on the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateSlot {
    /// Its name in the source program.
    pub name: String,
    /// Heads, elements of a head, slots: `[1, heads * dim, 1, slots]` on the engine, `[1, heads,
    /// slots, dim]` in the source.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Slots.
    pub slots: usize,
}

/// A lowered function.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The most tokens of a call, where calls can be cut by tokens; a function of plain MIL runs whole.
    pub columns: Option<usize>,
    /// In order.
    pub steps: Vec<Step>,
    /// The types of [`Wire`]s, by number.
    pub wires: Vec<TensorType>,
    /// The function's tensor inputs by name.
    pub inputs: Vec<(String, Wire)>,
    /// The function's outputs by name.
    pub outputs: Vec<(String, Wire)>,
    /// States that are on the engine.
    pub states: Vec<StateSlot>,
    /// The weights that are inputs, by the numbers in [`Source::Weight`], with `[out, in]`.
    pub weights: Vec<(String, [usize; 2])>,
    /// The adapters' slots with `[out, in]` of their layer, in the order of the numbers in
    /// [`Source::AdapterA`].
    pub adapters: Vec<(AdapterSlot, [usize; 2])>,
    /// Operations of the source that run on the host, and why each: the rule that refuses it, or what keeps it
    /// from having a form on the engine.
    pub refused: Vec<(String, String)>,
}

/// `program` as [`lower`] takes it: functions of language models that keep states or whose sizes are open as
/// they are; all others as plain MIL, with attention written out and weights as plain numbers. The loss and
/// the gradients of a model are among the latter.
///
/// # Errors
/// When the program is wrong.
pub fn legalised(program: &Program) -> Result<Cow<'_, Program>> {
    let stays = |function: &mil::Function| {
        let state = |&v: &ValueId| function.ty(v).as_state().is_some();
        let open = !function.symbols().is_empty();
        is_dialect(function) && (open || function.inputs.iter().any(state))
    };
    if program.functions.values().all(stays) {
        return Ok(Cow::Borrowed(program));
    }
    let mut program = program.clone();
    let functions = std::mem::take(&mut program.functions);
    let (kept, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        functions.into_iter().partition(|(_, function)| stays(function));
    program.functions = others;
    if program.functions.values().any(is_dialect) {
        crate::run(&mut program, crate::pipelines::PLAIN)?;
    }
    let passes = |names: &[&str]| names.iter().filter_map(|n| crate::pass(n)).collect::<Vec<_>>();
    crate::run(&mut program, &passes(&["dead_code"]))?;
    let names: Vec<String> = program.functions.keys().cloned().collect();
    for name in names {
        mil::eval::decompress(&mut program, &name, mil::eval::Arithmetic::Fp16)?;
        let wanted =
            |kind| matches!(kind, mil::OpKind::ScaledDotProductAttention | mil::OpKind::Einsum);
        crate::decompose::decompose_all(&mut program, &name, &wanted)?;
    }
    crate::run(&mut program, &passes(&["dead_code", "fold", "identity"]))?;
    program.functions.extend(kept);
    Ok(Cow::Owned(program))
}

fn is_dialect(function: &mil::Function) -> bool {
    function.ops.values().any(|op| !op.kind.is_core_ml())
}

/// Whether a linear layer or gated MLP of `function` has the weight called `name`.
pub fn has_layer(program: &Program, function: &mil::Function, name: &str) -> bool {
    let weights = |op| partition::layer_weights(program, function, op);
    function.ops.keys().any(|op| weights(op).iter().any(|weight| weight == name))
}

/// Lowers function `name`, whose states must have fixed sizes. `weights` keeps converted weights, so
/// that functions which share weights share their fp16 form.
///
/// # Errors
/// When the program is wrong, or a language model uses a state in a way that has no form on the engine.
pub fn lower(
    program: &Program,
    name: &str,
    target: &Target<'_>,
    variable: &Variable,
    weights: &mut HalfWeights,
) -> Result<Lowered> {
    let missing = || Error::new(ErrorKind::Invalid, format!("no function {name}"));
    let function = program.functions.get(name).ok_or_else(missing)?;
    let form = match is_dialect(function) {
        true => Form::Dialect,
        false => Form::Plain { half: plain::computes_in_half(function) },
    };
    let mut refused: BTreeMap<OpId, String> = BTreeMap::new();
    loop {
        let (segments, unfit) =
            partition::partition(program, function, form, target, variable, &refused);
        let mut lowering = lowering::Lowering::new(program, name, form, target, variable, weights);
        let mut found = BTreeMap::new();
        for segment in &segments {
            match segment {
                partition::Segment::Host(ops) => lowering.host(ops)?,
                partition::Segment::Engine(ops) => {
                    let emitted = lowering.engine(ops)?;
                    if emitted.refused.is_empty()
                        && let Some(Step::Engine(step)) = lowering.last()
                    {
                        found.extend(refusals(step, target, &emitted.origins, function, ops)?);
                    }
                    found.extend(emitted.refused);
                }
            }
        }
        if found.is_empty() {
            unfit.into_iter().for_each(|(op, why)| _ = refused.entry(op).or_insert(why));
            let describe = |(op, why)| (function.describe(op), why);
            return lowering.finish(refused.into_iter().map(describe).collect());
        }
        refused.extend(found);
    }
}

/// Operations of the source because of which the engine refuses a program.
fn refusals(
    step: &EngineStep,
    target: &Target<'_>,
    origins: &BTreeMap<OpId, OpId>,
    source: &mil::Function,
    segment: &[OpId],
) -> Result<BTreeMap<OpId, String>> {
    let Target { chip, os, .. } = *target;
    let options = CheckOptions { chip, path: Path::Direct, os: Some(os) };
    let mut found = BTreeMap::new();
    for d in check(&step.program, &options).into_iter().filter(|d| d.severity == Severity::Error) {
        let why = format!("{}: {}", d.rule.id, d.message);
        match d.op.and_then(|op| origins.get(&op)) {
            Some(&op) if source.ops[op].kind != mil::OpKind::LlmAttention => {
                found.entry(op).or_insert(why);
            }
            // What is about a program as a whole, such as an input, is about all its operations.
            _ if !is_dialect(source) => {
                segment.iter().for_each(|&op| {
                    found.entry(op).or_insert_with(|| why.clone());
                });
            }
            _ => {
                let message = format!("{}: {} refuses it: {why}", step.label, chip.title);
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        }
    }
    Ok(found)
}

/// Values that operations in `ops` use and do not make, constants apart, in order of first use.
fn used_from_outside(function: &mil::Function, ops: &[OpId]) -> Vec<ValueId> {
    let mut made: BTreeSet<ValueId> = BTreeSet::new();
    ops.iter().for_each(|&op| made_by(function, op, &mut made));
    let (mut used, mut seen) = (Vec::new(), BTreeSet::new());
    for &op in ops {
        function.for_each_use(op, &mut |v| {
            if !made.contains(&v) && function.const_of(v).is_none() && seen.insert(v) {
                used.push(v);
            }
        });
    }
    used
}

/// What an operation makes, and what its nested blocks are given and make.
fn made_by(function: &mil::Function, op: OpId, made: &mut BTreeSet<ValueId>) {
    made.extend(&function.ops[op].outputs);
    for block in &function.ops[op].blocks {
        made.extend(&block.params);
        block.ops.iter().for_each(|&op| made_by(function, op, made));
    }
}
