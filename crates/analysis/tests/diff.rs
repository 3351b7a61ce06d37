//! Differences of artefacts of Apple's and coremltools' making, and of programs changed on purpose.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::PathBuf;

use mil::eval::Arithmetic;
use mil::package::Package;
use mil::{Literal, OpKind, Payload};
use rigel_analysis::diff::{
    FunctionDiff, NumericDiff, NumericOptions, ProgramDiff, compare, compare_runs, numeric_text,
    program_text,
};
use tensor::Tensor;

fn artefacts() -> PathBuf {
    testkit::shared_dir().join("coreml")
}

fn artefact(name: &str) -> Package {
    let package = Package::open(artefacts().join(format!("{name}.mlpackage"))).unwrap();
    mil::verify(&package.program).unwrap();
    package
}

/// The program of an artefact as its MIL text has it, over the artefact's weights.
fn text_of(name: &str) -> Package {
    let dir = tempfile::tempdir().unwrap();
    let model = artefacts().join(format!("{name}.mlpackage/Data/com.apple.CoreML"));
    let weights = model.join("weights/weight.bin");
    if weights.exists() {
        fs::create_dir(dir.path().join("weights")).unwrap();
        fs::copy(weights, dir.path().join("weights/weight.bin")).unwrap();
    }
    let text = dir.path().join("model.mil");
    fs::copy(artefacts().join(format!("{name}.mil")), &text).unwrap();
    let package = Package::open(text).unwrap();
    mil::verify(&package.program).unwrap();
    package
}

fn of(diff: &ProgramDiff) -> &FunctionDiff {
    let [function] = &*diff.functions else { panic!("{}", program_text(diff)) };
    function
}

fn structure(a: &str, b: &str) -> FunctionDiff {
    let diff = compare(&artefact(a), &artefact(b)).unwrap();
    println!("{}", program_text(&diff));
    of(&diff).clone()
}

fn runs(a: &Package, b: &Package, steps: usize, tolerance: f64) -> NumericDiff {
    let options = NumericOptions {
        function: None,
        inputs: &["random".parse().unwrap()],
        steps,
        seed: 1,
        arithmetic: Arithmetic::F32,
        operations: true,
        tolerance,
    };
    let diff = compare_runs(a, b, &options).unwrap();
    println!("{}", numeric_text(&diff));
    diff
}

fn kinds(ops: &[rigel_analysis::diff::Single]) -> Vec<&str> {
    ops.iter().map(|o| &*o.kind).collect()
}

/// Names of the values that differ in more than the type.
fn changed(f: &FunctionDiff) -> Vec<&str> {
    let more = |c: &rigel_analysis::diff::Change| c.what != "type";
    let changed = f.changed.iter().filter(|o| o.changes.iter().any(more));
    changed.map(|o| &*o.name).collect()
}

#[test]
fn a_package_is_the_same_as_itself_and_as_its_text() {
    for name in [
        "mlp_fp32",
        "mlp_ios15",
        "mlp_range",
        "ane_block_ios16",
        "llama_gqa_ios18",
        "gpt2_stateful",
        "lstm_ios17",
        "llama_multifunction",
        "pal4_int8lut",
        "sparse50_int8",
        "int4_block32",
        "uint8_perchannel_asym_ios16",
        "convnet_image_classifier",
    ] {
        let package = artefact(name);
        let diff = compare(&package, &package).unwrap();
        assert!(diff.is_same(), "{name}: {}", program_text(&diff));
        assert!(diff.functions.iter().all(|f| f.renamed.is_empty() && f.same > 0), "{name}");
        let diff = compare(&package, &text_of(name)).unwrap();
        assert!(diff.is_same(), "{name}: {}", program_text(&diff));
    }
}

#[test]
fn half_precision_adds_casts_and_rounds_weights() {
    let f = structure("mlp_fp32", "mlp_ios15");
    assert_eq!(kinds(&f.added), ["cast", "cast"]);
    assert!(f.removed.is_empty() && changed(&f).is_empty());
    assert_eq!(f.weights.len(), 4);
    for w in &f.weights {
        let (from, to) = (w.from.as_ref().unwrap(), w.to.as_ref().unwrap());
        assert_eq!((&*from.encoding, &*to.encoding), ("fp32", "fp16"));
        assert_eq!(from.bytes, 2 * to.bytes);
        assert!(w.difference.as_ref().unwrap().relative < 1e-3);
    }
    let f = structure("mlp_fp32", "mlp_ios18");
    assert_eq!(kinds(&f.added), ["cast"]);
    let numbers = runs(&artefact("mlp_fp32"), &artefact("mlp_ios15"), 1, 1e-2);
    assert!(numbers.is_close() && !numbers.is_same() && numbers.first_divergence.is_none());
    assert_eq!(numbers.operations.len(), 3);
    assert_eq!(numbers.outputs[0].argmax.unwrap().rows, 4);
}

