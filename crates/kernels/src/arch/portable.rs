//! Vectors as plain arrays: runs everywhere, and says what every operation means.

use half::{bf16, f16};

use super::{Halves, Kernel, LANES, Simd, halves};
use crate::gemm::Tile;

#[derive(Clone, Copy)]
pub(super) struct Portable {
    halves: &'static Halves,
}

pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Portable { halves: halves() })
}

type V = [f32; LANES];
type B = [u8; LANES];

#[inline(always)]
fn map<T: Copy, U: Copy + Default>(a: [T; LANES], f: impl Fn(T) -> U) -> [U; LANES] {
    let mut out = [U::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i]);
    }
    out
}

#[inline(always)]
fn zip<T: Copy + Default>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> T) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

#[inline(always)]
fn pairs(bytes: &[u8; 32]) -> [[u8; 2]; LANES] {
    let mut out = [[0; 2]; LANES];
    for i in 0..LANES {
        out[i] = [bytes[2 * i], bytes[2 * i + 1]];
    }
    out
}

impl Simd for Portable {
    type V = V;
    type B = B;
    type Lut = [i8; 16];

    #[inline(always)]
    fn halves(self) -> &'static Halves {
        self.halves
    }

    const TILE: usize = 2;
    #[inline(always)]
    fn tile(self, tile: Tile<'_>, vectors: usize) {
        let mut tile = tile;
        for v in 0..vectors {
            tile.add::<Self, 2, 1>(self, v);
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        *x
    }
    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        *out = v;
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        // `f32::mul_add` would be a call of a slow function on the baseline x86-64.
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn if_less(self, a: V, b: V, x: V, y: V) -> V {
        let mut out = y;
        for i in 0..LANES {
            out[i] = if a[i] < b[i] { x[i] } else { y[i] };
        }
        out
    }
    #[inline(always)]
    fn round(self, v: V) -> V {
        // Adding 1.5 * 2^23 leaves no bits behind the point; larger numbers have none already.
        const SHIFT: f32 = 12_582_912.0;
        map(v, |v| if v.abs() < 4_194_304.0 { v + SHIFT - SHIFT } else { v })
    }
    #[inline(always)]
    fn scale_by_power(self, v: V, n: V) -> V {
        zip(v, n, |v, n| v * f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        let mut v = v;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] += v[i + half];
            }
        }
        v[0]
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> V {
        map(pairs(bytes), |b| self.halves[u16::from_le_bytes(b) as usize])
    }
    #[inline(always)]
    fn store_f16(self, v: V, out: &mut [u8; 32]) {
        for (i, v) in v.into_iter().enumerate() {
            [out[2 * i], out[2 * i + 1]] = f16::from_f32(v).to_le_bytes();
        }
    }
    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> V {
        map(pairs(bytes), |b| bf16::from_le_bytes(b).to_f32())
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; LANES]) -> B {
        *bytes
    }
    #[inline(always)]
    fn and(self, b: B, mask: u8) -> B {
        map(b, |b| b & mask)
    }
    #[inline(always)]
    fn or(self, a: B, b: B) -> B {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn shr(self, b: B, n: u8) -> B {
        map(b, |b| b >> n)
    }
    #[inline(always)]
    fn shl(self, b: B, n: u8) -> B {
        map(b, |b| b << n)
    }
    #[inline(always)]
    fn offset(self, b: B, x: i8) -> B {
        map(b, |b| b.wrapping_add_signed(x))
    }
    #[inline(always)]
    fn spread(self, mask: u16, value: u8) -> B {
        std::array::from_fn(|i| if mask >> i & 1 == 1 { value } else { 0 })
    }
    #[inline(always)]
    fn signed(self, b: B) -> V {
        map(b, |b| f32::from(b as i8))
    }
    #[inline(always)]
    fn lut(self, table: &[i8; 16]) -> [i8; 16] {
        *table
    }
    #[inline(always)]
    fn nibbles(self, b: B, lut: [i8; 16]) -> [V; 2] {
        [
            map(b, |b| f32::from(lut[(b & 15) as usize])),
            map(b, |b| f32::from(lut[(b >> 4) as usize])),
        ]
    }
}
