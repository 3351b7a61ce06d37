//! Which operation first makes a NaN or an infinity: the step again on the reference interpreter.

use std::collections::BTreeMap;

use analysis::nonfinite::Watch;
use exec::Tensors;
use mil::Program;
use mil::eval::{self, Arithmetic, Array, States, Value};

/// Elements, parameters times tokens, beyond which the interpreter would take minutes.
const MAX_WORK: usize = 1 << 31;

/// Whether the interpreter would take too long.
pub(crate) fn is_too_large(program: &Program, inputs: &Tensors) -> bool {
    let floats = inputs.values().filter(|t| t.dtype().is_float()).map(tensor::Tensor::len);
    let weights = program.weights.iter().map(|(_, w)| w.tensor.len());
    let ids = inputs.values().filter(|t| t.dtype().is_int()).map(tensor::Tensor::len);
    let parameters = floats.chain(weights).fold(0, usize::saturating_add);
    parameters.saturating_mul(ids.max().unwrap_or(1)) > MAX_WORK
}

/// The operation of `function` that makes the first such number from `inputs`, where the types of the program
/// round if it is `half`; `None` if the interpreter makes none.
pub(crate) fn origin(
    program: &Program,
    function: &str,
    inputs: &Tensors,
    half: bool,
) -> Option<String> {
    let body = program.functions.get(function)?;
    let value = |(name, tensor): (&String, &tensor::Tensor)| {
        Some((name.clone(), Value::from(Array::from_tensor(tensor).ok()?)))
    };
    let values = inputs.iter().map(value).collect::<Option<BTreeMap<_, _>>>()?;
    let mut watch = Watch::new(program, body, 0, &values);
    let mut states = States::new();
    let observe = &mut |v, value: &Value| watch.observe(v, value);
    // What it says of a failure matters less than the failure that led here.
    let arithmetic = if half { Arithmetic::Fp16 } else { Arithmetic::F32 };
    let _ = eval::run_observed(program, function, arithmetic, &values, &mut states, observe);
    watch.origin.map(|origin| origin.operation)
}
