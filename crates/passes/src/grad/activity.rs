//! Which values lie between what is differentiated and the loss.

use std::collections::HashSet;

use mil::{Arg, Effect, Error, Function, OpError, OpId, Program, Type, ValueId};

use super::rules::{Rule, rule};
use crate::rewrite;

/// The values that the loss depends on and that depend on what it is differentiated by.
pub(super) struct Activity {
    active: HashSet<ValueId>,
}

impl Activity {
    /// Of `function`'s `loss` differentiated by `sources`.
    ///
    /// # Errors
    /// When a value that depends on a source is written to a state: what reads it later would depend on
    /// it unseen.
    pub(super) fn new(
        program: &Program,
        name: &str,
        function: &Function,
        sources: impl IntoIterator<Item = ValueId>,
        loss: ValueId,
    ) -> mil::Result<Self> {
        let mut dependent: HashSet<ValueId> = sources.into_iter().collect();
        for &id in &function.body.ops {
            let op = &function.ops[id];
            let mut depends = false;
            for_each_input(function, id, &mut |v| depends |= dependent.contains(&v));
            if !depends || matches!(rule(op.kind), Rule::Zero) {
                continue;
            }
            if rewrite::effect(function, &program.weights, id) == Effect::WritesState {
                let message = "no gradient through a state, which this operation writes";
                let place = function.describe(id);
                return Err(Error::at_op(OpError::unsupported(message), name, place));
            }
            dependent.extend(op.outputs.iter().copied().filter(|&v| varies(function.ty(v))));
        }
        let mut active: HashSet<ValueId> = HashSet::from([loss]);
        active.retain(|v| dependent.contains(v));
        for &id in function.body.ops.iter().rev() {
            if function.ops[id].outputs.iter().any(|v| active.contains(v)) {
                for_each_input(function, id, &mut |v| {
                    if dependent.contains(&v) {
                        active.insert(v);
                    }
                });
            }
        }
        Ok(Activity { active })
    }

    /// Whether `v` lies between.
    pub(super) fn contains(&self, v: ValueId) -> bool {
        self.active.contains(&v)
    }

    /// Whether a result of `id` lies between.
    pub(super) fn of_op(&self, function: &Function, id: OpId) -> bool {
        function.ops[id].outputs.iter().any(|&v| self.contains(v))
    }
}

/// Whether a value of this type can change by a little.
fn varies(ty: &Type) -> bool {
    match ty {
        Type::Tensor(t) => t.dtype.is_float(),
        _ => true,
    }
}

/// Calls `f` on the values that `id` uses, those that must be constants apart.
fn for_each_input(function: &Function, id: OpId, f: &mut dyn FnMut(ValueId)) {
    let op = &function.ops[id];
    for (param, arg) in op.kind.def().params().iter().zip(&op.args) {
        if let Some(arg) = arg.as_ref().filter(|_| !param.constant) {
            Arg::for_each_value(arg, f);
        }
    }
    for block in &op.blocks {
        block.ops.iter().for_each(|&inner| function.for_each_use(inner, f));
        block.outputs.iter().for_each(|&v| f(v));
    }
}
