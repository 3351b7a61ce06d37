//! The other forms of programs, and what a new package says.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mil::package::proto::{
    ArrayFeatureType, EnumeratedShapes, FeatureKind, Kept, Model, Pipeline, Shape, ShapeFlexibility,
};
use mil::package::{Kind, Package, Shapes};
use mil::{Dim, ErrorKind, FunctionBuilder, OpKind, Opset, Program, TensorType, Type};
use prost::Message;
use tensor::{DType, Tensor};

use crate::common::same_program;

fn shared(name: &str) -> PathBuf {
    testkit::shared_dir().join("coreml").join(name)
}

const MODEL: &str = "Data/com.apple.CoreML/model.mlmodel";
const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

fn read_model(package: &Path) -> Kept<Model> {
    Kept::decode(&fs::read(package.join(MODEL)).unwrap()[..]).unwrap()
}

#[test]
fn a_compiled_model_says_what_its_package_does() {
    for name in ["mlp_ios16", "mlp_range", "gpt2_stateful", "llama_multifunction"] {
        let package = Package::open(shared(name).with_extension("mlpackage")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("model.mil"), package.text().unwrap()).unwrap();
        fs::create_dir(folder.path().join("weights")).unwrap();
        let weights = shared(name).with_extension("mlpackage").join(WEIGHTS);
        fs::copy(weights, folder.path().join("weights/weight.bin")).unwrap();
        let metadata = format!(
            r#"[{{"metadataOutputVersion": "3.0", "specificationVersion": {}, "author": "somebody",
                 "userDefinedMetadata": {{"a": "b"}}}}]"#,
            package.spec_version
        );
        fs::write(folder.path().join("metadata.json"), metadata).unwrap();
        let compiled = Package::open(folder.path()).unwrap();
        same_program(&package.program, &compiled.program).unwrap();
        assert_eq!(compiled.spec_version, package.spec_version);
        assert_eq!(compiled.text().unwrap(), package.text().unwrap());
        let metadata = compiled.description.as_ref().unwrap().metadata.as_ref().unwrap();
        assert_eq!(metadata.author, "somebody");
        assert_eq!(metadata.user_defined["a"], "b");
        for function in package.program.functions.keys() {
            let mut stated = package.interface(function).unwrap();
            let compiled = compiled.interface(function).unwrap();
            // Text has its parameters in alphabetical order.
            stated.inputs.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(stated, compiled);
        }
        // The text alone, its weights beside it.
        let bare = Package::open(folder.path().join("model.mil")).unwrap();
        same_program(&package.program, &bare.program).unwrap();
        fs::write(folder.path().join("metadata.json"), "{").unwrap();
        let error = Package::open(folder.path()).unwrap_err();
        assert!(error.file.unwrap().ends_with("metadata.json"));
    }
}

#[test]
fn what_real_packages_state() {
    let range = Package::open(shared("mlp_range.mlpackage")).unwrap();
    let interface = range.interface("main").unwrap();
    let shapes =
        Shapes::Range { default: vec![4, 64], ranges: vec![(1, Some(32)), (64, Some(64))] };
    assert_eq!(interface.inputs[0].kind, Kind::Array(Some(DType::F16), shapes));
    assert!(range.interface("other").is_err());
    assert_eq!(range.default_function(), Some("main"));

    let functions = Package::open(shared("llama_multifunction.mlpackage")).unwrap();
    assert_eq!(functions.default_function(), Some("decode"));
    let names = |p: &Package, f: &str| {
        p.interface(f).unwrap().inputs.into_iter().map(|i| i.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&functions, "prefill"), ["x", "cos", "sin", "mask"]);

    let gpt2 = Package::open(shared("gpt2_stateful.mlpackage")).unwrap();
    let states = gpt2.interface("main").unwrap().states;
    assert_eq!(states.len(), 2);
    let shape = Shapes::Fixed(vec![2, 1, 4, 32, 16]);
    assert_eq!(states[0].kind, Kind::State(Some(DType::F16), shape));
}

