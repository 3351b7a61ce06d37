//! Damaged and malicious packages: one clear error each, with its file or operation; never a panic.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use mil::package::Package;
use mil::package::blob::BlobFile;
use mil::package::proto::{
    Argument, Binding, BindingKind, BlobFileValue, ConstantDimension, Dimension, DimensionKind,
    Kept, Model, Operation, TypeKind, ValueKind,
};
use mil::{ErrorKind, verify};
use proptest::prelude::*;
use prost::Message;
use tensor::Bytes;

use crate::common::weights_of;

/// A real model, decoded, and its weight file.
struct Real {
    bytes: Vec<u8>,
    weights: BlobFile,
}

impl Real {
    fn new(name: &str) -> Self {
        let mil = testkit::shared_dir().join(format!("coreml/{name}.mil"));
        let path = mil.with_extension("mlpackage").join("Data/com.apple.CoreML/model.mlmodel");
        Real { bytes: fs::read(path).unwrap(), weights: weights_of(&mil) }
    }

    fn model(&self) -> Kept<Model> {
        Kept::decode(&self.bytes[..]).unwrap()
    }

    /// What reading says after `change`.
    fn refusal(&self, change: impl FnOnce(&mut Model)) -> (ErrorKind, String) {
        let mut model = self.model();
        change(&mut model);
        let error = Package::from_model(&model.encode_to_vec(), &self.weights).unwrap_err();
        (error.kind, error.to_string())
    }
}

static MLP: LazyLock<Real> = LazyLock::new(|| Real::new("mlp_ios18"));

fn ops(model: &mut Model) -> &mut Vec<Kept<Operation>> {
    let program = model.ml_program.as_mut().unwrap();
    let body = program.functions.get_mut("main").unwrap();
    &mut body.block_specializations.get_mut("CoreML8").unwrap().operations
}

fn op<'m>(model: &'m mut Model, kind: &str) -> &'m mut Operation {
    &mut ops(model).iter_mut().find(|op| op.r#type == kind).unwrap().message
}

/// The place in the weight file of the first constant that has one.
fn blob(model: &mut Model) -> &mut BlobFileValue {
    let values = ops(model).iter_mut().filter_map(|op| op.attributes.get_mut("val"));
    let found = values.map(|v| v.value.as_mut().unwrap()).find_map(|v| match v {
        ValueKind::BlobFile(blob) => Some(blob),
        ValueKind::Immediate(_) => None,
    });
    found.unwrap()
}

fn named(name: &str) -> Kept<Argument> {
    let binding = Some(BindingKind::Name(name.into()));
    Argument { arguments: vec![Binding { binding }.into()] }.into()
}

#[test]
fn each_damage_to_the_program_has_its_message() {
    let check = |change: &dyn Fn(&mut Model), kind, message: &str| {
        let (found, text) = MLP.refusal(change);
        assert_eq!((found, text.as_str()), (kind, message));
    };
    use ErrorKind::{Invalid, Unsupported};
    // A value that depends on itself, and one that is made later.
    for later in ["input_cast_fp16", "linear_1_cast_fp16"] {
        check(
            &|m| drop(op(m, "gelu").inputs.insert("x".into(), named(later))),
            Invalid,
            &format!("function main: op gelu \"input_cast_fp16\": {later} is not defined here"),
        );
    }
    check(
        &|m| op(m, "gelu").outputs[0].name = "x".into(),
        Invalid,
        "function main: op gelu \"input_cast_fp16\": x is defined twice",
    );
    check(
        &|m| drop(op(m, "gelu").inputs.insert("z".into(), named("x"))),
        Invalid,
        "function main: op gelu \"input_cast_fp16\": gelu has no parameter \"z\"",
    );
    check(
        &|m| op(m, "gelu").outputs[0].r#type = None,
        Invalid,
        "function main: op gelu \"input_cast_fp16\": a type is missing",
    );
    check(
        &|m| {
            m.ml_program.as_mut().unwrap().functions.get_mut("main").unwrap().opset =
                "CoreML3".into()
        },
        Unsupported,
        "function main: unsupported: operation set \"CoreML3\"",
    );
    // All missing operations, before anything else.
    check(
        &|m| {
            op(m, "gelu").outputs[0].name = "x".into();
            op(m, "gelu").r#type = "glue".into();
            op(m, "linear").r#type = "bent".into();
        },
        Unsupported,
        "unsupported: operations that Rigel does not have: bent, glue",
    );
    check(
        &|m| m.ml_program = None,
        Unsupported,
        "unsupported: the model is no ML program (an older kind of Core ML model)",
    );
}

#[test]
fn places_in_weight_files_are_checked() {
    for offset in [0, 1, 65, 1 << 40, u64::MAX, u64::MAX - 63] {
        let (kind, text) = MLP.refusal(|m| blob(m).offset = offset);
        assert_eq!(kind, ErrorKind::Invalid);
        let place = "function main: op const \"a_weight_to_fp16\": attribute \"val\": ";
        assert!(text.starts_with(&format!("{place}blob at offset {offset}: ")), "{text}");
    }
}

