//! Gradients of the language-model dialect that are operations of the dialect themselves.

use mil::eval::Array;
use mil::{Arg, Literal, OpError, OpKind};

use super::site::{Done, Site};

/// A rotation: the gradient is turned back, by the negated frequencies.
pub(super) fn rope(s: &mut Site<'_, '_, '_>) -> Done {
    let frequencies = s.op.literal("inv_freq").and_then(|l| l.resolve(s.op.weights));
    let frequencies = frequencies.ok_or_else(|| OpError::invalid("inv_freq is no constant"))?;
    let frequencies = Array::from_tensor(frequencies)?;
    let negated = frequencies.floats()?.iter().map(|f| -f).collect();
    let negated = Literal::tensor(frequencies.with_floats(negated).to_tensor()?);
    let mut args = s.pass(&["positions", "interleaved"])?;
    args.extend([("x", s.grad()?), ("inv_freq", Arg::from(negated))]);
    let by = s.e().op(OpKind::LlmRope, args)?;
    s.give("x", by)
}

pub(super) fn attention(s: &mut Site<'_, '_, '_>) -> Done {
    let names = ["query", "key", "value", "positions", "scale", "window", "softcap", "segments"];
    let mut args = s.pass(&names)?;
    args.push(("grad", s.grad()?));
    let results = s.e().results(OpKind::LlmAttentionGrad, args)?;
    for (name, by) in ["query", "key", "value"].into_iter().zip(results) {
        s.give(name, by)?;
    }
    Ok(())
}

/// The loss comes with its gradient: where it is the function's own loss, it is computed once.
pub(super) fn head_loss(s: &mut Site<'_, '_, '_>) -> Done {
    let by_weight = s.wants("weight") || s.wants("bias");
    let mut args = s.pass(&["x", "weight", "targets", "bias", "softcap", "chunk"])?;
    args.push(("grad", s.grad()?));
    let e = &mut s.e();
    args.push(("by_weight", e.bool(by_weight)));
    let results = e.results(OpKind::LlmHeadLossGrad, args)?;
    if let (Some(loss), Some(again)) = (s.output(0), results.first()) {
        s.tape.computed_again(loss, again);
    }
    for (name, by) in ["x", "weight", "bias"].into_iter().zip(results.into_iter().skip(1)) {
        s.give(name, by)?;
    }
    Ok(())
}
