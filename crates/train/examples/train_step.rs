//! Measures a training step on the CPU: the loss of Stories110M's dimensions from random weights, its
//! gradients by all weights, and AdamW.
//!
//! `cargo run --release -p rigel-train --example train_step -- sequences=4 tokens=256 threads=2 matmul=bf16
//! steps=5`; with `lines` it does one step for each line that it reads and answers with seconds, the
//! processor's seconds and the loss, for measurements in turns with something else
//! (`tests/golden/train_step.py`). In the end it tells what the time of forward and backward pass goes to,
//! and what the processor can do. The processor's seconds are those that its threads had a core for (Linux):
//! on a machine that is shared they say more.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::{BufRead, stdin};
use std::path::Path;
use std::time::{Duration, Instant};

use cpu::{CpuBackend, CpuRunnable, Precision};
use exec::{Runnable, Tensors};
use llm::{Model, interface};
use mil::{FunctionBuilder, Literal, OpKind, Opset, Program, TensorType};
use passes::grad::{By, Gradients, Request, differentiate};
use rigel_train::data::Position;
use rigel_train::{Batch, BatchSource, Config, Decay, OptimizerConfig, Rule, Schedule, Trainer};
use serde_json::json;
use tensor::{DType, Tensor};
use testkit::seeded;

const VOCAB: usize = 32_000;
const WIDTH: usize = 768;
const LAYERS: usize = 12;
const HEADS: usize = 12;
const HIDDEN: usize = 2048;
const SEED: u64 = 110;
/// Rows and columns of the product that shows what the processor can do.
const SQUARE: usize = 2048;

/// Steps after which the kinds of operations are counted.
const COUNTED: usize = 2;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The same batch for ever.
struct Same(Batch);

impl BatchSource for Same {
    fn next_batch(&mut self) -> rigel_train::Result<Option<Batch>> {
        Ok(Some(self.0.clone()))
    }
    fn is_endless(&self) -> bool {
        true
    }
    fn position(&self) -> Position {
        Position::default()
    }
    fn seek(&mut self, _: &Position) -> rigel_train::Result<()> {
        Ok(())
    }
}

/// Writes the model into `dir` as Hugging Face has it.
fn write(dir: &Path) -> Result<()> {
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "vocab_size": VOCAB, "max_position_embeddings": 1024, "hidden_size": WIDTH,
        "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true,
    });
    fs::write(dir.join("config.json"), config.to_string())?;
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", &[WIDTH][..]),
            ("post_attention_layernorm", &[WIDTH]),
            ("self_attn.q_proj", &[WIDTH, WIDTH]),
            ("self_attn.k_proj", &[WIDTH, WIDTH]),
            ("self_attn.v_proj", &[WIDTH, WIDTH]),
            ("self_attn.o_proj", &[WIDTH, WIDTH]),
            ("mlp.gate_proj", &[HIDDEN, WIDTH]),
            ("mlp.up_proj", &[HIDDEN, WIDTH]),
            ("mlp.down_proj", &[WIDTH, HIDDEN]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        }
    }
    let mut tensors = Vec::new();
    for (name, shape) in &shapes {
        let len = shape.iter().product();
        // Norms are 1, all else is uniform with the deviation 0.02.
        let values = match shape[..] {
            [_] => vec![1.0; len],
            _ => seeded::tensor(SEED, name, len, 0.02 * 3f32.sqrt()),
        };
        tensors.push(Tensor::from_slice(shape, &values)?);
    }
    let named: Vec<(&str, &Tensor)> =
        shapes.iter().map(|(n, _)| n.as_str()).zip(&tensors).collect();
    Ok(import::safetensors::write(dir.join("model.safetensors"), &[], &named)?)
}

