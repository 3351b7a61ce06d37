//! A weight file: every blob, in order and at every offset it could be at.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mil::TensorType;
use mil::package::blob::BlobFile;
use tensor::Bytes;

fuzz_target!(|data: &[u8]| {
    let Ok(file) = BlobFile::new(Bytes::copy_from(data)) else { return };
    for blob in file.blobs().take_while(Result::is_ok).flatten() {
        assert!(blob.data.len() <= data.len());
        let bits = (blob.data.len() * 8).saturating_sub(blob.unused_bits as usize);
        let len = bits * blob.dtype.block_len() / (blob.dtype.block_bytes() * 8);
        if let Ok(tensor) = file.tensor(blob.offset, &TensorType::new(blob.dtype, [len])) {
            assert_eq!(tensor.bytes().len(), blob.data.len());
        }
    }
    for offset in (0..data.len() as u64).step_by(64) {
        let _ = file.blob(offset);
    }
});
