//! Writes composite operations (gelu, attention, einsum, Rigel's dialect) with simpler ones, as the catalogue of
//! operations has it.

use ane_model::CheckOptions;
use mil::{ErrorKind, OpError};

use super::operations::Rewritten;
use crate::rebuild::Site;

pub(super) fn rewrite(site: &mut Site<'_, '_>, _: &CheckOptions<'_>) -> Result<Rewritten, OpError> {
    let view = site.view();
    let def = view.kind.def();
    if !def.is_composite() {
        return Ok(Rewritten::Kept(format!("{} has no simpler form", def.name())));
    }
    let first = site.b.function().ops.next_key();
    let results = match def.decompose(&view, site.b) {
        Err(e) if e.kind == ErrorKind::Unsupported => return Ok(Rewritten::Kept(e.message)),
        made => made?,
    };
    let function = site.b.function();
    let new = function.ops.iter().filter(|(id, op)| *id >= first && op.kind != mil::OpKind::Const);
    let mut kinds: Vec<&str> = Vec::new();
    for (_, op) in new {
        if !kinds.contains(&op.kind.name()) {
            kinds.push(op.kind.name());
        }
    }
    Ok(Rewritten::Done(results, kinds.join(", ")))
}
