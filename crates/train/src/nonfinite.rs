//! Which operation first makes a NaN or an infinity: the step again on the reference interpreter.

use std::collections::BTreeMap;

use analysis::nonfinite::Watch;
use exec::Tensors;
use mil::Program;
use mil::eval::{self, Arithmetic, Array, States, Value};

/// Elements, parameters times tokens, beyond which the interpreter would take minutes.
const MAX_WORK: usize = 1 << 31;

/// The operation of `function` that makes the first such number from `inputs`; `None` if the interpreter
/// makes none or the program is too large for it.
pub(crate) fn origin(program: &Program, function: &str, inputs: &Tensors) -> Option<String> {
    let body = program.functions.get(function)?;
    let floats = inputs.values().filter(|t| t.dtype().is_float()).map(tensor::Tensor::len);
    let ids = inputs.values().filter(|t| t.dtype().is_int()).map(tensor::Tensor::len);
    let work = floats.sum::<usize>().saturating_mul(ids.max().unwrap_or(1));
    if work > MAX_WORK {
        return None;
    }
    let value = |(name, tensor): (&String, &tensor::Tensor)| {
        Some((name.clone(), Value::from(Array::from_tensor(tensor).ok()?)))
    };
    let values = inputs.iter().map(value).collect::<Option<BTreeMap<_, _>>>()?;
    let mut watch = Watch::new(program, body, 0, &values);
    let mut states = States::new();
    let observe = &mut |v, value: &Value| watch.observe(v, value);
    // What it says of a failure matters less than the failure that led here.
    let _ = eval::run_observed(program, function, Arithmetic::F32, &values, &mut states, observe);
    watch.origin.map(|origin| origin.operation)
}
