//! A safetensors file: its header, and every tensor.
#![no_main]

use import::SafeTensors;
use libfuzzer_sys::fuzz_target;
use tensor::Bytes;

fuzz_target!(|data: &[u8]| {
    let Ok(file) = SafeTensors::from_bytes("fuzz.safetensors", Bytes::copy_from(data)) else {
        return;
    };
    for (name, info) in file.tensors() {
        match file.tensor(name) {
            Ok(tensor) => assert_eq!(tensor.bytes().len(), info.range.len()),
            Err(_) => assert_eq!(info.held_dtype(), None),
        }
    }
});
