//! Golden models as files, and models run on the reference interpreter.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use exec::{Backend, Runnable, State, Tensors};
use mil::eval::Arithmetic;
use rigel_llm::{LoadOptions, Model, interface};
use serde::Deserialize;
use tensor::{DType, Tensor};
use testkit::{InterpreterBackend, Tolerance, compare, seeded};

/// The golden models, made by `tests/golden/architectures.py`.
pub(crate) const GOLDENS: &[&str] =
    &["gemma3", "gpt2", "llama", "llama3_rope", "mistral", "qwen2", "qwen3"];

/// `expected.json` of a golden model.
#[derive(Deserialize)]
pub(crate) struct Golden {
    /// Of the weights.
    pub(crate) seed: u64,
    /// Name and shape of each tensor.
    pub(crate) tensors: Vec<(String, Vec<usize>)>,
    /// The prompt.
    pub(crate) ids: Vec<i32>,
    /// What follows it.
    pub(crate) greedy: Vec<i32>,
    /// After each id of the prompt.
    pub(crate) logits: Vec<Vec<f32>>,
}

impl Golden {
    pub(crate) fn open(name: &str) -> Self {
        let text = fs::read_to_string(golden_dir(name).join("expected.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// The model's weights under Hugging Face's names.
    pub(crate) fn weights(&self) -> BTreeMap<String, Tensor> {
        let tensor = |(name, shape): &(String, Vec<usize>)| {
            let values = seeded::weight(self.seed, name, shape.iter().product());
            (name.clone(), Tensor::from_slice(shape, &values).unwrap())
        };
        self.tensors.iter().map(tensor).collect()
    }

    /// The expected logits `[1, T, vocab]`.
    pub(crate) fn logits(&self) -> Tensor {
        let shape = [1, self.logits.len(), self.logits[0].len()];
        Tensor::from_slice(&shape, &self.logits.concat()).unwrap()
    }
}

pub(crate) fn golden_dir(name: &str) -> PathBuf {
    testkit::workspace_dir().join("tests/golden/arch").join(name)
}

/// Writes a Hugging Face directory of `config` and `weights` into `dir`.
pub(crate) fn write_hf(dir: &Path, config: &str, weights: &BTreeMap<String, Tensor>) {
    fs::write(dir.join("config.json"), config).unwrap();
    let weights: Vec<(&str, &Tensor)> = weights.iter().map(|(n, t)| (n.as_str(), t)).collect();
    import::safetensors::write(dir.join("model.safetensors"), &[], &weights).unwrap();
}

/// A model made ready on the interpreter.
pub(crate) struct Run {
    runnable: Box<dyn Runnable>,
    state: State,
}

impl Run {
    /// `model` with a cache of `context` slots.
    pub(crate) fn new(model: &Model, context: usize) -> Self {
        let program = model.specialize(context).unwrap();
        let runnable = InterpreterBackend::new(Arithmetic::F32).prepare(&program).unwrap();
        let state = runnable.new_state().unwrap();
        assert_eq!(state.byte_len(), model.kv_cache_bytes(context));
        Run { runnable, state }
    }

    /// Logits of `function` for `ids` from position `start` on.
    pub(crate) fn logits(&mut self, function: &str, ids: &[i32], start: usize) -> Tensor {
        let positions: Vec<i32> = (start as i32..).take(ids.len()).collect();
        let inputs: Tensors = [
            (interface::IDS.to_owned(), Tensor::from_slice(&[1, ids.len()], ids).unwrap()),
            (
                interface::POSITIONS.to_owned(),
                Tensor::from_slice(&[ids.len()], &positions).unwrap(),
            ),
        ]
        .into();
        let mut outputs = self.runnable.run(function, &inputs, &mut self.state).unwrap();
        assert_eq!(outputs.len(), 1);
        outputs.remove(interface::LOGITS).unwrap()
    }

    /// The `count` likeliest ids after `prompt`, one by one through the cache.
    pub(crate) fn greedy(&mut self, prompt: &[i32], count: usize) -> Vec<i32> {
        let mut best = best(&self.logits(interface::PREFILL, prompt, 0));
        let mut found = vec![best];
        while found.len() < count {
            let at = prompt.len() + found.len() - 1;
            best = self::best(&self.logits(interface::DECODE, &[best], at));
            found.push(best);
        }
        found
    }
}

/// The id of the greatest logit of `[1, 1, vocab]`.
fn best(logits: &Tensor) -> i32 {
    assert_eq!(logits.shape()[..2], [1, 1]);
    let values = logits.as_slice::<f32>().unwrap();
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap() as i32
}

/// Loads a golden model's file and compares logits and continuation. What tanh-GELU and exact GELU
/// differ by is more than the tolerance, see the script that made the goldens.
pub(crate) fn check(golden: &Golden, path: &Path, what: &str) {
    let exact = Model::load_with(path, LoadOptions { cache_dtype: DType::F32 })
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let context = golden.ids.len() + golden.greedy.len();
    let found = Run::new(&exact, context).logits(interface::SCORE, &golden.ids, 0);
    compare(&found, &golden.logits(), Tolerance { abs: 1e-4, rel: 0.0 })
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let count = golden.greedy.len();
    assert_eq!(Run::new(&exact, context).greedy(&golden.ids, count), golden.greedy, "{what}");
    let half = Model::load(path).unwrap();
    assert_eq!(Run::new(&half, context).greedy(&golden.ids, count), golden.greedy, "{what}");
}
