//! What differs in two functions, given which of their operations are the same.

use std::collections::{BTreeSet, HashSet};

use mil::{Arg, Block, Literal, OpId, ValueId};

use super::matching::Matching;
use super::weights;
use super::{Change, FunctionDiff, OperationChange, Rename, Single, change};
use crate::constants::{Constant, Scope, is_constant};
use crate::written::literal;

/// Everything but the interface.
///
/// # Errors
/// When a weight cannot be decompressed.
pub(super) fn function(
    a: &Scope<'_>,
    b: &Scope<'_>,
    matching: &Matching,
) -> mil::Result<FunctionDiff> {
    let diff = FunctionDiff { name: a.name.to_owned(), ..FunctionDiff::default() };
    let mut comparing =
        Comparing { a, b, matching, diff, compared: HashSet::new(), renamed: BTreeSet::new() };
    comparing.block(&a.function.body)?;
    comparing.additions(&b.function.body)?;
    for (i, j) in pair_outputs(a, b, matching) {
        let (v, w) = (a.function.body.outputs[i], b.function.body.outputs[j]);
        if !comparing.same_operand(&Arg::Value(v), &Arg::Value(w)) {
            let made = |s: &Scope<'_>, v: ValueId| match s.function.values[v].def {
                mil::ValueDef::Result(op, _) => s.function.describe(op),
                mil::ValueDef::Param => format!("input \"{}\"", s.function.values[v].name),
            };
            let what = format!("output {} is made by", a.function.values[v].name);
            let changes = Change { what, from: Some(made(a, v)), to: Some(made(b, w)) };
            let kind = "outputs".to_owned();
            let name = a.function.values[v].name.clone();
            comparing.diff.changed.push(OperationChange { kind, name, changes: vec![changes] });
        }
    }
    comparing.diff.renamed = comparing.renamed.into_iter().collect();
    Ok(comparing.diff)
}

/// Places of the outputs that are the same one: by name, then by what makes them, then in order if equally many
/// are left.
pub(super) fn pair_outputs(
    a: &Scope<'_>,
    b: &Scope<'_>,
    matching: &Matching,
) -> Vec<(usize, usize)> {
    let (x, y) = (&a.function.body.outputs, &b.function.body.outputs);
    let mut pairs = Vec::new();
    let (mut open, mut left): (Vec<_>, Vec<_>) = ((0..x.len()).collect(), (0..y.len()).collect());
    let mut round = |same: &dyn Fn(ValueId, ValueId) -> bool| {
        open.retain(|&i| {
            let found = left.iter().position(|&j: &usize| same(x[i], y[j]));
            found.inspect(|&j| pairs.push((i, left.remove(j)))).is_none()
        });
        open.len() == left.len()
    };
    round(&|v, w| a.function.values[v].name == b.function.values[w].name);
    if round(&|v, w| matching.same_value(a, b, v, w)) {
        round(&|_, _| true);
    }
    pairs.sort_unstable();
    pairs
}

struct Comparing<'a, 'b> {
    a: &'b Scope<'a>,
    b: &'b Scope<'a>,
    matching: &'b Matching,
    diff: FunctionDiff,
    /// Weights that were compared.
    compared: HashSet<(String, String)>,
    renamed: BTreeSet<Rename>,
}

