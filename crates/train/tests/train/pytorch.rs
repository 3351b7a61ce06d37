//! Against what PyTorch's optimisers do (`tests/golden/train.py`).

use std::collections::BTreeMap;
use std::fs;

use cpu::CpuBackend;
use exec::{Backend, Tensors};
use llm::interface;
use mil::eval::Arithmetic;
use rigel_train::{Batch, Config, Decay, OptimizerConfig, Rule, Schedule, Trainer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tensor::{DType, Tensor};
use testkit::{InterpreterBackend, seeded};

use crate::common::{Cycle, SIZES, config, gradients, linear, model, slope};

fn golden<T: DeserializeOwned>(name: &str) -> T {
    let path = testkit::workspace_dir().join(format!("tests/golden/train/{name}.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn single_updates() {
    let expected: BTreeMap<String, Vec<Vec<f32>>> = golden("optimizers");
    let adamw = |beta2| Rule::Adamw { beta1: 0.9, beta2, epsilon: 1e-8 };
    let sgd = |momentum, nesterov| Rule::Sgd { momentum, nesterov };
    let cases = [
        ("adamw", adamw(0.95), 0.1, 0.01),
        ("adamw_plain", adamw(0.999), 0.0, 0.01),
        ("sgd", sgd(0.0, false), 0.0, 0.1),
        ("sgd_decay", sgd(0.0, false), 0.05, 0.1),
        ("momentum", sgd(0.9, false), 0.05, 0.1),
        ("nesterov", sgd(0.9, true), 0.0, 0.1),
    ];
    assert_eq!(cases.len(), expected.len());
    let slopes = (0..4).map(|i| seeded::tensor(2, &format!("gradient{i}"), 1000, 0.1));
    let batches: Vec<Batch> = slopes.map(|s| slope(&s)).collect();
    for (name, rule, decay, rate) in cases {
        let backend = InterpreterBackend::new(Arithmetic::F32);
        let config = config(rule, decay, rate, 4);
        let gradients = linear(DType::F32, false);
        let mut trainer = Trainer::new(&backend, gradients, config, 2).unwrap();
        let mut data = Cycle::new(batches.clone());
        for expected in &expected[name] {
            trainer.step(&mut data).unwrap();
            let (_, weight) = trainer.parameters().next().unwrap();
            let found = weight.as_slice::<f32>().unwrap().iter().step_by(100);
            for (f, e) in found.zip(expected) {
                assert!((f - e).abs() <= 2e-7 * (1.0 + e.abs()), "{name}: {f} is not {e}");
            }
        }
    }
}

#[derive(Deserialize)]
struct Golden {
    schedule: GoldenSchedule,
    adamw: GoldenAdamw,
    clip: f64,
    decay_embeddings: bool,
    /// Parameters that decay.
    decays: Vec<String>,
    /// Of parameters after the last step.
    norms: BTreeMap<String, f64>,
    steps: Vec<GoldenStep>,
}

#[derive(Deserialize)]
struct GoldenSchedule {
    peak: f64,
    warmup: u64,
    total: u64,
    floor: f64,
}

#[derive(Deserialize)]
struct GoldenAdamw {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
}

#[derive(Deserialize)]
struct GoldenStep {
    ids: Vec<Vec<i32>>,
    targets: Vec<Vec<i32>>,
    loss: f64,
    norm: f64,
    learning_rate: f64,
}

impl Golden {
    fn config(&self) -> Config {
        let GoldenSchedule { peak, warmup, total, floor } = self.schedule;
        let GoldenAdamw { beta1, beta2, epsilon, weight_decay } = self.adamw;
        Config {
            optimizer: OptimizerConfig {
                rule: Rule::Adamw { beta1, beta2, epsilon },
                weight_decay,
                decay_embeddings: self.decay_embeddings,
                clip: Some(self.clip),
            },
            schedule: Schedule { peak, warmup, total, floor, decay: Decay::Cosine },
            ..config(Rule::Sgd { momentum: 0.0, nesterov: false }, 0.0, 0.0, 0)
        }
    }

    fn batches(&self) -> Vec<Batch> {
        let (sequences, tokens) = SIZES;
        let rows =
            |rows: &[Vec<i32>]| Tensor::from_slice(&[sequences, tokens], &rows.concat()).unwrap();
        let positions: Vec<i32> = (0..tokens as i32).collect();
        let positions = Tensor::from_slice(&[tokens], &positions).unwrap();
        let batch = |step: &GoldenStep| Batch {
            inputs: Tensors::from([
                (interface::IDS.to_owned(), rows(&step.ids)),
                (interface::TARGETS.to_owned(), rows(&step.targets)),
                (interface::POSITIONS.to_owned(), positions.clone()),
            ]),
            tokens: sequences * tokens,
            targets: step.targets.concat().iter().filter(|&&t| t >= 0).count(),
        };
        self.steps.iter().map(batch).collect()
    }
}

/// The name that a part of a fused weight has in the checkpoint.
fn whole(name: &str) -> &str {
    let part = name.rsplit_once('.').filter(|(_, n)| n.parse::<u8>().is_ok());
    part.map_or(name, |(whole, _)| whole)
}

fn twenty_steps(backend: &dyn Backend, name: &str) {
    let golden: Golden = golden(name);
    let gradients = gradients(&model(name), false);
    let mut trainer = Trainer::new(backend, gradients, golden.config(), 2).unwrap();
    let mut decayed: Vec<&str> = trainer.decayed().map(whole).collect();
    decayed.sort_unstable();
    decayed.dedup();
    assert_eq!(decayed, golden.decays, "{name}");
    let mut data = Cycle::new(golden.batches());
    let mut worst = 0f64;
    for (i, expected) in golden.steps.iter().enumerate() {
        let found = trainer.step(&mut data).unwrap();
        let what = format!("{name} on {}, step {i}: {found:?}", backend.name());
        worst = worst.max((found.loss - expected.loss).abs());
        assert!((found.loss - expected.loss).abs() < 1e-4, "{what}, {}", expected.loss);
        assert!((found.gradient_norm / expected.norm - 1.0).abs() < 1e-3, "{what}");
        assert!((found.learning_rate - expected.learning_rate).abs() < 1e-15, "{what}");
    }
    let clipped = golden.steps.iter().filter(|s| s.norm > golden.clip).count();
    assert!(clipped > 0 && clipped < golden.steps.len(), "clipping bites {clipped} times");
    let mut squares: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, value) in trainer.parameters() {
        let values = value.as_slice::<f32>().unwrap().iter();
        *squares.entry(whole(name)).or_default() +=
            values.map(|&v| f64::from(v).powi(2)).sum::<f64>();
    }
    assert!(squares.keys().eq(golden.norms.keys()), "{name}");
    for (parameter, square) in squares {
        let (found, expected) = (square.sqrt(), golden.norms[parameter]);
        // A bias of keys moves all scores of a query alike: its gradient is nothing but rounding, of which
        // Adam makes steps as large as any.
        let most = if parameter.ends_with("c_attn.bias") { 1e-3 } else { 1e-4 };
        assert!((found / expected - 1.0).abs() < most, "{parameter}: {found}, {expected}");
    }
    println!("{name} on {}: losses within {worst:.1e} of PyTorch", backend.name());
}

#[test]
fn twenty_steps_on_the_interpreter() {
    let interpreter = InterpreterBackend::new(Arithmetic::F32);
    ["llama", "gpt2"].iter().for_each(|name| twenty_steps(&interpreter, name));
}

#[test]
fn twenty_steps_on_the_cpu() {
    ["llama", "gpt2"].iter().for_each(|name| twenty_steps(&CpuBackend::new(2), name));
}
