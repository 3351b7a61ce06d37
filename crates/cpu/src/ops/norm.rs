//! Normalisation and softmax over the last axis.

use mil::OpError;

use crate::kernel::{Kernel, Native, RunCx, f32s, f32s_mut};
use crate::op_cx::{Bind, OpCx};

/// Binds `llm.rms_norm`.
pub(crate) fn rms_norm(cx: &mut OpCx<'_>) -> Bind<Native> {
    let (x, weight) = (cx.float("x")?, cx.float("weight")?);
    let dim = weight.len();
    if dim == 0 {
        return Err("rows without elements".into());
    }
    let eps = cx.view.float("epsilon")?.unwrap_or(0.0) as f32;
    Ok(Native::floats(RmsNorm { dim, eps }, vec![x, weight]))
}

struct RmsNorm {
    dim: usize,
    eps: f32,
}

impl Kernel for RmsNorm {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let (x, weight) = (f32s(ins[0]), f32s(ins[1]));
        kernels::rms_norm(cx.pool, x, Some(weight), self.eps, self.dim, f32s_mut(outs[0]));
        Ok(())
    }
}

/// Binds `layer_norm` over trailing axes.
pub(crate) fn layer_norm(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x = cx.float("x")?;
    let rank = x.shape.len();
    let axes = cx.view.ints("axes")?.map_or_else(
        || Ok((0..rank).collect()),
        |axes| axes.iter().map(|&a| cx.view.axis(a, rank)).collect::<Result<Vec<_>, _>>(),
    );
    let mut axes = axes?;
    axes.sort_unstable();
    let first = rank - axes.len().min(rank);
    if axes.iter().copied().ne(first..rank) {
        return Err("axes that are not the last ones".into());
    }
    let dim: usize = x.shape[first..].iter().product();
    if dim == 0 {
        return Err("rows without elements".into());
    }
    let eps = cx.view.float("epsilon")?.unwrap_or(1e-5) as f32;
    let (gamma, beta) = (cx.opt_float("gamma")?, cx.opt_float("beta")?);
    let kernel = LayerNorm { dim, eps, gamma: gamma.is_some(), beta: beta.is_some() };
    Ok(Native::floats(kernel, std::iter::once(x).chain(gamma).chain(beta).collect()))
}

struct LayerNorm {
    dim: usize,
    eps: f32,
    gamma: bool,
    beta: bool,
}

impl Kernel for LayerNorm {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let gamma = self.gamma.then(|| f32s(ins[1]));
        let beta = self.beta.then(|| f32s(ins[1 + usize::from(self.gamma)]));
        let (x, out) = (f32s(ins[0]), f32s_mut(outs[0]));
        kernels::layer_norm(cx.pool, x, gamma, beta, self.eps, self.dim, out);
        Ok(())
    }
}

/// Binds `softmax` over the last axis.
pub(crate) fn softmax(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x = cx.float("x")?;
    let axis = cx.view.axis(cx.view.int("axis")?.unwrap_or(-1), x.shape.len())?;
    // Axes of size 1 after it do not matter.
    let after: usize = x.shape[axis + 1..].iter().product();
    match x.shape[axis] {
        0 => Err("rows without elements".into()),
        _ if after != 1 => Err("an axis that is not the last one".into()),
        dim => Ok(Native::floats(Softmax { dim }, vec![x])),
    }
}

struct Softmax {
    dim: usize,
}

impl Kernel for Softmax {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        kernels::softmax(cx.pool, f32s(ins[0]), self.dim, f32s_mut(outs[0]));
        Ok(())
    }
}
