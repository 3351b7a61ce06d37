//! Makes one reshape of several that follow each other.

use mil::{Arg, Dim, Function, Literal, OpError, OpKind, Program, ValueDef, ValueId};

use crate::dead_code::DeadCode;
use crate::rebuild::{Results, Site, rebuild};
use crate::{Pass, Property};

/// Makes one reshape of several that follow each other.
pub(crate) struct MergeReshapes;

impl Pass for MergeReshapes {
    fn name(&self) -> &'static str {
        "merge_reshapes"
    }

    fn doc(&self) -> &'static str {
        "Replaces a reshape, expand_dims, squeeze or flatten2d of the result of another one by a single \
         reshape, or by nothing where the shape is that of the first argument, if at most one size of the \
         result is open.\n\
         before: a = expand_dims(x = x, axes = [0]); b = reshape(x = a, shape = [6]) -> (b)\n\
         after:  b = reshape(x = x, shape = [6]) -> (b)"
    }

    fn breaks(&self) -> &'static [Property] {
        &[Property::UniqueConstants]
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let changed = rebuild(program, name, &mut merge)?;
        if changed > 0 {
            DeadCode.run(program, name)?;
        }
        Ok(changed)
    }
}

fn merge(site: &mut Site<'_, '_>) -> Result<Option<Results>, OpError> {
    let op = &site.function.ops[site.id];
    let Some(direct) = source(site.function, site.id) else { return Ok(None) };
    let mut base = direct;
    while let ValueDef::Result(id, 0) = site.function.values[base].def
        && let Some(next) = source(site.function, id)
    {
        base = next;
    }
    if base == direct {
        return Ok(None);
    }
    let result = op.outputs[0];
    let (Some(from), Some(to)) = (site.function.tensor_ty(base), site.function.tensor_ty(result))
    else {
        return Ok(None);
    };
    if from == to && !from.shape.contains(&Dim::Unknown) {
        return Ok(Some(vec![Some(base)]));
    }
    let open = to.shape.iter().filter(|d| d.fixed().is_none()).count();
    // A 0 would mean the size of the argument, and leaves -1 without meaning.
    if open > 1 || to.shape.is_empty() || to.shape.contains(&Dim::Fixed(0)) {
        return Ok(None);
    }
    let size = |d: &Dim| d.fixed().map_or(Some(-1), |n| i32::try_from(n).ok());
    let Some(shape) = to.shape.iter().map(size).collect::<Option<Vec<i32>>>() else {
        return Ok(None);
    };
    let shape = site.b.constant("shape", Literal::vector(&shape));
    let merged = site.b.op(OpKind::Reshape).arg("x", base).arg("shape", shape).result()?;
    Ok(Some(vec![Some(merged)]))
}

/// The argument whose elements operation `id` gives another shape.
fn source(function: &Function, id: mil::OpId) -> Option<ValueId> {
    let op = &function.ops[id];
    let reshapes = [OpKind::Reshape, OpKind::ExpandDims, OpKind::Squeeze, OpKind::Flatten2d];
    match op.arg("x") {
        Some(&Arg::Value(x)) if reshapes.contains(&op.kind) => Some(x),
        _ => None,
    }
}
