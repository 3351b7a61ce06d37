//! The AVX-512 instance: a vector is one register.

use std::arch::x86_64::*;

use super::sse::{byte_operations, op};
use super::{Halves, Kernel, LANES, Simd, halves};
use crate::gemm::Tile;

/// Only made by [`run`].
#[derive(Clone, Copy)]
pub(super) struct Avx512 {
    halves: &'static Halves,
}

/// # Safety
/// The processor must have AVX-512 F, BW, VL, DQ, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512 { halves: halves() })
}

impl Simd for Avx512 {
    type V = __m512;
    type B = __m128i;
    type Lut = __m512;

    #[inline(always)]
    fn halves(self) -> &'static Halves {
        self.halves
    }

    const TILE: usize = 12;
    #[inline(always)]
    fn tile(self, tile: Tile<'_>, vectors: usize) {
        let mut tile = tile;
        if vectors == 2 {
            tile.add::<Self, 12, 2>(self, 0)
        } else {
            tile.add::<Self, 12, 1>(self, 0)
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: 16 numbers are readable; the load needs no alignment.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, v: __m512, out: &mut [f32; LANES]) {
        // SAFETY: 16 numbers are writable; the store needs no alignment.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn if_less(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        op!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x))
    }
    #[inline(always)]
    fn round(self, v: __m512) -> __m512 {
        op!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v))
    }
    #[inline(always)]
    fn scale_by_power(self, v: __m512, n: __m512) -> __m512 {
        op!(_mm512_scalef_ps(v, n))
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        op!({
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        })
    }

    #[inline(always)]
    fn transpose(self, rows: [__m512; LANES]) -> [__m512; LANES] {
        op!({
            let mut pairs = rows;
            for i in 0..8 {
                pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            }
            // Part b of `fours[4 i + j]` is lane 4 b + j of rows 4 i to 4 i + 3.
            let mut fours = pairs;
            for i in 0..4 {
                for half in 0..2 {
                    let [a, b] = [pairs[4 * i + half], pairs[4 * i + half + 2]];
                    let [a, b] = [_mm512_castps_pd(a), _mm512_castps_pd(b)];
                    fours[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                    fours[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
                }
            }
            let mut columns = fours;
            for j in 0..4 {
                let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
                let even = _mm512_shuffle_f32x4::<0x88>(a, b);
                let odd = _mm512_shuffle_f32x4::<0xdd>(a, b);
                let more_even = _mm512_shuffle_f32x4::<0x88>(c, d);
                let more_odd = _mm512_shuffle_f32x4::<0xdd>(c, d);
                columns[j] = _mm512_shuffle_f32x4::<0x88>(even, more_even);
                columns[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even, more_even);
                columns[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd, more_odd);
                columns[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd, more_odd);
            }
            columns
        })
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> __m512 {
        // SAFETY: 32 bytes are readable; the load needs no alignment.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().cast())) }
    }
    #[inline(always)]
    fn store_f16(self, v: __m512, out: &mut [u8; 32]) {
        let half = op!(_mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v));
        // SAFETY: 32 bytes are writable; the store needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), half) }
    }
    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> __m512 {
        // SAFETY: 32 bytes are readable; the load needs no alignment.
        let b = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        op!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(b))))
    }

    byte_operations!();

    #[inline(always)]
    fn signed(self, b: __m128i) -> __m512 {
        op!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)))
    }
    #[inline(always)]
    fn lut(self, table: &[i8; 16]) -> __m512 {
        self.load(&table.map(f32::from))
    }
    #[inline(always)]
    fn nibbles(self, b: __m128i, lut: __m512) -> [__m512; 2] {
        op!({
            // The permutation looks at the low four bits of an index only.
            let low = _mm512_cvtepu8_epi32(b);
            let high = _mm512_srli_epi32::<4>(low);
            [_mm512_permutexvar_ps(low, lut), _mm512_permutexvar_ps(high, lut)]
        })
    }
}
