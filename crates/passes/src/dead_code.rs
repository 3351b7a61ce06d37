//! Removes operations whose results nobody uses.

use std::collections::HashSet;

use mil::{Block, Effect, Function, OpId, Program, ValueId};
use tensor::WeightStore;

use crate::{Pass, Property, rewrite};

/// Removes operations without effect whose results nobody uses.
pub(crate) struct DeadCode;

impl Pass for DeadCode {
    fn name(&self) -> &'static str {
        "dead_code"
    }

    fn doc(&self) -> &'static str {
        "Removes operations without effect on a state whose results nobody uses.\n\
         before: a = add(x = x, y = x); b = mul(x = x, y = x) -> (b)\n\
         after:  b = mul(x = x, y = x) -> (b)"
    }

    fn establishes(&self) -> &'static [Property] {
        &[Property::NoDeadCode]
    }

    fn run(&self, program: &mut Program, function: &str) -> mil::Result<usize> {
        let Program { functions, weights, .. } = program;
        let Some(function) = functions.get_mut(function) else { return Ok(0) };
        let mut live = Liveness { function, weights, used: HashSet::new(), gone: HashSet::new() };
        live.block(&function.body);
        let gone = live.gone;
        rewrite::remove_ops(function, &gone);
        Ok(gone.len())
    }
}

struct Liveness<'a> {
    function: &'a Function,
    weights: &'a WeightStore,
    used: HashSet<ValueId>,
    gone: HashSet<OpId>,
}

impl Liveness<'_> {
    /// Goes backwards through a block. Nested blocks only go with the operation they belong to or
    /// lose operations of their own.
    fn block(&mut self, block: &Block) {
        self.used.extend(&block.outputs);
        for &id in block.ops.iter().rev() {
            let op = &self.function.ops[id];
            let needed = rewrite::effect(self.function, self.weights, id) == Effect::WritesState
                || op.outputs.iter().any(|v| self.used.contains(v));
            if !needed {
                self.gone.insert(id);
                continue;
            }
            op.blocks.iter().rev().for_each(|b| self.block(b));
            op.for_each_arg_value(|v| {
                self.used.insert(v);
            });
        }
    }
}
