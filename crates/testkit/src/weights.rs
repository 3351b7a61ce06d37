//! Seeded tensors of every float and block-quantised type.

use half::{bf16, f16};
use tensor::{Bytes, DType, Tensor};

use crate::seeded;

/// A tensor whose values follow from its name: floats in [-0.5, 0.5); blocks of seeded bytes whose
/// scales keep the values of about that size.
///
/// # Panics
/// For other types, and for shapes that cut a block.
pub fn seeded_tensor(dtype: DType, name: &str, shape: &[usize]) -> Tensor {
    let len = shape.iter().product();
    let floats = || seeded::tensor(2, name, len, 0.5);
    let bytes: Vec<u8> = match dtype {
        DType::F32 => floats().into_iter().flat_map(f32::to_le_bytes).collect(),
        DType::F64 => floats().into_iter().flat_map(|x| f64::from(x).to_le_bytes()).collect(),
        DType::F16 => floats().into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
        DType::Bf16 => floats().into_iter().flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
        _ => blocks(dtype, name, len),
    };
    Tensor::new(dtype, shape, Bytes::copy_from(&bytes)).expect("a shape of whole blocks")
}

fn blocks(dtype: DType, name: &str, len: usize) -> Vec<u8> {
    // Where a block has its fp16 scale (and minimum), and a scale that makes values of about 0.5.
    let (scales, scale): (&[usize], f32) = match dtype {
        DType::Q4_0 | DType::Q5_0 => (&[0], 0.04),
        DType::Q4_1 | DType::Q5_1 => (&[0, 2], 0.04),
        DType::Q8_0 | DType::Iq4Nl => (&[0], 0.005),
        DType::Q2K => (&[80, 82], 0.02),
        DType::Q3K => (&[108], 0.008),
        DType::Q4K | DType::Q5K => (&[0, 2], 0.001),
        DType::Q6K => (&[208], 0.0004),
        _ => panic!("no seeded values of type {dtype}"),
    };
    let size = dtype.byte_len(len).expect("whole blocks");
    let mut bytes: Vec<u8> =
        seeded::tensor(2, name, size, 128.0).into_iter().map(|x| (x + 128.0) as u8).collect();
    for (i, block) in bytes.chunks_exact_mut(dtype.block_bytes()).enumerate() {
        for (j, &at) in scales.iter().enumerate() {
            // Different in every block; minima (the second) of both signs.
            let sign = if j == 1 && i % 2 == 0 { -1.0 } else { 1.0 };
            let value = f16::from_f32(sign * scale * (1.0 + (i % 7) as f32 / 8.0));
            block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use mil::eval::tensor_floats;

    #[test]
    fn values_are_small_and_vary() {
        for &dtype in DType::ALL.iter().filter(|d| d.is_block_quantized()) {
            let values = tensor_floats(&seeded_tensor(dtype, "w", &[2, 512])).expect("floats");
            let largest = values.iter().fold(0f64, |m, v| m.max(v.abs()));
            let mean_square = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
            assert!(largest < 4.0 && mean_square > 1e-3, "{dtype}: {largest} {mean_square}");
        }
    }
}
