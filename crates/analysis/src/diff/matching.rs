//! Which operations of two functions are the same one: by what they compute, what becomes of it, name and place.
//!
//! Signs are tried from the strongest to the weakest, each on what the ones before left over. A sign shared by
//! equally many operations on both sides pairs them in order; otherwise it says nothing.

use std::collections::{BTreeMap, HashMap};

use mil::{Arg, Block, Literal, OpId, OpKind, ValueDef, ValueId};

use super::hashes::{Detail, Hashes, hash_of, is_transparent};
use crate::constants::{Scope, is_constant};

/// Most pairs that are weighed between two anchors.
const MOST_PAIRS: usize = 1 << 22;

/// Which operations and parameters correspond.
#[derive(Default)]
pub(super) struct Matching {
    /// From operations of the first function to those of the second.
    pub(super) ops: HashMap<OpId, OpId>,
    /// The other way.
    pub(super) back: HashMap<OpId, OpId>,
    /// Inputs and parameters of nested blocks.
    pub(super) params: HashMap<ValueId, ValueId>,
}

impl Matching {
    fn pair(&mut self, a: OpId, b: OpId) {
        self.ops.insert(a, b);
        self.back.insert(b, a);
    }

    /// Whether values `v` of `a` and `w` of `b` correspond, looking through changes of type that only one side
    /// has.
    pub(super) fn same_value(&self, a: &Scope<'_>, b: &Scope<'_>, v: ValueId, w: ValueId) -> bool {
        let v = passed(a, v, &|op| !self.ops.contains_key(&op));
        let w = passed(b, w, &|op| !self.back.contains_key(&op));
        self.same(a, b, v, w)
    }

    fn same(&self, a: &Scope<'_>, b: &Scope<'_>, v: ValueId, w: ValueId) -> bool {
        match (a.function.values[v].def, b.function.values[w].def) {
            (ValueDef::Param, ValueDef::Param) => self.params.get(&v) == Some(&w),
            (ValueDef::Result(p, i), ValueDef::Result(q, j)) => {
                i == j && self.ops.get(&p) == Some(&q)
            }
            _ => false,
        }
    }
}

/// The value that `v` is but for its type, as far as `through` lets pass.
fn passed(scope: &Scope<'_>, mut v: ValueId, through: &dyn Fn(OpId) -> bool) -> ValueId {
    while let ValueDef::Result(id, 0) = scope.function.values[v].def {
        let op = &scope.function.ops[id];
        match op.arg("x") {
            Some(&Arg::Value(x)) if is_transparent(op.kind) && through(id) => v = x,
            _ => break,
        }
    }
    v
}

/// Pairs inputs, by name and then by order among those of equal type, and among the rest if equally many are
/// left.
pub(super) fn pair_inputs(a: &Scope<'_>, b: &Scope<'_>) -> Vec<(ValueId, ValueId)> {
    let mut pairs = Vec::new();
    let mut left: Vec<ValueId> = b.function.inputs.clone();
    let mut open: Vec<ValueId> = a.function.inputs.clone();
    let is_state = |s: &Scope<'_>, v: ValueId| s.function.ty(v).as_state().is_some();
    let mut round = |same: &dyn Fn(ValueId, ValueId) -> bool| {
        open.retain(|&v| {
            let found = left.iter().position(|&w| same(v, w));
            found.inspect(|&i| pairs.push((v, left.remove(i)))).is_none()
        });
        let kind = |s, of: &[ValueId]| of.iter().filter(|&&v| is_state(s, v)).count();
        open.len() == left.len() && kind(a, &open) == kind(b, &left)
    };
    round(&|v, w| a.function.values[v].name == b.function.values[w].name);
    if round(&|v, w| a.function.ty(v) == b.function.ty(w)) {
        round(&|v, w| is_state(a, v) == is_state(b, w));
    }
    pairs
}

