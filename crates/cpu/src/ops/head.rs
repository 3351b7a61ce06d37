//! The loss of an output layer, and its gradient.

use kernels::{HeadGrad, HeadLoss};
use mil::{OpError, OpKind};
use tensor::DType;

use super::linear::MatrixType;
use crate::kernel::{Kernel, Native, RunCx, f32s, f32s_mut, i32s};
use crate::op_cx::{Bind, OpCx};

/// Binds `llm.head_loss` and `llm.head_loss_grad`.
pub(crate) fn head_loss(cx: &mut OpCx<'_>) -> Bind<Native> {
    let (x, weight, targets) = (cx.float("x")?, cx.get("weight")?, cx.get("targets")?);
    if targets.dtype != DType::I32 {
        return Err(format!("targets of {}", targets.dtype).into());
    }
    let matrix = MatrixType::of(&weight)?;
    let bias = cx.opt_float("bias")?;
    let grad = cx.opt_float("grad")?;
    let kernel = Head {
        matrix,
        softcap: cx.view.float("softcap")?.map(|c| c as f32),
        bias: bias.is_some(),
        grad: grad.is_some(),
        derive: cx.op.kind == OpKind::LlmHeadLossGrad,
    };
    let scratch = kernels::logits_len(targets.len(), matrix.rows);
    let inputs = [x, weight, targets].into_iter().chain(bias).chain(grad).collect();
    Ok(Native::floats(kernel, inputs).with_scratch(&[scratch]))
}

struct Head {
    matrix: MatrixType,
    softcap: Option<f32>,
    /// Whether there is a bias, and after it what gradients are multiplied by.
    bias: bool,
    grad: bool,
    /// Whether gradients are wanted; those by weight and bias are if there are such results.
    derive: bool,
}

impl Kernel for Head {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let args = HeadLoss {
            x: f32s(ins[0]),
            weight: self.matrix.over(ins[1])?,
            targets: i32s(ins[2]),
            bias: self.bias.then(|| f32s(ins[3])),
            softcap: self.softcap,
        };
        let [outs @ .., logits] = outs else { return Ok(()) };
        let mut outs = outs.iter_mut().map(|out| f32s_mut(out));
        let Some(loss) = outs.next() else { return Ok(()) };
        let by = if self.derive {
            let grad = self.grad.then(|| f32s(ins[3 + usize::from(self.bias)]));
            let Some(x) = outs.next() else { return Ok(()) };
            let factor = grad.and_then(|g| g.first().copied()).unwrap_or(1.0);
            Some(HeadGrad { factor, x, weight: outs.next(), bias: outs.next() })
        } else {
            None
        };
        loss[0] = kernels::head_loss(cx.pool, &args, f32s_mut(logits), by)
            .map_err(|e| OpError::invalid(e.to_string()))?;
        Ok(())
    }
}
