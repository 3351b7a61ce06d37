//! Programs that coremltools made, on the CPU against the interpreter, and what falls back of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use exec::{Backend, Tensors};
use mil::eval::Arithmetic;
use mil::package::blob::BlobFile;
use mil::{Function, OpKind, Program, TensorType, Type};
use rigel_cpu::CpuBackend;
use tensor::{Bytes, DType, Tensor};
use testkit::{InterpreterBackend, Tolerance, compare, seeded};

/// Calls of one program, over one state.
const STEPS: usize = 2;

/// What is left to the interpreter: control flow, lists and dictionaries, recurrent layers, sampling
/// of images, and operations that are no bottleneck of any model here.
const LEFT: &[OpKind] = &[
    OpKind::Affine,
    OpKind::Argsort,
    OpKind::BandPart,
    OpKind::BatchToSpace,
    OpKind::Classify,
    // Interleaved.
    OpKind::Concat,
    OpKind::ConvTranspose,
    OpKind::Crop,
    OpKind::Cumsum,
    OpKind::DepthToSpace,
    OpKind::Dequantize,
    OpKind::FillLike,
    OpKind::GatherNd,
    OpKind::Gru,
    OpKind::L2Norm,
    OpKind::ListGather,
    OpKind::ListWrite,
    OpKind::LocalResponseNorm,
    OpKind::Lstm,
    OpKind::MakeList,
    OpKind::NonMaximumSuppression,
    OpKind::NonZero,
    OpKind::OneHot,
    OpKind::PixelShuffle,
    OpKind::PixelUnshuffle,
    OpKind::Quantize,
    OpKind::ResizeBilinear,
    OpKind::ReverseSequence,
    // In a mode that combines.
    OpKind::Scatter,
    OpKind::ScatterAlongAxis,
    OpKind::ScatterNd,
    OpKind::SlidingWindows,
    OpKind::SpaceToBatch,
    OpKind::SpaceToDepth,
    OpKind::Topk,
    OpKind::UpsampleBilinear,
    OpKind::UpsampleNearestNeighbor,
    OpKind::WhileLoop,
];

fn programs() -> Vec<(PathBuf, Program)> {
    let root = testkit::shared_dir().join("coreml");
    let folders = [root.join("zoo"), root];
    let mut paths: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "mil"))
        .collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), load(&path))).collect()
}

/// The program of a text, with the weights of the package beside it.
fn load(path: &Path) -> Program {
    let text = fs::read_to_string(path).unwrap();
    let weights = path.with_extension("mlpackage").join("Data/com.apple.CoreML/weights/weight.bin");
    let empty = || [[0, 0, 0, 0, 2].as_slice(), &[0; 59]].concat();
    let weights = fs::read(weights).unwrap_or_else(|_| empty());
    let weights = BlobFile::new(Bytes::copy_from(&weights)).unwrap();
    let parsed = mil::text::parse(&text, &weights);
    parsed.unwrap_or_else(|e| panic!("{}: {e}", path.display())).program
}

/// Seeded values of a type: floats in [-1, 1), small numbers, truth values.
fn value(ty: &TensorType, name: &str, step: usize) -> Tensor {
    let shape = ty.fixed_shape().unwrap();
    let floats = seeded::tensor(step as u64, name, shape.iter().product(), 1.0);
    let small = |v: &f32| ((v + 1.0) * 2.0) as i32;
    match ty.dtype {
        DType::F32 => Tensor::from_slice(&shape, &floats).unwrap(),
        DType::F16 => {
            let halves: Vec<half::f16> = floats.iter().map(|&v| half::f16::from_f32(v)).collect();
            Tensor::new(DType::F16, &shape, Bytes::copy_from(bytemuck::cast_slice(&halves)))
                .unwrap()
        }
        DType::I32 => {
            let ints: Vec<i32> = floats.iter().map(small).collect();
            Tensor::from_slice(&shape, &ints).unwrap()
        }
        DType::Bool => {
            let bools: Vec<u8> = floats.iter().map(|&v| u8::from(v > 0.0)).collect();
            Tensor::new(DType::Bool, &shape, Bytes::copy_from(&bools)).unwrap()
        }
        other => panic!("an input of {other}"),
    }
}

