//! Core ML programs on emulated machines against the reference interpreter: every shared artefact.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ane_emu::Arithmetic;
use ane_model::chip::Acceptance;
use exec::{Backend, Tensors};
use half::f16;
use mil::package::Package;
use mil::{Function, OpKind, Program, Type};
use tensor::{DType, Tensor};
use testkit::InterpreterBackend;

use crate::common::Setup;

/// Packages of `folder`, by name.
fn packages(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|p| p.extension().is_some_and(|e| e == "mlpackage")).collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

/// Inputs of fixed sizes that fp16 holds; `None` if the function has others.
fn inputs(function: &Function, random: &mut fastrand::Rng) -> Option<Tensors> {
    let numbers = |v| function.tensor_ty(v).is_some_and(|t| t.dtype != DType::Str);
    if !function.body.outputs.iter().all(|&v| numbers(v)) {
        return None;
    }
    let mut inputs = Tensors::new();
    for &v in &function.inputs {
        let ty = match function.ty(v) {
            Type::Tensor(ty) => ty,
            Type::State(_) => continue,
            _ => return None,
        };
        let shape = ty.fixed_shape()?;
        let count: usize = shape.iter().product();
        let floats: Vec<f16> =
            (0..count).map(|_| f16::from_f64(random.f64() * 2.0 - 1.0)).collect();
        let wide: Vec<f32> = floats.iter().map(|x| x.to_f32()).collect();
        let tensor = match ty.dtype {
            DType::F16 => Tensor::from_slice(&shape, &floats),
            DType::F32 => Tensor::from_slice(&shape, &wide),
            DType::I32 => {
                let ints: Vec<i32> = (0..count).map(|i| (i % 2) as i32).collect();
                Tensor::from_slice(&shape, &ints)
            }
            _ => return None,
        };
        inputs.insert(function.values[v].name.clone(), tensor.unwrap());
    }
    Some(inputs)
}

/// The largest difference between two results, as a part of the largest magnitude; what is not a
/// number on both sides is alike, and infinity is alike what fp16 does not reach.
fn difference(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()));
    let (Some(a), Some(b)) = (mil::eval::tensor_floats(a), mil::eval::tensor_floats(b)) else {
        return if a.bytes()[..] == b.bytes()[..] { 0.0 } else { f64::INFINITY };
    };
    let beyond = f64::from(f16::MAX);
    let held = |x: f64| if x.abs() > beyond { beyond.copysign(x) } else { x };
    let pairs = || a.iter().zip(&b).filter(|(x, y)| !(x.is_nan() && y.is_nan()));
    let largest = pairs().map(|(_, y)| held(*y).abs()).fold(1.0, f64::max);
    let apart = pairs().map(|(x, y)| (held(*x) - held(*y)).abs() / largest);
    apart.fold(0.0, |worst, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) })
}

/// What a function gave on the emulated engine.
pub(crate) struct Ran {
    /// Largest difference of an output in any step.
    pub(crate) difference: f64,
    pub(crate) dispatches: usize,
    /// Kinds of operations that stayed on the host.
    host: BTreeSet<&'static str>,
}

pub(crate) fn run(program: &Program, name: &str, setup: Setup, steps: usize) -> Option<Ran> {
    let function = &program.functions[name];
    let mut random = fastrand::Rng::with_seed(7);
    inputs(function, &mut random)?;
    let single = Program {
        functions: BTreeMap::from([(name.to_owned(), function.clone())]),
        ..program.clone()
    };
    let mut wanted =
        InterpreterBackend::new(mil::eval::Arithmetic::Exact).prepare(&single).unwrap();
    let mut rig = setup;
    rig.functions = None;
    let rig = rig.rig();
    let mut engine = rig.backend.prepare(&single).unwrap();
    let (mut theirs, mut ours) = (wanted.new_state().unwrap(), engine.new_state().unwrap());
    let mut worst = 0.0f64;
    for _ in 0..steps {
        let given = inputs(function, &mut random)?;
        let expected = wanted.run(name, &given, &mut theirs).unwrap();
        let made = engine.run(name, &given, &mut ours).unwrap();
        for (output, tensor) in &expected {
            worst = worst.max(difference(&made[output], tensor));
        }
    }
    let host = engine.fallbacks().iter().map(|f| f.kind.name()).collect();
    drop(engine);
    let dispatches = rig.backend.stats().dispatches;
    Some(Ran { difference: worst, dispatches, host })
}

