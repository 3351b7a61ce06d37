//! The NEON instance: a vector is four registers. Compiled for AArch64 only; not run on hardware yet.

use std::arch::aarch64::*;

use half::f16;

use super::{Halves, Kernel, LANES, Simd, halves};
use crate::gemm::Tile;

/// Only made by [`run`].
#[derive(Clone, Copy)]
pub(super) struct Neon {
    halves: &'static Halves,
}

/// # Safety
/// The processor must have NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon { halves: halves() })
}

type V = [float32x4_t; 4];

/// Evaluates an intrinsic that touches no memory.
macro_rules! op {
    ($e:expr) => {{
        // SAFETY: a `Neon` only exists where NEON does, and no memory is touched.
        unsafe { $e }
    }};
}

/// One intrinsic on each of the four registers.
macro_rules! each {
    ($f:ident, $a:expr $(, $rest:expr)*) => {{
        let a = $a;
        op!([
            $f(a[0] $(, $rest[0])*),
            $f(a[1] $(, $rest[1])*),
            $f(a[2] $(, $rest[2])*),
            $f(a[3] $(, $rest[3])*),
        ])
    }};
}

/// 16 signed bytes as floats.
#[inline(always)]
fn floats(b: int8x16_t) -> V {
    op!({
        let (low, high) = (vmovl_s8(vget_low_s8(b)), vmovl_high_s8(b));
        [
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
            vcvtq_f32_s32(vmovl_high_s16(low)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
            vcvtq_f32_s32(vmovl_high_s16(high)),
        ]
    })
}

impl Simd for Neon {
    type V = V;
    type B = uint8x16_t;
    type Lut = int8x16_t;

    #[inline(always)]
    fn halves(self) -> &'static Halves {
        self.halves
    }

    const TILE: usize = 6;
    #[inline(always)]
    fn tile(self, tile: Tile<'_>, vectors: usize) {
        let mut tile = tile;
        for v in 0..vectors {
            tile.add::<Self, 6, 1>(self, v);
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [op!(vdupq_n_f32(x)); 4]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        let p = x.as_ptr();
        // SAFETY: 16 numbers are readable; the loads need no alignment beyond an element's.
        unsafe { [vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))] }
    }
    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        let p = out.as_mut_ptr();
        // SAFETY: 16 numbers are writable; the stores need no alignment beyond an element's.
        unsafe {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
            vst1q_f32(p.add(8), v[2]);
            vst1q_f32(p.add(12), v[3]);
        }
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        each!(vaddq_f32, a, b)
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        each!(vsubq_f32, a, b)
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        each!(vmulq_f32, a, b)
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        each!(vdivq_f32, a, b)
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        each!(vfmaq_f32, c, a, b)
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        self.if_less(b, a, a, b)
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        self.if_less(a, b, a, b)
    }
    #[inline(always)]
    fn if_less(self, a: V, b: V, x: V, y: V) -> V {
        let less = each!(vcltq_f32, a, b);
        each!(vbslq_f32, less, x, y)
    }
    #[inline(always)]
    fn round(self, v: V) -> V {
        each!(vrndnq_f32, v)
    }
    #[inline(always)]
    fn scale_by_power(self, v: V, n: V) -> V {
        let bias = [op!(vdupq_n_s32(127)); 4];
        let exponent = each!(vaddq_s32, each!(vcvtq_s32_f32, n), bias);
        let bits = op!([
            vshlq_n_s32::<23>(exponent[0]),
            vshlq_n_s32::<23>(exponent[1]),
            vshlq_n_s32::<23>(exponent[2]),
            vshlq_n_s32::<23>(exponent[3]),
        ]);
        self.mul(v, each!(vreinterpretq_f32_s32, bits))
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        op!({
            let v = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let v = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(v) + vget_lane_f32::<1>(v)
        })
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> V {
        // The intrinsics on half precision are not stable; this is exact: the bits of exponent and
        // fraction at their single-precision place, times 2^112, are the value (subnormals
        // included), but infinity and NaN need their exponent filled up.
        let p = bytes.as_ptr();
        // SAFETY: 32 bytes are readable; byte loads need no alignment.
        let (a, b) = unsafe { (vld1q_u8(p), vld1q_u8(p.add(16))) };
        op!({
            let (a, b) = (vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b));
            let wide = [
                vmovl_u16(vget_low_u16(a)),
                vmovl_high_u16(a),
                vmovl_u16(vget_low_u16(b)),
                vmovl_high_u16(b),
            ];
            let mut out = [vdupq_n_f32(0.0); 4];
            let scale = vdupq_n_f32(f32::from_bits((127 + 112) << 23));
            for (out, h) in out.iter_mut().zip(wide) {
                let magnitude = vshlq_n_u32::<13>(vandq_u32(h, vdupq_n_u32(0x7fff)));
                let sign = vshlq_n_u32::<16>(vandq_u32(h, vdupq_n_u32(0x8000)));
                let value =
                    vreinterpretq_u32_f32(vmulq_f32(vreinterpretq_f32_u32(magnitude), scale));
                let special = vcgeq_u32(magnitude, vdupq_n_u32(0x7c00 << 13));
                let full = vorrq_u32(magnitude, vdupq_n_u32(0x7f80_0000));
                *out = vreinterpretq_f32_u32(vorrq_u32(vbslq_u32(special, full, value), sign));
            }
            out
        })
    }
    #[inline(always)]
    fn store_f16(self, v: V, out: &mut [u8; 32]) {
        let mut x = [0f32; LANES];
        self.store(v, &mut x);
        for (i, x) in x.into_iter().enumerate() {
            [out[2 * i], out[2 * i + 1]] = f16::from_f32(x).to_le_bytes();
        }
    }
    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> V {
        let p = bytes.as_ptr();
        // SAFETY: 32 bytes are readable; byte loads need no alignment.
        let (a, b) = unsafe { (vld1q_u8(p), vld1q_u8(p.add(16))) };
        op!({
            let (a, b) = (vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b));
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(a))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(a)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(b))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(b)),
            ]
        })
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; LANES]) -> uint8x16_t {
        // SAFETY: 16 bytes are readable; byte loads need no alignment.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }
    #[inline(always)]
    fn and(self, b: uint8x16_t, mask: u8) -> uint8x16_t {
        op!(vandq_u8(b, vdupq_n_u8(mask)))
    }
    #[inline(always)]
    fn or(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        op!(vorrq_u8(a, b))
    }
    #[inline(always)]
    fn shr(self, b: uint8x16_t, n: u8) -> uint8x16_t {
        op!(vshlq_u8(b, vdupq_n_s8(-(n as i8))))
    }
    #[inline(always)]
    fn shl(self, b: uint8x16_t, n: u8) -> uint8x16_t {
        op!(vshlq_u8(b, vdupq_n_s8(n as i8)))
    }
    #[inline(always)]
    fn offset(self, b: uint8x16_t, x: i8) -> uint8x16_t {
        op!(vaddq_u8(b, vdupq_n_u8(x as u8)))
    }
    #[inline(always)]
    fn spread(self, mask: u16, value: u8) -> uint8x16_t {
        op!({
            let masks = vcombine_u8(vdup_n_u8(mask as u8), vdup_n_u8((mask >> 8) as u8));
            let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            vandq_u8(vtstq_u8(masks, bit), vdupq_n_u8(value))
        })
    }
    #[inline(always)]
    fn signed(self, b: uint8x16_t) -> V {
        floats(op!(vreinterpretq_s8_u8(b)))
    }
    #[inline(always)]
    fn lut(self, table: &[i8; 16]) -> int8x16_t {
        // SAFETY: 16 bytes are readable; byte loads need no alignment.
        unsafe { vld1q_s8(table.as_ptr()) }
    }
    #[inline(always)]
    fn nibbles(self, b: uint8x16_t, lut: int8x16_t) -> [V; 2] {
        let (low, high) = (self.and(b, 15), self.shr(b, 4));
        op!([floats(vqtbl1q_s8(lut, low)), floats(vqtbl1q_s8(lut, high))])
    }
}
