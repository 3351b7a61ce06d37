//! The results of a run by name, as arrays.

use std::rc::Rc;

use mil::Function;
use mil::eval::{Array, Data, Value};

use crate::error::{Context, Result, bail, ensure};

/// Results by name, in the function's order.
pub type Named = Vec<(String, Rc<Array>)>;

/// The outputs of `function` by name; see [`arrays`].
///
/// # Errors
/// When an output is a state, or holds what makes no array.
pub fn named(function: &Function, out: Vec<Value>) -> Result<Named> {
    let outputs = function.body.outputs.iter().zip(out);
    let outputs = outputs.map(|(&v, value)| arrays(&function.values[v].name, value));
    Ok(outputs.collect::<Result<Vec<_>>>()?.concat())
}

/// The arrays of the output `name`. Of a dictionary there are two, its keys and its values, and of a list one for
/// each item.
///
/// # Errors
/// When it is a state, or holds what makes no array.
pub fn arrays(name: &str, value: Value) -> Result<Named> {
    match value {
        Value::Array(array) => Ok(vec![(name.to_owned(), array)]),
        Value::Dict(entries) => {
            let (keys, values): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
            Ok(vec![
                (format!("{name}.keys"), joined(&keys)?),
                (format!("{name}.values"), joined(&values)?),
            ])
        }
        Value::List(items) => {
            let item = |(i, item): (usize, &Value)| {
                let array = item.array().with_context(|| format!("output {name}.{i}"))?;
                Ok((format!("{name}.{i}"), array.clone()))
            };
            items.iter().enumerate().map(item).collect()
        }
        Value::State(state) => bail!("output {name} is the state {state}"),
    }
}

/// Arrays of one type and shape along a new first axis.
fn joined(values: &[Value]) -> Result<Rc<Array>> {
    let arrays = values.iter().map(|v| Ok(v.array()?.clone())).collect::<Result<Vec<_>>>()?;
    stacked(&arrays).map(Rc::new)
}

/// Arrays of one type and shape along a new first axis.
///
/// # Errors
/// When there is none, or they are not of one type and shape.
pub fn stacked(arrays: &[Rc<Array>]) -> Result<Array> {
    let Some((first, rest)) = arrays.split_first() else {
        bail!("an output without elements");
    };
    let mut all = Array::clone(first);
    for array in rest {
        ensure!(array.shape == first.shape, "outputs of {:?} and {:?}", first.shape, array.shape);
        match (&mut all.data, &array.data) {
            (Data::Float(a), Data::Float(b)) => a.extend(b),
            (Data::Int(a), Data::Int(b)) => a.extend(b),
            (Data::Bool(a), Data::Bool(b)) => a.extend(b),
            (Data::Str(a), Data::Str(b)) => a.extend_from_slice(b),
            _ => bail!("outputs of {} and {}", first.dtype, array.dtype),
        }
    }
    all.shape.insert(0, arrays.len());
    Ok(all)
}
