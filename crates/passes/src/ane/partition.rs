//! Which operations go to the engine, and where its programs are cut.

use std::collections::{BTreeMap, BTreeSet};

use ane_model::chip::SlotUnit;
use mil::{Arg, Dim, Effect, Function, OpId, OpKind, OpView, Program, ValueId};

use super::{Form, Target, Variable, plain};

/// Operations that run one after another in one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Segment {
    /// On the host.
    Host(Vec<OpId>),
    /// In one program of the engine.
    Engine(Vec<OpId>),
}

/// Cuts the body of a function. `refused` stay on the host; so does what the engine has no form for, of which
/// the reasons are returned too.
pub(super) fn partition(
    program: &Program,
    function: &Function,
    form: Form,
    target: &Target<'_>,
    variable: &Variable,
    refused: &BTreeMap<OpId, String>,
) -> (Vec<Segment>, BTreeMap<OpId, String>) {
    let ops = function.body.ops.iter().copied();
    let ops: Vec<OpId> = ops.filter(|&op| function.ops[op].kind != OpKind::Const).collect();
    // Nothing but tensors goes from one step to another.
    let tensor = |&v: &ValueId| function.tensor_ty(v).is_some();
    let lists = ops.iter().any(|&op| !function.ops[op].outputs.iter().all(tensor));
    let mut on_engine: BTreeSet<ValueId> = BTreeSet::new();
    let (mut placed, mut unfit) = (Vec::new(), BTreeMap::new());
    for op in ops {
        let why = match form {
            Form::Dialect => (!takes(program, function, op, &on_engine)).then(|| {
                format!("this {} has no form on the engine", function.ops[op].kind.name())
            }),
            Form::Plain { .. } if lists => Some("the function has lists".to_owned()),
            Form::Plain { half } => plain::unfit(function, op, half, &on_engine),
        };
        let engine = why.is_none() && !refused.contains_key(&op);
        unfit.extend(why.map(|why| (op, why)));
        if engine {
            on_engine.extend(&function.ops[op].outputs);
        }
        placed.push((engine, op));
    }
    let runs = match form {
        Form::Dialect => runs(placed),
        Form::Plain { .. } => gathered(program, function, placed),
    };
    let budget = Budget::of(target);
    let mut segments = Vec::new();
    for (engine, run) in runs {
        match engine {
            true => {
                let parts = cut(program, function, form, &run, &budget, variable);
                segments.extend(parts.into_iter().map(Segment::Engine));
            }
            false => segments.push(Segment::Host(run)),
        }
    }
    (segments, unfit)
}

/// Neighbours in one place, in the function's order.
fn runs(placed: Vec<(bool, OpId)>) -> Vec<(bool, Vec<OpId>)> {
    let mut runs: Vec<(bool, Vec<OpId>)> = Vec::new();
    for (engine, op) in placed {
        match runs.last_mut() {
            Some((place, run)) if *place == engine => run.push(op),
            _ => runs.push((engine, vec![op])),
        }
    }
    runs
}

/// Runs made long: by turns, everything on the host that can run, and everything on the engine. What
/// reads or changes a state keeps its order.
fn gathered(
    program: &Program,
    function: &Function,
    mut rest: Vec<(bool, OpId)>,
) -> Vec<(bool, Vec<OpId>)> {
    let own: BTreeSet<ValueId> =
        rest.iter().flat_map(|&(_, op)| function.ops[op].outputs.iter().copied()).collect();
    let mut made = BTreeSet::new();
    let mut runs = Vec::new();
    let mut engine = false;
    while !rest.is_empty() {
        let (mut run, mut later, mut held) = (Vec::new(), Vec::new(), false);
        for (place, op) in rest {
            let pure = crate::rewrite::effect(function, &program.weights, op) == Effect::Pure;
            let mut ready = place == engine && (pure || !held);
            function.for_each_use(op, &mut |v| ready &= !own.contains(&v) || made.contains(&v));
            if ready {
                made.extend(function.ops[op].outputs.iter().copied());
                run.push(op);
            } else {
                held |= !pure;
                later.push((place, op));
            }
        }
        if !run.is_empty() {
            runs.push((engine, run));
        }
        (rest, engine) = (later, !engine);
    }
    runs
}

