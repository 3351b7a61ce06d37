//! Turns weights into inputs of a function.

use std::collections::{BTreeMap, HashSet};

use cranelift_entity::EntityRef;
use mil::ops::Domain;
use mil::{
    Error, ErrorKind, Function, FunctionBuilder, Literal, Payload, Program, TensorType, ValueId,
};
use tensor::{DType, WeightId};

use super::activity::Activity;
use super::{Parameter, function_of, loss_of};
use crate::rewrite::{self, Replacements};

/// Makes the chosen weights that `loss` depends on inputs of function `name`, in the order in which it
/// first uses them.
///
/// # Errors
/// When a chosen weight is not of floats, or somewhere must be a constant.
pub(super) fn promote(
    program: &mut Program,
    name: &str,
    loss: &str,
    chosen: &dyn Fn(&str) -> bool,
) -> mil::Result<Vec<Parameter>> {
    let function = function_of(program, name)?.clone();
    let constants = weight_constants(program, &function, chosen);
    let all = constants.values().flatten().copied();
    let loss = loss_of(&function, loss).map_err(|e| e.in_function(name))?;
    let activity = Activity::new(program, name, &function, all, loss)?;
    let mut wanted: Vec<(WeightId, Vec<ValueId>)> = constants
        .into_iter()
        .filter(|(_, values)| values.iter().any(|&v| activity.contains(v)))
        .collect();
    wanted.sort_by_key(|(_, values)| values.iter().map(|v| v.index()).min());
    let mut promoted = Promotion { map: Replacements::new(), gone: HashSet::new() };
    let mut parameters = Vec::new();
    let stored: Vec<(String, TensorType)> = wanted
        .iter()
        .map(|(id, values)| {
            stored(program, &function, *id, values).map_err(|e| e.in_function(name))
        })
        .collect::<mil::Result<_>>()?;
    let mut b = FunctionBuilder::reopen(name, function.clone(), &mut program.weights);
    for ((weight, values), (own, ty)) in wanted.into_iter().zip(stored) {
        let plain = values.iter().all(|&v| takes_any_storage(&function, v));
        let input = promoted.input(&mut b, &own, &ty, &values, plain)?;
        let ty = b.function().tensor_ty(input).cloned().unwrap_or(ty);
        let input = b.function().values[input].name.clone();
        parameters.push(Parameter {
            weight: Some(weight),
            name: own,
            input,
            gradient: String::new(),
            ty,
        });
    }
    function.body.ops.iter().filter(|&id| !promoted.gone.contains(id)).for_each(|&id| b.keep(id));
    let mut function = b.finish(function.body.outputs.clone());
    rewrite::replace_values(&mut function, &promoted.map);
    rewrite::compact(&mut function);
    program.functions.insert(name.to_owned(), function);
    Ok(parameters)
}

/// The constants that refer to each chosen weight.
fn weight_constants(
    program: &Program,
    function: &Function,
    chosen: &dyn Fn(&str) -> bool,
) -> BTreeMap<WeightId, Vec<ValueId>> {
    let mut constants: BTreeMap<WeightId, Vec<ValueId>> = BTreeMap::new();
    for &id in &function.body.ops {
        let op = &function.ops[id];
        if let Some(Literal { payload: Payload::Weight(weight), .. }) = op.const_value()
            && program.weights.get(*weight).is_some_and(|w| chosen(&w.name))
        {
            constants.entry(*weight).or_default().extend(&op.outputs);
        }
    }
    constants
}

/// The name and type of a weight that can become an input.
fn stored(
    program: &Program,
    function: &Function,
    weight: WeightId,
    values: &[ValueId],
) -> mil::Result<(String, TensorType)> {
    let name = program.weights.get(weight).map(|w| w.name.clone()).unwrap_or_default();
    let ty = values.first().and_then(|&v| function.tensor_ty(v)).cloned();
    let unsupported =
        |why: String| Error::new(ErrorKind::Unsupported, format!("weight {name} {why}"));
    let ty = ty.ok_or_else(|| unsupported("is no tensor".into()))?;
    if !ty.dtype.is_float() {
        return Err(unsupported(format!("is {ty}, not of floats: it cannot be trained")));
    }
    let constant = function.ops.values().any(|op| {
        op.kind.def().params().iter().zip(&op.args).any(|(param, arg)| {
            let mut used = false;
            arg.iter().for_each(|a| a.for_each_value(&mut |v| used |= values.contains(&v)));
            param.constant && used
        })
    });
    if constant {
        return Err(unsupported("must be a constant where it is used".into()));
    }
    Ok((name, ty))
}

/// Whether all operations that use `v` take weights in any storage type.
fn takes_any_storage(function: &Function, v: ValueId) -> bool {
    function.ops.values().all(|op| {
        op.kind.def().params().iter().zip(&op.args).all(|(param, arg)| {
            let mut used = false;
            arg.iter().for_each(|a| a.for_each_value(&mut |u| used |= u == v));
            !used || param.domain == Domain::Weight
        })
    })
}

struct Promotion {
    map: Replacements,
    /// Operations of the constants.
    gone: HashSet<mil::OpId>,
}

impl Promotion {
    /// Adds the input that stands for the constants `values` of a weight.
    fn input(
        &mut self,
        b: &mut FunctionBuilder<'_>,
        name: &str,
        stored: &TensorType,
        values: &[ValueId],
        plain: bool,
    ) -> mil::Result<ValueId> {
        for &v in values {
            // The input is to have the name.
            b.rename(v, "stored");
            if let mil::ValueDef::Result(id, _) = b.function().values[v].def {
                self.gone.insert(id);
            }
        }
        let narrow = matches!(stored.dtype, DType::F16 | DType::Bf16);
        let dtype = if narrow && plain { DType::F32 } else { stored.dtype };
        let input = b.input(name, TensorType { dtype, shape: stored.shape.clone() });
        self.map.extend(values.iter().map(|&v| (v, input)));
        Ok(input)
    }
}
