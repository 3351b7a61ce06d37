//! The verifier: what every program must fulfil, checked after each pass.

use crate::{Error, Function, OpError, OpView, Program, Result};

/// Checks a whole program.
///
/// # Errors
/// The first invariant that is broken.
pub fn verify(program: &Program) -> Result<()> {
    program.functions.iter().try_for_each(|(name, f)| verify_function(name, f, program))
}

/// Checks one function.
///
/// # Errors
/// The first invariant that is broken.
pub fn verify_function(name: &str, function: &Function, program: &Program) -> Result<()> {
    for (id, op) in &function.ops {
        let view = OpView::new(function, &program.weights, op);
        check_args(&view).map_err(|e| Error::at_op(e, name, function.describe(id)))?;
    }
    Ok(())
}

/// Checks arguments against the parameters: given where required, of an accepted type, constant
/// where needed.
pub(crate) fn check_args(op: &OpView<'_>) -> Result<(), OpError> {
    for (param, arg) in op.kind.def().params().iter().zip(op.args) {
        let Some(arg) = arg else {
            if param.required {
                return Err(OpError::invalid(format!("argument \"{}\" is missing", param.name)));
            }
            continue;
        };
        if let Some(ty) = op.arg_type(arg)
            && !param.domain.accepts(ty)
        {
            return Err(OpError::invalid(format!("argument \"{}\" may not be {ty}", param.name)));
        }
        if param.constant && !param.variadic && op.function.const_arg(arg).is_none() {
            return Err(OpError::invalid(format!(
                "argument \"{}\" must be a constant",
                param.name
            )));
        }
    }
    Ok(())
}
