//! What the kernel tests share: numbers from a seed, and all weight types.

use rigel_kernels::{Isa, Pool};
use tensor::DType;

/// Every type that a weight matrix may have.
pub(crate) const WEIGHT_TYPES: [DType; 14] = [
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::Iq4Nl,
];

/// Reproducible random numbers (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Uniform in [-1, 1).
    pub(crate) fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    /// The bytes of `n` elements of `dtype` whose decoded values are finite and moderate.
    pub(crate) fn weights(&mut self, dtype: DType, n: usize) -> Vec<u8> {
        let blocks = n / dtype.block_len();
        let mut bytes: Vec<u8> =
            (0..blocks * dtype.block_bytes()).map(|_| self.bits() as u8).collect();
        // Where the half-precision scales lie, by type.
        let scales: &[usize] = match dtype {
            DType::F32 => return self.floats(n).iter().flat_map(|v| v.to_le_bytes()).collect(),
            DType::F16 | DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::Iq4Nl => &[0],
            DType::Bf16 => {
                return self
                    .floats(n)
                    .iter()
                    .flat_map(|v| (v.to_bits() >> 16).to_le_bytes()[..2].to_vec())
                    .collect();
            }
            DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
            DType::Q2K => &[80, 82],
            DType::Q3K => &[108],
            DType::Q6K => &[208],
            other => unreachable!("{other} is no weight type"),
        };
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            for &at in scales {
                let scale = half::f16::from_f32(self.float() * 0.1).to_le_bytes();
                block[at..at + 2].copy_from_slice(&scale);
            }
        }
        bytes
    }
}

/// One pool for each instruction set of this machine.
pub(crate) fn pools(threads: usize) -> Vec<Pool> {
    Isa::available().iter().map(|&isa| Pool::with_isa(threads, isa)).collect()
}
