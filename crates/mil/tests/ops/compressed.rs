//! Values and refusals of compressed constants and quantisation.

use mil::eval::{Array, Data};
use mil::{Literal, OpKind};
use tensor::{Bytes, DType, Tensor};

use crate::common::{In, f32s, ints};
use crate::plain::{Case, Refusal, i, int, str, v};

/// A constant of a type whose elements are given as bytes.
fn packed(dtype: DType, shape: &[usize], bytes: &[u8]) -> In {
    Literal::tensor(Tensor::new(dtype, shape, Bytes::copy_from(bytes)).unwrap()).into()
}

fn bits(shape: &[usize], values: &[i64]) -> Array {
    Array { dtype: DType::U1, ..ints(shape, values.iter().copied()) }
}

fn bytes(values: &[i64]) -> Array {
    Array { dtype: DType::I8, ..i(values) }
}

fn half(x: f64) -> Array {
    Array { dtype: DType::F16, shape: vec![1], data: Data::Float(vec![x]) }
}

pub(crate) fn values() -> Vec<Case> {
    use OpKind::*;
    // Indices 0, 1, 1, 0.
    let indices = |shape: &[usize]| packed(DType::U1, shape, &[0b0110]);
    let mask = || packed(DType::U1, &[2, 2], &[0b1001]);
    vec![
        (
            ConstexprLutToDense,
            vec![("indices", indices(&[4])), ("lut", f32s(&[1, 2, 1], [5.0, 7.0]).into())],
            vec![v(&[5.0, 7.0, 7.0, 5.0])],
        ),
        // A palette for each row.
        (
            ConstexprLutToDense,
            vec![
                ("indices", indices(&[2, 2])),
                ("lut", f32s(&[2, 1, 2, 1], [5.0, 7.0, 1.0, 2.0]).into()),
            ],
            vec![f32s(&[2, 2], [5.0, 7.0, 2.0, 1.0])],
        ),
        // Vectors of two elements down the columns.
        (
            ConstexprLutToDense,
            vec![
                ("indices", indices(&[2, 2])),
                ("lut", f32s(&[1, 1, 2, 2], [1.0, 2.0, 3.0, 4.0]).into()),
                ("vector_axis", int(0)),
            ],
            vec![f32s(&[4, 2], [1.0, 3.0, 2.0, 4.0, 3.0, 1.0, 4.0, 2.0])],
        ),
        (
            ConstexprSparseToDense,
            vec![("mask", mask()), ("nonzero_data", v(&[3.0, 4.0]).into())],
            vec![f32s(&[2, 2], [3.0, 0.0, 0.0, 4.0])],
        ),
        (
            ConstexprLutToSparse,
            vec![
                ("indices_mask", mask()),
                ("indices_nonzero_data", packed(DType::U1, &[2], &[0b10])),
                ("lut", f32s(&[1, 1, 2, 2], [1.0, 2.0, 3.0, 4.0]).into()),
                ("vector_axis", int(-1)),
            ],
            vec![bits(&[2, 4], &[1, 1, 0, 0, 0, 0, 1, 1]), v(&[1.0, 2.0, 3.0, 4.0])],
        ),
        (
            ConstexprSparseBlockwiseShiftScale,
            vec![
                ("data_mask", mask()),
                ("nonzero_data", bytes(&[3, -4]).into()),
                ("scale", f32s(&[2, 1], [0.5, 2.0]).into()),
                ("offset", Array { dtype: DType::I8, ..ints(&[2, 1], [1, -1]) }.into()),
            ],
            vec![bits(&[2, 2], &[1, 0, 0, 1]), v(&[1.0, -6.0])],
        ),
        (
            ConstexprCast,
            vec![("source_val", half(0.25).into()), ("output_dtype", str("fp32"))],
            vec![v(&[0.25])],
        ),
        (
            Quantize,
            vec![
                ("input", v(&[1.25, 1.75, -100.0, 100.0]).into()),
                ("scale", Literal::scalar(0.5f32).into()),
                ("zero_point", packed(DType::I8, &[], &[3])),
                ("output_dtype", str("int8")),
            ],
            // 2.5 and 3.5 go to even.
            vec![bytes(&[5, 7, -128, 127])],
        ),
        (
            Quantize,
            vec![
                ("input", f32s(&[1, 2], [-1.0, 3.0]).into()),
                ("scale", Literal::vector(&[1f32, 2.0]).into()),
                ("axis", int(-1)),
                ("output_dtype", str("uint8")),
            ],
            vec![Array { dtype: DType::U8, ..ints(&[1, 2], [0, 2]) }],
        ),
        (
            Dequantize,
            vec![
                ("input", Array { dtype: DType::I8, ..ints(&[2, 1], [-1, 7]) }.into()),
                ("scale", Literal::vector(&[0.5f32, 2.0]).into()),
                ("zero_point", packed(DType::I8, &[2], &[1, 2])),
                ("axis", int(0)),
            ],
            vec![f32s(&[2, 1], [-1.0, 10.0])],
        ),
    ]
}

pub(crate) fn refusals() -> Vec<Refusal> {
    use OpKind::*;
    let indices = || packed(DType::U1, &[2], &[0b10]);
    let mask = || packed(DType::U1, &[2, 2], &[0b1001]);
    vec![
        (ConstexprLutToDense, vec![], "\"indices\" is missing"),
        (
            ConstexprLutToDense,
            vec![("indices", indices()), ("lut", f32s(&[1, 4, 1], [0.0; 4]).into())],
            "[1, 4, 1]",
        ),
        (
            ConstexprLutToDense,
            vec![("indices", indices()), ("lut", f32s(&[1, 2, 3], [0.0; 6]).into())],
            "vector_axis",
        ),
        (
            ConstexprSparseToDense,
            vec![("mask", mask()), ("nonzero_data", v(&[3.0]).into())],
            "1 elements for 2 places",
        ),
        (
            ConstexprLutToSparse,
            vec![
                ("indices_mask", mask()),
                ("indices_nonzero_data", indices()),
                ("lut", f32s(&[1, 2, 1], [0.0; 2]).into()),
            ],
            "[1, 2, 1]",
        ),
        (
            ConstexprSparseBlockwiseShiftScale,
            vec![
                ("data_mask", mask()),
                ("nonzero_data", bytes(&[3, -4]).into()),
                ("scale", f32s(&[3, 1], [0.5; 3]).into()),
            ],
            "[3, 1]",
        ),
        (
            ConstexprCast,
            vec![("source_val", half(0.25).into()), ("output_dtype", str("bf16"))],
            "bf16",
        ),
        (
            Quantize,
            vec![
                ("input", v(&[1.0]).into()),
                ("scale", Literal::scalar(0.5f32).into()),
                ("output_dtype", str("int4")),
            ],
            "int4",
        ),
        (
            Dequantize,
            vec![("input", bytes(&[1]).into()), ("scale", Literal::vector(&[0.5f32, 2.0]).into())],
            "axis",
        ),
    ]
}
