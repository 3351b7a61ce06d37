//! A GGUF file: its header, every metadata value and every tensor.
#![no_main]

use import::gguf::{Array, Gguf, Value};
use libfuzzer_sys::fuzz_target;
use tensor::Bytes;

fuzz_target!(|data: &[u8]| {
    let Ok(model) = Gguf::from_bytes("fuzz.gguf", Bytes::copy_from(data)) else { return };
    for (_, value) in model.metadata().iter() {
        if let Value::Array(array) = value {
            visit(array);
        }
    }
    for (name, info) in model.tensors() {
        match model.tensor(name) {
            Ok(tensor) => assert_eq!(Some(tensor.bytes().len()), info.byte_len),
            Err(_) => assert_eq!(info.ggml_type.dtype(), None),
        }
    }
});

fn visit(array: &Array) {
    let strings = (0..array.len()).filter(|&i| array.bytes_of(i).is_some()).count();
    let scalars = (0..array.len()).filter(|&i| array.scalar_at(i).is_some()).count();
    assert_eq!(strings + scalars + array.arrays().len(), array.len());
    array.arrays().iter().for_each(visit);
}
