//! What an operation computes, and what is computed from it, as hashes: equal in two programs whatever the names.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use mil::{Arg, Block, OpId, OpKind, Operation, ValueId};

use crate::constants::{Scope, is_constant};

/// How much the hashes tell apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// All but names: kinds, constants, attributes, result types.
    All,
    /// Kinds and how they are connected; changes of type are passed through.
    Structure,
}

/// Hashes of a function's operations.
pub(super) struct Hashes {
    /// What each computes: of kind, arguments and theirs.
    pub(super) makes: HashMap<OpId, u64>,
    /// What becomes of each's results: of kind, users and theirs.
    pub(super) becomes: HashMap<OpId, u64>,
}

/// Whether an operation changes at most the type of its argument.
pub(super) fn is_transparent(kind: OpKind) -> bool {
    matches!(kind, OpKind::Cast | OpKind::Identity)
}

/// A hash of several things.
pub(super) fn hash_of(parts: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl Hashes {
    /// The hashes of `scope`'s function, where `inputs` says what its inputs are.
    pub(super) fn new(scope: &Scope<'_>, inputs: &HashMap<ValueId, u64>, detail: Detail) -> Self {
        let mut forward = Forward { scope, detail, values: inputs.clone(), makes: HashMap::new() };
        forward.block(&scope.function.body);
        let mut backward =
            Backward { scope, detail, values: HashMap::new(), becomes: HashMap::new() };
        backward.block(&scope.function.body);
        Hashes { makes: forward.makes, becomes: backward.becomes }
    }
}

/// The hash of what an operation is by itself: kind, and as far as `detail` goes attributes, result types and
/// constant arguments.
fn own(scope: &Scope<'_>, op: &Operation, detail: Detail) -> u64 {
    let mut parts = vec![hash_of(&op.kind)];
    if detail == Detail::All {
        parts.extend(op.outputs.iter().map(|&v| hash_of(scope.function.ty(v))));
        for (name, literal) in op.attributes.iter().filter(|(name, _)| *name != "name") {
            let hash = scope.hash(crate::constants::Constant::Literal(literal));
            parts.push(hash_of(&(name, hash)));
        }
        for (slot, arg) in op.args.iter().enumerate() {
            let items = match arg {
                Some(Arg::List(items)) => items.as_slice(),
                Some(single) => std::slice::from_ref(single),
                None => &[],
            };
            for (i, item) in items.iter().enumerate() {
                if let Some(hash) = scope.hash_arg(item) {
                    parts.push(hash_of(&(slot, i, hash)));
                }
            }
        }
    }
    hash_of(&parts)
}

struct Forward<'a> {
    scope: &'a Scope<'a>,
    detail: Detail,
    values: HashMap<ValueId, u64>,
    makes: HashMap<OpId, u64>,
}

impl Forward<'_> {
    fn block(&mut self, block: &Block) {
        for &id in &block.ops {
            let op = &self.scope.function.ops[id];
            if is_constant(op.kind) {
                continue;
            }
            let mut parts = vec![own(self.scope, op, self.detail)];
            for (slot, arg) in op.args.iter().enumerate() {
                let mut place = 0;
                if let Some(arg) = arg {
                    arg.for_each_value(&mut |v| {
                        if let Some(hash) = self.values.get(&v) {
                            parts.push(hash_of(&(slot, place, hash)));
                        }
                        place += 1;
                    });
                }
            }
            let outside = hash_of(&parts);
            for (b, block) in op.blocks.iter().enumerate() {
                for (i, &v) in block.params.iter().enumerate() {
                    self.values.insert(v, hash_of(&("param", outside, b, i)));
                }
                self.block(block);
                parts.extend(block.ops.iter().filter_map(|op| self.makes.get(op)));
                parts.extend(block.outputs.iter().filter_map(|v| self.values.get(v)));
            }
            let hash = hash_of(&parts);
            self.makes.insert(id, hash);
            let passed = (self.detail == Detail::Structure && is_transparent(op.kind))
                .then(|| op.arg("x"))
                .flatten();
            let passed = match passed {
                Some(Arg::Value(v)) => self.values.get(v).copied(),
                _ => None,
            };
            for (i, &v) in op.outputs.iter().enumerate() {
                self.values.insert(v, passed.unwrap_or_else(|| hash_of(&(hash, i))));
            }
        }
    }
}

struct Backward<'a> {
    scope: &'a Scope<'a>,
    detail: Detail,
    /// Sums over the uses of a value.
    values: HashMap<ValueId, u64>,
    becomes: HashMap<OpId, u64>,
}

impl Backward<'_> {
    fn used(&mut self, v: ValueId, hash: u64) {
        let sum = self.values.entry(v).or_default();
        *sum = sum.wrapping_add(hash);
    }

    fn block(&mut self, block: &Block) {
        for (i, &v) in block.outputs.iter().enumerate() {
            self.used(v, hash_of(&("output", i)));
        }
        for &id in block.ops.iter().rev() {
            let op = &self.scope.function.ops[id];
            if is_constant(op.kind) {
                continue;
            }
            let uses = |v: &ValueId| self.values.get(v).copied().unwrap_or(0);
            let uses: Vec<u64> = op.outputs.iter().map(uses).collect();
            if self.detail == Detail::Structure && is_transparent(op.kind) {
                self.becomes.insert(id, hash_of(&(op.kind, &uses)));
                if let Some(&Arg::Value(v)) = op.arg("x") {
                    self.used(v, uses.first().copied().unwrap_or(0));
                }
                continue;
            }
            let hash = hash_of(&(own(self.scope, op, self.detail), uses));
            self.becomes.insert(id, hash);
            for (slot, arg) in op.args.iter().enumerate() {
                let mut place = 0;
                if let Some(arg) = arg {
                    arg.for_each_value(&mut |v| {
                        self.used(v, hash_of(&(slot, place, hash)));
                        place += 1;
                    });
                }
            }
            op.blocks.iter().for_each(|block| self.block(block));
        }
    }
}
