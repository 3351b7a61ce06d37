//! Exported models against the engine that runs them as they are: prefill, then decode, fed the same ids.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

use cpu::CpuBackend;
use exec::{Backend, Tensors};
use llm::{LoadOptions, Model, interface};
use mil::eval::Arithmetic;
use mil::package::Package;
use mil::{OpKind, Opset, Program, Type};
use rigel_export::{MAIN, Options, POSITION, Precision, Role, export};
use serde_json::Value;
use tensor::{DType, Tensor};
use testkit::{InterpreterBackend, Tolerance, compare, seeded};

/// Tokens of a prefill.
const LENGTH: usize = 8;
/// Decode steps after it.
const STEPS: usize = 8;
/// Slots of the cache.
const CONTEXT: usize = 32;

fn options(precision: Precision) -> Options {
    Options {
        target: Opset::Ios18,
        functions: vec![Role::Prefill, Role::Decode],
        length: LENGTH,
        context: CONTEXT,
        precision,
    }
}

/// Writes the golden model `name` into `dir` as a Hugging Face directory, and returns ids.
fn golden(name: &str, dir: &Path) -> Vec<i32> {
    let source = testkit::workspace_dir().join("tests/golden/arch").join(name);
    let expected = fs::read_to_string(source.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let seed = expected["seed"].as_u64().unwrap();
    let tensors = expected["tensors"].as_array().unwrap().iter().map(|t| {
        let name = t[0].as_str().unwrap();
        let shape: Vec<usize> = serde_json::from_value(t[1].clone()).unwrap();
        let values = seeded::weight(seed, name, shape.iter().product());
        (name, Tensor::from_slice(&shape, &values).unwrap())
    });
    let tensors: Vec<_> = tensors.collect();
    let tensors: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (*n, t)).collect();
    fs::copy(source.join("config.json"), dir.join("config.json")).unwrap();
    import::safetensors::write(dir.join("model.safetensors"), &[], &tensors).unwrap();
    let ids = |key: &str| serde_json::from_value::<Vec<i32>>(expected[key].clone()).unwrap();
    let mut ids = [ids("ids"), ids("greedy")].concat();
    ids.extend(ids.clone());
    ids.truncate(LENGTH + STEPS);
    ids
}

/// Logits after a prefill of the first [`LENGTH`] ids and after each that follows.
fn logits(backend: &dyn Backend, program: &Program, ids: &[i32], starts: bool) -> Vec<Tensor> {
    let mut runnable = backend.prepare(program).unwrap();
    let mut state = runnable.new_state().unwrap();
    let mut run = |function: &str, at: usize, ids: &[i32]| {
        let positions: Vec<i32> = (at as i32..).take(if starts { 1 } else { ids.len() }).collect();
        let name = if starts { POSITION } else { interface::POSITIONS };
        let inputs = Tensors::from([
            (interface::IDS.to_owned(), Tensor::from_slice(&[1, ids.len()], ids).unwrap()),
            (name.to_owned(), Tensor::from_slice(&[positions.len()], &positions).unwrap()),
        ]);
        runnable.run(function, &inputs, &mut state).unwrap().remove(interface::LOGITS).unwrap()
    };
    let first = run(interface::PREFILL, 0, &ids[..LENGTH]);
    let rest = (LENGTH..ids.len()).map(|at| run(interface::DECODE, at, &ids[at..=at]));
    std::iter::once(first).chain(rest).collect()
}

/// The program after being saved as a package and read back, which changes nothing: both print the
/// same text over the same weights.
fn saved(package: &Package, dir: &Path) -> Program {
    let path = dir.join("model.mlpackage");
    package.save(&path).unwrap();
    let again = Package::open(&path).unwrap();
    assert_eq!(again.description, package.description);
    let files = [package, &again].map(|p| {
        let text = dir.join("model.mil");
        p.save_text(&text).unwrap();
        (fs::read_to_string(&text).unwrap(), fs::read(Package::weight_file(&text)).unwrap())
    });
    assert_eq!(files[0].0, files[1].0);
    assert!(files[0].1 == files[1].1, "the weight files differ");
    again.program
}

/// The largest difference of any logit from the engine's, as a part of the largest logit: exported in
/// single precision and run in exact arithmetic, and in half precision and its arithmetic.
fn errors(path: &Path, ids: &[i32]) -> [f64; 2] {
    let dir = tempfile::tempdir().unwrap();
    let single = Model::load_with(path, LoadOptions { cache_dtype: DType::F32 }).unwrap();
    let expected = logits(&CpuBackend::new(1), &single.specialize(CONTEXT).unwrap(), ids, false);
    let half = Model::load(path).unwrap();
    let forms =
        [(single, Precision::Fp32, Arithmetic::Exact), (half, Precision::Fp16, Arithmetic::Fp16)];
    forms.map(|(model, precision, arithmetic)| {
        let exported = export(&model, &options(precision)).unwrap();
        let program = saved(&exported.package, dir.path());
        if precision == Precision::Fp16 {
            plain(&program);
        }
        let actual = logits(&InterpreterBackend::new(arithmetic), &program, ids, true);
        assert_eq!(actual.len(), expected.len());
        let floats = |t: &[Tensor]| -> Vec<f32> {
            t.iter().flat_map(|t| t.as_slice::<f32>().unwrap().to_vec()).collect()
        };
        let (actual, expected) = (floats(&actual), floats(&expected));
        let largest = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
        let pairs = actual.iter().zip(&expected);
        assert!(actual.iter().all(|x| x.is_finite()), "{path:?}: not a number");
        let worst = pairs.fold(0f32, |m, (a, e)| m.max((a - e).abs()));
        f64::from(worst / largest)
    })
}

