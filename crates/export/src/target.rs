//! The operation set that a package is for.

use std::collections::BTreeSet;

use mil::{Opset, Program};

use crate::{ExportError, Result};

/// Marks all functions as written in operation set `target`.
///
/// # Errors
/// One that lists all operations that it does not have; and when the program is not valid there.
pub(crate) fn set(program: &mut Program, target: Opset) -> Result<()> {
    let kinds = program.functions.values().flat_map(|f| f.ops.values()).map(|op| op.kind.def());
    let newer = kinds.filter(|def| def.opset() > target);
    let newer: BTreeSet<String> =
        newer.map(|def| format!("{} (since {})", def.name(), def.opset())).collect();
    if !newer.is_empty() {
        let newer: Vec<String> = newer.into_iter().collect();
        return Err(ExportError::unsupported(format!(
            "operations that {target} does not have: {}",
            newer.join(", ")
        )));
    }
    program.functions.values_mut().for_each(|f| f.opset = target);
    Ok(mil::verify(program)?)
}