impl<'a> Comparing<'a, '_> {
    /// What was removed from or changed in a block of the first function.
    fn block(&mut self, block: &Block) -> mil::Result<()> {
        for &p in &block.ops {
            let op = &self.a.function.ops[p];
            if is_constant(op.kind) {
                continue;
            }
            match self.matching.ops.get(&p) {
                Some(&q) => self.pair(p, q)?,
                None => {
                    self.diff.removed.push(single(self.a, p));
                    for (i, arg) in op.args.iter().enumerate() {
                        if let Some(arg) = arg {
                            self.weight(p, i, Some(arg), None)?;
                        }
                    }
                }
            }
            for block in &op.blocks {
                self.block(block)?;
            }
        }
        Ok(())
    }

    /// What was added in a block of the second function.
    fn additions(&mut self, block: &Block) -> mil::Result<()> {
        for &q in &block.ops {
            let op = &self.b.function.ops[q];
            if is_constant(op.kind) {
                continue;
            }
            if !self.matching.back.contains_key(&q) {
                self.diff.added.push(single(self.b, q));
                for (i, arg) in op.args.iter().enumerate() {
                    if let Some(arg) = arg {
                        self.weight(q, i, None, Some(arg))?;
                    }
                }
            }
            for block in &op.blocks {
                self.additions(block)?;
            }
        }
        Ok(())
    }

    fn pair(&mut self, p: OpId, q: OpId) -> mil::Result<()> {
        let (x, y) = (&self.a.function.ops[p], &self.b.function.ops[q]);
        let weights_before = self.diff.weights.len();
        let mut changes = Vec::new();
        changes.extend(change("kind", Some(x.kind.name()), Some(y.kind.name())));
        for (&v, &w) in x.outputs.iter().zip(&y.outputs) {
            let (from, to) = (&self.a.function.values[v], &self.b.function.values[w]);
            changes.extend(change("type", Some(&from.ty), Some(&to.ty)));
            self.rename(&from.name, &to.name);
        }
        let results = |n: usize| Some(n);
        changes.extend(change("results", results(x.outputs.len()), results(y.outputs.len())));
        if x.kind == y.kind {
            for (i, param) in x.kind.def().params().iter().enumerate() {
                let (from, to) = (x.args.get(i), y.args.get(i));
                let (from, to) = (from.and_then(Option::as_ref), to.and_then(Option::as_ref));
                self.argument((p, i), param.name, from, to, &mut changes)?;
            }
        }
        let names: BTreeSet<&str> = x.attributes.keys().chain(y.attributes.keys()).collect();
        for name in names.into_iter().filter(|n| *n != "name") {
            let (from, to) = (x.attributes.get(name), y.attributes.get(name));
            let hash =
                |s: &Scope<'a>, l: Option<&'a Literal>| l.map(|l| s.hash(Constant::Literal(l)));
            if hash(self.a, from) != hash(self.b, to) {
                changes.extend(constants(name, (self.a, from), (self.b, to)));
            }
        }
        for (i, (block, other)) in x.blocks.iter().zip(&y.blocks).enumerate() {
            for (j, (&v, &w)) in block.outputs.iter().zip(&other.outputs).enumerate() {
                let what = format!("result {j} of block {i}");
                let (from, to) = (Arg::Value(v), Arg::Value(w));
                if !self.same_operand(&from, &to) {
                    changes.extend(self.rewired(&what, &from, &to));
                }
            }
        }
        if changes.is_empty() && self.diff.weights.len() == weights_before {
            self.diff.same += 1;
        } else if !changes.is_empty() {
            let name = name(self.a, p);
            self.diff.changed.push(OperationChange {
                kind: x.kind.name().to_owned(),
                name,
                changes,
            });
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) {
        if from != to {
            self.renamed.insert(Rename { from: from.to_owned(), to: to.to_owned() });
        }
    }

    /// Compares an argument of two operations that are the same.
    fn argument(
        &mut self,
        place: (OpId, usize),
        what: &str,
        from: Option<&'a Arg>,
        to: Option<&'a Arg>,
        changes: &mut Vec<Change>,
    ) -> mil::Result<()> {
        if let (Some(Arg::List(x)), Some(Arg::List(y))) = (from, to)
            && x.len() == y.len()
        {
            for (i, (x, y)) in x.iter().zip(y).enumerate() {
                self.argument(place, &format!("{what}[{i}]"), Some(x), Some(y), changes)?;
            }
            return Ok(());
        }
        match (from, to) {
            (None, None) => return Ok(()),
            (Some(x), Some(y)) if self.same_operand(x, y) => {
                let weight = |s: &Scope<'a>, arg| s.constant(arg).is_some_and(|c| s.is_weight(c));
                if weight(self.a, x) && weight(self.b, y) {
                    let names = (weights::name(self.a, x), weights::name(self.b, y));
                    self.rename(&names.0, &names.1);
                }
                return Ok(());
            }
            _ => {}
        }
        let x = from.map(|arg| self.a.constant(arg));
        let y = to.map(|arg| self.b.constant(arg));
        let constant = |x: &Option<Option<Constant<'_>>>| !matches!(x, Some(None));
        if !constant(&x) || !constant(&y) {
            let words = |s: &Scope<'_>, arg: Option<&Arg>| arg.map(|arg| written(s, arg));
            changes.extend(change(what, words(self.a, from), words(self.b, to)));
            return Ok(());
        }
        let (x, y) = (x.flatten(), y.flatten());
        if x.is_some_and(|c| self.a.is_weight(c)) || y.is_some_and(|c| self.b.is_weight(c)) {
            let used_by = format!("{}, {what}", self.a.function.describe(place.0));
            if self.first_use(from, to, &used_by) {
                let change = weights::change((self.a, from), (self.b, to), used_by)?;
                self.diff.weights.push(change);
            }
            return Ok(());
        }
        let literal = |c: Option<Constant<'a>>| match c {
            Some(Constant::Literal(literal)) => Some(literal),
            _ => None,
        };
        changes.extend(constants(what, (self.a, literal(x)), (self.b, literal(y))));
        Ok(())
    }

    /// Lists the weight that is an argument of an operation that was removed (`from`) or added (`to`).
    fn weight(
        &mut self,
        op: OpId,
        slot: usize,
        from: Option<&'a Arg>,
        to: Option<&'a Arg>,
    ) -> mil::Result<()> {
        let (scope, arg) = if from.is_some() { (self.a, from) } else { (self.b, to) };
        let Some(arg) = arg else { return Ok(()) };
        if scope.constant(arg).is_none_or(|c| !scope.is_weight(c)) {
            return Ok(());
        }
        let param = scope.function.ops[op].kind.def().params().get(slot).map_or("", |p| p.name);
        let used_by = format!("{}, {param}", scope.function.describe(op));
        if self.first_use(from, to, &used_by) {
            self.diff.weights.push(weights::change((self.a, from), (self.b, to), used_by)?);
        }
        Ok(())
    }

    /// Whether two weights were not compared before; without names, the place tells them from others.
    fn first_use(&mut self, from: Option<&Arg>, to: Option<&Arg>, place: &str) -> bool {
        let key = |scope: &Scope<'_>, arg: Option<&Arg>| {
            let name = arg.map_or(String::new(), |arg| weights::name(scope, arg));
            if name.is_empty() { place.to_owned() } else { name }
        };
        self.compared.insert((key(self.a, from), key(self.b, to)))
    }

    /// Whether two arguments are the same constant, or the same value.
    fn same_operand(&self, x: &Arg, y: &Arg) -> bool {
        match (self.a.hash_arg(x), self.b.hash_arg(y)) {
            (Some(x), Some(y)) => return x == y,
            (None, None) => {}
            _ => return false,
        }
        match (x, y) {
            (Arg::Value(v), Arg::Value(w)) => self.matching.same_value(self.a, self.b, *v, *w),
            (Arg::List(x), Arg::List(y)) => {
                x.len() == y.len() && x.iter().zip(y).all(|(x, y)| self.same_operand(x, y))
            }
            _ => false,
        }
    }

    fn rewired(&self, what: &str, from: &Arg, to: &Arg) -> Option<Change> {
        let (from, to) = (written(self.a, from), written(self.b, to));
        Some(Change { what: what.to_owned(), from: Some(from), to: Some(to) })
    }
}

