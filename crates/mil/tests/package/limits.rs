//! Packages made to do harm: records of weight files, deep messages, links, cut files. Each is refused
//! with its place, in little time and memory.

use std::fs;
use std::path::{Path, PathBuf};

use mil::ErrorKind;
use mil::package::Package;
use mil::package::blob::BlobFile;
use mil::package::proto::{Kept, Model, Value, ValueType};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use tensor::{Bytes, DType};

use crate::common::weights_of;

fn shared(name: &str) -> PathBuf {
    testkit::shared_dir().join("coreml").join(name)
}

/// A copy of a shared package, to be damaged.
fn copied(name: &str, to: &Path) -> PathBuf {
    let (from, to) = (shared(name), to.join("x.mlpackage"));
    let folder = "Data/com.apple.CoreML";
    fs::create_dir_all(to.join(folder).join("weights")).unwrap();
    for file in [
        "Manifest.json",
        "Data/com.apple.CoreML/model.mlmodel",
        "Data/com.apple.CoreML/weights/weight.bin",
    ] {
        fs::write(to.join(file), fs::read(from.join(file)).unwrap()).unwrap();
    }
    to
}

/// A weight file of one record with these fields: sentinel, type, bytes, place of the data.
fn file(sentinel: u32, dtype: u32, len: u64, start: u64) -> BlobFile {
    let mut bytes = vec![0; 192];
    bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    bytes[4] = 2;
    bytes[64..68].copy_from_slice(&sentinel.to_le_bytes());
    bytes[68..72].copy_from_slice(&dtype.to_le_bytes());
    bytes[72..80].copy_from_slice(&len.to_le_bytes());
    bytes[80..88].copy_from_slice(&start.to_le_bytes());
    BlobFile::new(Bytes::copy_from(&bytes)).unwrap()
}

#[test]
fn records_are_checked() {
    let good = file(0xDEAD_BEEF, 2, 64, 128);
    assert_eq!(good.blob(64).unwrap().data.len(), 64);
    for (file, message) in [
        (file(0xDEAD_BEE0, 2, 64, 128), "the record does not start with the sentinel"),
        (file(0xDEAD_BEEF, 0, 64, 128), "type 0"),
        (file(0xDEAD_BEEF, 18, 64, 128), "type 18"),
        (file(0xDEAD_BEEF, u32::MAX, 64, 128), "type 4294967295"),
        (file(0xDEAD_BEEF, 2, 65, 128), "65 bytes at 128 reach beyond the file's 192"),
        (
            file(0xDEAD_BEEF, 2, u64::MAX, 128),
            "18446744073709551615 bytes at 128 reach beyond the file's 192",
        ),
        (
            file(0xDEAD_BEEF, 2, 64, u64::MAX),
            "64 bytes at 18446744073709551615 reach beyond the file's 192",
        ),
        (
            file(0xDEAD_BEEF, 2, 1 << 63, 1 << 63),
            "9223372036854775808 bytes at 9223372036854775808 reach beyond the file's 192",
        ),
        // Data over the header, over the record itself.
        (file(0xDEAD_BEEF, 2, 64, 0), "its data at 0 lie before the end of the record"),
        (file(0xDEAD_BEEF, 2, 64, 64), "its data at 64 lie before the end of the record"),
        (file(0xDEAD_BEEF, 2, 64, 127), "its data at 127 lie before the end of the record"),
    ] {
        let error = file.blob(64).unwrap_err();
        assert_eq!(error.message, format!("blob at offset 64: {message}"));
        // The header's count of blobs is a promise that nothing relies on.
        assert!(file.blobs().count() <= 2);
    }
    // Data that are not aligned for their elements.
    let odd = file(0xDEAD_BEEF, 2, 60, 130);
    let error = odd.tensor(64, &mil::TensorType::new(DType::F32, [15])).unwrap_err();
    assert!(error.message.contains("not aligned"), "{error}");
    for offset in [0, 1, 63, 65, 128, 192, 256, 1 << 32, u64::MAX - 63, u64::MAX] {
        assert!(good.blob(offset).is_err(), "{offset}");
    }
    assert_eq!(good.count(), u32::MAX);
    assert!(good.blobs().count() <= 3);
}