/// A dimension of `size` in the type of the first weight.
fn set_size(model: &mut Model, size: u64) {
    let op = ops(model).iter_mut().find(|op| {
        matches!(
            op.attributes.get("val").and_then(|v| v.value.as_ref()),
            Some(ValueKind::BlobFile(_))
        )
    });
    let value = op.unwrap().attributes.get_mut("val").unwrap();
    let Some(TypeKind::Tensor(t)) = value.r#type.as_mut().and_then(|t| t.kind.as_mut()) else {
        panic!()
    };
    let dimension = Some(DimensionKind::Constant(ConstantDimension { size }.into()));
    t.dimensions = vec![Dimension { dimension }.into(); t.dimensions.len()];
}

#[test]
fn huge_shapes_take_no_memory() {
    for size in [1 << 31, 1 << 32, 1 << 62, u64::MAX] {
        let (_, text) = MLP.refusal(|m| set_size(m, size));
        assert!(text.contains("op const \"a_weight_to_fp16\""), "{text}");
    }
    // The sizes of values are only numbers until they are run.
    let mut model = MLP.model();
    let output = &mut op(&mut model, "gelu").outputs[0];
    let Some(TypeKind::Tensor(t)) = &mut output.r#type.as_mut().unwrap().kind else { panic!() };
    let dimension = Some(DimensionKind::Constant(ConstantDimension { size: 1 << 62 }.into()));
    t.dimensions = vec![Dimension { dimension }.into(); 2];
    let package = Package::from_model(&model.encode_to_vec(), &MLP.weights).unwrap();
    let error = verify(&package.program).unwrap_err().to_string();
    assert!(error.contains("op gelu \"input_cast_fp16\""), "{error}");
}

#[test]
fn nesting_has_a_limit() {
    for depth in [70, 1000, 20_000] {
        let mut model = MLP.model();
        let inner = op(&mut model, "gelu").outputs[0].r#type.take().unwrap();
        let mut bytes = inner.encode_to_vec();
        for _ in 0..depth {
            // A value type that is a list type of a value type.
            bytes = framed(2, &framed(1, &bytes));
        }
        let output = framed(3, &framed(2, &bytes));
        let mut op = framed(1, b"gelu");
        op.extend(output);
        let block = framed(3, &op);
        let mut function = framed(2, b"CoreML8");
        function.extend(framed(3, &[framed(1, b"CoreML8"), framed(2, &block)].concat()));
        let program = framed(2, &[framed(1, b"main"), framed(2, &function)].concat());
        let error = Package::from_model(&framed(502, &program), &MLP.weights).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Invalid | ErrorKind::Limit), "{error}");
    }
}

/// A length-delimited field.
fn framed(tag: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, &mut out);
    prost::encoding::encode_varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out
}

#[test]
fn truncated_models_are_refused() {
    for len in (0..MLP.bytes.len()).rev() {
        // Cut between two fields of the model, what remains is a model without a program.
        assert!(Package::from_model(&MLP.bytes[..len], &MLP.weights).is_err(), "cut at {len}");
    }
}

/// Reads a damaged model, and goes on with it if it can be read.
fn exercise(bytes: &[u8], weights: &BlobFile) {
    if let Ok(package) = Package::from_model(bytes, weights) {
        let _ = verify(&package.program);
        for name in package.program.functions.keys() {
            let _ = package.interface(name);
        }
        if let Ok(text) = package.text() {
            let _ = mil::text::parse(&text, weights);
        }
    }
}

static REAL: LazyLock<Vec<Real>> = LazyLock::new(|| {
    ["gpt2_stateful", "llama_multifunction", "mlp_range", "int4_block32", "zoo/concat.fp16"]
        .map(Real::new)
        .into()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn flipped_bits_never_panic(
        which in 0..5usize,
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u32), 1..6),
    ) {
        let mut bytes = REAL[which].bytes.clone();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        exercise(&bytes, &REAL[which].weights);
    }

    #[test]
    fn moved_pieces_never_panic(
        which in 0..5usize,
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        len in 1..200usize,
    ) {
        let mut bytes = REAL[which].bytes.clone();
        let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
        let piece = bytes[from..bytes.len().min(from + len)].to_vec();
        let end = bytes.len().min(to + piece.len());
        bytes.splice(to..end, piece);
        exercise(&bytes, &REAL[which].weights);
    }

    #[test]
    fn damaged_weight_files_never_panic(
        flips in prop::collection::vec((0..256usize, 0..8u32), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let path = testkit::shared_dir()
            .join("coreml/mlp_ios18.mlpackage/Data/com.apple.CoreML/weights/weight.bin");
        let mut bytes = fs::read(path).unwrap();
        for (at, bit) in flips {
            bytes[at] ^= 1 << bit;
        }
        bytes.truncate(cut.index(bytes.len()));
        if let Ok(file) = BlobFile::new(Bytes::copy_from(&bytes)) {
            exercise(&MLP.bytes, &file);
        }
    }
}

