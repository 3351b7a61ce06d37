//! How each weight type is read: one block at a time into vectors of 16, on any instruction set.
//!
//! The meaning of the bytes is that of [`tensor::dequantize`], which these readers must equal: the
//! values given to a [`Sink`], scaled and offset with each step rounded on its own, are the same bits.

use tensor::{DType, IQ4_NL_VALUES};

use crate::arch::Simd;

/// Takes the elements of a row in order, 32 at a time.
pub(crate) trait Sink<S: Simd> {
    /// 32 elements, which are `q * scale + min`.
    fn scaled(&mut self, q: [S::V; 2], scale: f32, min: Option<f32>);
    /// 32 elements.
    fn values(&mut self, w: [S::V; 2]);
}

/// A weight type whose blocks have `BYTES` bytes. Float types count as blocks of 32 elements.
pub(crate) trait Format<const BYTES: usize> {
    fn read<S: Simd>(s: S, block: &[u8; BYTES], sink: &mut impl Sink<S>);
}

/// Evaluates `$body` with `$F` naming the [`Format`] of `$dtype` and `$BYTES` its block size.
macro_rules! with_format {
    ($dtype:expr, $F:ident, $BYTES:ident => $body:expr, else $other:expr) => {{
        use $crate::format as f;
        macro_rules! with {
            ($Format:ty, $bytes:literal) => {{
                type $F = $Format;
                const $BYTES: usize = $bytes;
                $body
            }};
        }
        match $dtype {
            tensor::DType::F32 => with!(f::F32, 128),
            tensor::DType::F16 => with!(f::F16, 64),
            tensor::DType::Bf16 => with!(f::Bf16, 64),
            tensor::DType::Q4_0 => with!(f::Q4_0, 18),
            tensor::DType::Q4_1 => with!(f::Q4_1, 20),
            tensor::DType::Q5_0 => with!(f::Q5_0, 22),
            tensor::DType::Q5_1 => with!(f::Q5_1, 24),
            tensor::DType::Q8_0 => with!(f::Q8_0, 34),
            tensor::DType::Q2K => with!(f::Q2K, 84),
            tensor::DType::Q3K => with!(f::Q3K, 110),
            tensor::DType::Q4K => with!(f::Q4K, 144),
            tensor::DType::Q5K => with!(f::Q5K, 176),
            tensor::DType::Q6K => with!(f::Q6K, 210),
            tensor::DType::Iq4Nl => with!(f::Iq4Nl, 18),
            _ => $other,
        }
    }};
}
pub(crate) use with_format;

/// Whether there is a [`Format`] for `dtype`.
pub(crate) fn is_readable(dtype: DType) -> bool {
    with_format!(dtype, _F, _BYTES => true, else false)
}

/// Declares format types.
macro_rules! formats {
    ($($name:ident),*) => { $(pub(crate) struct $name;)* };
}
formats!(F32, F16, Bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Nl);

/// The `N` bytes at `at`; a constant offset costs nothing.
#[inline(always)]
fn part<const N: usize, const BYTES: usize>(block: &[u8; BYTES], at: usize) -> &[u8; N] {
    match block[at..at + N].first_chunk() {
        Some(part) => part,
        None => unreachable!("the slice has N elements"),
    }
}

#[inline(always)]
fn bits16<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> u16 {
    u16::from_le_bytes(*part(block, at))
}

impl Format<128> for F32 {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 128], sink: &mut impl Sink<S>) {
        let mut w = [s.splat(0.0); 2];
        for (w, bytes) in w.iter_mut().zip(block.as_chunks::<64>().0) {
            let mut x = [0f32; 16];
            for (x, b) in x.iter_mut().zip(bytes.as_chunks().0) {
                *x = f32::from_le_bytes(*b);
            }
            *w = s.load(&x);
        }
        sink.values(w);
    }
}

impl Format<64> for F16 {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 64], sink: &mut impl Sink<S>) {
        sink.values([s.load_f16(part(block, 0)), s.load_f16(part(block, 32))]);
    }
}