#[test]
fn palettes_hold_the_values_they_decompress_to() {
    for (name, encoding) in [
        ("pal4_pertensor_ios18", "4-bit palette of fp16"),
        ("pal4_pertensor_ios16", "4-bit palette of fp16"),
    ] {
        let f = structure(name, "pal4_decompressed");
        assert!(f.added.is_empty() && f.removed.is_empty() && f.changed.is_empty());
        assert_eq!(f.weights.len(), 2);
        for w in &f.weights {
            assert!(w.difference.as_ref().unwrap().is_none());
            assert_eq!(w.from.as_ref().unwrap().encoding, encoding);
        }
    }
    let numbers = runs(&artefact("pal4_pertensor_ios18"), &artefact("pal4_decompressed"), 1, 0.0);
    assert!(numbers.is_same());
    let encodings = |name: &str| {
        let f = structure(name, "pal4_decompressed");
        f.weights[0].from.as_ref().unwrap().encoding.clone()
    };
    assert_eq!(encodings("pal4_grouped16"), "4-bit palettes (16) of fp16");
    assert_eq!(encodings("pal4_vector2"), "4-bit palette of vectors of 2 fp16");
    assert_eq!(encodings("pal4_int8lut"), "4-bit palettes (16) of int8, scales fp16");
}

#[test]
fn blocks_of_four_bits_are_apart_where_they_are_used() {
    let f = structure("base_big", "int4_block32");
    assert!(f.added.is_empty() && f.removed.is_empty() && f.changed.is_empty());
    let to = f.weights[0].to.as_ref().unwrap();
    assert_eq!(to.encoding, "int4 in blocks of [1, 32], scales fp16");
    assert!(f.weights[0].difference.as_ref().unwrap().relative > 0.01);
    let numbers = runs(&artefact("base_big"), &artefact("int4_block32"), 1, 1e-3);
    let divergence = numbers.first_divergence.unwrap();
    assert_eq!(divergence.operation, "linear \"linear_0_cast_fp16\"");
}

#[test]
fn later_operation_sets_keep_the_operations() {
    let f = structure("ane_block_ios16", "ane_block_ios18");
    assert!(f.removed.len() + f.added.len() <= 4, "{f:?}");
    assert!(f.interface.iter().any(|c| c.what == "operation set"));
    let numbers = runs(&artefact("ane_block_ios16"), &artefact("ane_block_ios18"), 1, 1e-2);
    assert!(numbers.is_close());
    let f = structure("llama_gqa_ios16", "llama_gqa_ios18");
    assert!(f.removed.len() + f.added.len() <= 8, "{f:?}");
    let numbers = runs(&artefact("llama_gqa_ios16"), &artefact("llama_gqa_ios18"), 1, 1e-2);
    assert!(numbers.is_close());
}

#[test]
fn one_weight_that_changed_is_found() {
    let a = artefact("gpt2_stateful");
    let mut b = a.clone();
    let literals = b.program.functions["main"].ops.values().filter_map(|op| op.const_value());
    let id = literals.filter_map(|l| match l.payload {
        Payload::Weight(id) if l.ty.as_tensor().unwrap().rank() == 2 => Some(id),
        _ => None,
    });
    let id = { id }.next_back().unwrap();
    let old = &b.program.weights.get(id).unwrap().tensor;
    let mut bytes = old.bytes().to_vec();
    bytes[7] ^= 0x40;
    let new = Tensor::new(old.dtype(), old.shape(), tensor::Bytes::copy_from(&bytes)).unwrap();
    b.program.weights.replace(id, new);
    let diff = compare(&a, &b).unwrap();
    let f = of(&diff);
    assert!(
        f.added.is_empty() && f.removed.is_empty() && f.changed.is_empty() && f.renamed.is_empty()
    );
    assert_eq!(f.weights.len(), 1, "{}", program_text(&diff));
    assert_eq!(f.weights[0].difference.as_ref().unwrap().differing, 1);
    let numbers = runs(&a, &b, 2, 1e-4);
    let divergence = numbers.first_divergence.unwrap();
    assert!(f.weights[0].used_by.starts_with(&divergence.operation), "{divergence:?}");
}

