//! Conversion between number types.

use mil::OpError;
use tensor::DType;

use crate::kernel::{Binding, Kernel, Native, RunCx, f32s, f32s_mut};
use crate::op_cx::{Bind, OpCx};

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

/// Binds `cast`.
pub(crate) fn cast(cx: &mut OpCx<'_>) -> Bind<Binding> {
    let x = cx.get("x")?;
    let (to, _) = cx.result(0)?;
    Ok(match (x.dtype, to) {
        (from, to) if from == to => Binding::View { of: x, offsets: vec![0] },
        // Widening a value for a kernel, or narrowing its result, is all there is to do.
        (DType::F16, DType::F32) | (DType::F32, DType::F16) => {
            let x = cx.float("x")?;
            Native::floats(Copy, vec![x]).into()
        }
        _ => return super::numbers::cast(cx),
    })
}

/// Hands single precision on.
struct Copy;

impl Kernel for Copy {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        if cx.in_place.is_none() {
            outs[0].copy_from_slice(ins[0]);
        }
        Ok(())
    }
}
