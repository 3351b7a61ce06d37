//! Replaces composite operations by simpler ones.

use mil::{Error, FunctionBuilder, OpKind, OpView, Program, ValueId};

use crate::rewrite::{self, Replacements};
use crate::{Pass, Property};

/// Replaces every operation that has a decomposition, until none is left.
pub(crate) struct Decompose;

impl Pass for Decompose {
    fn name(&self) -> &'static str {
        "decompose"
    }

    fn doc(&self) -> &'static str {
        "Replaces operations of the language-model dialect by plain MIL with the same meaning, until \
         none is left.\n\
         before: y = llm.rms_norm(x = x, weight = w, epsilon = e) -> (y)\n\
         after:  s = mul(x = x, y = x); m = reduce_mean(x = s, ...); ... y = mul(x = n, y = w) -> (y)"
    }

    fn establishes(&self) -> &'static [Property] {
        &[Property::NoComposites]
    }

    fn breaks(&self) -> &'static [Property] {
        &[Property::NoDeadCode, Property::UniqueConstants]
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let mut total = 0;
        // A decomposition may use composite operations that are simpler than its own.
        loop {
            let changed = round(program, name)?;
            if changed == 0 {
                return Ok(total);
            }
            total += changed;
        }
    }
}

/// Decomposes each composite operation of the body once.
fn round(program: &mut Program, name: &str) -> mil::Result<usize> {
    let Some(old) = program.functions.get(name).cloned() else { return Ok(0) };
    let composite = |f: &mil::Function, id| f.ops[id].kind.def().is_composite();
    if !old.body.ops.iter().any(|&id| composite(&old, id)) {
        return Ok(0);
    }
    // Definitions see function and weights as they were: the builder keeps the ids of old values, so
    // that what is emitted may use them, and they are replaced at the end.
    let weights = program.weights.clone();
    let mut b = FunctionBuilder::reopen(name, old.clone(), &mut program.weights);
    let (mut map, mut changed) = (Replacements::new(), 0);
    for &id in &old.body.ops {
        if !composite(&old, id) {
            b.keep(id);
            continue;
        }
        let first_new = b.function().values.next_key();
        let view = OpView::new(&old, &weights, &old.ops[id]);
        let results = old.ops[id].kind.def().decompose(&view, &mut b);
        let results = results.map_err(|e| Error::at_op(e, name, old.describe(id)))?;
        for (&was, new) in old.ops[id].outputs.iter().zip(results) {
            // A result that is an argument passed through cannot take the old name.
            let own = new >= first_new && !map.values().any(|&other| other == new);
            map.insert(was, if own { new } else { passed_on(&mut b, new)? });
        }
        changed += 1;
    }
    let mut function = b.finish(old.body.outputs.clone());
    for (&was, &new) in &map {
        let name = std::mem::take(&mut function.values[was].name);
        function.values[was].name = std::mem::replace(&mut function.values[new].name, name);
    }
    rewrite::replace_values(&mut function, &map);
    rewrite::compact(&mut function);
    program.functions.insert(name.to_owned(), function);
    Ok(changed)
}

/// A value of its own that equals `v`.
fn passed_on(b: &mut FunctionBuilder<'_>, v: ValueId) -> mil::Result<ValueId> {
    b.op(OpKind::Identity).arg("x", v).result()
}