impl Format<64> for Bf16 {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 64], sink: &mut impl Sink<S>) {
        sink.values([s.load_bf16(part(block, 0)), s.load_bf16(part(block, 32))]);
    }
}

/// What the four bits 0 to 15 mean in [`Q4_0`].
const MINUS_8_TO_7: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];
const ZERO_TO_15: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

impl Format<18> for Q4_0 {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 18], sink: &mut impl Sink<S>) {
        let q = s.nibbles(s.bytes(part(block, 2)), s.lut(&MINUS_8_TO_7));
        sink.scaled(q, s.half(block, 0), None);
    }
}

impl Format<18> for Iq4Nl {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 18], sink: &mut impl Sink<S>) {
        let q = s.nibbles(s.bytes(part(block, 2)), s.lut(&IQ4_NL_VALUES));
        sink.scaled(q, s.half(block, 0), None);
    }
}

impl Format<20> for Q4_1 {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 20], sink: &mut impl Sink<S>) {
        let q = s.nibbles(s.bytes(part(block, 4)), s.lut(&ZERO_TO_15));
        sink.scaled(q, s.half(block, 0), Some(s.half(block, 2)));
    }
}

/// 32 five-bit numbers: the low four bits as in [`Q4_0`], the fifth ones in 32 bits at `high`.
#[inline(always)]
fn five_bits<S: Simd, const BYTES: usize>(
    s: S,
    block: &[u8; BYTES],
    high: usize,
    low: usize,
) -> [S::B; 2] {
    let nibbles = s.bytes(part(block, low));
    [
        s.or(s.and(nibbles, 15), s.spread(bits16(block, high), 16)),
        s.or(s.shr(nibbles, 4), s.spread(bits16(block, high + 2), 16)),
    ]
}

impl Format<22> for Q5_0 {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 22], sink: &mut impl Sink<S>) {
        let [a, b] = five_bits(s, block, 2, 6);
        let q = [s.signed(s.offset(a, -16)), s.signed(s.offset(b, -16))];
        sink.scaled(q, s.half(block, 0), None);
    }
}

impl Format<24> for Q5_1 {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 24], sink: &mut impl Sink<S>) {
        let [a, b] = five_bits(s, block, 4, 8);
        sink.scaled([s.signed(a), s.signed(b)], s.half(block, 0), Some(s.half(block, 2)));
    }
}

impl Format<34> for Q8_0 {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 34], sink: &mut impl Sink<S>) {
        let q = [s.signed(s.bytes(part(block, 2))), s.signed(s.bytes(part(block, 18)))];
        sink.scaled(q, s.half(block, 0), None);
    }
}

/// The vector `q` times `scale` plus `min`, each step rounded.
#[inline(always)]
fn affine<S: Simd>(s: S, q: S::V, scale: f32, min: f32) -> S::V {
    s.add(s.mul(q, s.splat(scale)), s.splat(min))
}

impl Format<84> for Q2K {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 84], sink: &mut impl Sink<S>) {
        let (d, dmin) = (s.half(block, 80), s.half(block, 82));
        for group in 0..8 {
            let at = 16 + group / 4 * 32;
            let shift = group as u8 % 4 * 2;
            let mut ws = [s.splat(0.0); 2];
            for (sub, w) in ws.iter_mut().enumerate() {
                let q = s.and(s.shr(s.bytes(part(block, at + sub * 16)), shift), 3);
                let packed = block[2 * group + sub];
                let (scale, min) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
                *w = affine(s, s.signed(q), scale, -min);
            }
            sink.values(ws);
        }
    }
}

