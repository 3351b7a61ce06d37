//! Element types: MIL's own, and the block-quantised formats of GGUF files.

use std::fmt;
use std::str::FromStr;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident $text:literal $block:literal $bytes:literal,)*) => {
        /// The type of a tensor's elements and how they lie in memory (row-major, little-endian).
        ///
        /// Elements come in blocks along the last axis: `block_len` elements take `block_bytes` bytes.
        /// For whole-byte types a block is one element; sub-byte integers are packed LSB first, a
        /// block being the shortest run that ends on a byte border.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum DType { $($(#[$doc])* $variant,)* }

        impl DType {
            /// Every data type, in declaration order.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// The name used in MIL text (`fp16`, `int4`) or, for block formats, by GGUF (`q4_1`).
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $text,)* }
            }

            /// How many consecutive elements form one block.
            pub const fn block_len(self) -> usize {
                match self { $(DType::$variant => $block,)* }
            }

            /// How many bytes one block takes; 0 for strings, which have no byte layout.
            pub const fn block_bytes(self) -> usize {
                match self { $(DType::$variant => $bytes,)* }
            }
        }

        impl FromStr for DType {
            type Err = ();

            fn from_str(s: &str) -> Result<Self, ()> {
                match s { $($text => Ok(DType::$variant),)* _ => Err(()) }
            }
        }
    };
}

dtypes! {
    /// Truth value, one byte, 0 or 1.
    Bool "bool" 1 1,
    /// Text; only in constants, never in a buffer.
    Str "string" 1 0,
    /// IEEE half precision.
    F16 "fp16" 1 2,
    /// IEEE single precision.
    F32 "fp32" 1 4,
    /// IEEE double precision.
    F64 "fp64" 1 8,
    /// bfloat16: the upper half of an `fp32`.
    Bf16 "bf16" 1 2,
    /// 8-bit float, 4 exponent bits, no infinities.
    F8E4M3 "fp8e4m3fn" 1 1,
    /// 8-bit float, 5 exponent bits.
    F8E5M2 "fp8e5m2" 1 1,
    /// 4-bit two's complement.
    I4 "int4" 2 1,
    /// 8-bit two's complement.
    I8 "int8" 1 1,
    /// 16-bit two's complement.
    I16 "int16" 1 2,
    /// 32-bit two's complement.
    I32 "int32" 1 4,
    /// 64-bit two's complement.
    I64 "int64" 1 8,
    /// 1-bit unsigned.
    U1 "uint1" 8 1,
    /// 2-bit unsigned.
    U2 "uint2" 4 1,
    /// 3-bit unsigned.
    U3 "uint3" 8 3,
    /// 4-bit unsigned.
    U4 "uint4" 2 1,
    /// 6-bit unsigned.
    U6 "uint6" 4 3,
    /// 8-bit unsigned.
    U8 "uint8" 1 1,
    /// 16-bit unsigned.
    U16 "uint16" 1 2,
    /// 32-bit unsigned.
    U32 "uint32" 1 4,
    /// 64-bit unsigned.
    U64 "uint64" 1 8,
    /// GGUF: 32 x 4 bit, one fp16 scale.
    Q4_0 "q4_0" 32 18,
    /// GGUF: 32 x 4 bit, fp16 scale and minimum.
    Q4_1 "q4_1" 32 20,
    /// GGUF: 32 x 5 bit, one fp16 scale.
    Q5_0 "q5_0" 32 22,
    /// GGUF: 32 x 5 bit, fp16 scale and minimum.
    Q5_1 "q5_1" 32 24,
    /// GGUF: 32 x 8 bit, one fp16 scale.
    Q8_0 "q8_0" 32 34,
    /// GGUF K-quant: 256 x 2 bit in 16 sub-blocks.
    Q2K "q2_k" 256 84,
    /// GGUF K-quant: 256 x 3 bit in 16 sub-blocks.
    Q3K "q3_k" 256 110,
    /// GGUF K-quant: 256 x 4 bit in 8 sub-blocks.
    Q4K "q4_k" 256 144,
    /// GGUF K-quant: 256 x 5 bit in 8 sub-blocks.
    Q5K "q5_k" 256 176,
    /// GGUF K-quant: 256 x 6 bit in 16 sub-blocks.
    Q6K "q6_k" 256 210,
    /// GGUF: 32 x 4-bit index into a fixed non-linear table, one fp16 scale.
    Iq4Nl "iq4_nl" 32 18,
}

impl DType {
    /// Whether values are real numbers held as IEEE-like floats (not block-quantised).
    pub const fn is_float(self) -> bool {
        use DType::*;
        matches!(self, F16 | F32 | F64 | Bf16 | F8E4M3 | F8E5M2)
    }

    /// Whether values are integers (of any width, signed or not).
    pub const fn is_int(self) -> bool {
        use DType::*;
        matches!(self, I4 | I8 | I16 | I32 | I64 | U1 | U2 | U3 | U4 | U6 | U8 | U16 | U32 | U64)
    }

    /// Whether this is a block-quantised format that dequantises to floats.
    pub const fn is_block_quantized(self) -> bool {
        use DType::*;
        matches!(self, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2K | Q3K | Q4K | Q5K | Q6K | Iq4Nl)
    }

    /// The inclusive value range of an integer type.
    pub const fn int_range(self) -> Option<(i128, i128)> {
        use DType::*;
        Some(match self {
            I4 => (-8, 7),
            I8 => (i8::MIN as i128, i8::MAX as i128),
            I16 => (i16::MIN as i128, i16::MAX as i128),
            I32 => (i32::MIN as i128, i32::MAX as i128),
            I64 => (i64::MIN as i128, i64::MAX as i128),
            U1 => (0, 1),
            U2 => (0, 3),
            U3 => (0, 7),
            U4 => (0, 15),
            U6 => (0, 63),
            U8 => (0, u8::MAX as i128),
            U16 => (0, u16::MAX as i128),
            U32 => (0, u32::MAX as i128),
            U64 => (0, u64::MAX as i128),
            _ => return None,
        })
    }

    /// Bytes that `elements` consecutive elements take, rounded up to a whole byte for sub-byte
    /// types. `None` for strings, on overflow, and when a block format is cut inside a block.
    pub fn byte_len(self, elements: usize) -> Option<usize> {
        if self == DType::Str {
            return None;
        }
        let (len, bytes) = (self.block_len(), self.block_bytes());
        if self.is_block_quantized() {
            return elements.is_multiple_of(len).then(|| (elements / len).checked_mul(bytes))?;
        }
        if len == 1 {
            return elements.checked_mul(bytes);
        }
        // Sub-byte: `bytes * 8 / len` bits an element.
        elements.checked_mul(bytes * 8 / len).map(|bits| bits.div_ceil(8))
    }

    /// Mean bits an element takes, for size reports.
    pub fn bits(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block_len() as f64
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for &d in DType::ALL {
            assert_eq!(d.name().parse(), Ok(d));
        }
    }

    #[test]
    fn byte_lengths() {
        assert_eq!(DType::U3.byte_len(5), Some(2));
        assert_eq!(DType::U6.byte_len(4), Some(3));
        assert_eq!(DType::I4.byte_len(3), Some(2));
        assert_eq!(DType::Q4_1.byte_len(64), Some(40));
        assert_eq!(DType::Q4_1.byte_len(33), None);
        assert_eq!(DType::F64.byte_len(usize::MAX), None);
        assert_eq!(DType::Str.byte_len(1), None);
    }
}
