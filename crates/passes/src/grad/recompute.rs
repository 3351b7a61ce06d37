//! Values of the forward computation as the gradients see them: kept, or computed again.
//!
//! The operations of a function fall into segments, each of which ends with a checkpoint. Values of the last
//! segment are at hand when the gradients begin; those of an earlier one are computed again from
//! the checkpoint before it when the gradients of its operations are emitted, so that they need not
//! live through what lies between. An operation that is computed again has the attribute
//! [`RECOMPUTED`]: it keeps common subexpression elimination from undoing it.

use std::collections::{HashMap, HashSet};

use mil::{
    Arg, Effect, Error, ErrorKind, Function, FunctionBuilder, Literal, OpId, OpKind, ValueDef,
    ValueId,
};
use tensor::WeightStore;

use crate::rewrite;

/// The attribute of operations that are computed again.
const RECOMPUTED: &str = "recomputed";

/// Which operations are computed again, and those that were.
pub(super) struct Recompute {
    lost: HashSet<OpId>,
    again: HashMap<ValueId, ValueId>,
}

impl Recompute {
    /// With the values called `checkpoints` kept.
    ///
    /// # Errors
    /// When there is no value of such a name.
    pub(super) fn new(
        function: &Function,
        weights: &WeightStore,
        checkpoints: &[String],
    ) -> mil::Result<Self> {
        let mut kept: HashSet<ValueId> = HashSet::new();
        for name in checkpoints {
            let mut made = function.body.ops.iter().flat_map(|&id| &function.ops[id].outputs);
            let found = made.find(|&&v| function.values[v].name == *name);
            let missing = || {
                Error::new(ErrorKind::Invalid, format!("no value {name} to keep as a checkpoint"))
            };
            kept.insert(*found.ok_or_else(missing)?);
        }
        let mut lost = HashSet::new();
        let ends = |id: &OpId| function.ops[*id].outputs.iter().any(|v| kept.contains(v));
        let last = function.body.ops.iter().rposition(ends).unwrap_or(0);
        for &id in &function.body.ops[..last] {
            let op = &function.ops[id];
            let repeatable = op.kind != OpKind::Const
                && op.blocks.is_empty()
                && rewrite::effect(function, weights, id) == Effect::Pure;
            if repeatable && !ends(&id) {
                lost.insert(id);
            }
        }
        Ok(Recompute { lost, again: HashMap::new() })
    }

    /// The value that the gradients use in place of `v`, computed again if need be.
    ///
    /// # Errors
    /// Those of adding the operations.
    pub(super) fn value(
        &mut self,
        b: &mut FunctionBuilder<'_>,
        function: &Function,
        v: ValueId,
    ) -> mil::Result<ValueId> {
        if let Some(&again) = self.again.get(&v) {
            return Ok(again);
        }
        // Operations whose results are wanted, each behind those that it waits for.
        let mut pending = vec![v];
        while let Some(&next) = pending.last() {
            let ValueDef::Result(id, _) = function.values[next].def else {
                pending.pop();
                continue;
            };
            if self.again.contains_key(&next) || !self.lost.contains(&id) {
                pending.pop();
                continue;
            }
            let mut waiting = Vec::new();
            function.ops[id].for_each_arg_value(|v| {
                if self.is_missing(function, v) {
                    waiting.push(v);
                }
            });
            if waiting.is_empty() {
                self.repeat(b, function, id)?;
                pending.pop();
            }
            pending.extend(waiting);
        }
        Ok(self.again.get(&v).copied().unwrap_or(v))
    }

    fn is_missing(&self, function: &Function, v: ValueId) -> bool {
        match function.values[v].def {
            ValueDef::Result(id, _) => self.lost.contains(&id) && !self.again.contains_key(&v),
            ValueDef::Param => false,
        }
    }

    fn repeat(
        &mut self,
        b: &mut FunctionBuilder<'_>,
        function: &Function,
        id: OpId,
    ) -> mil::Result<()> {
        let operation = &function.ops[id];
        let mut op = b.op(operation.kind);
        for (param, arg) in operation.kind.def().params().iter().zip(&operation.args) {
            let arg = arg.clone().map(|mut arg: Arg| {
                arg.for_each_value_mut(&mut |v| *v = self.again.get(v).copied().unwrap_or(*v));
                arg
            });
            op = op.opt_arg(param.name, arg);
        }
        for (name, value) in &operation.attributes {
            if name != "name" {
                op = op.attribute(name, value.clone());
            }
        }
        let first = operation.outputs.first().map(|&v| &*function.values[v].name);
        let op = op.attribute(RECOMPUTED, Literal::bool(true));
        let results = op.name(format!("{}_again", first.unwrap_or("value"))).results()?;
        self.again.extend(operation.outputs.iter().copied().zip(results));
        Ok(())
    }
}
