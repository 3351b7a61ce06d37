//! Programs that coremltools made, against the outputs of their sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mil::eval::{self, Arithmetic, Array, Data, States, Value};
use mil::package::blob::BlobFile;
use mil::{OpKind, Program, Type};
use tensor::{Bytes, DType};

use crate::npz;

pub(crate) fn root() -> PathBuf {
    testkit::shared_dir().join("coreml")
}

/// The program of a text, with the weights of the package beside it; `None` if it has an operation
/// that the catalogue lacks.
pub(crate) fn load(path: &Path) -> Option<Program> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let package = path.with_extension("mlpackage");
    let weights = fs::read(package.join("Data/com.apple.CoreML/weights/weight.bin"));
    let empty = || [[0, 0, 0, 0, 2].as_slice(), &[0; 59]].concat();
    let weights = BlobFile::new(Bytes::copy_from(&weights.unwrap_or_else(|_| empty()))).unwrap();
    match mil::text::parse(&text, &weights) {
        Ok(parsed) => {
            mil::verify(&parsed.program).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            Some(parsed.program)
        }
        Err(e) if e.kind == mil::ErrorKind::Unsupported => None,
        Err(e) => panic!("{}: {e}", path.display()),
    }
}

pub(crate) fn run(
    program: &Program,
    arithmetic: Arithmetic,
    inputs: &BTreeMap<String, Value>,
    states: &mut States,
) -> Vec<Array> {
    let out = eval::run(program, "main", arithmetic, inputs, states).unwrap();
    // A classifier's outputs are the class and the probabilities by class: only these are numbers.
    let numbers = |v: &Value| match v {
        Value::Array(a) if matches!(a.data, Data::Str(_)) => None,
        Value::Dict(entries) => {
            let values = entries.iter().flat_map(|(_, p)| floats(p.array().unwrap())).collect();
            let shape = vec![1, entries.len()];
            Some(Array { dtype: DType::F64, shape, data: Data::Float(values) })
        }
        other => Some(other.array().unwrap().as_ref().clone()),
    };
    out.iter().filter_map(numbers).collect()
}

fn floats(a: &Array) -> Vec<f64> {
    match &a.data {
        Data::Float(v) => v.clone(),
        Data::Int(v) => v.iter().map(|&i| i as f64).collect(),
        Data::Bool(v) => v.iter().map(|&b| f64::from(u8::from(b))).collect(),
        Data::Str(_) => panic!("strings"),
    }
}

/// How far `actual` is from `expected`, relative above 1.
pub(crate) fn distance(actual: &Array, expected: &Array) -> f64 {
    assert_eq!(actual.shape, expected.shape);
    let far = |(a, e): (&f64, &f64)| if a == e { 0.0 } else { (a - e).abs() / e.abs().max(1.0) };
    floats(actual).iter().zip(&floats(expected)).map(far).fold(0.0, |worst, d| {
        assert!(!d.is_nan(), "a number against none");
        f64::max(worst, d)
    })
}

/// Inputs by name, as the program's types want them.
pub(crate) fn inputs(
    program: &Program,
    arrays: &BTreeMap<String, Array>,
) -> BTreeMap<String, Value> {
    let main = &program.functions["main"];
    let typed = |&v: &mil::ValueId| {
        let data = &main.values[v];
        let ty = data.ty.as_tensor()?;
        let mut array = arrays[&data.name].clone();
        array.dtype = ty.dtype;
        Some((data.name.clone(), Value::from(array)))
    };
    main.inputs.iter().filter_map(typed).collect()
}

/// The same program with its constants in half precision where the program `half` has them so: of some
/// activations coremltools leaves them as they are.
fn halved(single: &Program, half: &Program) -> Program {
    let is_single = |op: &mil::Operation| {
        let value = op.const_value().and_then(|l| l.resolve(&half.weights));
        value.is_some_and(|t| t.dtype() == DType::F32)
    };
    let mut program = single.clone();
    if half.functions["main"].ops.values().any(is_single) {
        return program;
    }
    let main = program.functions.get_mut("main").unwrap();
    for op in main.ops.values_mut().filter(|op| op.kind == OpKind::Const) {
        let value = op.attributes.get_mut("val").unwrap();
        let Some(tensor) = value.resolve(&program.weights) else { continue };
        if tensor.dtype() == DType::F32 {
            let array = rounded(&Array::from_tensor(tensor).unwrap());
            *value = mil::Literal::tensor(array.to_tensor().unwrap());
        }
    }
    program
}

