//! Makes the inputs, or the outputs, of a function of one size in bytes, by padding all to the largest.

use std::collections::BTreeSet;

use ane_model::Diagnostic;
use mil::{Error, Function, FunctionBuilder, OpError, Program, Result, TensorType, ValueId};

use super::emit::{Emit, element_bytes};
use super::{Attempt, InterfaceChange, Part};
use crate::rewrite::{Replacements, replace_values};

/// A value with its sizes before and after.
struct Grown {
    v: ValueId,
    from: TensorType,
    old: Vec<usize>,
    new: Vec<usize>,
}

/// Pads the inputs of the functions that findings are about, or their outputs.
///
/// # Errors
/// When an operation cannot be made.
pub(super) fn apply(
    program: &mut Program,
    findings: &[&Diagnostic],
    part: Part,
) -> Result<Attempt> {
    let mut attempt = Attempt::default();
    let names: BTreeSet<&str> = findings.iter().filter_map(|d| d.function.as_deref()).collect();
    for name in names {
        let Some(old) = program.functions.get(name) else { continue };
        match grown(old, part) {
            Ok(values) => {
                let old = old.clone();
                for grown in &values {
                    let to = TensorType::new(grown.from.dtype, grown.new.iter().copied());
                    let value = old.values[grown.v].name.clone();
                    let subject = format!("{} \"{value}\"", part.name());
                    attempt.applied.push((name.to_owned(), subject, format!("padded to {to}")));
                    attempt.interface.push(InterfaceChange {
                        function: name.to_owned(),
                        part,
                        name: value,
                        from: grown.from.clone(),
                        to,
                    });
                }
                let b = FunctionBuilder::reopen(name, old.clone(), &mut program.weights);
                let made = match part {
                    Part::Output => outputs(b, &old, &values),
                    Part::Input | Part::State => inputs(b, &old, &values),
                };
                let function = made.map_err(|e| Error::new(e.kind, e.message).in_function(name))?;
                program.functions.insert(name.to_owned(), function);
            }
            Err(why) => {
                let mine = findings.iter().filter(|d| d.function.as_deref() == Some(name));
                attempt.refused.extend(mine.map(|d| (super::place(d), why.clone())));
            }
        }
    }
    Ok(attempt)
}

/// What has to grow, or why it cannot.
fn grown(function: &Function, part: Part) -> Result<Vec<Grown>, String> {
    let values = if part == Part::Output { &function.body.outputs } else { &function.inputs };
    let mut sized = Vec::new();
    for &v in values {
        let name = &function.values[v].name;
        let Some(ty) = function.tensor_ty(v) else { continue };
        let shape = ty.fixed_shape().ok_or_else(|| format!("the sizes of \"{name}\" are open"))?;
        let element = element_bytes(ty.dtype).ok_or_else(|| format!("\"{name}\" is {ty}"))?;
        if part == Part::Output && !(ty.dtype.is_float() || ty.dtype.is_int()) {
            return Err(format!("\"{name}\" is {ty}, which cannot be padded"));
        }
        let passed_on = function.inputs.contains(&v) && function.body.outputs.contains(&v);
        if passed_on {
            return Err(format!("\"{name}\" is an input and an output"));
        }
        let bytes = tensor::element_count(&shape).and_then(|n| n.checked_mul(element));
        let bytes = bytes.ok_or_else(|| format!("\"{name}\" is too large: {ty}"))?;
        sized.push((v, ty.clone(), shape, element, bytes));
    }
    let largest = sized.iter().map(|s| s.4).max().unwrap_or(0);
    let smaller = sized.into_iter().filter(|s| s.4 < largest);
    let grown = smaller.map(|(v, from, old, element, _)| {
        let name = &function.values[v].name;
        let new =
            Some(largest).filter(|n| n % element == 0).and_then(|n| longer(&old, n / element));
        let new = new.ok_or_else(|| format!("no axis of \"{name}\" makes it {largest} bytes"))?;
        Ok(Grown { v, from, old, new })
    });
    grown.collect()
}

/// `shape` with one axis so long that there are `elements`: the first that is not 1 if that can be, so that what is
/// there already stays packed at the start.
fn longer(shape: &[usize], elements: usize) -> Option<Vec<usize>> {
    let first = shape.iter().position(|&n| n > 1).unwrap_or(shape.len().saturating_sub(1));
    let axes = [first].into_iter().chain((0..shape.len()).rev());
    axes.into_iter().find_map(|axis| {
        let others: usize =
            shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, n)| n).product();
        let whole = others > 0 && elements.is_multiple_of(others) && *shape.get(axis)? > 0;
        whole.then(|| {
            let mut new = shape.to_vec();
            new[axis] = elements / others;
            new
        })
    })
}

fn inputs(
    mut b: FunctionBuilder<'_>,
    old: &Function,
    values: &[Grown],
) -> Result<Function, OpError> {
    let mut map = Replacements::new();
    let mut renamed = Vec::new();
    for Grown { v, from, old: was, new } in values {
        let name = &old.values[*v].name;
        let input = b.input(name, TensorType::new(from.dtype, new.iter().copied()));
        let part = Emit::new(&mut b, name).slice(input, &vec![0; was.len()], was, "part")?;
        map.insert(*v, part);
        renamed.push((*v, input));
    }
    old.body.ops.iter().for_each(|&op| b.keep(op));
    let mut function = b.finish(old.body.outputs.clone());
    replace_values(&mut function, &map);
    let now = |v: &ValueId| renamed.iter().find(|(was, _)| was == v).map_or(*v, |(_, now)| *now);
    function.inputs = old.inputs.iter().map(now).collect();
    for (was, now) in renamed {
        swap_names(&mut function, was, now);
    }
    Ok(function)
}

fn outputs(
    mut b: FunctionBuilder<'_>,
    old: &Function,
    values: &[Grown],
) -> Result<Function, OpError> {
    old.body.ops.iter().for_each(|&op| b.keep(op));
    let mut outputs = old.body.outputs.clone();
    let mut renamed = Vec::new();
    for Grown { v, from, old: was, new } in values {
        let added: Vec<usize> = new.iter().zip(was).map(|(n, o)| n - o).collect();
        let mut e = Emit::new(&mut b, &old.values[*v].name);
        let padded = e.pad((*v).into(), from.dtype, &added, "padded")?;
        outputs.iter_mut().filter(|o| *o == v).for_each(|o| *o = padded);
        renamed.push((*v, padded));
    }
    let mut function = b.finish(outputs);
    for (was, now) in renamed {
        swap_names(&mut function, was, now);
    }
    Ok(function)
}

fn swap_names(function: &mut Function, a: ValueId, b: ValueId) {
    let name = std::mem::take(&mut function.values[a].name);
    function.values[a].name = std::mem::replace(&mut function.values[b].name, name);
}

#[cfg(test)]
mod tests {
    use super::longer;

    #[test]
    fn the_first_long_axis_grows_if_it_can() {
        assert_eq!(longer(&[1, 768, 1, 16], 24_576), Some(vec![1, 1536, 1, 16]));
        assert_eq!(longer(&[1, 5, 1, 6], 40), Some(vec![1, 5, 1, 8]));
        assert_eq!(longer(&[1, 5, 1, 6], 31), None);
        assert_eq!(longer(&[1, 1, 1, 1], 3), Some(vec![1, 1, 1, 3]));
    }
}
