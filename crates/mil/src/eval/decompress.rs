//! Compressed constants as plain ones.

use super::{Arithmetic, States, Value, run_op};
use crate::{
    Error, Function, Literal, OpError, OpId, OpKind, Payload, Program, Result, ValueDef, ValueId,
};

/// Replaces every compressed constant of function `name`, nested blocks' included, by the constant that
/// it stands for, its values as `arithmetic` has them. Its parts stay, without use.
///
/// # Errors
/// When the function is missing or a constant is damaged.
pub fn decompress(program: &mut Program, name: &str, arithmetic: Arithmetic) -> Result<()> {
    let missing = || Error::new(crate::ErrorKind::Invalid, format!("no function {name}"));
    let function = program.functions.get(name).ok_or_else(missing)?;
    let compressed = |op: &OpId| function.ops[*op].kind.is_constexpr();
    let ops: Vec<OpId> = function.ops.keys().filter(compressed).collect();
    for op in ops {
        expand(program, name, op, arithmetic)?;
    }
    Ok(())
}

fn expand(program: &mut Program, name: &str, op: OpId, arithmetic: Arithmetic) -> Result<()> {
    // Those with two results feed another compressed constant; they are evaluated with it.
    if program.functions[name].ops[op].outputs.len() != 1 {
        return Ok(());
    }
    let given = parts(program, name, op, arithmetic)?;
    let results = run_op(program, name, op, arithmetic, given, &mut States::new())?;
    let function = &program.functions[name];
    let place = |e: OpError| Error::at_op(e, name, function.describe(op));
    let ([value], [result]) = (&function.ops[op].outputs[..], &results[..]) else { return Ok(()) };
    let tensor = result.array().and_then(|a| a.to_tensor()).map_err(place)?;
    let data = &function.values[*value];
    let (label, ty) = (data.name.clone(), data.ty.clone());
    let id = program.weights.insert(label, tensor);
    let Some(function) = program.functions.get_mut(name) else { return Ok(()) };
    let operation = &mut function.ops[op];
    operation.kind = OpKind::Const;
    operation.args = vec![None; OpKind::Const.def().params().len()];
    operation.attributes.insert("val", Literal { ty, payload: Payload::Weight(id) });
    Ok(())
}

/// What a compressed constant is made of, where that is a compressed constant with two results.
fn parts(
    program: &Program,
    name: &str,
    op: OpId,
    arithmetic: Arithmetic,
) -> Result<Vec<(ValueId, Value)>> {
    let function: &Function = &program.functions[name];
    let mut makers = Vec::new();
    function.for_each_use(op, &mut |v| {
        if let ValueDef::Result(maker, _) = function.values[v].def
            && function.ops[maker].kind != OpKind::Const
            && !makers.contains(&maker)
        {
            makers.push(maker);
        }
    });
    let mut parts = Vec::new();
    for maker in makers {
        let inner = self::parts(program, name, maker, arithmetic)?;
        let results = run_op(program, name, maker, arithmetic, inner, &mut States::new())?;
        parts.extend(function.ops[maker].outputs.iter().copied().zip(results));
    }
    Ok(parts)
}