/// The array with its floats, if it has any, rounded to half precision.
fn rounded(array: &Array) -> Array {
    let round = |&v: &f64| Arithmetic::Fp16.round(DType::F16, v);
    match array.floats() {
        Ok(values) => array.with_floats(values.iter().map(round).collect()),
        Err(_) => array.clone(),
    }
}

/// A result in half precision that is not the exact one on rounded numbers, rounded.
fn rounded_otherwise(
    single: &Program,
    half: &Program,
    given: &BTreeMap<String, Value>,
) -> Option<String> {
    let round = |(name, value): (&String, &Value)| {
        (name.clone(), Value::from(rounded(value.array().unwrap())))
    };
    let given: BTreeMap<String, Value> = given.iter().map(round).collect();
    let exact = run(&halved(single, half), Arithmetic::Exact, &given, &mut States::new());
    let actual = run(half, Arithmetic::Fp16, &given, &mut States::new());
    let differs = |(exact, actual): (&Array, &Array)| {
        let (expected, actual) = (floats(&rounded(exact)), floats(actual));
        let same = |(e, a): (&f64, &f64)| e == a || (e.is_nan() && a.is_nan());
        let at = expected.iter().zip(&actual).position(|pair| !same(pair))?;
        Some(format!("{} for {} at {at}", actual[at], expected[at]))
    };
    exact.iter().zip(&actual).find_map(differs)
}

/// How far a result in half precision may be from the recorded one, relative above 1. Recorded is what
/// coremltools' value inference computed with numpy in single precision, so what is compared is how much
/// the operation makes of the rounding of its arguments, by 2^-11 at most, and that of its result.
fn half_tolerance(name: &str) -> f64 {
    match name {
        // Near its pole it magnifies what its argument lost.
        "tan" => 1.7e-2,
        // Of a sum of products that cancel each loses by its own magnitude.
        "linear" | "conv_custom_dil_grp" => 4.2e-3,
        "conv3d" | "matmul_const_w" => 3.5e-3,
        "conv1d_dw" | "einsum_chw" | "matmul_bcast" => 1.7e-3,
        // The result loses what its argument does, times that and the logarithm of 2.
        "exp2" => 1.2e-3,
        _ => 2f64.powi(-10),
    }
}

