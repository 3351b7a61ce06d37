//! Every shared artefact is checked on an old and a new chip by both paths without a panic.

use std::fs;

use mil::package::blob::BlobFile;
use mil::text::parse;
use rigel_ane_model::{CheckOptions, Path, check};
use tensor::Bytes;

use crate::common::chip;

#[test]
fn real_programs() {
    let dir = testkit::shared_dir().join("coreml");
    let mut checked = 0;
    for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "mil") {
            continue;
        }
        let weights =
            path.with_extension("mlpackage").join("Data/com.apple.CoreML/weights/weight.bin");
        let bytes = fs::read(weights).unwrap_or_else(|_| [&[0, 0, 0, 0, 2][..], &[0; 59]].concat());
        let blobs = BlobFile::new(Bytes::copy_from(&bytes)).unwrap();
        let program = parse(&fs::read_to_string(&path).unwrap(), &blobs).unwrap().program;
        for name in ["m1", "m4", "m6", "a19-pro"] {
            for route in [Path::Direct, Path::CoreMl] {
                for d in check(&program, &CheckOptions { chip: chip(name), path: route, os: None })
                {
                    assert!(!d.message.is_empty());
                }
            }
        }
        checked += 1;
    }
    assert!(checked > 20, "{checked}");
}