/// Pairs the operations of two functions.
pub(super) fn pair(a: &Scope<'_>, b: &Scope<'_>) -> Matching {
    let mut matching = Matching::default();
    matching.params.extend(pair_inputs(a, b));
    let number = |name: &str, v: &ValueId| hash_of(&(name, v));
    let mut tokens = [HashMap::new(), HashMap::new()];
    for &v in &a.function.inputs {
        tokens[0].insert(v, number("of a", &v));
    }
    for &w in &b.function.inputs {
        tokens[1].insert(w, number("of b", &w));
    }
    for (v, w) in &matching.params {
        tokens[1].insert(*w, number("of a", v));
    }
    let hashes = |detail| [Hashes::new(a, &tokens[0], detail), Hashes::new(b, &tokens[1], detail)];
    let sides = [Side::new(a), Side::new(b)];
    let pairing = Pairing { sides, exact: hashes(Detail::All), loose: hashes(Detail::Structure) };
    pairing.blocks(&mut matching, &a.function.body, &b.function.body);
    matching
}

/// One function and who uses its values.
struct Side<'a> {
    scope: &'a Scope<'a>,
    users: HashMap<ValueId, Vec<(OpId, usize)>>,
}

impl<'a> Side<'a> {
    fn new(scope: &'a Scope<'a>) -> Self {
        let mut side = Side { scope, users: HashMap::new() };
        side.note_users(&scope.function.body);
        side
    }

    fn note_users(&mut self, block: &Block) {
        for &id in &block.ops {
            let op = &self.scope.function.ops[id];
            for (slot, arg) in op.args.iter().enumerate() {
                if let Some(arg) = arg {
                    arg.for_each_value(&mut |v| self.users.entry(v).or_default().push((id, slot)));
                }
            }
            op.blocks.iter().for_each(|block| self.note_users(block));
        }
    }

    fn kind(&self, op: OpId) -> OpKind {
        self.scope.function.ops[op].kind
    }

    /// The name of an operation: that of its first result, else its attribute.
    fn name(&self, op: OpId) -> Option<&'a str> {
        let operation = &self.scope.function.ops[op];
        let first = operation.outputs.first().map(|&v| &*self.scope.function.values[v].name);
        first.or_else(|| operation.attributes.get("name").and_then(Literal::as_str))
    }

    fn label(&self, op: OpId) -> Option<&'a str> {
        self.scope.function.ops[op].attributes.get("name").and_then(Literal::as_str)
    }

    /// The operation that makes argument `slot`, and which of its results that is.
    fn maker(&self, v: ValueId) -> Option<(OpId, u32)> {
        match self.scope.function.values[v].def {
            ValueDef::Result(op, i) if !is_constant(self.kind(op)) => Some((op, i)),
            _ => None,
        }
    }

    /// The values of argument `slot` in order, constants left out.
    fn values(&self, op: OpId, slot: usize) -> Vec<ValueId> {
        let mut values = Vec::new();
        if let Some(Some(arg)) = self.scope.function.ops[op].args.get(slot) {
            arg.for_each_value(&mut |v| values.push(v));
        }
        values.retain(|&v| self.scope.constant_of(v).is_none());
        values
    }
}

struct Pairing<'a> {
    sides: [Side<'a>; 2],
    exact: [Hashes; 2],
    loose: [Hashes; 2],
}