/// Programs of one operation each, in single and in half precision.
#[test]
fn single_operations() {
    let mut compared = 0;
    let mut failures = Vec::new();
    let mut corrections =
        npz::read(&testkit::workspace_dir().join("tests/golden/zoo_corrections.npz"));
    for entry in fs::read_dir(root().join("zoo")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(name) = name.strip_suffix(".io.npz") else { continue };
        let mut arrays = npz::read(&path);
        let given: BTreeMap<String, Array> = arrays
            .iter()
            .filter_map(|(n, a)| Some((n.strip_prefix("in_")?.to_owned(), a.clone())))
            .collect();
        // coremltools' value inference, which the outputs are of, takes no notice of two arguments.
        if let Some(right) = corrections.remove(name) {
            let wrong = arrays.insert("out0".to_owned(), right);
            assert!(distance(&wrong.unwrap(), &arrays["out0"]) > 0.1, "{name} was right");
        }
        let load = |precision| load(&path.with_file_name(format!("{name}.{precision}.mil")));
        let (Some(single), Some(half)) = (load("fp32"), load("fp16")) else { continue };
        let inputs = inputs(&single, &given);
        if let Some(difference) = rounded_otherwise(&single, &half, &inputs) {
            failures.push(format!("{name} is not rounded once: {difference}"));
        }
        for (precision, program, tolerance) in
            [("fp32", &single, 1e-5), ("fp16", &half, half_tolerance(name))]
        {
            let given = &inputs;
            let out = run(program, Arithmetic::Fp16, given, &mut States::new());
            for (i, out) in out.iter().enumerate() {
                let expected = &arrays[&format!("out{i}")];
                let far = distance(out, expected);
                if far > tolerance {
                    failures.push(format!("{name} in {precision}, output {i}: off by {far:e}"));
                }
            }
            compared += 1;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(corrections.is_empty(), "{corrections:?}");
    assert!(compared >= 200, "only {compared} programs could be run");
}

/// Whole models against PyTorch in single precision, with the inputs' names in PyTorch's order.
#[test]
fn models() {
    let all: [(&str, &[&str], f64, f64); 22] = [
        ("mlp_fp32", &["x"], 1e-5, 1e-5),
        ("mlp_ios15", &["x"], 6e-4, 8e-4),
        ("mlp_ios16", &["x"], 6e-4, 8e-4),
        ("mlp_ios17", &["x"], 6e-4, 8e-4),
        ("mlp_ios18", &["x"], 6e-4, 8e-4),
        ("mlp_ios26", &["x"], 6e-4, 8e-4),
        ("mlp_range", &["x"], 6e-4, 8e-4),
        ("mlp_fp16io", &["x"], 6e-4, 8e-4),
        ("base_big", &["x"], 6e-4, 8e-4),
        ("pal6_pertensor_ios18", &["x"], 3e-2, 3e-2),
        ("pal8_pertensor_ios18", &["x"], 8e-3, 8e-3),
        ("int8_block64", &["x"], 8e-3, 8e-3),
        ("int8_perchannel_sym_ios18", &["x"], 8e-3, 8e-3),
        ("int8_pertensor_asym_ios18", &["x"], 8e-3, 8e-3),
        ("uint8_perchannel_asym_ios16", &["x"], 8e-3, 8e-3),
        ("lstm_ios17", &["x"], 3.2e-4, 4.6e-4),
        ("convnet_image_classifier", &["image"], 5.4e-6, 4.4e-5),
        ("llama_gqa_ios16", &["x", "cos", "sin", "mask"], 6e-4, 6e-3),
        ("llama_gqa_ios18", &["x", "cos", "sin", "mask"], 6e-4, 6e-3),
        ("ane_block_ios16", &["x", "mask"], 6e-4, 4e-3),
        ("ane_block_ios18", &["x", "mask"], 6e-4, 4e-3),
        ("sdpa_ios18", &["q", "k", "v", "m"], 6e-4, 3e-3),
    ];
    for (name, order, single, half) in all {
        let program = load(&root().join(format!("{name}.mil"))).unwrap();
        let arrays = npz::read(&root().join(format!("{name}.io.npz")));
        // Images are of 0 to 255, their sources of 0 to 1.
        let scaled = |name: &str, array: &Array| match name {
            "image" => array.with_floats(floats(array).iter().map(|v| v * 255.0).collect()),
            _ => array.clone(),
        };
        let given = order
            .iter()
            .enumerate()
            .map(|(i, n)| ((*n).to_owned(), scaled(n, &arrays[&format!("in{i}")])))
            .collect();
        let inputs = inputs(&program, &given);
        for (arithmetic, tolerance) in [(Arithmetic::F32, single), (Arithmetic::Fp16, half)] {
            let out = run(&program, arithmetic, &inputs, &mut States::new());
            for (i, out) in out.iter().enumerate() {
                let far = distance(out, &arrays[&format!("out{i}")]);
                assert!(far <= tolerance, "{name} in {arithmetic:?}, output {i}: off by {far:e}");
            }
        }
    }
}

/// 64-bit FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(start, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Weights of all compressed packages, decompressed, against coremltools' to the bit, and what the
/// models make of them against the model with plain weights.
#[test]
fn compressed_weights() {
    let golden = testkit::workspace_dir().join("tests/golden/coreml_weights.txt");
    let golden = fs::read_to_string(golden).unwrap();
    let mut expected = BTreeMap::<&str, Vec<(&str, &str)>>::new();
    for line in golden.lines() {
        let [package, shape, hash] = *line.split(' ').collect::<Vec<_>>() else { panic!("{line}") };
        expected.entry(package).or_default().push((shape, hash));
    }
    assert!(expected.len() >= 18, "{expected:?}");
    for (name, expected) in expected {
        let program = load(&root().join(format!("{name}.mil"))).unwrap();
        let arrays = npz::read(&root().join(format!("{name}.io.npz")));
        let given = inputs(&program, &[("x".to_owned(), arrays["in0"].clone())].into());
        let mut made = BTreeMap::new();
        let mut states = States::new();
        let mut observe = |v, value: &Value| drop(made.insert(v, value.clone()));
        let mode = Arithmetic::Fp16;
        eval::run_observed(&program, "main", mode, &given, &mut states, &mut observe).unwrap();
        let main = &program.functions["main"];
        let linear = main.body.ops.iter().filter(|&&op| main.ops[op].kind == OpKind::Linear);
        let weights: Vec<(String, String)> = linear
            .map(|&op| {
                let mil::Arg::Value(v) = main.ops[op].arg("weight").unwrap() else { panic!() };
                let tensor = made[v].array().unwrap().to_tensor().unwrap();
                let shape: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
                (shape.join("x"), format!("{:016x}", hash(tensor.bytes())))
            })
            .collect();
        let weights: Vec<_> = weights.iter().map(|(s, h)| (s.as_str(), h.as_str())).collect();
        assert_eq!(weights, expected, "{name}");
    }
}

/// GPT-2 with its keys and values in states, token by token.
#[test]
fn a_model_with_states() {
    let program = load(&root().join("gpt2_stateful.mil")).unwrap();
    let steps = npz::read(&root().join("gpt2_stateful.steps.npz"));
    for (arithmetic, tolerance) in [(Arithmetic::F32, 1.2e-3), (Arithmetic::Fp16, 2.5e-3)] {
        let mut states = eval::new_states(&program, "main").unwrap();
        let logits = steps["logits"].floats().unwrap();
        let tokens = steps["tokens"].ints().unwrap();
        for (i, &token) in tokens.iter().enumerate() {
            let one = |dtype, shape: &[usize], data| Array { dtype, shape: shape.to_vec(), data };
            let row = |yes: f64, no: f64, to: &dyn Fn(usize) -> bool| {
                Data::Float((0..32).map(|s| if to(s) { yes } else { no }).collect())
            };
            let given = [
                ("ids", one(DType::I32, &[1, 1], Data::Int(vec![token]))),
                ("pos", one(DType::I32, &[1], Data::Int(vec![i as i64]))),
                ("onehot", one(DType::F32, &[1, 1, 32, 1], row(1.0, 0.0, &|s| s == i))),
                ("mask", one(DType::F32, &[1, 1, 1, 32], row(0.0, -1e4, &|s| s <= i))),
            ]
            .map(|(name, array)| (name.to_owned(), array));
            let inputs = inputs(&program, &given.into_iter().collect());
            let out = run(&program, arithmetic, &inputs, &mut states);
            let n = out[0].len();
            let mut expected = out[0].clone();
            expected.data = Data::Float(logits[i * n..][..n].to_vec());
            let far = distance(&out[0], &expected);
            assert!(far <= tolerance, "step {i} in {arithmetic:?}: off by {far:e}");
        }
        for name in ["k_cache", "v_cache"] {
            let far = distance(&states[name], &steps[name]);
            assert!(far <= 2e-3, "{name} in {arithmetic:?}: off by {far:e}");
        }
    }
}

/// No artefact's operation infers another type than coremltools wrote.
#[test]
fn inferred_types_are_those_written() {
    let mut seen = std::collections::BTreeSet::<OpKind>::new();
    let folders = [root(), root().join("zoo")];
    for entry in folders.iter().flat_map(|d| fs::read_dir(d).unwrap()) {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "mil") {
            continue;
        }
        let Some(program) = load(&path) else { continue };
        for function in program.functions.values() {
            for op in function.ops.values() {
                let view = mil::OpView::new(function, &program.weights, op);
                let types = op.kind.def().infer(&view);
                let types = types.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                let written: Vec<Type> =
                    op.outputs.iter().map(|&v| function.ty(v).clone()).collect();
                assert_eq!(types, written, "{} of {}", op.kind.name(), path.display());
                seen.insert(op.kind);
            }
        }
    }
    assert!(seen.len() >= 50, "only {seen:?}");
}
