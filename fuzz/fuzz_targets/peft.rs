//! A PEFT adapter: two bytes for the configuration's length, the configuration, the factors' file.
#![no_main]

use import::PeftAdapter;
use libfuzzer_sys::fuzz_target;
use tensor::Bytes;

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let (config, weights) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    let Ok(adapter) = PeftAdapter::from_bytes("fuzz", config, Bytes::copy_from(weights)) else {
        return;
    };
    for layer in adapter.layers() {
        assert_eq!(layer.a.shape()[0], layer.b.shape()[1]);
        assert!(layer.rank() > 0);
    }
});
