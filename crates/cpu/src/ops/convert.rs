//! Conversion between half and single precision.

use mil::OpError;

use crate::kernel::{Kernel, RunCx, f32s, f32s_mut};

/// `fp16` to `fp32`.
pub(crate) struct Widen;

impl Kernel for Widen {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        kernels::widen(cx.pool, bytemuck::cast_slice(ins[0]), f32s_mut(outs[0]));
        Ok(())
    }
}

/// `fp32` to `fp16`, rounded to nearest even.
pub(crate) struct Narrow;

impl Kernel for Narrow {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        kernels::narrow(cx.pool, f32s(ins[0]), bytemuck::cast_slice_mut(outs[0]));
        Ok(())
    }
}
