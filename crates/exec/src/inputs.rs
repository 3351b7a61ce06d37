//! The inputs of a run, checked: types, shapes, and the symbols that they fix.

use std::collections::BTreeMap;

use crate::{ExecError, Result, Tensors};
use mil::{Dim, Function, TensorType, Type};
use tensor::{Bytes, Tensor};

/// The tensor inputs of `function` in order, checked against its types, and the sizes of symbols.
///
/// # Errors
/// When an input is missing, superfluous, or of another type or shape.
pub fn check_inputs(
    name: &str,
    function: &Function,
    inputs: &Tensors,
) -> Result<(Vec<Tensor>, BTreeMap<String, usize>)> {
    let error = |input: &str, message: String| ExecError::Input {
        function: name.to_owned(),
        input: input.to_owned(),
        message,
    };
    let mut found = Vec::new();
    let mut sizes = BTreeMap::new();
    for &v in &function.inputs {
        let data = &function.values[v];
        let ty = match &data.ty {
            Type::State(_) => continue,
            Type::Tensor(ty) => ty,
            other => return Err(error(&data.name, format!("a {other} cannot be given"))),
        };
        let Some(tensor) = inputs.get(&data.name) else {
            return Err(error(&data.name, format!("is missing, a {ty}")));
        };
        bind(ty, tensor, &mut sizes).map_err(|m| error(&data.name, m))?;
        found.push(aligned(tensor).map_err(|m| error(&data.name, m))?);
    }
    match inputs.keys().find(|n| !is_input(function, n)) {
        Some(extra) => Err(error(extra, "the function has no such input".into())),
        None => Ok((found, sizes)),
    }
}

fn is_input(function: &Function, name: &str) -> bool {
    function.input(name).is_some_and(|v| function.ty(v).as_state().is_none())
}

/// Fixes the symbols of `ty` by the shape of `tensor`.
fn bind(
    ty: &TensorType,
    tensor: &Tensor,
    sizes: &mut BTreeMap<String, usize>,
) -> Result<(), String> {
    let mismatch = || format!("is {} {:?}, not {ty}", tensor.dtype(), tensor.shape());
    if tensor.dtype() != ty.dtype || tensor.shape().len() != ty.rank() {
        return Err(mismatch());
    }
    for (dim, &size) in ty.shape.iter().zip(tensor.shape()) {
        match dim {
            Dim::Fixed(n) if *n != size => return Err(mismatch()),
            Dim::Fixed(_) | Dim::Unknown => {}
            Dim::Symbol(symbol) => {
                let bound = *sizes.entry(symbol.to_string()).or_insert(size);
                if bound != size {
                    return Err(format!("{}: {symbol} is {bound} in another place", mismatch()));
                }
            }
        }
    }
    Ok(())
}

/// `tensor`, copied if it lies where kernels could not read its elements.
///
/// # Errors
/// When its length is not its shape's.
pub fn aligned(tensor: &Tensor) -> Result<Tensor, String> {
    let dtype = tensor.dtype();
    let at = tensor.bytes().as_ptr().addr();
    let fits = dtype.block_len() != 1 || at.is_multiple_of(dtype.block_bytes());
    if fits {
        return Ok(tensor.clone());
    }
    Tensor::new(dtype, tensor.shape(), Bytes::copy_from(tensor.bytes())).map_err(|e| e.to_string())
}
