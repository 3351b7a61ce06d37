//! Moves transposes behind operations that do not mind, where some of them meet and cancel.

use std::collections::{BTreeMap, HashMap, HashSet};

use mil::{Arg, Block, Function, OpError, OpId, OpKind, OpView, Program, Type, ValueId};
use tensor::WeightStore;

use crate::dead_code::DeadCode;
use crate::rebuild::{Results, Site, rebuild, uses};
use crate::rewrite::{self, is_own, weight_uses};
use crate::transpose_rules::{Perm, Question, Rule, composed, is_identity, permutation};
use crate::{Pass, Property};

/// Moves transposes behind operations that do not mind, where some of them meet and cancel.
pub(crate) struct TransposeSinking;

impl Pass for TransposeSinking {
    fn name(&self) -> &'static str {
        "transpose_sinking"
    }

    fn doc(&self) -> &'static str {
        "Moves transposes behind elementwise operations, softmax, reductions, concat, split, slices and \
         padding, and into the flags of matmul, wherever fewer of them are left then: inverse ones cancel, \
         those that follow each other become one. Each group of connected operations is changed as a whole \
         or not at all, so that the number of transposes never grows.\n\
         before: a = transpose(x = x, perm = [0, 2, 1]); b = relu(x = a); \
         c = transpose(x = b, perm = [0, 2, 1]) -> (c)\n\
         after:  c = relu(x = x) -> (c)"
    }

    fn breaks(&self) -> &'static [Property] {
        &[Property::UniqueConstants]
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let mut total = 0;
        for _ in 0..ROUNDS {
            let plan = Planner::new(program, name).map(|p| p.plan()).unwrap_or_default();
            if plan.sunk.is_empty() {
                break;
            }
            let mut bases: HashMap<ValueId, ValueId> = HashMap::new();
            total += rebuild(program, name, &mut |site| sink(site, &plan, &mut bases))?;
            DeadCode.run(program, name)?;
        }
        Ok(total)
    }
}

/// Rounds at most: each leaves fewer transposes than the one before, and one is enough for most programs, but
/// a chain could be made of which each takes a little, so that its length would multiply the work.
const ROUNDS: usize = 16;

/// Operations that run on bases, and what is still needed transposed.
#[derive(Default)]
struct Plan {
    sunk: HashMap<OpId, Sunk>,
    /// Results that something uses as they were.
    needed: HashSet<ValueId>,
}

/// What becomes of an operation.
enum Sunk {
    /// A transpose: a base with this permutation.
    Transpose(Perm),
    /// Another one: it runs on bases.
    Rule(Rule),
}

impl Sunk {
    fn perm(&self, result: usize) -> &Perm {
        match self {
            Sunk::Transpose(perm) => perm,
            Sunk::Rule(rule) => &rule.results[result],
        }
    }
}

/// Bytes up to which a constant may be held twice.
const SMALL: usize = 1 << 16;

struct Planner<'a> {
    function: &'a Function,
    weights: &'a WeightStore,
    uses: HashMap<ValueId, usize>,
    shared: HashMap<tensor::WeightId, usize>,
}

/// The operations of one block under the assumption that all but the blocked ones move.
#[derive(Default)]
struct Attempt {
    sunk: BTreeMap<OpId, Sunk>,
    /// Sunk operations by result.
    makers: HashMap<ValueId, (OpId, usize)>,
    /// A representative of each operation's group.
    parents: HashMap<OpId, OpId>,
}

impl Attempt {
    fn root(&self, mut id: OpId) -> OpId {
        while let Some(&parent) = self.parents.get(&id)
            && parent != id
        {
            id = parent;
        }
        id
    }

    fn perm(&self, v: ValueId) -> Option<Perm> {
        let (id, result) = self.makers.get(&v)?;
        Some(self.sunk.get(id)?.perm(*result).clone())
    }

    fn add(&mut self, function: &Function, id: OpId, sunk: Sunk) {
        self.parents.insert(id, id);
        let op = &function.ops[id];
        op.for_each_arg_value(|v| {
            if let Some(&(maker, _)) = self.makers.get(&v) {
                let (a, b) = (self.root(maker), self.root(id));
                self.parents.insert(a, b);
            }
        });
        self.makers.extend(op.outputs.iter().enumerate().map(|(i, &v)| (v, (id, i))));
        self.sunk.insert(id, sunk);
    }
}

impl<'a> Planner<'a> {
    fn new(program: &'a Program, name: &str) -> Option<Self> {
        let function = program.functions.get(name)?;
        let transposes = function.ops.values().any(|op| op.kind == OpKind::Transpose);
        transposes.then(|| Planner {
            function,
            weights: &program.weights,
            uses: uses(function),
            shared: weight_uses(program),
        })
    }

    fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        rewrite::for_each_block(self.function, &mut |block| self.block(block, &mut plan));
        plan
    }

    /// Blocks what buys nothing until every group that is left has fewer transposes than before.
    fn block(&self, block: &Block, plan: &mut Plan) {
        let mut blocked: HashSet<OpId> = HashSet::new();
        loop {
            let attempt = self.attempt(block, &blocked);
            let needed = self.needed(block, &attempt);
            let mut balance: HashMap<OpId, isize> = HashMap::new();
            for (&id, sunk) in &attempt.sunk {
                let balance = balance.entry(attempt.root(id)).or_default();
                *balance -= isize::from(matches!(sunk, Sunk::Transpose(_)));
                *balance += self.kept(id, sunk, &needed) as isize;
            }
            let idle: Vec<OpId> = attempt
                .sunk
                .iter()
                .filter(|(id, sunk)| {
                    balance[&attempt.root(**id)] >= 0 && self.kept(**id, sunk, &needed) > 0
                })
                .map(|(id, _)| *id)
                .collect();
            if idle.is_empty() {
                plan.sunk.extend(attempt.sunk);
                plan.needed.extend(needed);
                return;
            }
            blocked.extend(idle);
        }
    }

    /// Results of `id` that still take a transpose.
    fn kept(&self, id: OpId, sunk: &Sunk, needed: &HashSet<ValueId>) -> usize {
        let outputs = self.function.ops[id].outputs.iter().enumerate();
        outputs.filter(|(i, v)| needed.contains(v) && !is_identity(sunk.perm(*i))).count()
    }

    fn attempt(&self, block: &Block, blocked: &HashSet<OpId>) -> Attempt {
        let mut attempt = Attempt::default();
        for &id in block.ops.iter().filter(|id| !blocked.contains(id)) {
            let op = &self.function.ops[id];
            let view = OpView::new(self.function, self.weights, op);
            let sunk = if op.kind == OpKind::Transpose {
                let (Some(perm), Some(&Arg::Value(x))) = (permutation(&view), op.arg("x")) else {
                    continue;
                };
                let inner = attempt.perm(x);
                let inner = inner.unwrap_or_else(|| (0..perm.len()).collect());
                Some(Sunk::Transpose(composed(&inner, &perm)))
            } else {
                self.rule(view, id, &attempt).map(Sunk::Rule)
            };
            if let Some(sunk) = sunk {
                attempt.add(self.function, id, sunk);
            }
        }
        attempt
    }

    fn rule(&self, op: OpView<'_>, id: OpId, attempt: &Attempt) -> Option<Rule> {
        let outputs = &self.function.ops[id].outputs;
        let results = outputs.iter().map(|&v| self.function.ty(v));
        let results = results.map(Type::as_tensor).collect::<Option<Vec<_>>>()?;
        let may_copy = |arg: &Arg, literal: &mil::Literal| {
            let once = match arg {
                Arg::Value(v) => self.uses.get(v) == Some(&1),
                _ => true,
            };
            let bytes = literal.resolve(self.weights).map_or(0, |t| t.bytes().len());
            (once && is_own(literal, &self.shared)) || bytes <= SMALL
        };
        let perm = |v| attempt.perm(v);
        Question { op, results, perm: &perm, may_copy: &may_copy }.rule()
    }

    /// Results of sunk operations that an operation which stays, a nested block, or the end of the
    /// block uses, or a sunk one as it was.
    fn needed(&self, block: &Block, attempt: &Attempt) -> HashSet<ValueId> {
        let mut needed: HashSet<ValueId> = block.outputs.iter().copied().collect();
        for &id in &block.ops {
            match attempt.sunk.get(&id) {
                None => self.function.for_each_use(id, &mut |v| {
                    needed.insert(v);
                }),
                Some(Sunk::Transpose(_)) => {}
                Some(Sunk::Rule(rule)) => {
                    let op = &self.function.ops[id];
                    for (param, arg) in op.kind.def().params().iter().zip(&op.args) {
                        let stays = !rule.operands.contains(&param.name)
                            && !rule.constants.iter().any(|(name, _)| *name == param.name);
                        if let Some(arg) = arg.as_ref().filter(|_| stays) {
                            arg.for_each_value(&mut |v| {
                                needed.insert(v);
                            });
                        }
                    }
                }
            }
        }
        needed.retain(|v| attempt.makers.contains_key(v));
        needed
    }
}

/// Puts the operation on bases in the place of the one at `site`.
fn sink(
    site: &mut Site<'_, '_>,
    plan: &Plan,
    bases: &mut HashMap<ValueId, ValueId>,
) -> Result<Option<Results>, OpError> {
    let Some(sunk) = plan.sunk.get(&site.id) else { return Ok(None) };
    let op = &site.function.ops[site.id];
    let of = |bases: &HashMap<ValueId, ValueId>, v: ValueId| bases.get(&v).copied().unwrap_or(v);
    let made = match sunk {
        Sunk::Transpose(_) => match op.arg("x") {
            Some(&Arg::Value(x)) => vec![of(bases, x)],
            _ => return Ok(None),
        },
        Sunk::Rule(rule) => {
            let constants = rule.constants.iter().map(|(name, literal)| {
                let label = format!("{}_{name}", site.function.values[op.outputs[0]].name);
                (*name, site.b.constant(&label, literal.clone()))
            });
            let constants: HashMap<&str, ValueId> = constants.collect();
            let name = site.function.values[op.outputs[0]].name.clone();
            let mut next = site.b.op(op.kind).name(name);
            for (param, arg) in op.kind.def().params().iter().zip(&op.args) {
                let mut arg = arg.clone();
                if let Some(&constant) = constants.get(param.name) {
                    arg = Some(constant.into());
                } else if let Some(arg) = &mut arg
                    && rule.operands.contains(&param.name)
                {
                    arg.for_each_value_mut(&mut |v| *v = of(bases, *v));
                }
                next = next.opt_arg(param.name, arg);
            }
            next.results()?
        }
    };
    let mut results = Results::new();
    for (i, (&was, base)) in op.outputs.iter().zip(made).enumerate() {
        bases.insert(was, base);
        let perm = sunk.perm(i);
        results.push(if is_identity(perm) {
            Some(base)
        } else if plan.needed.contains(&was) {
            let perm: Vec<i32> = perm.iter().map(|&p| p as i32).collect();
            let perm = site.b.constant("perm", mil::Literal::vector(&perm));
            Some(site.b.op(OpKind::Transpose).arg("x", base).arg("perm", perm).result()?)
        } else {
            None
        });
    }
    Ok(Some(results))
}