/// Whether nothing but the casts at a program's ends was left to the host.
fn only_casts(ran: &Ran) -> bool {
    ran.host.iter().all(|&kind| kind == "cast")
}

#[test]
fn every_operation_of_the_zoo_runs_alike() {
    let zoo = testkit::shared_dir().join("coreml/zoo");
    let (mut on_engine, mut on_host) = (BTreeSet::new(), BTreeMap::new());
    for path in packages(&zoo) {
        let package = Package::open(&path).unwrap();
        let name = package.default_function().unwrap().to_owned();
        let label = path.file_name().unwrap().to_string_lossy().into_owned();
        let setup = Setup::new("m4", Arithmetic::Exact);
        let Some(ran) = run(&package.program, &name, setup, 1) else { continue };
        assert!(ran.difference < 4e-3, "{label}: {}", ran.difference);
        let op = label.split('.').next().unwrap().to_owned();
        if ran.dispatches > 0 && only_casts(&ran) {
            on_engine.insert(op);
        } else {
            on_host.insert(op, ran.host);
        }
    }
    let host: BTreeMap<_, _> = on_host.iter().filter(|(op, _)| !on_engine.contains(*op)).collect();
    println!(
        "{} whole on the engine: {on_engine:?}\nwith a part on the host: {host:?}",
        on_engine.len()
    );
    assert!(on_engine.len() >= 74);
    for op in [
        "mul_bc",
        "conv_custom_dil_grp",
        "conv_dynamic_w",
        "linear",
        "matmul_bcast",
        "softmax_last",
        "layer_norm_c",
        "reduce_mean",
        "concat",
        "split_num",
        "max_pool",
        "gelu_EXACT",
        "rsqrt",
        "transpose",
        "batch_norm",
        "einsum_chw",
        "sdpa",
        "tile",
        "stack",
    ] {
        assert!(on_engine.contains(op), "{op}: {:?}", on_host.get(op));
    }
}

#[test]
fn every_model_runs_alike() {
    for path in packages(&testkit::shared_dir().join("coreml")) {
        let package = Package::open(&path).unwrap();
        let label = path.file_name().unwrap().to_string_lossy().into_owned();
        for name in package.program.functions.keys() {
            let setup = Setup::new("m4", Arithmetic::Exact);
            let Some(ran) = run(&package.program, name, setup, 2) else { continue };
            println!(
                "{label} {name}: {:.1e}, {} dispatches, on the host {:?}",
                ran.difference, ran.dispatches, ran.host
            );
            assert!(ran.difference < 2e-2, "{label} {name}: {}", ran.difference);
            assert!(ran.dispatches > 0, "{label} {name}: {:?}", ran.host);
        }
    }
}

/// Where a chip takes `concat`, and where it does not, results are the same.
#[test]
fn concatenation_has_two_forms() {
    let path = testkit::shared_dir().join("coreml/zoo/concat.fp16.mlpackage");
    let package = Package::open(&path).unwrap();
    let name = package.default_function().unwrap().to_owned();
    for accepted in [Acceptance::Accepted, Acceptance::Refused] {
        let setup = Setup::new("m4", Arithmetic::Exact)
            .with(|chip| chip.switches.concat.as_mut().unwrap().value = accepted);
        let ran = run(&package.program, &name, setup, 1).unwrap();
        assert!(ran.difference < 1e-3, "{accepted:?}: {}", ran.difference);
        assert!(only_casts(&ran), "{accepted:?}: on the host {:?}", ran.host);
        assert_eq!(ran.dispatches, 1, "{accepted:?}");
    }
    assert!(package.program.functions[&name].ops.values().any(|op| op.kind == OpKind::Concat));
}

/// In the engine's own arithmetic and on other generations, a network of each kind.
#[test]
fn models_run_on_other_chips() {
    for chip in ["m1", "m4", "m6"] {
        for model in ["mlp_ios16", "ane_block_ios16", "sdpa_ios18", "llama_gqa_ios16"] {
            let path = testkit::shared_dir().join(format!("coreml/{model}.mlpackage"));
            let package = Package::open(&path).unwrap();
            let name = package.default_function().unwrap().to_owned();
            let setup = Setup::new(chip, Arithmetic::Engine);
            let ran = run(&package.program, &name, setup, 1).unwrap();
            println!("{chip} {model}: {:.1e}, {} dispatches", ran.difference, ran.dispatches);
            assert!(
                ran.difference < 5e-2 && ran.dispatches > 0,
                "{chip} {model}: {}",
                ran.difference
            );
        }
    }
}
