//! What passes share: replacing values, taking operations out of blocks, dropping what is unused.

use std::collections::{HashMap, HashSet};

use mil::{
    Block, Effect, Function, Literal, OpId, OpView, Operation, Payload, Program, ValueDef, ValueId,
};
use tensor::{WeightId, WeightStore};

/// Values to be replaced, each by another one.
pub(crate) type Replacements = HashMap<ValueId, ValueId>;

/// Puts each replacement in place of its value wherever that is used, and follows chains.
pub(crate) fn replace_values(function: &mut Function, map: &Replacements) {
    if map.is_empty() {
        return;
    }
    let replace = |v: &mut ValueId| {
        while let Some(&new) = map.get(v) {
            *v = new;
        }
    };
    for op in function.ops.values_mut() {
        op.args.iter_mut().flatten().for_each(|a| a.for_each_value_mut(&mut |v| replace(v)));
        op.blocks.iter_mut().for_each(|b| replace_outputs(b, &replace));
    }
    function.body.outputs.iter_mut().for_each(replace);
}

fn replace_outputs(block: &mut Block, replace: &impl Fn(&mut ValueId)) {
    block.outputs.iter_mut().for_each(replace);
}

/// Takes the operations `gone` out of every block.
pub(crate) fn remove_ops(function: &mut Function, gone: &HashSet<OpId>) {
    if gone.is_empty() {
        return;
    }
    function.body.ops.retain(|op| !gone.contains(op));
    for op in function.ops.values_mut() {
        op.blocks.iter_mut().for_each(|b| b.ops.retain(|op| !gone.contains(op)));
    }
}

/// How many constants of all functions refer to each weight.
pub(crate) fn weight_uses(program: &Program) -> HashMap<WeightId, usize> {
    let mut uses = HashMap::new();
    program.for_each_literal(&mut |literal| {
        literal.payload.for_each(&mut |payload| {
            if let Payload::Weight(id) = payload {
                *uses.entry(*id).or_default() += 1;
            }
        });
    });
    uses
}

/// Whether no other constant refers to the weight of `literal`, if it has one.
pub(crate) fn is_own(literal: &Literal, uses: &HashMap<WeightId, usize>) -> bool {
    match &literal.payload {
        Payload::Weight(id) => uses.get(id) == Some(&1),
        _ => true,
    }
}

/// Whether `v` is an output of the function's body, whose name callers know.
pub(crate) fn is_public(function: &Function, v: ValueId) -> bool {
    function.body.outputs.contains(&v)
}

/// What operation `id`, or one in its nested blocks, does besides computing.
pub(crate) fn effect(function: &Function, weights: &WeightStore, id: OpId) -> Effect {
    let op = &function.ops[id];
    let own = op.kind.def().effect(&OpView::new(function, weights, op));
    let inner = op.blocks.iter().flat_map(|b| &b.ops).map(|&op| effect(function, weights, op));
    let effects: Vec<Effect> = inner.chain([own]).collect();
    let order = [Effect::WritesState, Effect::Random, Effect::ReadsState];
    order.into_iter().find(|e| effects.contains(e)).unwrap_or(Effect::Pure)
}

/// Calls `f` on the body and on each nested block, outer ones first.
pub(crate) fn for_each_block(function: &Function, f: &mut dyn FnMut(&Block)) {
    fn walk(function: &Function, block: &Block, f: &mut dyn FnMut(&Block)) {
        f(block);
        for &op in &block.ops {
            function.ops[op].blocks.iter().for_each(|b| walk(function, b, f));
        }
    }
    walk(function, &function.body, f);
}

/// Gives values whose name another one has a name of their own; inputs and outputs keep theirs.
///
/// Blocks that do not see each other may use one name twice. A pass that moves operations out of
/// their block must call this.
pub(crate) fn make_names_unique(function: &mut Function) {
    let mut values = Vec::new();
    for_each_block(function, &mut |b| {
        values.extend(&b.params);
        values.extend(b.ops.iter().flat_map(|&op| &function.ops[op].outputs));
    });
    let public: Vec<ValueId> =
        function.inputs.iter().chain(&function.body.outputs).copied().collect();
    let mut names: HashSet<String> =
        public.iter().map(|&v| function.values[v].name.clone()).collect();
    for v in values {
        if public.contains(&v) {
            continue;
        }
        let own = function.values[v].name.clone();
        let numbered = (1..).map(|n| format!("{own}_{n}"));
        let mut free = std::iter::once(own.clone()).chain(numbered);
        if let Some(name) = free.find(|name| !names.contains(name)) {
            names.insert(name.clone());
            function.values[v].name = name;
        }
    }
}

/// Renumbers values and operations densely, dropping those that stand in no block.
pub(crate) fn compact(function: &mut Function) {
    let mut new = Function::new(function.opset);
    new.attributes = std::mem::take(&mut function.attributes);
    let mut mover = Mover { old: function, new: &mut new, values: HashMap::new() };
    let inputs: Vec<ValueId> = mover.old.inputs.iter().map(|&v| mover.param(v)).collect();
    let body = mover.block(&mover.old.body);
    new.inputs = inputs;
    new.body = body;
    *function = new;
}

struct Mover<'a> {
    old: &'a Function,
    new: &'a mut Function,
    values: HashMap<ValueId, ValueId>,
}

impl Mover<'_> {
    fn param(&mut self, v: ValueId) -> ValueId {
        let new = self.new.values.push(self.old.values[v].clone());
        self.values.insert(v, new);
        new
    }

    fn moved(&self, v: ValueId) -> ValueId {
        // A value that was not met stays dangling for the verifier to find.
        self.values.get(&v).copied().unwrap_or(v)
    }

    fn block(&mut self, block: &Block) -> Block {
        let params = block.params.iter().map(|&v| self.param(v)).collect();
        let ops = block.ops.iter().map(|&op| self.op(op)).collect();
        Block { params, ops, outputs: block.outputs.iter().map(|&v| self.moved(v)).collect() }
    }

    fn op(&mut self, id: OpId) -> OpId {
        let old = &self.old.ops[id];
        let mut args = old.args.clone();
        for arg in args.iter_mut().flatten() {
            arg.for_each_value_mut(&mut |v| *v = self.moved(*v));
        }
        let blocks = old.blocks.iter().map(|b| self.block(b)).collect();
        let outputs: Vec<ValueId> = old.outputs.iter().map(|&v| self.param(v)).collect();
        let (kind, opset, attributes) = (old.kind, old.opset, old.attributes.clone());
        let new = self.new.ops.push(Operation {
            kind,
            args,
            outputs: outputs.clone(),
            blocks,
            opset,
            attributes,
        });
        for (i, &v) in outputs.iter().enumerate() {
            self.new.values[v].def = ValueDef::Result(new, i as u32);
        }
        self.new.spans[new] = self.old.spans[id];
        new
    }
}