impl Pairing<'_> {
    /// Pairs the operations of two blocks, and those of their operations' blocks.
    fn blocks(&self, m: &mut Matching, a: &Block, b: &Block) {
        let real = |side: usize, block: &Block| -> Vec<OpId> {
            let ops = block.ops.iter().copied();
            ops.filter(|&op| !is_constant(self.sides[side].kind(op))).collect()
        };
        let (a, b) = (real(0, a), real(1, b));
        self.by_signs(m, &a, &b);
        self.by_neighbours(m, &a);
        self.by_place(m, &a, &b);
        self.by_neighbours(m, &a);
        self.replaced(m, &a, &b);
        for &p in &a {
            let Some(&q) = m.ops.get(&p) else { continue };
            let (x, y) =
                (&self.sides[0].scope.function.ops[p], &self.sides[1].scope.function.ops[q]);
            for (x, y) in x.blocks.iter().zip(&y.blocks) {
                m.params.extend(x.params.iter().copied().zip(y.params.iter().copied()));
                self.blocks(m, x, y);
            }
        }
    }

    /// Pairs what shares a sign that nothing else has, or that equally many have.
    fn by_signs(&self, m: &mut Matching, a: &[OpId], b: &[OpId]) {
        let makes = |h: &[Hashes; 2], side: usize, op| h[side].makes.get(&op).copied();
        let becomes = |h: &[Hashes; 2], side: usize, op| h[side].becomes.get(&op).copied();
        let name = |side: usize, op| self.sides[side].name(op).map(|n| hash_of(&n));
        let label = |side: usize, op| self.sides[side].label(op).map(|n| hash_of(&n));
        let (exact, loose) = (&self.exact, &self.loose);
        type Sign<'s> = &'s dyn Fn(usize, OpId) -> [Option<u64>; 3];
        let signs: [Sign<'_>; 12] = [
            &|s, op| [name(s, op), makes(exact, s, op), becomes(exact, s, op)],
            &|s, op| [makes(exact, s, op), becomes(exact, s, op), Some(0)],
            &|s, op| [name(s, op), makes(exact, s, op), Some(0)],
            &|s, op| [makes(exact, s, op), Some(0), Some(0)],
            &|s, op| [name(s, op), makes(loose, s, op), becomes(loose, s, op)],
            &|s, op| [label(s, op), makes(loose, s, op), becomes(loose, s, op)],
            &|s, op| [becomes(exact, s, op), Some(0), Some(0)],
            &|s, op| [makes(loose, s, op), becomes(loose, s, op), Some(0)],
            &|s, op| [name(s, op), Some(0), Some(0)],
            &|s, op| [label(s, op), Some(0), Some(0)],
            &|s, op| [makes(loose, s, op), Some(0), Some(0)],
            &|s, op| [becomes(loose, s, op), Some(0), Some(0)],
        ];
        for sign in signs {
            let of = |side: usize, op: OpId| {
                let [Some(x), Some(y), Some(z)] = sign(side, op) else { return None };
                let operation = &self.sides[side].scope.function.ops[op];
                let (results, blocks) = (operation.outputs.len(), operation.blocks.len());
                Some((operation.kind, results, blocks, [x, y, z]))
            };
            let mut groups = BTreeMap::<_, [Vec<OpId>; 2]>::new();
            let open = a.iter().filter(|op| !m.ops.contains_key(op)).map(|&op| (0, op));
            let open =
                open.chain(b.iter().filter(|op| !m.back.contains_key(op)).map(|&op| (1, op)));
            for (side, op) in open {
                if let Some(key) = of(side, op) {
                    groups.entry(key).or_default()[side].push(op);
                }
            }
            for [a, b] in groups.into_values().filter(|[a, b]| a.len() == b.len()) {
                a.into_iter().zip(b).for_each(|(a, b)| m.pair(a, b));
            }
        }
    }

    /// Pairs what stands next to a pair in the same way.
    fn by_neighbours(&self, m: &mut Matching, a: &[OpId]) {
        let mut work: Vec<(OpId, OpId)> =
            a.iter().rev().filter_map(|&p| Some((p, *m.ops.get(&p)?))).collect();
        while let Some((p, q)) = work.pop() {
            let slots = self.sides[0].scope.function.ops[p].args.len();
            if self.sides[0].kind(p) == self.sides[1].kind(q) {
                for slot in 0..slots {
                    let (v, w) = (self.sides[0].values(p, slot), self.sides[1].values(q, slot));
                    if v.len() == w.len() {
                        let before = v.iter().zip(&w).filter_map(|(&v, &w)| self.makers(m, v, w));
                        let before: Vec<_> = before.collect();
                        work.extend(self.pair_new(m, before));
                    }
                }
            }
            let outputs = |side: usize, op: OpId| &self.sides[side].scope.function.ops[op].outputs;
            for (&v, &w) in outputs(0, p).iter().zip(outputs(1, q)) {
                let mut users = BTreeMap::<_, [Vec<OpId>; 2]>::new();
                for (side, v) in [(0, v), (1, w)] {
                    for (op, slot) in self.open_users(m, side, v) {
                        users.entry((self.sides[side].kind(op), slot)).or_default()[side].push(op);
                    }
                }
                let single = users.into_values().filter_map(|[a, b]| match (&*a, &*b) {
                    (&[a], &[b]) => Some((a, b)),
                    _ => None,
                });
                let single: Vec<_> = single.collect();
                work.extend(self.pair_new(m, single));
            }
        }
    }

    /// Pairs those of the same kind that are still open, and returns them.
    fn pair_new(&self, m: &mut Matching, pairs: Vec<(OpId, OpId)>) -> Vec<(OpId, OpId)> {
        let mut new = Vec::new();
        for (a, b) in pairs {
            let open = !m.ops.contains_key(&a) && !m.back.contains_key(&b);
            if open && self.sides[0].kind(a) == self.sides[1].kind(b) && self.siblings(a, b) {
                m.pair(a, b);
                new.push((a, b));
            }
        }
        new
    }

    /// Whether both have as many nested blocks and results.
    fn siblings(&self, a: OpId, b: OpId) -> bool {
        let [a, b] = [&self.sides[0].scope.function.ops[a], &self.sides[1].scope.function.ops[b]];
        a.outputs.len() == b.outputs.len() && a.blocks.len() == b.blocks.len()
    }

    /// The operations that make two values, looking through changes of type unless both are such.
    fn makers(&self, m: &Matching, v: ValueId, w: ValueId) -> Option<(OpId, OpId)> {
        let ((p, i), (q, j)) = (self.sides[0].maker(v)?, self.sides[1].maker(w)?);
        if self.sides[0].kind(p) == self.sides[1].kind(q) && i == j {
            return Some((p, q));
        }
        let v = passed(self.sides[0].scope, v, &|op| !m.ops.contains_key(&op));
        let w = passed(self.sides[1].scope, w, &|op| !m.back.contains_key(&op));
        let ((p, i), (q, j)) = (self.sides[0].maker(v)?, self.sides[1].maker(w)?);
        (i == j).then_some((p, q))
    }

    /// Operations without a partner that use `v`, through changes of type too.
    fn open_users(&self, m: &Matching, side: usize, v: ValueId) -> Vec<(OpId, usize)> {
        let open =
            |op: &OpId| if side == 0 { !m.ops.contains_key(op) } else { !m.back.contains_key(op) };
        let mut found = Vec::new();
        for &(op, slot) in self.sides[side].users.get(&v).into_iter().flatten() {
            if !open(&op) {
                continue;
            }
            found.push((op, slot));
            let operation = &self.sides[side].scope.function.ops[op];
            if is_transparent(operation.kind) {
                let uses = operation.outputs.iter().filter_map(|v| self.sides[side].users.get(v));
                found.extend(uses.flatten().filter(|(op, _)| open(op)));
            }
        }
        found
    }

    /// Between neighbouring pairs that stand in the same order on both sides, pairs operations of the same kind in
    /// order.
    fn by_place(&self, m: &mut Matching, a: &[OpId], b: &[OpId]) {
        let place: HashMap<OpId, usize> = b.iter().enumerate().map(|(i, &op)| (op, i)).collect();
        let anchors =
            a.iter().enumerate().filter_map(|(i, op)| Some((i, *place.get(m.ops.get(op)?)?)));
        let mut anchors = increasing(&anchors.collect::<Vec<_>>());
        anchors.push((a.len(), b.len()));
        let (mut from, mut onto) = (0, 0);
        for (i, j) in anchors {
            let gap = |ops: &[OpId], back: bool| -> Vec<OpId> {
                let known = if back { &m.back } else { &m.ops };
                ops.iter().copied().filter(|op| !known.contains_key(op)).collect()
            };
            let (x, y) = (gap(&a[from..i], false), gap(&b[onto..j], true));
            if x.len() * y.len() <= MOST_PAIRS {
                self.align(&x, &y).into_iter().for_each(|(p, q)| m.pair(p, q));
            }
            (from, onto) = ((i + 1).min(a.len()), (j + 1).min(b.len()));
        }
    }

    /// The heaviest pairing in order of operations of the same kind; those of the same result types weigh more.
    fn align(&self, a: &[OpId], b: &[OpId]) -> Vec<(OpId, OpId)> {
        let weight = |p: OpId, q: OpId| -> u32 {
            if self.sides[0].kind(p) != self.sides[1].kind(q) || !self.siblings(p, q) {
                return 0;
            }
            let [x, y] = [(0, p), (1, q)].map(|(s, op): (usize, OpId)| {
                let function = self.sides[s].scope.function;
                function.ops[op].outputs.iter().map(|&v| function.ty(v)).collect::<Vec<_>>()
            });
            if x == y { 3 } else { 2 }
        };
        let width = b.len() + 1;
        // best[i * width + j]: the most that a[i..] and b[j..] weigh.
        let mut best = vec![0u32; (a.len() + 1) * width];
        for i in (0..a.len()).rev() {
            for j in (0..b.len()).rev() {
                let w = weight(a[i], b[j]);
                let with = if w > 0 { w + best[(i + 1) * width + j + 1] } else { 0 };
                let without = best[(i + 1) * width + j].max(best[i * width + j + 1]);
                best[i * width + j] = with.max(without);
            }
        }
        let (mut pairs, mut i, mut j) = (Vec::new(), 0, 0);
        while i < a.len() && j < b.len() {
            let here = best[i * width + j];
            if here == best[(i + 1) * width + j] {
                i += 1;
            } else if here == best[i * width + j + 1] {
                j += 1;
            } else {
                pairs.push((a[i], b[j]));
                (i, j) = (i + 1, j + 1);
            }
        }
        pairs
    }

    /// Pairs operations of different kinds that stand for each other: of one name, or with the same argument and
    /// the same user.
    fn replaced(&self, m: &mut Matching, a: &[OpId], b: &[OpId]) {
        let [x, y] = &self.sides;
        let single = |side: &Side<'_>, op: OpId| match side.scope.function.ops[op].outputs[..] {
            [v] if side.scope.function.ops[op].blocks.is_empty() => Some(v),
            _ => None,
        };
        let mut named: HashMap<&str, OpId> = HashMap::new();
        for &q in b.iter().filter(|q| !m.back.contains_key(q)) {
            named.extend(y.name(q).map(|name| (name, q)));
        }
        for &p in a {
            if m.ops.contains_key(&p) || is_transparent(x.kind(p)) {
                continue;
            }
            let Some(v) = single(x, p) else { continue };
            let by_name = x.name(p).and_then(|name| named.get(name).copied());
            let by_use = x.users.get(&v).into_iter().flatten().find_map(|&(user, slot)| {
                let other = *m.ops.get(&user)?;
                let (&[_], &[w]) = (&*x.values(user, slot), &*y.values(other, slot)) else {
                    return None;
                };
                let (q, _) = y.maker(w)?;
                let (from, onto) = (x.values(p, 0), y.values(q, 0));
                let same = from.len() == onto.len()
                    && from.iter().zip(&onto).all(|(&v, &w)| m.same_value(x.scope, y.scope, v, w));
                same.then_some(q)
            });
            let found = by_name.or(by_use).filter(|&q| {
                !m.back.contains_key(&q) && single(y, q).is_some() && !is_transparent(y.kind(q))
            });
            if let Some(q) = found {
                m.pair(p, q);
            }
        }
    }
}

/// The longest of the sequences in which both numbers of the pairs grow; the first ones do already.
fn increasing(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // tails[n]: the pair with the smallest end of a sequence of n + 1; before[i]: what comes before pair i in it.
    let (mut tails, mut before) = (Vec::<usize>::new(), vec![None; pairs.len()]);
    for (i, &(_, end)) in pairs.iter().enumerate() {
        let at = tails.partition_point(|&t| pairs[t].1 < end);
        before[i] = at.checked_sub(1).map(|n| tails[n]);
        if at == tails.len() { tails.push(i) } else { tails[at] = i }
    }
    let mut chain = Vec::new();
    let mut next = tails.last().copied();
    while let Some(i) = next {
        chain.push(pairs[i]);
        next = before[i];
    }
    chain.reverse();
    chain
}
