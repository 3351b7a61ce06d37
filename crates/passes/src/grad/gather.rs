//! Gradients of reading and adding at indices: each of the two is the other's.

use mil::{OpError, OpKind};

use super::site::{Done, Site};
use super::tape::fixed;

/// Of rows along an axis, which may be read several times: their gradients add up.
pub(super) fn gather(s: &mut Site<'_, '_, '_>) -> Done {
    if s.op.int("batch_dims")?.unwrap_or(0) != 0 {
        return Err(OpError::unsupported("no gradient of gather with batch_dims"));
    }
    let (shape, indices) = (s.shape("x")?, s.shape("indices")?);
    let axis = s.axis("axis", 0, shape.len())?;
    let count: usize = indices.iter().product();
    let flat = [&shape[..axis], &[count], &shape[axis + 1..]].concat();
    let (g, at, dtype) = (s.grad()?, s.arg("indices")?, s.ty("x")?.dtype);
    let e = &mut s.e();
    let (g, at) = (e.reshape(&g, &flat)?, e.reshape(&at, &[count])?);
    let (data, axis, mode) = (e.full(dtype, &shape, 0.0)?, e.int(axis as i32), e.str("add"));
    let mut args =
        vec![("data", data), ("indices", at), ("updates", g), ("axis", axis), ("mode", mode)];
    args.extend(s.pass(&["validate_indices"])?);
    let by = s.e().op(OpKind::Scatter, args)?;
    s.give("x", by)
}

pub(super) fn gather_along_axis(s: &mut Site<'_, '_, '_>) -> Done {
    into_zeros(s, OpKind::ScatterAlongAxis, &["axis", "indices", "validate_indices"])
}

pub(super) fn gather_nd(s: &mut Site<'_, '_, '_>) -> Done {
    if s.op.int("batch_dims")?.unwrap_or(0) != 0 {
        return Err(OpError::unsupported("no gradient of gather_nd with batch_dims"));
    }
    into_zeros(s, OpKind::ScatterNd, &["indices", "validate_indices"])
}

fn into_zeros(s: &mut Site<'_, '_, '_>, kind: OpKind, names: &[&'static str]) -> Done {
    let (shape, dtype) = (s.shape("x")?, s.ty("x")?.dtype);
    let mut args = s.pass(names)?;
    args.push(("updates", s.grad()?));
    let e = &mut s.e();
    args.extend([("data", e.full(dtype, &shape, 0.0)?), ("mode", e.str("add"))]);
    let by = e.op(kind, args)?;
    s.give("x", by)
}

pub(super) fn scatter(s: &mut Site<'_, '_, '_>) -> Done {
    added(s, OpKind::Gather, &["axis", "indices", "validate_indices"])
}

pub(super) fn scatter_along_axis(s: &mut Site<'_, '_, '_>) -> Done {
    added(s, OpKind::GatherAlongAxis, &["axis", "indices", "validate_indices"])
}

pub(super) fn scatter_nd(s: &mut Site<'_, '_, '_>) -> Done {
    added(s, OpKind::GatherNd, &["indices", "validate_indices"])
}

/// Where updates are added, the data's gradient passes, and the updates' is read at the indices.
fn added(s: &mut Site<'_, '_, '_>, kind: OpKind, names: &[&'static str]) -> Done {
    let mode = s.op.str("mode")?.unwrap_or("add");
    if mode != "add" {
        return Err(OpError::unsupported(format!("no gradient of scattering by mode \"{mode}\"")));
    }
    let g = s.grad()?;
    s.give("data", g.clone())?;
    if s.wants("updates") {
        let mut args = s.pass(names)?;
        args.push(("x", g));
        let by = s.e().op(kind, args)?;
        s.give("updates", by)?;
    }
    Ok(())
}

/// Of the greatest elements: back to where they were.
pub(super) fn topk(s: &mut Site<'_, '_, '_>) -> Done {
    let (shape, dtype) = (s.shape("x")?, s.ty("x")?.dtype);
    let axis = s.axis("axis", -1, shape.len())?;
    if s.output(1).is_none() {
        return Err(OpError::unsupported("no gradient of topk without indices"));
    }
    let (g, at) = (s.grad()?, s.result(1)?);
    let e = &mut s.e();
    let (data, axis, mode) = (e.full(dtype, &shape, 0.0)?, e.int(axis as i32), e.str("add"));
    let args = [("data", data), ("indices", at), ("updates", g), ("axis", axis), ("mode", mode)];
    let by = e.op(OpKind::ScatterAlongAxis, args)?;
    s.give("x", by)
}

/// Rows of a table: added to what other uses of the table have contributed, for a table is large.
pub(super) fn embedding(s: &mut Site<'_, '_, '_>) -> Done {
    let mil::Arg::Value(table) = *s.op.required("weight")? else { return Ok(()) };
    if !s.wants("weight") {
        return Ok(());
    }
    let (shape, dtype) = (s.shape("weight")?, s.ty("weight")?.dtype);
    let (g, ids, before) = (s.grad()?, s.arg("ids")?, s.tape.take(table));
    let e = &mut s.e();
    let count: usize = fixed(&e.ty(&ids)?)?.iter().product();
    let g = e.cast(g, dtype)?;
    let (rows, ids) = (e.reshape(&g, &[count, shape[1]])?, e.reshape(&ids, &[count])?);
    let data = match before {
        Some(before) => before,
        None => e.full(dtype, &shape, 0.0)?,
    };
    let (axis, mode) = (e.int(0), e.str("add"));
    let args =
        [("data", data), ("indices", ids), ("updates", rows), ("axis", axis), ("mode", mode)];
    let by = e.op(OpKind::Scatter, args)?;
    s.give("weight", by)
}