fn inputs(program: &Program, function: &str, step: usize) -> Tensors {
    let f = &program.functions[function];
    let tensors = f.inputs.iter().filter_map(|&v| {
        let ty = f.ty(v).as_tensor()?;
        Some((f.values[v].name.clone(), value(ty, &f.values[v].name, step)))
    });
    tensors.collect()
}

/// Whether the sizes of all inputs are known.
fn has_sizes(f: &Function) -> bool {
    let tensors = f.inputs.iter().filter_map(|&v| f.ty(v).as_tensor());
    tensors.map(TensorType::fixed_shape).all(|shape| shape.is_some())
}

/// Whether the function gives tensors of numbers only, which is what backends hand out.
fn gives_tensors(program: &Program, function: &str) -> bool {
    let f = &program.functions[function];
    let is_number = |ty: &Type| ty.as_tensor().is_some_and(|t| t.dtype != DType::Str);
    f.body.outputs.iter().all(|&v| is_number(f.ty(v)))
}

#[test]
fn all_programs_give_what_the_interpreter_gives() {
    let oracle = InterpreterBackend::new(Arithmetic::Fp16);
    let cpu = CpuBackend::new(2);
    let mut left = BTreeSet::new();
    let mut failures = Vec::new();
    let mut compared = 0;
    for (path, program) in programs() {
        let path = path.file_name().unwrap().to_string_lossy().into_owned();
        let fixed = program.functions.iter().filter(|(_, f)| has_sizes(f));
        for name in fixed.map(|(name, _)| name) {
            let mut runnables = [cpu.prepare(&program), oracle.prepare(&program)]
                .map(|r| r.unwrap_or_else(|e| panic!("{path}: {e}")));
            let reported = runnables[0].fallbacks().iter();
            left.extend(reported.map(|f| (f.kind, f.reason.clone())));
            if !gives_tensors(&program, name) {
                continue;
            }
            let mut states = [0, 1].map(|i| runnables[i].new_state().unwrap());
            for step in 0..STEPS {
                let inputs = inputs(&program, name, step);
                let mut run = |i: usize| {
                    let out = runnables[i].run(name, &inputs, &mut states[i]);
                    out.map_err(|e| e.to_string())
                };
                let (actual, expected) = (run(0), run(1));
                let (Ok(actual), Ok(expected)) = (&actual, &expected) else {
                    if actual.is_ok() != expected.is_ok() {
                        failures.push(format!("{path}: {:?} {:?}", actual.err(), expected.err()));
                    }
                    continue;
                };
                for (output, tensor) in actual {
                    // A value of half precision may be rounded the other way, and what follows it.
                    let half = program_is_half(&program);
                    let by = if half { 1e-2 } else { 1e-4 };
                    let tolerance = Tolerance { abs: by, rel: by };
                    if let Err(e) = compare(tensor, &expected[output], tolerance) {
                        failures.push(format!("{path}, {name}, step {step}, {output}: {e}"));
                    }
                    compared += 1;
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(compared > 400, "only {compared} outputs");
    let named = |kinds: &mut dyn Iterator<Item = OpKind>| -> BTreeSet<&str> {
        kinds.map(|k| k.name()).collect()
    };
    let kinds = named(&mut left.iter().map(|(kind, _)| *kind));
    assert_eq!(kinds, named(&mut LEFT.iter().copied()), "{left:?}");
}

/// Whether any value of the program is of half precision.
fn program_is_half(program: &Program) -> bool {
    let half = |f: &Function| {
        f.values.keys().any(|v| f.tensor_ty(v).is_some_and(|t| t.dtype == DType::F16))
    };
    program.functions.values().any(half)
}
