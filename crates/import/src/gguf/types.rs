//! GGML tensor types: their numbers in a file, names, and block sizes.

use std::borrow::Cow;

use tensor::DType;

/// A GGML tensor type as a file numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GgmlType(pub u32);

struct Row {
    id: u32,
    name: &'static str,
    /// (elements, bytes) of a block, where known; the size of types that are never stored is not.
    block: Option<(usize, usize)>,
    dtype: Option<DType>,
}

macro_rules! rows {
    (held { $($id:literal $name:literal $dtype:ident,)* } listed { $($lid:literal $lname:literal $block:expr,)* }) => {
        const ROWS: &[Row] = &[
            $(Row { id: $id, name: $name, block: Some((DType::$dtype.block_len(), DType::$dtype.block_bytes())),
                    dtype: Some(DType::$dtype) },)*
            $(Row { id: $lid, name: $lname, block: $block, dtype: None },)*
        ];
    };
}

// Numbers, names and block sizes are those of ggml's `enum ggml_type` and its block structs.
rows! {
    held {
        0 "F32" F32, 1 "F16" F16, 2 "Q4_0" Q4_0, 3 "Q4_1" Q4_1, 6 "Q5_0" Q5_0, 7 "Q5_1" Q5_1, 8 "Q8_0" Q8_0,
        10 "Q2_K" Q2K, 11 "Q3_K" Q3K, 12 "Q4_K" Q4K, 13 "Q5_K" Q5K, 14 "Q6_K" Q6K, 20 "IQ4_NL" Iq4Nl,
        24 "I8" I8, 25 "I16" I16, 26 "I32" I32, 27 "I64" I64, 28 "F64" F64, 30 "BF16" Bf16,
    }
    listed {
        4 "Q4_2" None, 5 "Q4_3" None, 9 "Q8_1" None, 15 "Q8_K" None,
        16 "IQ2_XXS" Some((256, 66)), 17 "IQ2_XS" Some((256, 74)), 18 "IQ3_XXS" Some((256, 98)),
        19 "IQ1_S" Some((256, 50)), 21 "IQ3_S" Some((256, 110)), 22 "IQ2_S" Some((256, 82)),
        23 "IQ4_XS" Some((256, 136)), 29 "IQ1_M" Some((256, 56)),
        31 "Q4_0_4_4" None, 32 "Q4_0_4_8" None, 33 "Q4_0_8_8" None,
        34 "TQ1_0" Some((256, 54)), 35 "TQ2_0" Some((256, 66)),
        36 "IQ4_NL_4_4" None, 37 "IQ4_NL_4_8" None, 38 "IQ4_NL_8_8" None,
        39 "MXFP4" Some((32, 17)), 40 "NVFP4" Some((64, 36)), 41 "Q1_0" Some((128, 18)),
    }
}

impl GgmlType {
    /// The type that holds `dtype`, if GGUF has one.
    pub fn of(dtype: DType) -> Option<Self> {
        ROWS.iter().find(|r| r.dtype == Some(dtype)).map(|r| GgmlType(r.id))
    }

    /// ggml's name, such as `Q4_K`; `unknown type N` for a number that is not known.
    pub fn name(self) -> Cow<'static, str> {
        self.row().map_or_else(|| format!("unknown type {}", self.0).into(), |r| r.name.into())
    }

    /// The data type of tensors of this type; `None` if they are unsupported.
    pub fn dtype(self) -> Option<DType> {
        self.row()?.dtype
    }

    /// (elements, bytes) of a block along the last axis, where known.
    pub fn block(self) -> Option<(usize, usize)> {
        self.row()?.block
    }

    fn row(self) -> Option<&'static Row> {
        ROWS.iter().find(|r| r.id == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_match_the_names_of_dtypes() {
        for (i, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..i].iter().all(|r| r.id != row.id), "{} twice", row.id);
            if let Some(dtype) = row.dtype.filter(|d| d.is_block_quantized()) {
                assert_eq!(row.name.to_lowercase(), dtype.name());
            }
        }
        assert!(
            DType::ALL
                .iter()
                .filter(|d| d.is_block_quantized())
                .all(|&d| GgmlType::of(d).is_some())
        );
        assert_eq!(GgmlType(77).name(), "unknown type 77");
    }
}
