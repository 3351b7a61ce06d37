//! Cases and random programs: printed and parsed they are the same.

use mil::package::blob::BlobFile;
use mil::text::{Dialect, parse, print_with_weights};
use mil::{FunctionBuilder, Literal, Opset, Payload, Program, TensorType, Type};
use proptest::prelude::*;
use tensor::{Bytes, DType, Tensor};
use testkit::{cases, random_program};

use crate::common::same_program;

fn round_trip(program: &Program, dialect: Dialect) -> Result<(), String> {
    let mut file = Vec::new();
    let text = print_with_weights(program, dialect, &mut file).map_err(|e| e.to_string())?;
    let file = BlobFile::new(Bytes::copy_from(&file)).map_err(|e| e.to_string())?;
    let parsed = parse(&text, &file).map_err(|e| format!("{e} in\n{text}"))?;
    mil::verify(&parsed.program).map_err(|e| e.to_string())?;
    same_program(program, &parsed.program).map_err(|e| format!("{e} in\n{text}"))
}

#[test]
fn cases_survive() {
    for case in cases() {
        for dialect in [Dialect::V1_0, Dialect::V1_3] {
            round_trip(&case.program, dialect).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_programs_survive(program in random_program(12)) {
        prop_assert_eq!(round_trip(&program.case().program, Dialect::V1_3), Ok(()));
    }
}

/// A program whose only content is constants.
fn constants(literals: Vec<Literal>) -> Program {
    let mut program = Program::default();
    let mut f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let x = f.input("x", TensorType::scalar(DType::F32));
    for literal in literals {
        f.constant("c", literal);
    }
    let f = f.finish(vec![x]);
    program.functions.insert("main".into(), f);
    program
}

/// Number types whose elements can be written in the text.
fn immediate_types() -> Vec<DType> {
    let number =
        |d: &DType| d.is_int() || matches!(d, DType::F16 | DType::F32 | DType::F64 | DType::Bf16);
    DType::ALL.iter().copied().filter(number).collect()
}

/// Any bytes as a tensor, but for what text does not keep: the payload of NaNs and unused bits.
fn tensor_of(dtype: DType, len: usize, seed: &[u8]) -> Tensor {
    let size = dtype.byte_len(len).unwrap();
    let mut bytes: Vec<u8> = seed.iter().copied().cycle().take(size).collect();
    if dtype.is_float() {
        // An exponent that is not all ones.
        let width = dtype.block_bytes();
        bytes.chunks_exact_mut(width).for_each(|b| b[width - 1] &= 0xbf);
    }
    let bits = dtype.block_bytes() * 8 / dtype.block_len();
    let unused = size * 8 - len * bits;
    if let (Some(last), 1..) = (bytes.last_mut(), unused) {
        *last &= 0xff >> unused;
    }
    Tensor::new(dtype, &[len], Bytes::copy_from(&bytes)).unwrap()
}

proptest! {
    #[test]
    fn numbers_survive(
        dtype in prop::sample::select(immediate_types()),
        len in 0..9usize,
        seed in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let tensor = tensor_of(dtype, len, &seed);
        let program = constants(vec![Literal::tensor(tensor)]);
        prop_assert_eq!(round_trip(&program, Dialect::V1_3), Ok(()));
    }

    #[test]
    fn strings_survive(s in any::<String>()) {
        let program = constants(vec![Literal::string(s)]);
        prop_assert_eq!(round_trip(&program, Dialect::V1_3), Ok(()));
    }
}

#[test]
fn compound_constants_survive() {
    let string = || Type::from(TensorType::scalar(DType::Str));
    let text = |s: &str| Payload::Strings(vec![s.to_owned()]);
    let float = Payload::Tensor(Tensor::from_slice(&[], &[0.1f64]).unwrap());
    let dict = Type::Dict(Box::new(string()), Box::new(TensorType::scalar(DType::F64).into()));
    let list = Type::List(Box::new(string()), Some(2));
    let tuple = Type::Tuple(vec![dict, list, Type::List(Box::new(string()), None)]);
    let payload = Payload::Items(vec![
        Payload::Entries(vec![(text("a"), float.clone()), (text(""), float)]),
        Payload::Items(vec![text("x"), text("\"\\\n")]),
        Payload::Items(vec![]),
    ]);
    let program = constants(vec![
        Literal { ty: tuple, payload },
        Literal::vector(&[f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MIN_POSITIVE / 2.0]),
        Literal::bool_vector(&[true, false]),
        Literal::vector(&[u64::MAX, 0]),
        Literal::tensor(Tensor::from_slice(&[2, 0, 3], &[0f32; 0]).unwrap()),
    ]);
    for dialect in [Dialect::V1_0, Dialect::V1_3] {
        round_trip(&program, dialect).unwrap();
    }
}