#[test]
fn weight_files_cut_anywhere_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let package = copied("mlp_fp32.mlpackage", folder.path());
    let path = package.join("Data/com.apple.CoreML/weights/weight.bin");
    let whole = fs::read(&path).unwrap();
    let model = fs::read(package.join("Data/com.apple.CoreML/model.mlmodel")).unwrap();
    for len in (0..whole.len()).step_by(7).chain([63, 64, 127, 128, whole.len() - 1]) {
        let refused = match BlobFile::new(Bytes::copy_from(&whole[..len])) {
            Ok(file) => Package::from_model(&model, &file).is_err(),
            Err(_) => true,
        };
        assert!(refused, "cut at {len}");
    }
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let error = Package::open(&package).unwrap_err().to_string();
    assert!(error.contains("model.mlmodel: function main: op const"), "{error}");
    assert!(error.contains("weight file @model_path/weights/weight.bin: blob at"), "{error}");
}

#[test]
fn manifests_and_metadata_cut_anywhere_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let package = copied("mlp_fp32.mlpackage", folder.path());
    let path = package.join("Manifest.json");
    let whole = fs::read(&path).unwrap();
    for len in 0..whole.trim_ascii_end().len() {
        fs::write(&path, &whole[..len]).unwrap();
        let error = Package::open(&package).unwrap_err();
        assert!(error.file.unwrap().ends_with("Manifest.json"));
    }
    let compiled = folder.path().join("x.mlmodelc");
    fs::create_dir_all(compiled.join("weights")).unwrap();
    fs::write(compiled.join("model.mil"), fs::read(shared("mlp_fp32.mil")).unwrap()).unwrap();
    let weights = package.join("Data/com.apple.CoreML/weights/weight.bin");
    fs::write(compiled.join("weights/weight.bin"), fs::read(weights).unwrap()).unwrap();
    let json = br#"[{"specificationVersion": 8, "userDefinedMetadata": {"a": {"b": [1]}}}]"#;
    for len in 0..json.len() {
        fs::write(compiled.join("metadata.json"), &json[..len]).unwrap();
        let error = Package::open(&compiled).unwrap_err();
        assert!(error.file.unwrap().ends_with("metadata.json"));
    }
    let deep = "[".repeat(100_000);
    for json in [deep.clone(), format!("[{{\"userDefinedMetadata\": {{\"a\": {deep}")] {
        fs::write(compiled.join("metadata.json"), json).unwrap();
        let error = Package::open(&compiled).unwrap_err();
        assert!(error.file.unwrap().ends_with("metadata.json"));
    }
}

#[cfg(unix)]
#[test]
fn weights_that_are_links_out_of_the_package_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let package = copied("mlp_fp32.mlpackage", folder.path());
    let weights = package.join("Data/com.apple.CoreML/weights");
    fs::rename(&weights, folder.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), &weights).unwrap();
    let error = Package::open(&package).unwrap_err().to_string();
    assert!(
        error.ends_with(r#"path "weights/weight.bin" leads out of the model's folder"#),
        "{error}"
    );
    // A link inside of the package is a file like any other.
    fs::remove_file(&weights).unwrap();
    fs::rename(folder.path().join("elsewhere"), package.join("Data/com.apple.CoreML/w")).unwrap();
    std::os::unix::fs::symlink("w", &weights).unwrap();
    Package::open(&package).unwrap();
    // A link to itself has no end.
    fs::remove_file(&weights).unwrap();
    std::os::unix::fs::symlink("weights", &weights).unwrap();
    let error = Package::open(&package).unwrap_err().to_string();
    assert!(error.contains("cannot open \"weights/weight.bin\""), "{error}");
    // Neither a folder nor a device is a weight file.
    fs::remove_file(&weights).unwrap();
    fs::create_dir_all(weights.join("weight.bin")).unwrap();
    let error = Package::open(&package).unwrap_err().to_string();
    assert!(error.contains("is no regular file"), "{error}");
}

/// A length-delimited field.
fn framed(tag: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_key(tag, WireType::LengthDelimited, &mut out);
    encode_varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out
}

/// A model whose function holds one operation.
fn model_of(operation: &[u8]) -> Vec<u8> {
    let block = framed(3, operation);
    let bodies = framed(3, &[framed(1, b"CoreML8"), framed(2, &block)].concat());
    let function = [framed(2, b"CoreML8"), bodies].concat();
    framed(502, &framed(2, &[framed(1, b"main"), framed(2, &function)].concat()))
}