fn name(scope: &Scope<'_>, op: OpId) -> String {
    let operation = &scope.function.ops[op];
    let first = operation.outputs.first().map(|&v| scope.function.values[v].name.clone());
    let label = || operation.attributes.get("name").and_then(Literal::as_str).map(str::to_owned);
    first.or_else(label).unwrap_or_default()
}

fn single(scope: &Scope<'_>, op: OpId) -> Single {
    let operation = &scope.function.ops[op];
    let mut uses = Vec::new();
    operation.for_each_arg_value(|v| {
        if scope.constant_of(v).is_none() {
            uses.push(scope.function.values[v].name.clone());
        }
    });
    Single {
        kind: operation.kind.name().to_owned(),
        name: name(scope, op),
        types: operation.outputs.iter().map(|&v| scope.function.ty(v).to_string()).collect(),
        uses,
    }
}

/// The change of a small constant.
fn constants(
    what: &str,
    (a, from): (&Scope<'_>, Option<&Literal>),
    (b, to): (&Scope<'_>, Option<&Literal>),
) -> Option<Change> {
    let words = |s: &Scope<'_>, l: Option<&Literal>, typed| {
        l.map(|l| literal(&s.program.weights, l, typed))
    };
    // Where the types differ, they are part of what changed.
    let typed = from.zip(to).is_some_and(|(x, y)| x.ty != y.ty);
    let (from, to) = (words(a, from, typed), words(b, to, typed));
    Some(Change { what: what.to_owned(), from, to })
}

/// An argument for people.
fn written(scope: &Scope<'_>, arg: &Arg) -> String {
    match arg {
        Arg::Value(v) => scope.function.values[*v].name.clone(),
        Arg::Literal(l) => literal(&scope.program.weights, l, false),
        Arg::List(items) => {
            let items: Vec<String> = items.iter().map(|i| written(scope, i)).collect();
            format!("({})", items.join(", "))
        }
    }
}
