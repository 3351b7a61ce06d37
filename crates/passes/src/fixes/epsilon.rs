//! Writes out the epsilon that rsqrt, log and inverse take if none is given.

use std::collections::{BTreeMap, BTreeSet};

use mil::{Arg, Literal, OpId, OpKind, Program};

use super::Attempt;

/// The epsilon of an operation that has none written, as its definition has it.
pub(super) const fn default_of(kind: OpKind) -> Option<f64> {
    match kind {
        OpKind::Inverse => Some(1e-4),
        OpKind::Log => Some(1e-45),
        OpKind::Rsqrt => Some(1e-12),
        _ => None,
    }
}

/// In single precision whatever the operation's type, as coremltools has it: half rounds most of them to zero.
pub(super) fn apply(program: &mut Program, ops: &BTreeMap<String, BTreeSet<OpId>>) -> Attempt {
    let mut attempt = Attempt::default();
    for (name, ops) in ops {
        let Some(function) = program.functions.get_mut(name) else { continue };
        for &id in ops {
            let described = function.describe(id);
            let op = &mut function.ops[id];
            let epsilon = default_of(op.kind).zip(op.kind.param_index("epsilon"));
            let Some((value, index)) = epsilon else { continue };
            op.args[index] = Some(Arg::from(Literal::scalar(value as f32)));
            attempt.applied.push((name.clone(), described, format!("epsilon = {value:e}")));
        }
    }
    attempt
}
