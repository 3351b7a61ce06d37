//! Weight files: a golden with every type, and damaged ones.

use std::fs;

use mil::TensorType;
use mil::package::blob::{BlobFile, Layout};
use tensor::{Bytes, DType, Tensor, WeightStore};

fn golden() -> Vec<u8> {
    fs::read(testkit::shared_dir().join("coreml/blobs/all_types.bin")).unwrap()
}

/// The tensors of a file as vectors; sub-byte ones without the unused bits.
fn read_all(file: &BlobFile) -> WeightStore {
    let mut weights = WeightStore::new();
    for blob in file.blobs() {
        let blob = blob.unwrap();
        let bits = blob.data.len() * 8 - blob.unused_bits as usize;
        let len = bits / (blob.dtype.block_bytes() * 8 / blob.dtype.block_len());
        let ty = TensorType::new(blob.dtype, [len]);
        let tensor = file.tensor(blob.offset, &ty).unwrap();
        weights.insert(blob.dtype.name(), tensor);
    }
    weights
}

#[test]
fn every_type_is_read_and_written_again_to_the_byte() {
    let golden = golden();
    let file = BlobFile::new(Bytes::copy_from(&golden)).unwrap();
    let weights = read_all(&file);
    assert_eq!(weights.iter().len(), file.count() as usize);
    assert!(weights.iter().len() >= 14);
    let layout = Layout::new(&weights, weights.iter().map(|(id, _)| id)).unwrap();
    let mut written = Vec::new();
    layout.write(&weights, &mut written).unwrap();
    assert_eq!(written, golden);
}

#[test]
fn blocks_are_stored_as_bytes() {
    let mut weights = WeightStore::new();
    let tensor = testkit::seeded_tensor(DType::Q4_1, "w", &[2, 64]);
    let id = weights.insert("w", tensor.clone());
    let layout = Layout::new(&weights, [id]).unwrap();
    let mut written = Vec::new();
    layout.write(&weights, &mut written).unwrap();
    let file = BlobFile::new(Bytes::copy_from(&written)).unwrap();
    assert_eq!(file.blob(64).unwrap().dtype, DType::U8);
    let read = file.tensor(64, &TensorType::new(DType::Q4_1, [2usize, 64])).unwrap();
    assert_eq!(read.bytes()[..], tensor.bytes()[..]);
    // The stated shape must fit the bytes.
    file.tensor(64, &TensorType::new(DType::Q4_1, [2usize, 32])).unwrap_err();
}

#[test]
fn types_without_a_number_are_refused() {
    let mut weights = WeightStore::new();
    let id = weights.insert("wide", Tensor::from_slice(&[1], &[1i64]).unwrap());
    let error = Layout::new(&weights, [id]).unwrap_err();
    assert_eq!(error.message, "weight wide of type int64 in a weight file");
}

#[test]
fn damage_is_an_error() {
    let golden = golden();
    let open = |bytes: &[u8]| BlobFile::new(Bytes::copy_from(bytes));
    open(&golden[..7]).unwrap_err();
    let mut other = golden.clone();
    other[4] = 3;
    assert!(open(&other).unwrap_err().message.contains("version 3"));

    let file = open(&golden).unwrap();
    for offset in [0, 1, 65, 128, golden.len() as u64, u64::MAX - 63, 1 << 63] {
        file.blob(offset).unwrap_err();
    }
    // Type, size and place of the first blob's data.
    for (at, value) in
        [(4, 99u64), (4, 0), (8, 1 << 40), (8, u64::MAX), (16, u64::MAX), (16, 1 << 40)]
    {
        let mut bad = golden.clone();
        bad[64 + at..64 + at + 4].copy_from_slice(&value.to_le_bytes()[..4]);
        if at > 4 {
            bad[64 + at..64 + at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let file = open(&bad).unwrap();
        file.blob(64).unwrap_err();
        assert!(file.blobs().any(|b| b.is_err()));
    }
    for len in 0..golden.len() {
        if let Ok(file) = open(&golden[..len]) {
            assert!(file.blobs().any(|b| b.is_err()), "cut at {len}");
        }
    }
}
