//! Block-quantised formats: the plain decoder that defines what their bytes mean, and an encoder of one.
//!
//! The layouts are those of GGUF files. Every decoder takes one block and follows the arithmetic of
//! the `gguf` Python package, single-precision products and sums each rounded on its own, so that
//! results agree with it bit for bit. Faster decoders elsewhere are judged against this one.

use half::{bf16, f16};

use crate::DType;

/// The value of each 4-bit index of [`DType::Iq4Nl`], to be multiplied by the block's scale.
pub const IQ4_NL_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Decodes `bytes` (whole blocks of `dtype`, or elements of a float type) into `out`.
///
/// Returns `false`, leaving `out` unspecified, when `dtype` is not decodable to floats or the
/// lengths do not match.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> bool {
    let decode: fn(&[u8], &mut [f32]) = match dtype {
        DType::F32 => |b, o| o[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        DType::F64 => |b, o| {
            o[0] = f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32
        },
        DType::F16 => |b, o| o[0] = half_at(b, 0),
        DType::Bf16 => |b, o| o[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        DType::Q4_0 => q4_0,
        DType::Q4_1 => q4_1,
        DType::Q5_0 => q5_0,
        DType::Q5_1 => q5_1,
        DType::Q8_0 => q8_0,
        DType::Q2K => q2_k,
        DType::Q3K => q3_k,
        DType::Q4K => q4_k,
        DType::Q5K => q5_k,
        DType::Q6K => q6_k,
        DType::Iq4Nl => iq4_nl,
        _ => return false,
    };
    if dtype.byte_len(out.len()) != Some(bytes.len()) {
        return false;
    }
    for (block, out) in
        bytes.chunks_exact(dtype.block_bytes()).zip(out.chunks_exact_mut(dtype.block_len()))
    {
        decode(block, out);
    }
    true
}

/// Encodes `values` as blocks of [`DType::Q8_0`] into `bytes`, as the `gguf` Python package does: each block's scale is
/// its greatest magnitude / 127, and every value goes to the nearest multiple of it, halves away from zero.
///
/// Returns `false`, leaving `bytes` unspecified, when the lengths do not match.
pub fn quantize_q8_0(values: &[f32], bytes: &mut [u8]) -> bool {
    let (len, size) = (DType::Q8_0.block_len(), DType::Q8_0.block_bytes());
    if DType::Q8_0.byte_len(values.len()) != Some(bytes.len()) {
        return false;
    }
    for (values, block) in values.chunks_exact(len).zip(bytes.chunks_exact_mut(size)) {
        let scale = values.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        for (q, x) in block[2..].iter_mut().zip(values) {
            *q = (x * inverse).round() as i8 as u8;
        }
    }
    true
}

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// 32 elements in 16 bytes: element `i` in the low half of byte `i`, element `i + 16` in the high.
fn nibble(qs: &[u8], i: usize) -> u8 {
    if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 }
}

/// The fifth bit of element `i`, at its place, out of a 32-bit mask.
fn fifth_bit(qh: &[u8], i: usize) -> u8 {
    ((qh[i / 8] >> (i % 8)) & 1) << 4
}

fn q4_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, o) in out.iter_mut().enumerate() {
        *o = d * (nibble(&b[2..], i) as f32 - 8.0);
    }
}

fn q4_1(b: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (i, o) in out.iter_mut().enumerate() {
        *o = d * nibble(&b[4..], i) as f32 + m;
    }
}

fn q5_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, o) in out.iter_mut().enumerate() {
        let q = nibble(&b[6..], i) | fifth_bit(&b[2..6], i);
        *o = d * (q as f32 - 16.0);
    }
}

fn q5_1(b: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (i, o) in out.iter_mut().enumerate() {
        let q = nibble(&b[8..], i) | fifth_bit(&b[4..8], i);
        *o = d * q as f32 + m;
    }
}

fn q8_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    for (o, &q) in out.iter_mut().zip(&b[2..]) {
        *o = q as i8 as f32 * d;
    }
}

fn iq4_nl(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, o) in out.iter_mut().enumerate() {
        *o = d * IQ4_NL_VALUES[nibble(&b[2..], i) as usize] as f32;
    }
}

/// The 2-bit element `i` of 256: each half of 128 takes 32 bytes, whose bit pairs are 4 runs of 32.
fn bit_pair(qs: &[u8], i: usize) -> u8 {
    (qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3
}

/// Block: 16 bytes of (scale, minimum) nibbles, 64 of bit pairs, fp16 scale and minimum.
fn q2_k(b: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(b, 80), half_at(b, 82));
    for (i, o) in out.iter_mut().enumerate() {
        let s = b[i / 16];
        let (scale, min) = (d * (s & 15) as f32, dmin * (s >> 4) as f32);
        *o = scale * bit_pair(&b[16..80], i) as f32 - min;
    }
}

/// Block: 32 bytes of third bits, 64 of bit pairs, 12 of 6-bit scales, fp16 scale.
fn q3_k(b: &[u8], out: &mut [f32]) {
    let (hmask, qs, s, d) = (&b[..32], &b[32..96], &b[96..108], half_at(b, 108));
    for (i, o) in out.iter_mut().enumerate() {
        let sub = i / 16;
        let low = if sub < 8 { s[sub] & 15 } else { s[sub - 8] >> 4 };
        let high = (s[8 + sub % 4] >> (sub / 4 * 2)) & 3;
        let scale = d * (i32::from(low | high << 4) - 32) as f32;
        let third = (hmask[i % 32] >> (i / 32)) & 1;
        // A clear third bit means minus four.
        let q = i32::from(bit_pair(qs, i)) - if third == 0 { 4 } else { 0 };
        *o = scale * q as f32;
    }
}

/// The 6-bit scale and minimum of sub-block `j` of 8, packed in 12 bytes.
fn scale_min(s: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6 << 4), (s[j + 4] >> 4) | (s[j] >> 6 << 4))
    };
    (scale as f32, min as f32)
}

/// The 4-bit element `i` of 256: each run of 64 takes 32 bytes, first the low halves, then the high.
fn nibble_of_64(qs: &[u8], i: usize) -> u8 {
    (qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4)) & 15
}

/// Block: fp16 scale and minimum, 12 bytes of 6-bit scales and minima, 128 of nibbles.
fn q4_k(b: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for (i, o) in out.iter_mut().enumerate() {
        let (scale, min) = scale_min(&b[4..16], i / 32);
        *o = d * scale * nibble_of_64(&b[16..], i) as f32 - dmin * min;
    }
}

/// Block: fp16 scale and minimum, 12 bytes of 6-bit scales and minima, 32 of fifth bits, 128 of nibbles.
fn q5_k(b: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for (i, o) in out.iter_mut().enumerate() {
        let (scale, min) = scale_min(&b[4..16], i / 32);
        let fifth = (b[16 + i % 32] >> (i / 32)) & 1;
        let q = nibble_of_64(&b[48..], i) | fifth << 4;
        *o = d * scale * q as f32 - dmin * min;
    }
}

/// Block: 128 bytes of nibbles, 64 of upper bit pairs, 16 signed scales, fp16 scale.
fn q6_k(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 208);
    for (i, o) in out.iter_mut().enumerate() {
        let scale = d * b[192 + i / 16] as i8 as f32;
        // Each half of 128 has 64 bytes of nibbles: first all low halves, then all high.
        let low = (b[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4)) & 15;
        let q = low | bit_pair(&b[128..192], i) << 4;
        *o = scale * (i32::from(q) - 32) as f32;
    }
}
