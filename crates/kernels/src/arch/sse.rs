//! Byte operations and the prefetch that the AVX2 and the AVX-512 instance share.

use std::arch::x86_64::*;

/// Expands to the prefetch and the byte methods of [`super::Simd`] over `__m128i`.
macro_rules! byte_operations {
    () => {
        #[inline(always)]
        fn prefetch(self, at: *const u8) {
            // SAFETY: a prefetch faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        #[inline(always)]
        fn bytes(self, bytes: &[u8; LANES]) -> __m128i {
            // SAFETY: 16 bytes are readable; the load needs no alignment.
            unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
        }
        #[inline(always)]
        fn and(self, b: __m128i, mask: u8) -> __m128i {
            op!(_mm_and_si128(b, _mm_set1_epi8(mask as i8)))
        }
        #[inline(always)]
        fn or(self, a: __m128i, b: __m128i) -> __m128i {
            op!(_mm_or_si128(a, b))
        }
        #[inline(always)]
        fn shr(self, b: __m128i, n: u8) -> __m128i {
            let words = op!(_mm_srl_epi16(b, _mm_cvtsi32_si128(i32::from(n))));
            self.and(words, 0xff >> n)
        }
        #[inline(always)]
        fn shl(self, b: __m128i, n: u8) -> __m128i {
            let words = op!(_mm_sll_epi16(b, _mm_cvtsi32_si128(i32::from(n))));
            self.and(words, 0xff << n)
        }
        #[inline(always)]
        fn offset(self, b: __m128i, x: i8) -> __m128i {
            op!(_mm_add_epi8(b, _mm_set1_epi8(x)))
        }
        #[inline(always)]
        fn spread(self, mask: u16, value: u8) -> __m128i {
            crate::arch::sse::spread(self, mask, value)
        }
    };
}
pub(super) use byte_operations;

/// Evaluates an intrinsic that touches no memory.
macro_rules! op {
    ($e:expr) => {{
        // SAFETY: a token of this type only exists where its features do, and no memory is touched.
        #[allow(clippy::macro_metavars_in_unsafe, reason = "only used with intrinsics on values")]
        unsafe {
            $e
        }
    }};
}
pub(super) use op;

/// [`super::Simd::spread`]; the token proves the features.
#[inline(always)]
pub(super) fn spread<T: super::Simd>(_token: T, mask: u16, value: u8) -> __m128i {
    op!({
        // Bytes 0 to 7 see the low byte of the mask, the others the high one; each keeps its bit.
        let place = _mm_set_epi64x(0x0101_0101_0101_0101, 0);
        let bit = _mm_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let masks = _mm_shuffle_epi8(_mm_cvtsi32_si128(i32::from(mask)), place);
        let set = _mm_cmpeq_epi8(_mm_and_si128(masks, bit), bit);
        _mm_and_si128(set, _mm_set1_epi8(value as i8))
    })
}
