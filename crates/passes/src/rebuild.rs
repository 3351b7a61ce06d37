//! Rebuilds a function operation by operation, nested blocks included, replacing some by others.

use std::collections::{HashMap, HashSet};

use mil::{
    Block, Error, Function, FunctionBuilder, OpError, OpId, OpKind, OpView, Program, ValueDef,
    ValueId,
};
use tensor::WeightStore;

use crate::rewrite::{self, Replacements};

/// What stands in an operation's place: for each of its results the value that equals it, or `None`
/// if nothing uses it any more.
pub(crate) type Results = Vec<Option<ValueId>>;

/// One operation of the function as it was, and the builder of the function that will be.
pub(crate) struct Site<'a, 'w> {
    /// The function as it was; the builder keeps the ids of its values and operations.
    pub(crate) function: &'a Function,
    /// The weights as they were.
    pub(crate) weights: &'a WeightStore,
    /// The operation.
    pub(crate) id: OpId,
    /// Adds operations where `id` stands.
    pub(crate) b: &'a mut FunctionBuilder<'w>,
}

impl<'a> Site<'a, '_> {
    /// The operation with its arguments.
    pub(crate) fn view(&self) -> OpView<'a> {
        OpView::new(self.function, self.weights, &self.function.ops[self.id])
    }
}

/// Decides on one operation: `None` keeps it.
pub(crate) type Decide<'d> = dyn FnMut(&mut Site<'_, '_>) -> Result<Option<Results>, OpError> + 'd;

/// Visits every operation of function `name` in order and puts what `decide` returns in its place.
///
/// `decide` sees the function as it was all the time, and may use any value that is visible where the
/// operation stands. Results that are replaced hand on their names, and their types where those say
/// more. Returns how many operations were replaced; if none, the function is as it was.
///
/// # Errors
/// Those of `decide`, with the operation's place.
pub(crate) fn rebuild(
    program: &mut Program,
    name: &str,
    decide: &mut Decide<'_>,
) -> mil::Result<usize> {
    let Some(old) = program.functions.get(name).cloned() else { return Ok(0) };
    let weights = program.weights.clone();
    let mut state = Rebuild {
        name,
        old: &old,
        weights: &weights,
        map: Replacements::new(),
        renamed: Vec::new(),
        named: HashSet::new(),
        public: HashSet::new(),
        changes: 0,
    };
    let mut b = FunctionBuilder::reopen(name, old.clone(), &mut program.weights);
    state.block(&mut b, &old.body, decide)?;
    if state.changes == 0 {
        return Ok(0);
    }
    let mut function = b.finish(old.body.outputs.clone());
    for (was, new) in state.renamed {
        let name = std::mem::take(&mut function.values[was].name);
        function.values[was].name = std::mem::replace(&mut function.values[new].name, name);
        if let Some(ty) = old.ty(was).refined(function.ty(new)) {
            function.values[new].ty = ty;
        }
    }
    rewrite::replace_values(&mut function, &state.map);
    rewrite::compact(&mut function);
    if function.ops.values().any(|op| !op.blocks.is_empty()) {
        // A name that moved to an earlier value may be one of a nested block between.
        rewrite::make_names_unique(&mut function);
    }
    program.functions.insert(name.to_owned(), function);
    Ok(state.changes)
}

struct Rebuild<'a> {
    name: &'a str,
    old: &'a Function,
    weights: &'a WeightStore,
    map: Replacements,
    /// New values that take over the name of an old one.
    renamed: Vec<(ValueId, ValueId)>,
    named: HashSet<ValueId>,
    /// Those of them that take the name of an output.
    public: HashSet<ValueId>,
    changes: usize,
}

impl Rebuild<'_> {
    fn block(
        &mut self,
        b: &mut FunctionBuilder<'_>,
        block: &Block,
        decide: &mut Decide<'_>,
    ) -> mil::Result<()> {
        for &id in &block.ops {
            let first_new = b.function().values.next_key();
            let site = &mut Site { function: self.old, weights: self.weights, id, b: &mut *b };
            let place = |e| Error::at_op(e, self.name, self.old.describe(id));
            match decide(site).map_err(place)? {
                Some(results) => {
                    let outputs = &self.old.ops[id].outputs;
                    for (&was, new) in outputs.iter().zip(results) {
                        if let Some(new) = new {
                            self.replace(b, was, new, first_new)?;
                        }
                    }
                    self.changes += 1;
                }
                None if self.old.ops[id].blocks.is_empty() => b.keep(id),
                None => {
                    b.keep_blocks(id, &mut |b, block| self.block(b, block, &mut *decide))?;
                }
            }
        }
        Ok(())
    }

    /// Puts `new` in place of `was`.
    fn replace(
        &mut self,
        b: &mut FunctionBuilder<'_>,
        was: ValueId,
        new: ValueId,
        first_new: ValueId,
    ) -> mil::Result<()> {
        let mut new = new;
        while let Some(&next) = self.map.get(&new) {
            new = next;
        }
        let fresh = new >= first_new && !self.named.contains(&new);
        let public = rewrite::is_public(self.old, was);
        if public {
            // An input, a constant and another output cannot take the name that callers know.
            let function = b.function();
            let made = match function.values[new].def {
                ValueDef::Result(id, _) => function.ops[id].kind != OpKind::Const,
                ValueDef::Param => false,
            };
            if !made || self.public.contains(&new) || rewrite::is_public(self.old, new) {
                new = b.op(OpKind::Identity).arg("x", new).result()?;
            }
            self.public.insert(new);
        }
        if fresh || public {
            self.named.insert(new);
            self.renamed.push((was, new));
        }
        self.map.insert(was, new);
        Ok(())
    }
}

/// How often each value is used: as an argument, as an output of a block.
pub(crate) fn uses(function: &Function) -> HashMap<ValueId, usize> {
    let mut uses: HashMap<ValueId, usize> = HashMap::new();
    rewrite::for_each_block(function, &mut |block| {
        for &id in &block.ops {
            function.ops[id].for_each_arg_value(|v| *uses.entry(v).or_default() += 1);
        }
        block.outputs.iter().for_each(|&v| *uses.entry(v).or_default() += 1);
    });
    uses
}
