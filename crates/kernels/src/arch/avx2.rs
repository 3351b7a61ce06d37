//! The AVX2 instance, with FMA and F16C: a vector is two registers.

use std::arch::x86_64::*;

use super::sse::{byte_operations, op};
use super::{Halves, Kernel, LANES, Simd, halves};
use crate::gemm::Tile;

/// Only made by [`run`].
#[derive(Clone, Copy)]
pub(super) struct Avx2 {
    halves: &'static Halves,
}

/// # Safety
/// The processor must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2 { halves: halves() })
}

type V = [__m256; 2];

/// `2^n` for integers `n` from -126 to 127, put together from its bits.
#[inline(always)]
fn power_of_two(n: __m256) -> __m256 {
    op!({
        let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
    })
}

impl Simd for Avx2 {
    type V = V;
    type B = __m128i;
    type Lut = __m128i;

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
        [op!(_mm256_set1_ps(x)); 2]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        // SAFETY: 16 numbers are readable; the loads need no alignment.
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        // SAFETY: 16 numbers are writable; the stores need no alignment.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), v[1]);
        }
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        op!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        op!([_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        op!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        op!([_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        op!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        op!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        op!([_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn if_less(self, a: V, b: V, x: V, y: V) -> V {
        op!([
            _mm256_blendv_ps(y[0], x[0], _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0])),
            _mm256_blendv_ps(y[1], x[1], _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])),
        ])
    }
    #[inline(always)]
    fn round(self, v: V) -> V {
        const MODE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        op!([_mm256_round_ps::<MODE>(v[0]), _mm256_round_ps::<MODE>(v[1])])
    }
    #[inline(always)]
    fn scale_by_power(self, v: V, n: V) -> V {
        self.mul(v, [power_of_two(n[0]), power_of_two(n[1])])
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        op!({
            let v = _mm256_add_ps(v[0], v[1]);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        })
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> V {
        // SAFETY: 32 bytes are readable; the loads need no alignment.
        unsafe {
            let p = bytes.as_ptr().cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))]
        }
    }
    #[inline(always)]
    fn store_f16(self, v: V, out: &mut [u8; 32]) {
        // SAFETY: 32 bytes are writable; the stores need no alignment.
        unsafe {
            let p = out.as_mut_ptr().cast::<__m128i>();
            _mm_storeu_si128(p, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(p.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        }
    }
    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> V {
        // SAFETY: 32 bytes are readable; the loads need no alignment.
        let [a, b] = unsafe {
            let p = bytes.as_ptr().cast::<__m128i>();
            [_mm_loadu_si128(p), _mm_loadu_si128(p.add(1))]
        };
        op!([
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(a))),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(b))),
        ])
    }

    byte_operations!();

    #[inline(always)]
    fn signed(self, b: __m128i) -> V {
        op!([
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(b, b))),
        ])
    }
    #[inline(always)]
    fn lut(self, table: &[i8; 16]) -> __m128i {
        self.bytes(&table.map(|v| v as u8))
    }
    #[inline(always)]
    fn nibbles(self, b: __m128i, lut: __m128i) -> [V; 2] {
        let (low, high) = (self.and(b, 15), self.shr(b, 4));
        [
            self.signed(op!(_mm_shuffle_epi8(lut, low))),
            self.signed(op!(_mm_shuffle_epi8(lut, high))),
        ]
    }
}