/// A package with this manifest, in a folder beside a file that it has no business with.
fn with_manifest(folder: &Path, items: &str) -> std::path::PathBuf {
    let package = folder.join("x.mlpackage");
    fs::create_dir_all(package.join("Data")).unwrap();
    fs::write(folder.join("secret"), b"secret").unwrap();
    let json = format!(
        r#"{{"fileFormatVersion": "1.0.0", "itemInfoEntries": {items}, "rootModelIdentifier": "a"}}"#
    );
    fs::write(package.join("Manifest.json"), json).unwrap();
    package
}

#[test]
fn manifests_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    for (items, message) in [
        (
            r#"{"a": {"path": "../../secret"}}"#,
            r#"item a: path "../../secret" leads out of the model's folder"#,
        ),
        (
            r#"{"a": {"path": "/etc/passwd"}}"#,
            r#"item a: path "/etc/passwd" leads out of the model's folder"#,
        ),
        (r#"{"a": {"path": ""}}"#, r#"item a: path "" leads out of the model's folder"#),
        (r#"{"b": {"path": "x"}}"#, r#"root model "a" is not among the items"#),
        (
            r#"{"a": {"path": "x"}, "b": {"path": "x/../../y"}}"#,
            r#"item b: path "x/../../y" leads out of the model's folder"#,
        ),
        (r#"{"a": {}}"#, "missing field `path` at line 1 column 58"),
    ] {
        let package = with_manifest(folder.path(), items);
        let error = Package::open(&package).unwrap_err();
        let file = package.join("Manifest.json");
        assert_eq!(error.to_string(), format!("{}: {message}", file.display()));
    }
    let package = with_manifest(folder.path(), r#"{"a": {"path": "x"}}"#);
    let error = Package::open(&package).unwrap_err().to_string();
    assert!(error.contains("cannot open \"x\""), "{error}");
    let manifest = package.join("Manifest.json");
    fs::write(&manifest, vec![b' '; 2 << 20]).unwrap();
    assert_eq!(Package::open(&package).unwrap_err().kind, ErrorKind::Limit);
    fs::write(
        &manifest,
        r#"{"fileFormatVersion": "2.0.0", "itemInfoEntries": {}, "rootModelIdentifier": ""}"#,
    )
    .unwrap();
    assert_eq!(Package::open(&package).unwrap_err().kind, ErrorKind::Unsupported);
    fs::remove_file(&manifest).unwrap();
    let error = Package::open(&package).unwrap_err().to_string();
    assert!(error.contains("holds neither Manifest.json (a package) nor model.mil"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_out_of_a_package_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let package = with_manifest(folder.path(), r#"{"a": {"path": "x"}}"#);
    std::os::unix::fs::symlink("../../secret", package.join("Data/x")).unwrap();
    let error = Package::open(&package).unwrap_err().to_string();
    assert!(error.ends_with(r#"path "x" leads out of the model's folder"#), "{error}");
}

#[test]
fn weight_files_lie_in_the_models_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(folder.path().join("w.bin"), [0; 64]).unwrap();
    fs::write(inner.join("empty.bin"), []).unwrap();
    let file = inner.join("x.mil");
    for (path, message) in [
        ("@model_path/../w.bin", "path \"../w.bin\" leads out of the model's folder"),
        ("@model_path//etc/passwd", "path \"/etc/passwd\" leads out of the model's folder"),
        ("@model_path/", "path \"\" leads out of the model's folder"),
        ("/etc/passwd", "path \"/etc/passwd\" of a weight file does not begin with @model_path/"),
        ("@model_path/no.bin", "cannot open \"no.bin\": No such file or directory (os error 2)"),
        ("@model_path/empty.bin", "the weight file is shorter than its header"),
    ] {
        let text = format!(
            "program(1.3)\n[]\n{{\n    func main<ios18>() {{\n            tensor<fp16, [16]> w = const()[val = \
             tensor<fp16, [16]>(BLOBFILE(path = string(\"{path}\"), offset = uint64(64)))];\n        }} -> (w);\n}}"
        );
        fs::write(&file, text).unwrap();
        let error = Package::open(&file).unwrap_err().to_string();
        assert_eq!(error, format!("{}: line 5, column 69: {message}", file.display()));
    }
    fs::write(&file, [0xff, 0xfe]).unwrap();
    assert!(Package::open(&file).unwrap_err().to_string().contains("not MIL text"));
    let error = Package::open(folder.path().join("nothing.mlpackage")).unwrap_err().to_string();
    assert!(error.contains("nothing.mlpackage: cannot open"), "{error}");
}
