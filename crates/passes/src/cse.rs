//! Computes once what is computed twice.

use std::collections::{BTreeMap, HashMap, HashSet};

use mil::{Arg, Effect, Function, OpId, OpKind, Operation, Program};
use tensor::WeightStore;

use crate::rewrite::{self, Replacements};
use crate::{Pass, Property};

/// Common subexpression elimination.
pub(crate) struct Cse;

impl Pass for Cse {
    fn name(&self) -> &'static str {
        "cse"
    }

    fn doc(&self) -> &'static str {
        "Uses the results of an earlier equal operation instead of computing them again: same kind, \
         same arguments, no effect, no nested block.\n\
         before: a = add(x = x, y = y); b = add(x = x, y = y); c = mul(x = a, y = b) -> (c)\n\
         after:  a = add(x = x, y = y); c = mul(x = a, y = a) -> (c)"
    }

    fn requires(&self) -> &'static [Property] {
        &[Property::UniqueConstants]
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let Program { functions, weights, .. } = program;
        let Some(function) = functions.get_mut(name) else { return Ok(0) };
        let mut seen: HashMap<(OpKind, usize), Vec<OpId>> = HashMap::new();
        let (mut map, mut gone) = (Replacements::new(), HashSet::new());
        for id in function.body.ops.clone() {
            let op = &mut function.ops[id];
            for arg in op.args.iter_mut().flatten() {
                arg.for_each_value_mut(&mut |v| {
                    if let Some(&new) = map.get(v) {
                        *v = new;
                    }
                });
            }
            if !eligible(function, weights, id) {
                continue;
            }
            let op = &function.ops[id];
            let same = seen.entry((op.kind, first_arg(op))).or_default();
            match same.iter().find(|&&o| equal(&function.ops[o], op)) {
                Some(&first) => {
                    map.extend(op.outputs.iter().copied().zip(function.ops[first].outputs.clone()));
                    gone.insert(id);
                }
                None => same.push(id),
            }
        }
        rewrite::replace_values(function, &map);
        rewrite::remove_ops(function, &gone);
        Ok(gone.len())
    }
}

fn eligible(function: &Function, weights: &WeightStore, id: OpId) -> bool {
    let op = &function.ops[id];
    op.kind != OpKind::Const
        && op.blocks.is_empty()
        && rewrite::effect(function, weights, id) == Effect::Pure
        && !op.outputs.iter().any(|&v| rewrite::is_public(function, v))
}

/// A cheap key that equal operations share: the first value among the arguments.
fn first_arg(op: &Operation) -> usize {
    use cranelift_entity::EntityRef;
    let mut first = usize::MAX;
    op.for_each_arg_value(|v| {
        if first == usize::MAX {
            first = v.index();
        }
    });
    first
}

fn equal(a: &Operation, b: &Operation) -> bool {
    fn without_name(op: &Operation) -> BTreeMap<&str, &mil::Literal> {
        op.attributes.iter().filter(|(k, _)| *k != "name").collect()
    }
    let (x, y): (&[Option<Arg>], &[Option<Arg>]) = (&a.args, &b.args);
    a.kind == b.kind && x == y && without_name(a) == without_name(b)
}