/// The tokens' axis and the elements of a token, of a tensor `[1, T, D]` or `[1, T, H, D]` of floats.
pub(super) fn tokens(function: &Function, v: ValueId) -> Option<(Dim, usize)> {
    let ty = function.tensor_ty(v).filter(|t| t.dtype.is_float())?;
    let (Some(1), true) = (ty.shape.first()?.fixed(), (3..=4).contains(&ty.rank())) else {
        return None;
    };
    let width = ty.shape[2..].iter().map(Dim::fixed).product::<Option<usize>>()?;
    Some((ty.shape[1].clone(), width))
}

/// Whether the engine has a form for an operation. Sums and products of what the host made stay
/// there, for crossing costs more.
fn takes(program: &Program, function: &Function, id: OpId, on_engine: &BTreeSet<ValueId>) -> bool {
    let op = &function.ops[id];
    let view = OpView::new(function, &program.weights, op);
    let value = |name: &str| match op.arg(name) {
        Some(Arg::Value(v)) => Some(*v),
        _ => None,
    };
    let is_tokens = |name: &str| value(name).is_some_and(|v| tokens(function, v).is_some());
    let made_there = |name: &str| value(name).is_some_and(|v| on_engine.contains(&v));
    let results = op.outputs.iter().all(|&v| tokens(function, v).is_some());
    results
        && match op.kind {
            OpKind::LlmLinear | OpKind::LlmRmsNorm | OpKind::LlmGatedMlp | OpKind::LlmRope => {
                is_tokens("x")
            }
            // Only the last axis is a token's.
            OpKind::LayerNorm => {
                let rank = view.tensor("x").map_or(0, mil::TensorType::rank) as i64;
                let axes = view.ints("axes").ok().flatten();
                is_tokens("x") && axes.is_some_and(|a| a == [-1] || a == [rank - 1])
            }
            OpKind::LlmAttention => value("key_cache").is_some() && is_tokens("query"),
            OpKind::Gelu | OpKind::Silu | OpKind::Tanh | OpKind::Sigmoid => {
                is_tokens("x") && made_there("x")
            }
            // Heads may be split and joined; tokens stay.
            OpKind::Reshape => {
                made_there("x")
                    && value("x").and_then(|v| tokens(function, v))
                        == tokens(function, op.outputs[0])
            }
            OpKind::Add | OpKind::Mul => {
                let scalar = |name: &str| {
                    let ty = view.literal(name).and_then(|l| l.ty.as_tensor());
                    let value = view.float(name).ok().flatten();
                    ty.is_some_and(|t| t.rank() == 0)
                        && value.is_some_and(|x| half::f16::from_f64(x).is_finite())
                };
                let shapes = |name: &str| value(name).and_then(|v| tokens(function, v));
                match (made_there("x"), made_there("y")) {
                    (false, false) => false,
                    (true, _) if scalar("y") => true,
                    (_, true) if scalar("x") => true,
                    _ => shapes("x").is_some() && shapes("x") == shapes("y"),
                }
            }
            _ => false,
        }
}

/// What one program may use.
struct Budget {
    /// Constants in the weight file, if their number counts.
    weights: Option<usize>,
    inputs: usize,
    operations: usize,
}

/// Engine operations that the largest form of a source operation has, attention with its cache.
const OPERATIONS_EACH: usize = 40;

impl Budget {
    fn of(target: &Target<'_>) -> Self {
        let chip = target.chip;
        let slots = chip.runtime.weight_slots.as_ref().map(|f| f.value as usize);
        let scalar = chip.runtime.scalar_slots.as_ref().map_or(0, |f| f.value as usize);
        let counted = chip.switches.slot_unit.as_ref().is_none_or(|u| u.value == SlotUnit::Tensors);
        Budget {
            weights: slots.filter(|_| counted).map(|n| n.saturating_sub(scalar)),
            inputs: chip.io.inputs_reliable.as_ref().map_or(usize::MAX, |f| f.value as usize),
            operations: chip.coreml.operations.as_ref().map_or(3000, |f| f.value as usize),
        }
    }
}

/// What operations need together.
#[derive(Default)]
struct Use {
    weights: BTreeSet<String>,
    masks: usize,
    rotations: usize,
    states: usize,
    /// Of adapters and of weights that are inputs.
    changing: usize,
}

