//! Gradients of normalisation.

use mil::OpKind;

use super::site::{Done, Site};

/// With the normalised rows `n`, the factors `r` they were scaled by and `u = g gamma`: by `x` it is
/// `r (u - mean(u) - n mean(u n))`, by `gamma` the sum of `g n` and by `beta` that of `g` over rows.
pub(super) fn layer_norm(s: &mut Site<'_, '_, '_>) -> Done {
    let (shape, dtype) = (s.shape("x")?, s.ty("x")?.dtype);
    let mut axes: Vec<usize> = match s.op.ints("axes")? {
        None => (0..shape.len()).collect(),
        Some(axes) => {
            axes.into_iter().map(|a| s.op.axis(a, shape.len())).collect::<Result<_, _>>()?
        }
    };
    axes.sort_unstable();
    let others: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).collect();
    let mut aligned = shape.clone();
    others.iter().for_each(|&a| aligned[a] = 1);
    let epsilon = s.op.float("epsilon")?.unwrap_or(1e-5);
    let (g, x, gamma) = (s.grad()?, s.arg("x")?, s.opt_arg("gamma")?);
    let e = &mut s.e();
    let mean = e.reduce(OpKind::ReduceMean, &x, &axes, true)?;
    let centred = e.sub(&x, &mean)?;
    let square = e.mul(&centred, &centred)?;
    let variance = e.reduce(OpKind::ReduceMean, &square, &axes, true)?;
    let epsilon = e.scalar(dtype, epsilon)?;
    let scale = e.op(OpKind::Rsqrt, [("x", variance), ("epsilon", epsilon)])?;
    let normal = e.mul(&centred, &scale)?;
    let weighted = match gamma {
        Some(gamma) => {
            let gamma = e.reshape(&gamma, &aligned)?;
            e.mul(&g, &gamma)?
        }
        None => g.clone(),
    };
    if s.wants("x") {
        let e = &mut s.e();
        let mean = e.reduce(OpKind::ReduceMean, &weighted, &axes, true)?;
        let product = e.mul(&weighted, &normal)?;
        let along = e.reduce(OpKind::ReduceMean, &product, &axes, true)?;
        let along = e.mul(&normal, &along)?;
        let across = e.sub(&weighted, &mean)?;
        let across = e.sub(&across, &along)?;
        let by_x = e.mul(&across, &scale)?;
        s.give("x", by_x)?;
    }
    for name in ["gamma", "beta"] {
        if s.wants(name) {
            let own = s.shape(name)?;
            let e = &mut s.e();
            let mut by = if name == "gamma" { e.mul(&g, &normal)? } else { g.clone() };
            if !others.is_empty() {
                by = e.reduce(OpKind::ReduceSum, &by, &others, false)?;
            }
            let by = e.reshape(&by, &own)?;
            s.give(name, by)?;
        }
    }
    Ok(())
}

pub(super) fn rms_norm(s: &mut Site<'_, '_, '_>) -> Done {
    let mut args = s.pass(&["x", "weight", "epsilon"])?;
    args.push(("grad", s.grad()?));
    let results = s.e().results(OpKind::LlmRmsNormGrad, args)?;
    for (name, by) in ["x", "weight"].into_iter().zip(results) {
        s.give(name, by)?;
    }
    Ok(())
}
