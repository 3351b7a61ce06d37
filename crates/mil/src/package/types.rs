//! Numbers and names under which protobuf knows element types and operation sets.

use tensor::DType;

use crate::Opset;

/// Element types by their number in `MIL.proto`.
const DTYPES: [(i32, DType); 22] = [
    (1, DType::Bool),
    (2, DType::Str),
    (10, DType::F16),
    (11, DType::F32),
    (12, DType::F64),
    (13, DType::Bf16),
    (21, DType::I8),
    (22, DType::I16),
    (23, DType::I32),
    (24, DType::I64),
    (25, DType::I4),
    (31, DType::U8),
    (32, DType::U16),
    (33, DType::U32),
    (34, DType::U64),
    (35, DType::U4),
    (36, DType::U2),
    (37, DType::U1),
    (38, DType::U6),
    (39, DType::U3),
    (40, DType::F8E4M3),
    (41, DType::F8E5M2),
];

/// The element type of number `n`.
pub(super) fn dtype_of_number(n: i32) -> Option<DType> {
    DTYPES.iter().find(|(number, _)| *number == n).map(|&(_, d)| d)
}

/// The number of an element type; `None` for those that MIL does not have.
pub(super) fn number_of_dtype(dtype: DType) -> Option<i32> {
    DTYPES.iter().find(|(_, d)| *d == dtype).map(|&(n, _)| n)
}

/// Element types of a model's interface by their number in `FeatureTypes.proto`.
const ARRAY_TYPES: [(i32, DType); 5] = [
    (65552, DType::F16),
    (65568, DType::F32),
    (65600, DType::F64),
    (131080, DType::I8),
    (131104, DType::I32),
];

/// The element type of an array of a model's interface.
pub(super) fn dtype_of_array(n: i32) -> Option<DType> {
    ARRAY_TYPES.iter().find(|(number, _)| *number == n).map(|&(_, d)| d)
}

/// The number of an element type in a model's interface; `None` for those it cannot have.
pub(super) fn array_of_dtype(dtype: DType) -> Option<i32> {
    ARRAY_TYPES.iter().find(|(_, d)| *d == dtype).map(|&(n, _)| n)
}

/// Operation sets: the oldest version of the specification that has it, and its key.
const OPSETS: [(Opset, i32, &str); 5] = [
    (Opset::Ios15, 6, "CoreML5"),
    (Opset::Ios16, 7, "CoreML6"),
    (Opset::Ios17, 8, "CoreML7"),
    (Opset::Ios18, FIRST_OF_1_3, "CoreML8"),
    (Opset::Ios26, 10, "CoreML9"),
];

/// The oldest version of the specification whose programs are text of dialect 1.3.
pub(super) const FIRST_OF_1_3: i32 = 9;

/// The operation set that protobuf calls `key`.
pub(super) fn opset_of_key(key: &str) -> Option<Opset> {
    OPSETS.iter().find(|o| o.2 == key).map(|o| o.0)
}

/// What protobuf calls an operation set.
pub(super) fn key_of_opset(opset: Opset) -> &'static str {
    OPSETS.iter().find(|o| o.0 == opset).map_or("", |o| o.2)
}

/// The oldest version of the specification that has an operation set.
pub(super) fn version_of_opset(opset: Opset) -> i32 {
    OPSETS.iter().find(|o| o.0 == opset).map_or(FIRST_OF_1_3, |o| o.1)
}
