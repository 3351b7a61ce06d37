//! Makes named constants of those that are written in arguments.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mil::{
    Arg, Block, Function, Literal, OpId, OpKind, Operation, Program, ValueData, ValueDef, ValueId,
};

use super::Attempt;
use crate::rewrite::make_names_unique;

pub(super) fn apply(program: &mut Program, ops: &BTreeMap<String, BTreeSet<OpId>>) -> Attempt {
    let mut attempt = Attempt::default();
    for (name, ops) in ops {
        let Some(function) = program.functions.get_mut(name) else { continue };
        let mut added: HashMap<OpId, Vec<OpId>> = HashMap::new();
        for &id in ops {
            let (constants, arguments) = name_arguments(function, id);
            let described = function.describe(id);
            attempt.applied.push((
                name.clone(),
                described,
                format!("{} named", arguments.join(", ")),
            ));
            added.insert(id, constants);
        }
        function.body.ops = with_added(&function.body, &added);
        for op in function.ops.values_mut() {
            for block in &mut op.blocks {
                block.ops = with_added(block, &added);
            }
        }
        make_names_unique(function);
    }
    attempt
}

/// Operations of a block with new ones in front of those that use them.
fn with_added(block: &Block, added: &HashMap<OpId, Vec<OpId>>) -> Vec<OpId> {
    let with = |&op: &OpId| added.get(&op).into_iter().flatten().copied().chain([op]);
    block.ops.iter().flat_map(with).collect()
}

/// Makes a const of each constant argument that is written in place. Returns them, and the arguments' names.
fn name_arguments(function: &mut Function, id: OpId) -> (Vec<OpId>, Vec<&'static str>) {
    let (kind, mut args) = (function.ops[id].kind, function.ops[id].args.clone());
    let stem = function.ops[id].outputs.first().map(|&v| function.values[v].name.clone());
    let stem = stem.unwrap_or_else(|| kind.name().replace('.', "_"));
    let (mut constants, mut names) = (Vec::new(), Vec::new());
    for (param, slot) in kind.def().params().iter().zip(&mut args) {
        let Some(Arg::Literal(literal)) = slot.as_ref().filter(|_| param.constant) else {
            continue;
        };
        let (op, value) =
            constant(function, &format!("{stem}_{}", param.name), (**literal).clone());
        *slot = Some(Arg::Value(value));
        constants.push(op);
        names.push(param.name);
    }
    function.ops[id].args = args;
    (constants, names)
}

fn constant(function: &mut Function, name: &str, literal: Literal) -> (OpId, ValueId) {
    let op = function.ops.next_key();
    let (ty, def) = (literal.ty.clone(), ValueDef::Result(op, 0));
    let value = function.values.push(ValueData { name: name.to_owned(), ty, def });
    let attributes = [("name", Literal::string(name)), ("val", literal)].into();
    function.ops.push(Operation {
        kind: OpKind::Const,
        args: Vec::new(),
        outputs: vec![value],
        blocks: Vec::new(),
        opset: None,
        attributes,
    });
    (op, value)
}
