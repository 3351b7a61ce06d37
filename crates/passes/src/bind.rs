//! Makes inputs constants: the reverse of what [`grad`](crate::grad) does to weights, for devices that
//! compile weights into programs.

use std::collections::BTreeMap;

use mil::{Error, ErrorKind, FunctionBuilder, Program};
use tensor::{Tensor, WeightId};

use crate::rewrite::{self, Replacements};

/// Replaces the inputs named in `values`, in every function that has them, by weights of these values; one
/// weight an input. Their ids are by the names of the inputs; [`replace`](tensor::WeightStore::replace)
/// gives them other values.
///
/// # Errors
/// When a value is not of its input's type and shape.
pub fn bind_inputs(
    program: &mut Program,
    values: &BTreeMap<String, Tensor>,
) -> mil::Result<BTreeMap<String, WeightId>> {
    let mut bound = BTreeMap::new();
    let names: Vec<String> = program.functions.keys().cloned().collect();
    for name in names {
        let function = program.functions[&name].clone();
        let given: Vec<_> = values
            .iter()
            .filter_map(|(input, value)| Some((input, function.input(input)?, value)))
            .collect();
        if given.is_empty() {
            continue;
        }
        let mut b = FunctionBuilder::reopen(&name, function.clone(), &mut program.weights);
        let mut map = Replacements::new();
        for (input, v, value) in given {
            let ty = function.tensor_ty(v);
            let fits = ty.is_some_and(|ty| {
                ty.dtype == value.dtype() && ty.fixed_shape().as_deref() == Some(value.shape())
            });
            if !fits {
                let what = format!("{} {:?} for input {input}", value.dtype(), value.shape());
                return Err(Error::new(ErrorKind::Invalid, what).in_function(&name));
            }
            // The constant is to have the name.
            b.rename(v, "bound");
            let known = bound.get(input).copied();
            let id = known.unwrap_or_else(|| b.weights_mut().insert(input, value.clone()));
            bound.insert(input.clone(), id);
            map.insert(v, b.weight(id)?);
        }
        function.body.ops.iter().for_each(|&id| b.keep(id));
        let mut function = b.finish(function.body.outputs.clone());
        function.inputs.retain(|v| !map.contains_key(v));
        rewrite::replace_values(&mut function, &map);
        rewrite::compact(&mut function);
        program.functions.insert(name, function);
    }
    mil::verify(program)?;
    Ok(bound)
}
