//! How long the emulated engine takes for a product in its own arithmetic, against the CPU backend.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ane_emu::{Arithmetic, Emulator, Machine};
use ane_model::Chip;
use cpu::CpuBackend;
use exec::{Backend, Tensors};
use half::f16;
use mil::{FunctionBuilder, Literal, OpKind, Opset, Program, Result, TensorType};
use passes::ane::Variable;
use rigel_ane_driver::{AneBackend, Options};
use tensor::{DType, Tensor};

/// Runs of each; medians are printed.
const ROUNDS: usize = 15;

/// `conv(x [1, inner, 1, columns])` by a constant 1x1 kernel.
fn convolution(inner: usize, outputs: usize, columns: usize) -> Result<Program> {
    let mut program = Program::default();
    let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let x = b.input("x", TensorType::new(DType::F16, [1, inner, 1, columns]));
    let weight = b.new_weight("w", numbers(&[outputs, inner, 1, 1], 0.05))?;
    let y = b.op(OpKind::Conv).arg("x", x).arg("weight", weight);
    let y = y.arg("pad_type", Literal::string("valid")).name("y").result()?;
    let function = b.finish(vec![y]);
    program.functions.insert("main".into(), function);
    Ok(program)
}

/// `matmul(x [1, 1, rows, inner], y [1, 1, inner, columns])` of two inputs.
fn matmul(rows: usize, inner: usize, columns: usize) -> Result<Program> {
    let mut program = Program::default();
    let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let x = b.input("x", TensorType::new(DType::F16, [1, 1, rows, inner]));
    let z = b.input("z", TensorType::new(DType::F16, [1, 1, inner, columns]));
    let y = b.op(OpKind::Matmul).arg("x", x).arg("y", z).name("y").result()?;
    let function = b.finish(vec![y]);
    program.functions.insert("main".into(), function);
    Ok(program)
}

fn numbers(shape: &[usize], scale: f64) -> Tensor {
    let mut random = fastrand::Rng::with_seed(1);
    let count = shape.iter().product();
    let values: Vec<f16> =
        (0..count).map(|_| f16::from_f64((random.f64() * 2.0 - 1.0) * scale)).collect();
    Tensor::from_slice(shape, &values).unwrap_or_else(|e| panic!("{e}"))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let threads = std::thread::available_parallelism()?.get();
    let cases = [
        ("conv 576 -> 1536, 64 columns", convolution(576, 1536, 64)?),
        ("conv 768 -> 768, 64 columns", convolution(768, 768, 64)?),
        ("conv 768 -> 3072, 256 columns", convolution(768, 3072, 256)?),
        ("conv 768 -> 768, 16 columns", convolution(768, 768, 16)?),
        ("matmul 256 x 256 x 256", matmul(256, 256, 256)?),
        ("matmul 64 x 768 x 512", matmul(64, 768, 512)?),
    ];
    for (label, program) in cases {
        for name in ["m1", "m4"] {
            let directory = std::env::temp_dir();
            let chip = Chip::find(name).ok_or("no such chip")?.clone();
            let os = "macos15".parse()?;
            let machine = Machine::new(chip.clone(), os, Arithmetic::Engine, directory);
            let options = Options {
                chip,
                os,
                functions: None,
                columns: vec![64],
                variable: Variable::default(),
                update: None,
                exhausted: None,
            };
            let host = Arc::new(CpuBackend::new(threads));
            let engine = AneBackend::new(Arc::new(Emulator::new(machine)), host.clone(), options);
            let (mut ours, mut cpus) = (engine.prepare(&program)?, host.prepare(&program)?);
            let function = &program.functions["main"];
            let inputs: Tensors = function
                .inputs
                .iter()
                .filter_map(|&v| {
                    let shape = function.tensor_ty(v)?.fixed_shape()?;
                    Some((function.values[v].name.clone(), numbers(&shape, 1.0)))
                })
                .collect();
            let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            let mut state = ours.new_state()?;
            for round in 0..=ROUNDS {
                for (name, runnable) in [("emulator", &mut ours), ("cpu", &mut cpus)] {
                    let start = Instant::now();
                    runnable.run("main", &inputs, &mut state)?;
                    // The first run compiles.
                    if round > 0 {
                        times.entry(name).or_default().push(start.elapsed().as_secs_f64() * 1e3);
                    }
                }
            }
            let median = |name: &str| {
                let mut all = times[name].clone();
                all.sort_by(f64::total_cmp);
                all[all.len() / 2]
            };
            let (ours, cpu) = (median("emulator"), median("cpu"));
            println!(
                "{label}: {name} emulated {ours:.2} ms, CPU {cpu:.2} ms on {threads} threads: {:.1} times",
                ours / cpu
            );
        }
    }
    Ok(())
}