/// In exact arithmetic the rounding of the engine is left; half precision has 11 bits, and some hundred
/// operations round one after another.
#[track_caller]
fn assert_small(errors: &[(String, [f64; 2])]) {
    let small = |[exact, half]: [f64; 2]| exact < 1e-5 && half < 2e-2;
    assert!(errors.iter().all(|(_, e)| small(*e)), "{errors:?}");
    println!("{errors:?}");
}

/// Plain MIL with two states of half precision, written in place.
fn plain(program: &Program) {
    for (name, function) in &program.functions {
        let states = function.inputs.iter().filter_map(|&v| {
            let ty = function.ty(v).as_state()?;
            assert_eq!(ty.dtype, DType::F16);
            Some(function.values[v].name.as_str())
        });
        assert_eq!(states.collect::<Vec<_>>(), ["k_cache", "v_cache"], "{name}");
        for op in function.ops.values() {
            assert!(op.kind.is_core_ml() && op.kind != OpKind::Scatter);
        }
    }
}

#[test]
fn families_export() {
    let names = ["llama", "llama3_rope", "gpt2", "gemma3", "mistral", "qwen2", "qwen3"];
    let errors = names.map(|name| {
        let dir = tempfile::tempdir().unwrap();
        let ids = golden(name, dir.path());
        (name.to_owned(), errors(dir.path(), &ids))
    });
    assert_small(&errors);
}

#[test]
fn stories_export() {
    let path = testkit::shared_dir().join("models/stories260K.bin");
    let ids = [1, 403, 407, 261, 378, 432, 383, 407, 261, 286, 410, 294, 420, 426, 338, 335];
    assert_small(&[("stories260K".to_owned(), errors(&path, &ids))]);
}

#[test]
fn weights_are_shared_between_functions() {
    let dir = tempfile::tempdir().unwrap();
    golden("llama", dir.path());
    let model = Model::load(dir.path()).unwrap();
    let size = |functions: &[Role]| {
        let options = Options { functions: functions.to_vec(), ..options(Precision::Fp16) };
        let path = dir.path().join("a.mlpackage");
        export(&model, &options).unwrap().package.save(&path).unwrap();
        fs::metadata(path.join("Data/com.apple.CoreML/weights/weight.bin")).unwrap().len()
    };
    let (one, both) = (size(&[Role::Decode]), size(&[Role::Prefill, Role::Decode]));
    // The prefill has a few tables of positions of its own.
    assert!(one <= both && both < one + 1024, "{one} and {both} bytes");
}

#[test]
fn older_systems_get_the_function_without_states() {
    let dir = tempfile::tempdir().unwrap();
    let ids = golden("llama", dir.path());
    let model = Model::load(dir.path()).unwrap();
    for target in [Opset::Ios15, Opset::Ios16, Opset::Ios17] {
        let mut options = Options { target, ..options(Precision::Fp16) };
        let error = export(&model, &options).unwrap_err().to_string();
        for part in [target.name(), "states", "ios18", "score"] {
            assert!(error.contains(part), "no {part} in {error}");
        }
        options.functions = vec![Role::Score];
        let package = export(&model, &options).unwrap().package;
        let function = &package.program.functions[MAIN];
        assert_eq!(function.opset, target);
        assert!(function.inputs.iter().all(|&v| !matches!(function.ty(v), Type::State(_))));
        assert!(package.spec_version < 9);
        let expected = model.program().specialize(&[("seq".to_owned(), LENGTH)].into()).unwrap();
        let run = |program: &Program, function: &str, name: &str, positions: &[i32], a| {
            let mut runnable = InterpreterBackend::new(a).prepare(program).unwrap();
            let inputs = Tensors::from([
                ("ids".to_owned(), Tensor::from_slice(&[1, LENGTH], &ids[..LENGTH]).unwrap()),
                (name.to_owned(), Tensor::from_slice(&[positions.len()], positions).unwrap()),
            ]);
            let mut state = exec::State::new(&Program::default()).unwrap();
            runnable.run(function, &inputs, &mut state).unwrap().remove("logits").unwrap()
        };
        let positions: Vec<i32> = (0..LENGTH as i32).collect();
        let expected = run(&expected, "score", "positions", &positions, Arithmetic::Exact);
        let actual = run(&package.program, MAIN, POSITION, &[0], Arithmetic::Fp16);
        compare(&actual, &expected, Tolerance { abs: 5e-2, rel: 0.0 }).unwrap();
    }
}

#[test]
fn what_does_not_fit_is_refused_or_noted() {
    let dir = tempfile::tempdir().unwrap();
    golden("llama", dir.path());
    let model = Model::load(dir.path()).unwrap();
    let max = model.config().max_context;
    let options = options(Precision::Fp16);
    let cases = [
        (Options { functions: Vec::new(), ..options.clone() }, "no function"),
        (Options { context: max + 1, ..options.clone() }, "this model takes 1 to"),
        (Options { length: 0, ..options.clone() }, "length of 0 tokens"),
        (Options { length: CONTEXT + 1, ..options.clone() }, "does not fit in a context of 32"),
    ];
    for (options, part) in cases {
        let error = export(&model, &options).unwrap_err().to_string();
        assert!(error.contains(part), "no {part} in {error}");
    }
    let exported = export(&model, &Options { context: 20, ..options }).unwrap();
    assert!(exported.notes.iter().any(|n| n.contains("multiples of 32 (")), "{:?}", exported.notes);
    let said =
        &exported.package.description.unwrap().metadata.clone().unwrap().user_defined.clone();
    assert_eq!((&*said["rigel.architecture"], &*said["rigel.context"]), ("llama", "20"));
}