#[test]
fn enumerated_shapes_survive() {
    let path = shared("mlp_range.mlpackage");
    let mut model = read_model(&path);
    let feature = &mut model.description.as_mut().unwrap().input[0];
    let kind = &mut feature.r#type.as_mut().unwrap().kind;
    let Some(FeatureKind::MultiArray(array)) = kind else { panic!() };
    let shapes: Vec<Vec<i64>> = vec![vec![1, 64], vec![4, 64], vec![16, 64]];
    let enumerated = shapes.iter().map(|s| Shape { shape: s.clone() }).collect();
    let flexibility = Some(ShapeFlexibility::Enumerated(EnumeratedShapes { shapes: enumerated }));
    *array = ArrayFeatureType { flexibility, ..array.message.clone() }.into();
    let weights = mil::package::blob::BlobFile::new(tensor::Bytes::copy_from(
        &fs::read(path.join(WEIGHTS)).unwrap(),
    ));
    let mut package = Package::from_model(&model.encode_to_vec(), &weights.unwrap()).unwrap();
    let expected =
        Kind::Array(Some(DType::F16), Shapes::Enumerated { default: vec![4, 64], shapes });
    assert_eq!(package.interface("main").unwrap().inputs[0].kind, expected);
    let text = package.text().unwrap();
    assert!(text.contains(r#"("EnumeratedShapes", {{""#), "{text}");
    // The text alone says it too.
    package.description = None;
    assert_eq!(package.interface("main").unwrap().inputs[0].kind, expected);
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.mlpackage");
    package.save(&copy).unwrap();
    let again = Package::open(&copy).unwrap();
    assert_eq!(again.interface("main").unwrap().inputs[0].kind, expected);
    same_program(&package.program, &again.program).unwrap();
}

#[test]
fn a_pipeline_of_one_is_its_model() {
    let path = shared("mlp_fp32.mlpackage");
    let weights = crate::common::weights_of(&shared("mlp_fp32.mil"));
    let model = read_model(&path);
    let pipeline = |models: Vec<Kept<Model>>| {
        let names = vec!["m".to_owned(); models.len()];
        let mut outer = Model { specification_version: 9, ..Default::default() };
        outer.pipeline = Some(Pipeline { models, names }.into());
        outer.encode_to_vec()
    };
    let package = Package::from_model(&pipeline(vec![model.clone()]), &weights).unwrap();
    same_program(&package.program, &Package::open(&path).unwrap().program).unwrap();
    for several in [vec![], vec![model.clone(), model]] {
        let error = Package::from_model(&pipeline(several), &weights).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
    }
}

/// `y = x * w` on rows of 16, in two functions that share the weight.
fn program() -> Program {
    let mut program = Program::default();
    let w = Tensor::from_slice(&[16], &[0.5f32; 16]).unwrap();
    let w = program.weights.insert("w", w);
    for (name, rows) in [("decode", 1usize), ("main", 8)] {
        let mut b = FunctionBuilder::new(name, Opset::Ios18, &mut program.weights);
        let x = b.input("x", TensorType::new(DType::F32, [rows, 16]));
        let w = b.weight(w).unwrap();
        let y = b.op(OpKind::Mul).arg("x", x).arg("y", w).name("y").result().unwrap();
        let f = b.finish(vec![y]);
        program.functions.insert(name.into(), f);
    }
    program
}

#[test]
fn a_new_package_describes_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.mlpackage");
    let package = Package::from_program(program());
    package.save(&path).unwrap();
    let read = Package::open(&path).unwrap();
    same_program(&package.program, &read.program).unwrap();
    assert_eq!((read.spec_version, read.default_function()), (9, Some("main")));
    let decode = read.interface("decode").unwrap();
    assert_eq!(decode.inputs[0].kind, Kind::Array(Some(DType::F32), Shapes::Fixed(vec![1, 16])));
    // One copy of the shared weight.
    assert_eq!(fs::metadata(path.join(WEIGHTS)).unwrap().len(), 128 + 64);
    // Written again over itself, from its own mapped weights.
    read.save(&path).unwrap();
    same_program(&package.program, &Package::open(&path).unwrap().program).unwrap();
    let entries: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(entries, ["new.mlpackage"]);
}

#[test]
fn what_core_ml_does_not_have_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.mlpackage");
    let refusal = |program: Program| {
        let error = Package::from_program(program).save(&path).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        (error.kind, error.message)
    };
    let one = |f: &dyn Fn(&mut FunctionBuilder<'_>)| {
        let mut program = Program::default();
        let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
        f(&mut b);
        let last = b.function().values.keys().next_back().unwrap();
        let f = b.finish(vec![last]);
        program.functions.insert("main".into(), f);
        program
    };
    let symbolic = one(&|b| {
        b.input("x", TensorType::new(DType::F32, [Dim::symbol("seq")]));
    });
    let (kind, message) = refusal(symbolic);
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(message.starts_with("input x is tensor<fp32, [seq]>: size seq must be fixed first"));
    let wide = one(&|b| {
        b.input("x", TensorType::new(DType::I64, [4usize]));
    });
    assert_eq!(
        refusal(wide),
        (ErrorKind::Unsupported, "input x of type tensor<int64, [4]> in a model".into())
    );
    let dialect = one(&|b| {
        let x = b.input("x", TensorType::new(DType::F32, [1usize, 4]));
        let w = Tensor::from_slice(&[4], &[1f32; 4]).unwrap();
        let w = b.constant("w", mil::Literal::tensor(w));
        let eps = b.constant("eps", mil::Literal::scalar(1e-5f32));
        b.op(OpKind::LlmRmsNorm).arg("x", x).arg("weight", w).arg("epsilon", eps).result().unwrap();
    });
    assert_eq!(
        refusal(dialect),
        (
            ErrorKind::Unsupported,
            "operations that Core ML does not have, to be decomposed first: llm.rms_norm".into()
        )
    );
    let mut renamed = Package::from_program(program());
    renamed.description = Package::open(shared("mlp_fp32.mlpackage")).unwrap().description;
    let error = renamed.save(&path).unwrap_err();
    assert!(error.to_string().contains("the description's inputs are not those of the function"));
    // Something that is no package is not replaced.
    fs::create_dir(&path).unwrap();
    fs::write(path.join("precious"), "x").unwrap();
    let error = Package::from_program(program()).save(&path).unwrap_err();
    assert!(error.to_string().contains("is in the way"), "{error}");
    assert!(path.join("precious").exists());
}

