//! What the kernels need of a processor: one trait over vectors of 16, implemented once per instruction set.
//!
//! A kernel is written once, generic over [`Simd`], as a [`Kernel`]; [`Isa::run`] is the one place
//! that picks the instance. All of them work on 16 lanes (one, two or four registers) and reduce in
//! the same order, so that instruction sets with fused multiply-add agree; those with instructions for pairs of
//! bfloat16 add the products of pairs in orders of their own.
//!
//! Every method of a [`Simd`] and every generic function above it must be `#[inline(always)]`: only
//! when inlined into the function that enables the processor's features do they become instructions.

use std::sync::OnceLock;

use half::f16;

use crate::Isa;
use crate::gemm::{Tile, Tiles};

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod sse;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// The value of every half-precision number by its bits: a scale then costs no vector instruction.
pub(crate) type Halves = [f32; 1 << 16];

fn halves() -> &'static Halves {
    static TABLE: OnceLock<Box<Halves>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = vec![0f32; 1 << 16].into_boxed_slice();
        (0..=u16::MAX).for_each(|bits| table[bits as usize] = f16::from_bits(bits).to_f32());
        match table.try_into() {
            Ok(table) => table,
            Err(_) => unreachable!("the table has 65536 entries"),
        }
    })
}

/// Proof that an instruction set is there, and its operations.
///
/// `V` is a vector of 16 `f32`, `B` of 16 bytes.
pub(crate) trait Simd: Copy {
    type V: Copy;
    type B: Copy;
    /// A table of 16 small integers, in the form that [`Simd::nibbles`] likes.
    type Lut: Copy;

    fn halves(self) -> &'static Halves;
    /// The half-precision number at `bytes[at..at + 2]`.
    #[inline(always)]
    fn half<const N: usize>(self, bytes: &[u8; N], at: usize) -> f32 {
        let bits = bytes[at..].first_chunk().copied().map_or(0, u16::from_le_bytes);
        self.halves()[bits as usize]
    }

    /// Weight rows of a [`Tile`].
    const TILE: usize;
    /// Adds the products of a tile, for its first 16 columns or all 32.
    fn tile(self, tile: Tile<'_>, vectors: usize);

    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; LANES]) -> Self::V;
    fn store(self, v: Self::V, out: &mut [f32; LANES]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the processor can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The greater one; `b` when either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller one; `b` when either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `x` where `a < b`, else `y`.
    fn if_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    fn round(self, v: Self::V) -> Self::V;
    /// `v * 2^n` for integers `n` from -126 to 127.
    fn scale_by_power(self, v: Self::V, n: Self::V) -> Self::V;
    /// The sum of all lanes: lane `i` with `i + 8`, then `i + 4`, `i + 2`, `i + 1`.
    fn sum(self, v: Self::V) -> f32;
    /// Vector `i` of the result has lane `i` of every vector.
    #[inline(always)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        let mut columns = [[0f32; LANES]; LANES];
        let mut row = [0f32; LANES];
        for (i, v) in rows.into_iter().enumerate() {
            self.store(v, &mut row);
            columns.iter_mut().zip(&row).for_each(|(column, x)| column[i] = *x);
        }
        columns.map(|column| self.load(&column))
    }

    /// 16 half-precision numbers.
    fn load_f16(self, bytes: &[u8; 32]) -> Self::V;
    /// Rounds to half precision, ties to even.
    fn store_f16(self, v: Self::V, out: &mut [u8; 32]);
    /// 16 bfloat16 numbers.
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::V;

    /// Asks for the cache line at `at`, which may lie anywhere; a hint.
    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}

    fn bytes(self, bytes: &[u8; LANES]) -> Self::B;
    fn and(self, b: Self::B, mask: u8) -> Self::B;
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// Every byte shifted right by `n < 8`, zeros coming in.
    fn shr(self, b: Self::B, n: u8) -> Self::B;
    /// Every byte shifted left by `n < 8`, zeros coming in.
    fn shl(self, b: Self::B, n: u8) -> Self::B;
    /// Every byte plus `x`, wrapping.
    fn offset(self, b: Self::B, x: i8) -> Self::B;
    /// `value` in the bytes whose bit in `mask` is set, else zero.
    fn spread(self, mask: u16, value: u8) -> Self::B;
    /// The bytes as signed integers.
    fn signed(self, b: Self::B) -> Self::V;
    fn lut(self, table: &[i8; 16]) -> Self::Lut;
    /// The table's values for the low halves of the bytes, and for the high halves.
    fn nibbles(self, b: Self::B, lut: Self::Lut) -> [Self::V; 2];
}

/// Work that is generic over the instruction set.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

impl Isa {
    /// Runs `kernel` with this instruction set.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            // SAFETY: a pool, and so a kernel, only gets an instruction set that was detected.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => unsafe { avx512::run(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2::run(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { neon::run(kernel) },
            _ => portable::run(kernel),
        }
    }

    /// Whether the processor adds products of bfloat16 pairs in one instruction.
    pub(crate) fn has_pairs(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => is_x86_feature_detected!("avx512bf16"),
            Isa::Amx => true,
            _ => false,
        }
    }

    /// Whether this is a processor with AVX-512 and AMX for bfloat16, and they work.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_tiles() -> bool {
        // SAFETY: asked in this order.
        Isa::Avx512.has_pairs() && amx::granted() && unsafe { amx::works() }
    }

    /// Runs tiles whose words are pairs, which only an instruction set that [`Isa::has_pairs`] packs.
    pub(crate) fn run_pairs(self, tiles: Tiles<'_>) {
        assert!(self.has_pairs(), "{self:?} has no products of pairs");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a pool only gets an instruction set that was detected, and this one has pairs.
        unsafe {
            if self == Isa::Amx { amx::run(tiles) } else { avx512_bf16::run(tiles) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = tiles;
    }

    /// Pairs of numbers that follow each other, on an instruction set that [`Isa::has_pairs`].
    pub(crate) fn pairs_along(self, x: &[f32], out: &mut [f32]) {
        assert!(self.has_pairs(), "{self:?} has no pairs");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a pool only gets an instruction set that was detected, and this one has pairs.
        unsafe {
            avx512_bf16::along(x, out);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (x, out);
    }

    /// Pairs of numbers in two rows, of which whole vectors are taken, on an instruction set that
    /// [`Isa::has_pairs`].
    pub(crate) fn pairs_across(self, x: &[f32], next: &[f32], out: &mut [f32]) {
        assert!(self.has_pairs(), "{self:?} has no pairs");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a pool only gets an instruction set that was detected, and this one has pairs.
        unsafe {
            avx512_bf16::across(x, next, out);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (x, next, out);
    }
}
