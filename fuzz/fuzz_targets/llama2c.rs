//! A llama2.c checkpoint: its header, and every tensor.
#![no_main]

use import::Llama2c;
use libfuzzer_sys::fuzz_target;
use tensor::Bytes;

fuzz_target!(|data: &[u8]| {
    let Ok(model) = Llama2c::from_bytes("fuzz.bin", Bytes::copy_from(data)) else { return };
    for (name, info) in model.tensors() {
        let tensor = model.tensor(name).expect("listed tensors can be read");
        assert_eq!(tensor.shape(), info.shape);
    }
});
