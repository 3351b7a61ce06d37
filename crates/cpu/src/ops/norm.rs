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
