//! Keeps one of several equal constants.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use mil::{Literal, OpId, OpKind, Payload, Program};

use crate::rewrite::{self, Replacements};
use crate::{Pass, Property};

/// Keeps one of several equal constants.
pub(crate) struct ConstDedup;

impl Pass for ConstDedup {
    fn name(&self) -> &'static str {
        "const_dedup"
    }

    fn doc(&self) -> &'static str {
        "Keeps the first of several equal constants and moves it to the start of the function. Constants \
         in the weight store are equal when they are the same weight.\n\
         before: a = const(val = 1); b = const(val = 1); c = add(x = a, y = b) -> (c)\n\
         after:  a = const(val = 1); c = add(x = a, y = a) -> (c)"
    }

    fn establishes(&self) -> &'static [Property] {
        &[Property::UniqueConstants]
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let Some(function) = program.functions.get_mut(name) else { return Ok(0) };
        let mut seen: HashMap<u64, Vec<OpId>> = HashMap::new();
        let (mut map, mut gone) = (Replacements::new(), HashSet::new());
        let mut ids = Vec::new();
        rewrite::for_each_block(function, &mut |b| {
            let consts = |id: &&OpId| function.ops[**id].kind == OpKind::Const;
            ids.extend(b.ops.iter().filter(consts));
        });
        for &id in &ids {
            let Some(literal) = function.ops[id].const_value() else { continue };
            let result = function.ops[id].outputs[0];
            let same = seen.entry(hash(literal)).or_default();
            match same.iter().find(|&&o| function.ops[o].const_value() == Some(literal)) {
                Some(&first) if !rewrite::is_public(function, result) => {
                    map.insert(result, function.ops[first].outputs[0]);
                    gone.insert(id);
                }
                _ => same.push(id),
            }
        }
        if gone.is_empty() {
            return Ok(0);
        }
        rewrite::replace_values(function, &map);
        // The one that is kept may stand in a nested block, or after a use of one that is not.
        let moved: HashSet<OpId> = ids.iter().copied().collect();
        rewrite::remove_ops(function, &moved);
        let kept = ids.iter().copied().filter(|id| !gone.contains(id));
        function.body.ops.splice(..0, kept);
        rewrite::make_names_unique(function);
        Ok(gone.len())
    }
}

/// Equal literals have equal hashes.
fn hash(literal: &Literal) -> u64 {
    fn payload(p: &Payload, h: &mut DefaultHasher) {
        match p {
            Payload::Tensor(t) => t.bytes().hash(h),
            Payload::Strings(s) => s.hash(h),
            Payload::Weight(id) => id.hash(h),
            Payload::Items(items) => items.iter().for_each(|p| payload(p, h)),
            Payload::Entries(entries) => entries.iter().for_each(|(k, v)| {
                payload(k, h);
                payload(v, h);
            }),
        }
    }
    let mut hasher = DefaultHasher::new();
    literal.ty.hash(&mut hasher);
    payload(&literal.payload, &mut hasher);
    hasher.finish()
}
