//! LoRA on SmolLM2 against PEFT (`tests/golden/lora.py`): its adapter gives the same likelihoods here, and training from the
//! same start makes the same adapter.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use cpu::CpuBackend;
use exec::{Backend, Tensors};
use import::PeftAdapter;
use import::peft::{self, LowRank};
use llm::adapter::{Adapter, Factors};
use llm::eval::{Scoring, Text, evaluate};
use llm::generate::Session;
use llm::{Model, interface};
use passes::ane::AdapterSlot;
use passes::grad::{By, Request, differentiate};
use passes::low_rank::{input_names, low_rank_inputs};
use rigel_train::{Batch, Rule, Trainer};
use serde::Deserialize;
use tensor::{DType, Tensor};
use testkit::seeded;

use crate::common::{Cycle, config};

/// `expected.json`.
#[derive(Deserialize)]
struct Expected {
    seed: u64,
    /// Bound of the first values of `A`.
    start: f32,
    rate: f64,
    betas: [f64; 2],
    batches: Vec<Rows>,
    /// Before each step.
    losses: Vec<f64>,
    /// A text, and the likelihoods of all its tokens but the first without the adapter and with it.
    ids: Vec<u32>,
    plain: Vec<f64>,
    adapted: Vec<f64>,
}

#[derive(Deserialize)]
struct Rows {
    ids: Vec<Vec<i32>>,
    targets: Vec<Vec<i32>>,
}

impl Expected {
    fn read() -> Self {
        serde_json::from_slice(&fs::read(golden().join("expected.json")).unwrap()).unwrap()
    }

    /// The adapter that PEFT's training began with.
    fn first(&self, trained: &PeftAdapter) -> PeftAdapter {
        let layer = |l: &LowRank| {
            let name = format!("base_model.model.{}.lora_A.weight", l.module);
            let count = l.a.shape().iter().product();
            let a = seeded::tensor(self.seed, &name, count, self.start);
            LowRank {
                a: Tensor::from_slice(l.a.shape(), &a).unwrap(),
                b: Tensor::zeros(DType::F32, l.b.shape()).unwrap(),
                ..l.clone()
            }
        };
        let layers: Vec<LowRank> = trained.layers().iter().map(layer).collect();
        let dir = tempfile::tempdir().unwrap();
        peft::write(dir.path().join("first"), None, &layers).unwrap();
        PeftAdapter::open(dir.path().join("first")).unwrap()
    }

    /// The batches, all as long as the longest.
    fn batches(&self) -> (Vec<Batch>, llm::Batch) {
        let tokens = self.batches.iter().map(|b| b.ids[0].len()).max().unwrap();
        let sequences = self.batches[0].ids.len();
        let tensor = |rows: &[Vec<i32>], fill: i32| {
            let rows = rows.iter().map(|row| {
                let mut row = row.clone();
                row.resize(tokens, fill);
                row
            });
            let values: Vec<i32> = rows.flatten().collect();
            Tensor::from_slice(&[sequences, tokens], &values).unwrap()
        };
        let positions: Vec<i32> = (0..tokens as i32).collect();
        let positions = Tensor::from_slice(&[tokens], &positions).unwrap();
        let batch = |rows: &Rows| Batch {
            inputs: Tensors::from([
                (interface::IDS.to_owned(), tensor(&rows.ids, 0)),
                (interface::TARGETS.to_owned(), tensor(&rows.targets, -1)),
                (interface::POSITIONS.to_owned(), positions.clone()),
            ]),
            tokens: sequences * tokens,
            targets: rows.targets.iter().flatten().filter(|&&t| t >= 0).count(),
        };
        let size = llm::Batch { sequences, tokens, documents: false };
        (self.batches.iter().map(batch).collect(), size)
    }
}

fn golden() -> PathBuf {
    testkit::workspace_dir().join("tests/golden/lora")
}

fn slots(adapter: &Adapter) -> Vec<AdapterSlot> {
    let slot = |(weight, factors): (&String, &Factors)| AdapterSlot {
        weight: weight.clone(),
        rank: factors.a.shape()[0],
    };
    adapter.layers().iter().map(slot).collect()
}

/// Factors as inputs of a function.
fn inputs(adapter: &Adapter) -> Tensors {
    let factors = adapter.layers().values().enumerate();
    let both = factors.flat_map(|(slot, f)| {
        let [a, b] = input_names(slot);
        [(a, f.a.clone()), (b, f.b.clone())]
    });
    both.collect()
}