#[test]
fn one_attribute_that_changed_is_found() {
    let a = artefact("ane_block_ios18");
    let mut b = a.clone();
    let function = b.program.functions.get_mut("main").unwrap();
    let op = function.ops.values().find(|op| op.kind == OpKind::Softmax).unwrap();
    let mil::Arg::Value(axis) = op.arg("axis").unwrap().clone() else { panic!() };
    let mil::ValueDef::Result(maker, _) = function.values[axis].def else { panic!() };
    let softmax = function.values[op.outputs[0]].name.clone();
    function.ops[maker].attributes.insert("val", Literal::scalar(2i32));
    let diff = compare(&a, &b).unwrap();
    let f = of(&diff);
    let change = f.changed.iter().find(|o| o.kind == "softmax").unwrap();
    assert_eq!(change.name, softmax);
    assert_eq!((&*change.changes[0].what, change.changes[0].to.as_deref()), ("axis", Some("2")));
    assert!(f.added.is_empty() && f.removed.is_empty() && f.weights.is_empty());
}

/// Every value but inputs and outputs gets another name, and operations lose theirs.
fn rename(package: &mut Package) {
    for function in package.program.functions.values_mut() {
        let kept: Vec<_> = function.inputs.iter().chain(&function.body.outputs).copied().collect();
        for (v, data) in function.values.iter_mut().filter(|(v, _)| !kept.contains(v)) {
            data.name = format!("value_{}", 7 * v.as_u32() + 3);
        }
        for op in function.ops.values_mut() {
            op.attributes.remove("name");
        }
    }
}

#[test]
fn other_names_are_no_difference_but_told() {
    for name in ["gpt2_stateful", "llama_gqa_ios18", "mlp_ios15", "llama_multifunction"] {
        let a = artefact(name);
        let mut b = a.clone();
        rename(&mut b);
        let diff = compare(&a, &b).unwrap();
        assert!(diff.is_same(), "{name}: {}", program_text(&diff));
        assert!(diff.functions.iter().all(|f| !f.renamed.is_empty()), "{name}");
    }
}

#[test]
fn a_change_among_other_names_is_found() {
    let a = artefact("ane_block_ios18");
    let mut b = a.clone();
    rename(&mut b);
    let function = b.program.functions.get_mut("main").unwrap();
    let op = function.ops.keys().find(|&op| function.ops[op].kind == OpKind::Softmax).unwrap();
    let arg = function.ops[op].arg("x").unwrap().clone();
    let values = function.ops[op].outputs.clone();
    // The softmax is left out: its users take its argument.
    for other in function.ops.values_mut() {
        for used in other.args.iter_mut().flatten() {
            used.for_each_value_mut(&mut |v| {
                if let (true, mil::Arg::Value(x)) = (values.contains(v), &arg) {
                    *v = *x;
                }
            });
        }
    }
    function.body.ops.retain(|&id| id != op);
    let diff = compare(&a, &b).unwrap();
    let f = of(&diff);
    println!("{}", program_text(&diff));
    assert_eq!(kinds(&f.removed), ["softmax"]);
    assert!(f.added.is_empty() && f.weights.is_empty());
    assert_eq!(f.changed.len(), 1);
    assert_eq!(f.changed[0].kind, "einsum");
}

#[test]
fn inputs_of_another_name_are_paired() {
    let a = artefact("mlp_fp32");
    let mut b = a.clone();
    let function = b.program.functions.get_mut("main").unwrap();
    let x = function.inputs[0];
    function.values[x].name = "features".to_owned();
    b.description = None;
    let diff = compare(&a, &b).unwrap();
    let f = of(&diff);
    assert_eq!(f.interface.len(), 1, "{}", program_text(&diff));
    assert_eq!(f.interface[0].to.as_deref(), Some("features"));
    assert!(!diff.is_same());
    assert!(runs(&a, &b, 1, 0.0).is_same());
}

#[test]
fn steps_keep_states() {
    let a = artefact("gpt2_stateful");
    let numbers = runs(&a, &a, 3, 0.0);
    assert!(numbers.is_same() && numbers.first_divergence.is_none());
    assert_eq!(numbers.outputs.iter().filter(|o| o.step == 2).count(), 1);
    assert_eq!(numbers.states.len(), 6);
}
