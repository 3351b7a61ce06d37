//! Removes operations that hand their argument on unchanged.

use std::collections::HashSet;

use mil::{Arg, Dim, Function, OpId, OpKind, Payload, Program, TensorType, ValueId};

use crate::Pass;
use crate::rewrite::{self, Replacements};

/// Removes operations that hand their argument on unchanged.
pub(crate) struct Identity;

impl Pass for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn doc(&self) -> &'static str {
        "Removes operations that hand their argument on unchanged: identity, cast to the same type, \
         reshape or broadcast to the same fixed shape, transpose in order, concat of one. An output of \
         the function keeps its operation, which carries the public name.\n\
         before: a = identity(x = x); b = add(x = a, y = a) -> (b)\n\
         after:  b = add(x = x, y = x) -> (b)"
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let Some(function) = program.functions.get_mut(name) else { return Ok(0) };
        let (mut map, mut gone) = (Replacements::new(), HashSet::new());
        let mut ids = Vec::new();
        rewrite::for_each_block(function, &mut |b| ids.extend(&b.ops));
        for id in ids {
            let Some(source) = unchanged(function, id) else { continue };
            let result = function.ops[id].outputs[0];
            if !rewrite::is_public(function, result) {
                map.insert(result, source);
                gone.insert(id);
            }
        }
        rewrite::replace_values(function, &map);
        rewrite::remove_ops(function, &gone);
        Ok(gone.len())
    }
}

/// The argument that the only result of `id` equals.
fn unchanged(function: &Function, id: OpId) -> Option<ValueId> {
    let op = &function.ops[id];
    let (source, same) = match op.kind {
        OpKind::Identity | OpKind::Cast | OpKind::Reshape => (op.arg("x")?, true),
        OpKind::Transpose => {
            let perm = op.arg("perm").and_then(|perm| function.const_arg(perm))?;
            let Payload::Tensor(perm) = &perm.payload else { return None };
            let perm = mil::eval::tensor_ints(perm)?;
            (op.arg("x")?, perm.iter().copied().eq(0..perm.len() as i64))
        }
        OpKind::Concat => match op.arg("values")? {
            Arg::List(items) if items.len() == 1 => (&items[0], true),
            _ => return None,
        },
        _ => return None,
    };
    let (Arg::Value(source), [result]) = (source, &op.outputs[..]) else { return None };
    let (from, to) = (function.ty(*source), function.ty(*result));
    // Two unknown sizes need not be the same one.
    let known = |t: &TensorType| !t.shape.contains(&Dim::Unknown);
    let equal = from == to && from.as_tensor().is_none_or(known);
    (same && equal).then_some(*source)
}