/// The time that this process' threads had a core for.
fn processor_time() -> Duration {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let nanoseconds = tasks.flatten().filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// A line of `/proc/self/status`, in megabytes.
fn memory(name: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let kilobytes = line.split_whitespace().next().and_then(|n| n.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1024.0
}

/// Seconds of the clock and of the processor.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(f64, f64, T)> {
    let (clock, processor) = (Instant::now(), processor_time());
    let done = work()?;
    let spent = processor_time().saturating_sub(processor);
    Ok((clock.elapsed().as_secs_f64(), spent.as_secs_f64(), done))
}

/// Prints what a big square product reaches.
fn roof(backend: &CpuBackend) -> Result<()> {
    let mut program = Program::default();
    let ty = || TensorType::new(DType::F32, [SQUARE, SQUARE]);
    let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let (x, y) = (b.input("x", ty()), b.input("y", ty()));
    let product = b.op(OpKind::Matmul).arg("x", x).arg("y", y);
    let product = product.arg("transpose_y", Literal::bool(true)).name("z").result()?;
    let function = b.finish(vec![product]);
    program.functions.insert("main".to_owned(), function);
    let mut runnable = backend.prepare_plans(&program)?;
    let inputs: Tensors = ["x", "y"]
        .into_iter()
        .map(|name| {
            let values = seeded::tensor(SEED, name, SQUARE * SQUARE, 1.0);
            Ok((name.to_owned(), Tensor::from_slice(&[SQUARE, SQUARE], &values)?))
        })
        .collect::<Result<_>>()?;
    let mut state = runnable.new_state()?;
    let (mut best, mut of_core) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..5 {
        let (clock, processor, _) = timed(|| Ok(runnable.run("main", &inputs, &mut state)?))?;
        (best, of_core) = (best.min(clock), of_core.min(processor));
    }
    let flops = 2.0 * (SQUARE as f64).powi(3) / 1e9;
    println!(
        "product of {SQUARE}: {:.0} GFLOP/s, {:.0} for each second of a core",
        flops / best,
        flops / of_core
    );
    Ok(())
}

/// Runs forward and backward pass, and prints the time of each kind of operation.
fn phases(backend: &CpuBackend, gradients: &Gradients, inputs: &Tensors) -> Result<()> {
    let mut runnable = backend.prepare_plans(&gradients.program)?;
    for fallback in runnable.fallbacks().iter().filter(|f| f.function == gradients.function) {
        println!("interpreted: {fallback:?}");
    }
    let mut state = runnable.new_state()?;
    runnable.run(&gradients.function, inputs, &mut state)?;
    runnable.time_steps();
    for _ in 0..COUNTED {
        runnable.run(&gradients.function, inputs, &mut state)?;
    }
    report(&runnable);
    Ok(())
}

/// Prints the time of each kind of step.
fn report(runnable: &CpuRunnable) {
    let mut kinds: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for step in runnable.step_times() {
        let how = if step.native { "" } else { " (interpreted)" };
        let kind = kinds.entry(format!("{}{how}", step.kind.name())).or_default();
        kind.0 += step.time.as_secs_f64() / COUNTED as f64;
        kind.1 += 1;
    }
    let all: f64 = kinds.values().map(|(time, _)| time).sum();
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    for (kind, (time, count)) in kinds {
        println!("{kind:>30} {count:4} {:8.1} ms {:5.1} %", time * 1e3, time / all * 100.0);
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        arguments.iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    let number = |name: &str, default: usize| -> Result<usize> {
        Ok(option(name).map(|v| v.parse()).transpose()?.unwrap_or(default))
    };
    let (sequences, tokens) = (number("sequences", 4)?, number("tokens", 256)?);
    let (threads, steps) = (number("threads", 2)?, number("steps", 5)?);
    let precision = match option("matmul").as_deref() {
        None | Some("fp32") => Precision::Single,
        Some("bf16") => Precision::Bf16,
        Some(other) => return Err(format!("matmul={other}").into()),
    };
    let backend = CpuBackend::new(threads).with_matmul(precision);
    let dir = tempfile::tempdir()?;
    write(dir.path())?;
    let model = Model::load(dir.path())?;
    let program = model.loss_program(llm::Batch { sequences, tokens, documents: false })?;
    let request = Request {
        function: interface::LOSS,
        loss: interface::LOSS,
        by: By::Weights(&|_| true),
        checkpoints: &[],
        scaled: false,
    };
    let gradients = differentiate(&program, &request)?;
    drop(program);
    drop(model);
    let parameters = gradients.parameters.iter().filter_map(|p| p.ty.fixed_shape());
    let parameters: usize = parameters.map(|s| s.iter().product::<usize>()).sum();
    let ids = |name: &str| -> Result<Tensor> {
        let values = seeded::tensor(SEED, name, sequences * tokens, 0.5);
        let values: Vec<i32> =
            values.iter().map(|v| ((v + 0.5) * VOCAB as f32) as i32 % VOCAB as i32).collect();
        Ok(Tensor::from_slice(&[sequences, tokens], &values)?)
    };
    let positions: Vec<i32> = (0..tokens as i32).collect();
    let inputs = Tensors::from([
        (interface::IDS.to_owned(), ids("ids")?),
        (interface::TARGETS.to_owned(), ids("targets")?),
        (interface::POSITIONS.to_owned(), Tensor::from_slice(&[tokens], &positions)?),
    ]);
    let rows = sequences * tokens;
    let mut data = Same(Batch { inputs: inputs.clone(), tokens: rows, targets: rows });
    let config = Config {
        optimizer: OptimizerConfig {
            rule: Rule::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8 },
            weight_decay: 0.1,
            decay_embeddings: true,
            clip: Some(1.0),
        },
        schedule: Schedule {
            peak: 1e-4,
            warmup: 0,
            total: 1000,
            floor: 0.0,
            decay: Decay::Constant,
        },
        accumulation: 1,
        loss_scaling: None,
        evaluate_every: None,
        evaluate_batches: None,
        early_stop: None,
    };
    let mut trainer = Trainer::new(&backend, gradients.clone(), config, threads)?;
    let mut step = || timed(|| Ok(trainer.step(&mut data)?));
    // The first one touches all memory.
    step()?;
    let mut times = Vec::new();
    if arguments.iter().any(|a| a == "lines") {
        println!("ready");
        for line in stdin().lock().lines() {
            line?;
            let (clock, processor, done) = step()?;
            println!("{clock} {processor} {}", done.loss);
            times.push((clock, processor, done.update_seconds));
        }
    } else {
        for _ in 0..steps {
            let (clock, processor, done) = step()?;
            println!("{clock:.3} s, {processor:.3} s of the processor, loss {}", done.loss);
            times.push((clock, processor, done.update_seconds));
        }
    }
    let median = |pick: fn(&(f64, f64, f64)) -> f64| {
        let mut all: Vec<f64> = times.iter().map(pick).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let (clock, processor, update) = (median(|t| t.0), median(|t| t.1), median(|t| t.2));
    // Six for each parameter and token, and the products of attention.
    let attention = 6.0 * 2.0 * (LAYERS * WIDTH * tokens) as f64;
    let flops = rows as f64 * (6.0 * parameters as f64 + attention) / 1e9;
    println!(
        "median {clock:.3} s = {:.0} tok/s, {:.0} GFLOP/s; {processor:.3} s of the processor = {:.0} GFLOP/s \
         for each second of a core; of it {update:.3} s in the optimiser",
        rows as f64 / clock,
        flops / clock,
        flops / processor
    );
    println!("peak memory {:.0} MB", memory("VmHWM:"));
    let mut inputs = inputs;
    for parameter in &gradients.parameters {
        let weight = trainer.parameters().find(|(name, _)| *name == parameter.name);
        let (_, value) = weight.ok_or("a parameter that is not trained")?;
        inputs.insert(parameter.input.clone(), value.clone());
    }
    drop(trainer);
    phases(&backend, &gradients, &inputs)?;
    roof(&backend)
}