impl Use {
    fn add(&mut self, program: &Program, function: &Function, id: OpId, variable: &Variable) {
        let op = &function.ops[id];
        op.for_each_arg_value(|v| {
            let constant = function.const_of(v).and_then(|l| l.ty.as_tensor());
            if constant
                .is_some_and(|t| t.rank() > 0 && t.dtype.is_float() || t.dtype.is_block_quantized())
            {
                self.weights.insert(function.values[v].name.clone());
            }
        });
        match op.kind {
            OpKind::LlmAttention => {
                self.masks = 3;
                self.states += 2;
            }
            OpKind::LlmRope => {
                self.rotations = 2;
                self.weights.insert("rotation".into());
            }
            OpKind::LlmLinear | OpKind::LlmGatedMlp => {
                for name in layer_weights(program, function, id) {
                    let adapted = variable.adapters.iter().any(|a| a.weight == name);
                    let given = variable.weights.contains(&name);
                    self.changing += 2 * usize::from(adapted) + usize::from(given);
                }
            }
            _ => {}
        }
    }

    fn fits(&self, budget: &Budget, inputs: usize, operations: usize) -> bool {
        let inputs = inputs + self.masks + self.rotations + self.states + self.changing;
        budget.weights.is_none_or(|n| self.weights.len() <= n)
            && inputs <= budget.inputs
            && operations * OPERATIONS_EACH <= budget.operations
    }
}

/// The name of the weight that argument `arg` of a product is.
pub(super) fn weight_name(
    program: &Program,
    function: &Function,
    id: OpId,
    arg: &str,
) -> Option<String> {
    let view = OpView::new(function, &program.weights, &function.ops[id]);
    match view.literal(arg)?.payload {
        mil::Payload::Weight(weight) => Some(program.weights.get(weight)?.name.clone()),
        _ => None,
    }
}

/// The names of the weights of a linear layer or a gated MLP.
pub(super) fn layer_weights(program: &Program, function: &Function, id: OpId) -> Vec<String> {
    let args: &[&str] = match function.ops[id].kind {
        OpKind::LlmLinear => &["weight"],
        OpKind::LlmGatedMlp => &["gate", "up", "down"],
        _ => &[],
    };
    args.iter().filter_map(|arg| weight_name(program, function, id, arg)).collect()
}

/// Parts of a run that each fit into a program, cut where few tensors cross. A single operation is a
/// part whatever it needs.
fn cut(
    program: &Program,
    function: &Function,
    form: Form,
    run: &[OpId],
    budget: &Budget,
    variable: &Variable,
) -> Vec<Vec<OpId>> {
    let mut parts = Vec::new();
    let mut rest = run;
    while !rest.is_empty() {
        let mut needs = Use::default();
        let mut end = 0;
        while end < rest.len() {
            needs.add(program, function, rest[end], variable);
            let inputs = super::used_from_outside(function, &rest[..=end]);
            // Those of the dialect that are no tokens are counted by what is made of them.
            let crosses = |v: &&ValueId| form != Form::Dialect || tokens(function, **v).is_some();
            let inputs = inputs.iter().filter(crosses).count();
            if end > 0 && !needs.fits(budget, inputs, end + 1) {
                break;
            }
            end += 1;
        }
        if end < rest.len() {
            // The later half is looked at, so that parts do not get small.
            let from = end.div_ceil(2).max(1);
            let narrowest = (from..=end).rev().min_by_key(|&at| crossing(function, run, rest, at));
            end = narrowest.unwrap_or(end);
        }
        let (part, after) = rest.split_at(end);
        parts.push(part.to_vec());
        rest = after;
    }
    parts
}

/// How many tensors of tokens that are made before `rest[at]` are used from there on.
fn crossing(function: &Function, run: &[OpId], rest: &[OpId], at: usize) -> usize {
    let later = &rest[at..];
    let made: BTreeSet<ValueId> = run[..run.len() - later.len()]
        .iter()
        .flat_map(|&op| function.ops[op].outputs.iter().copied())
        .collect();
    super::used_from_outside(function, later).iter().filter(|v| made.contains(v)).count()
}
