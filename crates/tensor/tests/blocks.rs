//! Holds the plain block decoder to goldens made with the `gguf` Python package, bit for bit.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::path::Path;

use rigel_tensor::{DType, dequantize, quantize_q8_0};
use serde_json::Value;

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|c| u8::from_str_radix(std::str::from_utf8(c).unwrap(), 16).unwrap())
        .collect()
}

/// `f32_bits_hex` may be one string of little-endian words or a list of 8-digit numbers.
fn words(value: &Value) -> Vec<u32> {
    match value {
        Value::String(s) => {
            hex(s).chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
        }
        Value::Array(a) => a
            .iter()
            .map(|w| u32::from_str_radix(w.as_str().unwrap().trim_start_matches("0x"), 16).unwrap())
            .collect(),
        other => panic!("f32_bits_hex is {other}"),
    }
}

#[test]
fn blocks_decode_like_the_reference() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/blocks");
    let block_types = DType::ALL.iter().filter(|d| d.is_block_quantized());
    for dtype in block_types {
        let path = dir.join(format!("{}.json", dtype.name().to_uppercase()));
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let golden: Value = serde_json::from_str(&text).unwrap();
        let bytes = hex(golden["bytes_hex"].as_str().unwrap());
        let expected = words(&golden["f32_bits_hex"]);
        assert!(!expected.is_empty());
        let mut out = vec![0f32; expected.len()];
        assert!(
            dequantize(*dtype, &bytes, &mut out),
            "{dtype}: {} bytes, {} elements",
            bytes.len(),
            out.len()
        );
        for (i, (o, &e)) in out.iter().zip(&expected).enumerate() {
            assert_eq!(o.to_bits(), e, "{dtype} element {i}: {o} is not {}", f32::from_bits(e));
        }
    }
}

#[test]
fn values_encode_like_the_reference() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/blocks/encoded/Q8_0.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let values: Vec<f32> = words(&golden["f32_bits_hex"]).into_iter().map(f32::from_bits).collect();
    let expected = hex(golden["bytes_hex"].as_str().unwrap());
    let mut bytes = vec![0xff; expected.len()];
    assert!(quantize_q8_0(&values, &mut bytes));
    assert_eq!(bytes, expected);
    assert!(!quantize_q8_0(&values[1..], &mut bytes) && !quantize_q8_0(&values, &mut bytes[1..]));
}

#[test]
fn floats_decode_and_lengths_are_checked() {
    let mut out = [0f32; 2];
    assert!(dequantize(
        DType::F64,
        &[1.5f64.to_le_bytes(), (-2f64).to_le_bytes()].concat(),
        &mut out
    ));
    assert_eq!(out, [1.5, -2.0]);
    assert!(dequantize(DType::F16, &[0x00, 0x3c, 0x00, 0xc0], &mut out));
    assert_eq!(out, [1.0, -2.0]);
    assert!(dequantize(DType::Bf16, &[0x80, 0x3f, 0x00, 0xc0], &mut out));
    assert_eq!(out, [1.0, -2.0]);
    assert!(!dequantize(DType::F32, &[0; 7], &mut out));
    assert!(!dequantize(DType::Q4_0, &[0; 18], &mut out));
    assert!(!dequantize(DType::I8, &[0; 2], &mut out));
}
