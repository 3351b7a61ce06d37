//! Adds the bias of a convolution behind it.

use ane_model::CheckOptions;
use mil::{OpError, OpKind};

use super::emit::{Emit, again};
use super::operations::Rewritten;
use crate::rebuild::Site;

pub(super) fn rewrite(site: &mut Site<'_, '_>, _: &CheckOptions<'_>) -> Result<Rewritten, OpError> {
    let view = site.view();
    let Some(bias) = view.arg("bias") else {
        return Ok(Rewritten::Kept("it has no bias".to_owned()));
    };
    let Some(channels) = view.tensor("bias")?.shape.first().and_then(|d| d.fixed()) else {
        return Ok(Rewritten::Kept("the length of its bias is not known".to_owned()));
    };
    let mut shape = vec![1; view.tensor("x")?.rank()];
    shape[1] = channels;
    let constant = view.literal("bias").and_then(|l| Some((l, l.resolve(view.weights)?)));
    let y = again(site, &["bias"], "product").result()?;
    let mut e = Emit::at(site);
    let bias = match constant {
        Some((literal, tensor)) => {
            let shaped = tensor.reshaped(&shape).map_err(|e| OpError::invalid(e.to_string()))?;
            e.tensor("bias", shaped, literal)?
        }
        None => e.reshape(bias.clone(), &shape, "bias")?,
    };
    let sum = e.binary(OpKind::Add, y, bias, "sum")?;
    Ok(Rewritten::Done(vec![sum], format!("{}, add", view.kind.name())))
}