#[test]
fn states_become_part_of_the_description() {
    let mut program = Program::default();
    let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let s = b.input("s", Type::State(TensorType::new(DType::F16, [3usize])));
    let y = b.op(OpKind::ReadState).arg("input", s).name("y").result().unwrap();
    let f = b.finish(vec![y]);
    program.functions = BTreeMap::from([("main".into(), f)]);
    let interface = Package::from_program(program).interface("main").unwrap();
    assert_eq!(interface.states[0].kind, Kind::State(Some(DType::F16), Shapes::Fixed(vec![3])));
    assert!(interface.inputs.is_empty());
}

/// Opening maps weights: two gigabytes, of which nothing is read but the header and one record.
#[test]
fn large_models_open_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.mlpackage");
    const ELEMENTS: usize = 1 << 30;
    Package::from_program(program()).save(&path).unwrap();
    let mut weights = File::options().write(true).open(path.join(WEIGHTS)).unwrap();
    weights.set_len(128 + 2 * ELEMENTS as u64).unwrap();
    weights.seek(SeekFrom::Start(68)).unwrap();
    weights.write_all(&1u32.to_le_bytes()).unwrap();
    weights.write_all(&(2 * ELEMENTS as u64).to_le_bytes()).unwrap();
    let text = format!(
        "program(1.3)\n[]\n{{\n    func main<ios18>() {{\n            tensor<fp16, [{ELEMENTS}]> w = const()[val = \
         tensor<fp16, [{ELEMENTS}]>(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];\n        \
         }} -> (w);\n}}"
    );
    let folder = path.join("Data/com.apple.CoreML");
    fs::write(folder.join("x.mil"), text).unwrap();
    let start = Instant::now();
    let package = Package::open(folder.join("x.mil")).unwrap();
    let took = start.elapsed();
    assert!(package.program.weights.byte_len() > 2_000_000_000);
    let (_, weight) = package.program.weights.iter().next().unwrap();
    assert!(weight.tensor.bytes().is_mapped());
    assert!(took < Duration::from_millis(500), "{took:?}");
}
