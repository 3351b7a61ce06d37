//! Small models, programs and data that the tests train on.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use exec::Tensors;
use llm::{Batch as Sizes, Model, interface};
use mil::{FunctionBuilder, Literal, OpKind, Opset, Program, TensorType};
use passes::grad::{By, Gradients, Request, differentiate};
use rigel_train::data::{Dataset, InputNames, Loader, Packing, Position, TokenWriter};
use rigel_train::{
    Batch, BatchSource, Config, Decay, OptimizerConfig, Result, Rule, Schedule, Trainer,
};
use serde::Deserialize;
use tensor::{DType, Tensor};
use testkit::seeded;

/// Sequences and tokens of the batches of [`loader`].
pub(crate) const SIZES: (usize, usize) = (2, 12);

/// A model of `tests/golden/architectures.py`.
pub(crate) fn model(name: &str) -> Model {
    #[derive(Deserialize)]
    struct Golden {
        seed: u64,
        tensors: Vec<(String, Vec<usize>)>,
    }
    let golden = testkit::workspace_dir().join("tests/golden/arch").join(name);
    let text = fs::read_to_string(golden.join("expected.json")).unwrap();
    let Golden { seed, tensors } = serde_json::from_str(&text).unwrap();
    let tensor = |(name, shape): &(String, Vec<usize>)| {
        let values = seeded::weight(seed, name, shape.iter().product());
        (name.clone(), Tensor::from_slice(shape, &values).unwrap())
    };
    let tensors: BTreeMap<String, Tensor> = tensors.iter().map(tensor).collect();
    let weights: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let dir = tempfile::tempdir().unwrap();
    fs::copy(golden.join("config.json"), dir.path().join("config.json")).unwrap();
    import::safetensors::write(dir.path().join("model.safetensors"), &[], &weights).unwrap();
    Model::load(dir.path()).unwrap()
}

/// The gradients of a model by all weights.
pub(crate) fn gradients(model: &Model, documents: bool) -> Gradients {
    let (sequences, tokens) = SIZES;
    let program = model.loss_program(Sizes { sequences, tokens, documents }).unwrap();
    by_weights(&program, interface::LOSS, false)
}

pub(crate) fn by_weights(program: &Program, function: &str, scaled: bool) -> Gradients {
    let by = By::Weights(&|_| true);
    let loss = interface::LOSS;
    let request = Request { function, loss, by, checkpoints: &[], scaled };
    differentiate(program, &request).unwrap()
}

/// A program whose loss is the sum of a weight `[10, 100]` times an input, which is so its gradient.
pub(crate) fn linear(dtype: DType, scaled: bool) -> Gradients {
    let mut program = Program::default();
    let values = seeded::tensor(1, "weight", 1000, 1.0);
    let id = program.weights.insert("weight", as_type(dtype, &values));
    let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let slope = b.input("slope", TensorType::new(dtype, [10, 100]));
    let weight = b.weight(id).unwrap();
    let product = b.op(OpKind::Mul).arg("x", slope).arg("y", weight).result().unwrap();
    let axes = Literal::vector(&[0i32, 1]);
    let sum = b.op(OpKind::ReduceSum).arg("x", product).arg("axes", axes);
    let sum = sum.name(interface::LOSS).result().unwrap();
    let function = b.finish(vec![sum]);
    program.functions.insert("main".to_owned(), function);
    by_weights(&program, "main", scaled)
}

/// Hands out the same batches again and again, or once.
pub(crate) struct Cycle {
    pub(crate) batches: Vec<Batch>,
    pub(crate) next: usize,
}

impl Cycle {
    pub(crate) fn new(batches: Vec<Batch>) -> Self {
        Cycle { batches, next: 0 }
    }
}

impl BatchSource for Cycle {
    fn next_batch(&mut self) -> Result<Option<Batch>> {
        self.next += 1;
        Ok(Some(self.batches[(self.next - 1) % self.batches.len()].clone()))
    }

    fn is_endless(&self) -> bool {
        true
    }

    fn position(&self) -> Position {
        Position { next: self.next as u64, ..Position::default() }
    }

    fn seek(&mut self, position: &Position) -> Result<()> {
        self.next = position.next as usize;
        Ok(())
    }
}

/// `values` in 16 or 32-bit floats, `[10, 100]`.
pub(crate) fn as_type(dtype: DType, values: &[f32]) -> Tensor {
    let half = || values.iter().map(|&v| half::f16::from_f32(v)).collect::<Vec<_>>();
    match dtype {
        DType::F16 => Tensor::from_slice(&[10, 100], &half()).unwrap(),
        _ => Tensor::from_slice(&[10, 100], values).unwrap(),
    }
}

/// A batch of [`linear`] in single precision.
pub(crate) fn slope(values: &[f32]) -> Batch {
    let tensor = as_type(DType::F32, values);
    Batch { inputs: Tensors::from([("slope".to_owned(), tensor)]), tokens: 1, targets: 1 }
}

/// All parameters, one after another.
pub(crate) fn weights(trainer: &Trainer) -> Vec<f32> {
    trainer.parameters().flat_map(|(_, t)| t.as_slice::<f32>().unwrap().to_vec()).collect()
}

/// A constant learning rate and no clipping.
pub(crate) fn config(rule: Rule, weight_decay: f64, rate: f64, total: u64) -> Config {
    Config {
        optimizer: OptimizerConfig { rule, weight_decay, decay_embeddings: true, clip: None },
        schedule: Schedule { peak: rate, warmup: 0, total, floor: 0.0, decay: Decay::Constant },
        accumulation: 1,
        loss_scaling: None,
        evaluate_every: None,
        evaluate_batches: None,
        early_stop: None,
    }
}

pub(crate) const SGD: Rule = Rule::Sgd { momentum: 0.0, nesterov: false };
pub(crate) const ADAMW: Rule = Rule::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8 };

pub(crate) fn names(segments: bool) -> InputNames {
    InputNames {
        ids: interface::IDS.to_owned(),
        targets: interface::TARGETS.to_owned(),
        positions: interface::POSITIONS.to_owned(),
        segments: segments.then(|| interface::SEGMENTS.to_owned()),
    }
}

/// Documents of up to 30 random ids below 96.
pub(crate) fn dataset(dir: &Path, documents: usize) -> Dataset {
    let path = dir.join("data.bin");
    let mut random = fastrand::Rng::with_seed(3);
    let mut writer = TokenWriter::new(&path, 96, None).unwrap();
    for _ in 0..documents {
        let ids: Vec<u32> = (0..random.usize(2..30)).map(|_| random.u32(0..96)).collect();
        writer.document(&ids, None).unwrap();
    }
    writer.finish().unwrap();
    Dataset::open(&[path], 96).unwrap()
}

pub(crate) fn packing(seed: u64) -> Packing {
    let (sequences, tokens) = SIZES;
    Packing { sequences, tokens, seed: Some(seed), rank: (0, 1), names: names(true) }
}

/// Shuffled batches of [`dataset`] for a model.
pub(crate) fn loader(dir: &Path) -> Loader {
    Loader::new(dataset(dir, 40), packing(7)).unwrap()
}