/// Likelihoods of all tokens but the first with an adapter, or without.
fn likelihoods(model: &Model, adapter: Option<&Adapter>, ids: &[u32]) -> Vec<f64> {
    const CONTEXT: usize = 256;
    let mut program = model.specialize(CONTEXT).unwrap();
    if let Some(adapter) = adapter {
        low_rank_inputs(&mut program, &slots(adapter), 1.0, &|_| true).unwrap();
    }
    let runnable = CpuBackend::new(2).prepare(&program).unwrap();
    let mut session = Session::new(runnable, CONTEXT, model.config().vocab).unwrap();
    if let Some(adapter) = adapter {
        session.set_further_inputs(BTreeMap::from([("score".to_owned(), inputs(adapter))]));
    }
    let text = Text { ids, window: CONTEXT, bos: None };
    evaluate(&mut session, Scoring::Whole, &text, 0, |_| ()).unwrap().nll
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], most: f64) {
    assert_eq!(found.len(), expected.len());
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < most, "{worst} apart: {found:?} {expected:?}");
}

#[test]
fn an_adapter_of_peft_is_the_same_here_loaded_and_trained() {
    let expected = Expected::read();
    let model = testkit::fixtures_dir().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let model = Model::load(model).unwrap();
    let trained = PeftAdapter::open(golden()).unwrap();
    let adapter = model.adapter(&trained).unwrap();
    assert_close(&likelihoods(&model, None, &expected.ids), &expected.plain, 1e-3);
    assert_close(&likelihoods(&model, Some(&adapter), &expected.ids), &expected.adapted, 1e-3);
    let moved = expected.plain.iter().zip(&expected.adapted).map(|(a, b)| (a - b).abs());
    assert!(moved.fold(0.0, f64::max) > 0.5, "the adapter changes something");

    let first = model.adapter(&expected.first(&trained)).unwrap();
    let (batches, size) = expected.batches();
    let mut program = model.loss_program(size).unwrap();
    let (slots, first) = (slots(&first), inputs(&first));
    let scale = trained.layers()[0].scale;
    low_rank_inputs(&mut program, &slots, scale as f32, &|_| true).unwrap();
    let names: Vec<String> = (0..slots.len()).flat_map(input_names).collect();
    let by: Vec<&str> = names.iter().map(String::as_str).collect();
    let request = Request {
        function: interface::LOSS,
        loss: interface::LOSS,
        by: By::Inputs(&by),
        checkpoints: &[],
        scaled: false,
    };
    let gradients = differentiate(&program, &request).unwrap();
    let [beta1, beta2] = expected.betas;
    let adamw = Rule::Adamw { beta1, beta2, epsilon: 1e-8 };
    let steps = expected.losses.len();
    let config = config(adamw, 0.0, expected.rate, steps as u64);
    let mut trainer =
        Trainer::with_first(&CpuBackend::new(2), gradients, &first, config, 2).unwrap();
    let mut data = Cycle::new(batches);
    let losses: Vec<f64> = (0..steps).map(|_| trainer.step(&mut data).unwrap().loss).collect();
    assert_close(&losses, &expected.losses, 1e-3);

    let values: Vec<Tensor> = trainer.parameters().map(|(_, value)| value.clone()).collect();
    let factors = slots.iter().zip(values.chunks_exact(2));
    let factors = factors.map(|(slot, values)| {
        (slot.weight.clone(), Factors { a: values[0].clone(), b: values[1].clone() })
    });
    let made = model.low_rank(&factors.collect(), scale).unwrap();
    assert_eq!(made.len(), trained.layers().len());
    for theirs in trained.layers() {
        let ours = made.iter().find(|l| l.module == theirs.module).unwrap();
        for (ours, theirs) in [(&ours.a, &theirs.a), (&ours.b, &theirs.b)] {
            let (ours, theirs) =
                (ours.as_slice::<f32>().unwrap(), theirs.as_slice::<f32>().unwrap());
            let norm = |values: &mut dyn Iterator<Item = f32>| {
                values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
            };
            let apart = norm(&mut ours.iter().zip(theirs).map(|(a, b)| a - b));
            assert!(apart < 1e-2 * norm(&mut theirs.iter().copied()), "{apart}");
        }
    }
}
