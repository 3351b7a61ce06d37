//! The other forms of programs, and what a new package says.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use mil::package::proto::{
    ArrayFeatureType, ConstantDimension, DimensionKind, EnumeratedShapes, FeatureKind, Kept, Model,
    ModelDescription, Pipeline, Shape, ShapeFlexibility, TypeKind,
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
    let enumerated = shapes.iter().map(|s| Shape { shape: s.clone() }.into()).collect();
    let flexibility =
        Some(ShapeFlexibility::Enumerated(EnumeratedShapes { shapes: enumerated }.into()));
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
    assert!(error.to_string().contains("the description does not know the function"), "{error}");
    // Something that is no package is not replaced.
    fs::create_dir(&path).unwrap();
    fs::write(path.join("precious"), "x").unwrap();
    let error = Package::from_program(program()).save(&path).unwrap_err();
    assert!(error.to_string().contains("is in the way"), "{error}");
    assert!(path.join("precious").exists());
}

#[test]
fn a_description_must_fit_its_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.mlpackage");
    let real = Package::open(shared("mlp_fp16io.mlpackage")).unwrap();
    let range = Package::open(shared("mlp_range.mlpackage")).unwrap();
    let refusal = |package: &Package, change: &dyn Fn(&mut ModelDescription)| {
        let mut package = package.clone();
        change(package.description.as_mut().unwrap());
        let error = package.save(&path).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(!path.exists());
        error.to_string().split_once("function main: ").unwrap().1.to_owned()
    };
    fn array(feature: &mut mil::package::proto::FeatureDescription) -> &mut ArrayFeatureType {
        match &mut feature.r#type.as_mut().unwrap().kind {
            Some(FeatureKind::MultiArray(array)) => array,
            _ => panic!(),
        }
    }
    let x = "input x is tensor<fp16, [4, 64]> in the program, in its description";
    let output = real.interface("main").unwrap().outputs[0].name.clone();
    for (change, message) in [
        (
            &(|d: &mut ModelDescription| array(&mut d.input[0]).data_type = 65568)
                as &dyn Fn(&mut ModelDescription),
            format!("{x} fp32 of shape [4, 64]"),
        ),
        (&|d| array(&mut d.input[0]).shape[1] = 63, format!("{x} fp16 of shape [4, 63]")),
        (&|d| array(&mut d.input[0]).shape.push(1), format!("{x} fp16 of shape [4, 64, 1]")),
        (
            &|d| d.input[0].name = "y".into(),
            "the description has an input y that the program lacks".into(),
        ),
        (&|d| drop(d.input.pop()), "the description lacks input x of the program".into()),
        (&|d| d.input.push(d.input[0].clone()), "the description has input x twice".into()),
        (
            &|d| d.output[0].name = "z".into(),
            "the description has an output z that the program lacks".into(),
        ),
        (
            &|d| {
                d.input[0].r#type.as_mut().unwrap().kind =
                    Some(FeatureKind::Double(Default::default()))
            },
            format!("{x} a double"),
        ),
    ] {
        assert_eq!(refusal(&real, change), message);
    }
    let message = refusal(&real, &|d| array(&mut d.output[0]).data_type = 131104);
    assert!(message.starts_with(&format!("output {output} is tensor<fp16")), "{message}");
    let message = refusal(&range, &|d| {
        let Some(ShapeFlexibility::Range(range)) = &mut array(&mut d.input[0]).flexibility else {
            panic!()
        };
        range.size_ranges[1].upper_bound = 65;
    });
    assert!(message.ends_with("fp16 of shape [4, 64] in ranges [(1, Some(32)), (64, Some(65))]"));
}

#[test]
fn another_program_renews_the_description() {
    let mut package = Package::open(shared("llama_multifunction.mlpackage")).unwrap();
    let stated = package.description.clone();
    // The same signatures: nothing changes.
    package.set_program(package.program.clone()).unwrap();
    assert_eq!(package.description, stated);
    // One function less, and of one an output less.
    let mut program = package.program.clone();
    program.functions.remove("decode");
    let description = package.description.as_mut().unwrap();
    let prefill = description.functions.iter_mut().find(|f| f.name == "prefill").unwrap();
    prefill.input[0].short_description = "embedded tokens".into();
    package.set_program(program).unwrap();
    let interface = package.interface("prefill").unwrap();
    assert_eq!(interface.inputs[0].description, "embedded tokens");
    assert_eq!(
        interface.inputs.iter().map(|i| &*i.name).collect::<Vec<_>>(),
        ["x", "cos", "sin", "mask"]
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.mlpackage");
    package.save(&path).unwrap();
    let read = Package::open(&path).unwrap();
    assert_eq!(read.description.unwrap().metadata, stated.unwrap().message.metadata);
    // Another type of input.
    let mut real = Package::open(shared("mlp_range.mlpackage")).unwrap();
    let mut program = real.program.clone();
    let main = program.functions.get_mut("main").unwrap();
    main.attributes = mil::Attributes::new();
    main.values[main.inputs[0]].ty = TensorType::new(DType::F16, [2usize, 64]).into();
    real.set_program(program).unwrap();
    let kind = &real.interface("main").unwrap().inputs[0].kind;
    assert_eq!(*kind, Kind::Array(Some(DType::F16), Shapes::Fixed(vec![2, 64])));
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

/// Bytes of memory that the process holds (Linux).
fn resident() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    Some(statm.split(' ').nth(1)?.parse::<u64>().ok()? * 4096)
}

/// Opening maps weights: two gigabytes, of which nothing is read but the header and one record.
#[test]
fn large_packages_are_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.mlpackage");
    const ELEMENTS: u64 = 1 << 30;
    Package::from_program(program()).save(&path).unwrap();
    // A file of one record, whose data are a hole.
    let mut weights = File::options().write(true).open(path.join(WEIGHTS)).unwrap();
    weights.set_len(128 + 2 * ELEMENTS).unwrap();
    weights.seek(SeekFrom::Start(68)).unwrap();
    weights.write_all(&1u32.to_le_bytes()).unwrap();
    weights.write_all(&(2 * ELEMENTS).to_le_bytes()).unwrap();
    let mut model = read_model(&path);
    for function in model.ml_program.as_mut().unwrap().functions.values_mut() {
        let body = function.block_specializations.values_mut().next().unwrap();
        let constant = body.operations.iter_mut().find(|op| op.r#type == "const").unwrap();
        let value = constant.message.attributes.get_mut("val").unwrap();
        let output = &mut constant.message.outputs[0];
        for ty in [&mut value.message.r#type, &mut output.message.r#type] {
            let Some(TypeKind::Tensor(t)) = &mut ty.as_mut().unwrap().kind else { panic!() };
            t.data_type = 10;
            let size = ConstantDimension { size: ELEMENTS }.into();
            t.dimensions[0].dimension = Some(DimensionKind::Constant(size));
        }
    }
    fs::write(path.join(MODEL), model.encode_to_vec()).unwrap();
    let before = resident();
    let start = Instant::now();
    let package = Package::open(&path).unwrap();
    println!("opened {} bytes in {:?}", package.program.weights.byte_len(), start.elapsed());
    let grown = resident().zip(before).map(|(after, before)| after.saturating_sub(before));
    // Other tests of this process hold some memory too.
    assert!(grown.is_none_or(|n| n < 1 << 28), "{grown:?}");
    assert!(package.program.weights.byte_len() as u64 >= 2 * ELEMENTS);
    let (_, weight) = package.program.weights.iter().next().unwrap();
    assert!(weight.tensor.bytes().is_mapped());
}
