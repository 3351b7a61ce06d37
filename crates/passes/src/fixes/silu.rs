//! Writes silu as `x * sigmoid(x)`.

use ane_model::CheckOptions;
use mil::{OpError, OpKind};

use super::emit::Emit;
use super::operations::Rewritten;
use crate::rebuild::Site;

pub(super) fn rewrite(site: &mut Site<'_, '_>, _: &CheckOptions<'_>) -> Result<Rewritten, OpError> {
    let x = site.view().required("x")?.clone();
    let mut e = Emit::at(site);
    let gate = e.unary(OpKind::Sigmoid, x.clone(), "sigmoid")?;
    let y = e.binary(OpKind::Mul, x, gate, "product")?;
    Ok(Rewritten::Done(vec![y], "x * sigmoid(x)".to_owned()))
}