impl Format<110> for Q3K {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 110], sink: &mut impl Sink<S>) {
        let d = s.half(block, 108);
        let packed: &[u8; 12] = part(block, 96);
        for group in 0..8 {
            let at = 32 + group / 4 * 32;
            let shift = group as u8 % 4 * 2;
            let mut ws = [s.splat(0.0); 2];
            for (sub, w) in ws.iter_mut().enumerate() {
                let low = s.and(s.shr(s.bytes(part(block, at + sub * 16)), shift), 3);
                let third = s.and(s.shr(s.bytes(part(block, sub * 16)), group as u8), 1);
                let q = s.signed(s.offset(s.or(low, s.shl(third, 2)), -4));
                let i = 2 * group + sub;
                let low = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
                let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
                *w = s.mul(q, s.splat(d * (f32::from(low | high << 4) - 32.0)));
            }
            sink.values(ws);
        }
    }
}

/// The 6-bit scales and minima of 8 groups, packed in 12 bytes.
#[inline(always)]
fn scales_and_minima(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word = |at| u32::from_le_bytes(*part(packed, at));
    let (a, b, c) = (word(0), word(4), word(8));
    let (low, top) = (0x3f3f_3f3f, 0x3030_3030);
    let scales = [a & low, (c & 0x0f0f_0f0f) | (a >> 2 & top)];
    let minima = [b & low, (c >> 4 & 0x0f0f_0f0f) | (b >> 2 & top)];
    let bytes = |w: [u32; 2]| (u64::from(w[0]) | u64::from(w[1]) << 32).to_le_bytes();
    (bytes(scales), bytes(minima))
}

impl Format<144> for Q4K {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 144], sink: &mut impl Sink<S>) {
        let (d, dmin) = (s.half(block, 0), s.half(block, 2));
        let (scales, minima) = scales_and_minima(part(block, 4));
        let lut = s.lut(&ZERO_TO_15);
        for pair in 0..4 {
            let [low0, high0] = s.nibbles(s.bytes(part(block, 16 + pair * 32)), lut);
            let [low1, high1] = s.nibbles(s.bytes(part(block, 32 + pair * 32)), lut);
            for (j, q) in [(2 * pair, [low0, low1]), (2 * pair + 1, [high0, high1])] {
                let min = -(dmin * f32::from(minima[j]));
                sink.scaled(q, d * f32::from(scales[j]), Some(min));
            }
        }
    }
}

impl Format<176> for Q5K {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 176], sink: &mut impl Sink<S>) {
        let (d, dmin) = (s.half(block, 0), s.half(block, 2));
        let (scales, minima) = scales_and_minima(part(block, 4));
        for group in 0..8 {
            let mut qs = [s.splat(0.0); 2];
            for (sub, q) in qs.iter_mut().enumerate() {
                let nibbles = s.bytes(part(block, 48 + group / 2 * 32 + sub * 16));
                let low = s.and(s.shr(nibbles, group as u8 % 2 * 4), 15);
                let fifth = s.and(s.shr(s.bytes(part(block, 16 + sub * 16)), group as u8), 1);
                *q = s.signed(s.or(low, s.shl(fifth, 4)));
            }
            let min = -(dmin * f32::from(minima[group]));
            sink.scaled(qs, d * f32::from(scales[group]), Some(min));
        }
    }
}

impl Format<210> for Q6K {
    #[inline(always)]
    fn read<S: Simd>(s: S, block: &[u8; 210], sink: &mut impl Sink<S>) {
        let d = s.half(block, 208);
        for group in 0..8 {
            let (half_block, quarter) = (group / 4, group % 4);
            let mut ws = [s.splat(0.0); 2];
            for (sub, w) in ws.iter_mut().enumerate() {
                let at = half_block * 64 + quarter % 2 * 32 + sub * 16;
                let low = s.and(s.shr(s.bytes(part(block, at)), quarter as u8 / 2 * 4), 15);
                let top = s.bytes(part(block, 128 + half_block * 32 + sub * 16));
                let top = s.shl(s.and(s.shr(top, quarter as u8 * 2), 3), 4);
                let scale = d * f32::from(block[192 + 2 * group + sub] as i8);
                *w = s.mul(s.signed(s.offset(s.or(low, top), -32)), s.splat(scale));
            }
            sink.values(ws);
        }
    }
}