#[test]
fn every_kind_of_nesting_has_a_limit() {
    let real = Kept::<Model>::decode(
        &fs::read(shared("mlp_fp32.mlpackage").join("Data/com.apple.CoreML/model.mlmodel"))
            .unwrap()[..],
    );
    let real = real.unwrap();
    let body = &real.ml_program.as_ref().unwrap().functions["main"].block_specializations;
    let consts = body.values().next().unwrap().operations.iter().find(|op| op.r#type == "const");
    let scalar: Kept<Value> = consts.unwrap().attributes["name"].clone();
    let string: Kept<ValueType> = scalar.r#type.clone().unwrap();
    let weights = weights_of(&shared("mlp_fp32.mil"));
    for depth in [70, 5000] {
        // List types in list types; values in the lists of values; blocks in the blocks of operations.
        let mut ty = string.encode_to_vec();
        let mut value = scalar.encode_to_vec();
        for _ in 0..depth {
            ty = framed(2, &framed(1, &ty));
            value = [framed(2, &ty), framed(3, &framed(3, &framed(1, &value)))].concat();
            if value.len() > 1 << 20 {
                break;
            }
        }
        let attribute = framed(5, &[framed(1, b"val"), framed(2, &value)].concat());
        let constant = [framed(1, b"const"), attribute].concat();
        let mut cond = framed(1, b"cond");
        for _ in 0..depth {
            cond = [framed(1, b"cond"), framed(4, &framed(3, &cond))].concat();
        }
        for operation in [constant, cond] {
            let error = Package::from_model(&model_of(&operation), &weights).unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Invalid | ErrorKind::Limit), "{error}");
        }
    }
}

#[test]
fn counts_beyond_the_file_take_no_memory() {
    let weights = weights_of(&shared("mlp_fp32.mil"));
    // Fields that claim to be gigabytes long, at several levels.
    let mut claim = Vec::new();
    encode_key(3, WireType::LengthDelimited, &mut claim);
    encode_varint(1 << 40, &mut claim);
    claim.push(0);
    for model in
        [claim.clone(), framed(502, &claim), framed(502, &framed(2, &claim)), model_of(&claim)]
    {
        let error = Package::from_model(&model, &weights).unwrap_err().to_string();
        assert!(error.starts_with("not a Core ML model"), "{error}");
    }
    // Very many features.
    let mut package = Package::open(shared("mlp_fp32.mlpackage")).unwrap();
    let description = package.description.as_mut().unwrap();
    for i in 0..100_000 {
        let mut feature = description.input[0].clone();
        feature.name = format!("f{i}");
        description.input.push(feature);
    }
    let folder = tempfile::tempdir().unwrap();
    let error = package.save(folder.path().join("x.mlpackage")).unwrap_err().to_string();
    assert!(error.ends_with("the description has an input f0 that the program lacks"), "{error}");
}

#[test]
fn names_of_results_and_inputs_are_given_once() {
    let weights = weights_of(&shared("mlp_fp32.mil"));
    let model = fs::read(shared("mlp_fp32.mlpackage").join("Data/com.apple.CoreML/model.mlmodel"));
    let model = Kept::<Model>::decode(&model.unwrap()[..]).unwrap();
    let refusal = |change: &dyn Fn(&mut mil::package::proto::Function)| {
        let mut model = model.clone();
        change(model.ml_program.as_mut().unwrap().functions.get_mut("main").unwrap());
        Package::from_model(&model.encode_to_vec(), &weights).unwrap_err().to_string()
    };
    let twice = |f: &mut mil::package::proto::Function| f.inputs.push(f.inputs[0].clone());
    assert_eq!(refusal(&twice), "function main: x is defined twice");
    let twice = |f: &mut mil::package::proto::Function| {
        let block = f.block_specializations.values_mut().next().unwrap();
        let last = block.operations.last_mut().unwrap();
        let output = last.outputs[0].clone();
        last.outputs.push(output);
    };
    assert!(refusal(&twice).ends_with("is defined twice"));
    let empty = |f: &mut mil::package::proto::Function| {
        let block = f.block_specializations.values_mut().next().unwrap();
        block.outputs.push("nothing".into());
    };
    assert_eq!(refusal(&empty), "function main: nothing is not defined here");
}
