//! A package's model, over a weight file of one blob: the verifier, interfaces and text of what is read.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mil::package::Package;
use mil::package::blob::{BlobFile, Layout};
use tensor::{Bytes, DType, Tensor, WeightStore};

static WEIGHTS: LazyLock<BlobFile> = LazyLock::new(|| {
    let mut weights = WeightStore::new();
    let id = weights.insert("w", Tensor::zeros(DType::F16, &[128, 64]).expect("a small tensor"));
    let layout = Layout::new(&weights, [id]).expect("a type that weight files have");
    let mut file = Vec::new();
    layout.write(&weights, &mut file).expect("writing to memory");
    BlobFile::new(Bytes::copy_from(&file)).expect("what was written can be read")
});

fuzz_target!(|data: &[u8]| {
    let Ok(package) = Package::from_model(data, &*WEIGHTS) else { return };
    let _ = mil::verify(&package.program);
    for name in package.program.functions.keys() {
        let _ = package.interface(name);
    }
    let _ = package.text();
});
