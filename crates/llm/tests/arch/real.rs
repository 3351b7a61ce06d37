//! Published model files.

use std::fs;
use std::path::{Path, PathBuf};

use rigel_llm::{LoadOptions, Model, inspect, interface};
use serde::Deserialize;
use tensor::{DType, Tensor};

use crate::common::Run;

#[path = "../../examples/random_gpt2.rs"]
#[expect(dead_code, reason = "the example's main")]
mod random_gpt2;

pub(crate) fn fixture(name: &str) -> PathBuf {
    let path = testkit::fixtures_dir().join(name);
    assert!(path.exists(), "{} is missing; run python3 tests/fetch.py --gemma", path.display());
    path
}

fn smollm2() -> PathBuf {
    fixture("SmolLM2-135M-Instruct.Q4_1.gguf")
}

#[cfg(feature = "gemma")]
fn gemma() -> PathBuf {
    fixture("gemma-3-270m-q4_k_m.gguf")
}

/// Bytes of weights that are not windows of the mapped file.
fn copied(model: &Model) -> usize {
    let weights = model.program().weights.iter();
    weights.map(|(_, w)| w.tensor.bytes()).filter(|b| !b.is_mapped()).map(|b| b.len()).sum()
}

#[test]
fn stories_begin_as_llama2_c_tells_them() {
    let shared = testkit::shared_dir().join("models");
    let text = fs::read_to_string(shared.join("stories260K.greedy_ids.json")).unwrap();
    let ids: Vec<i32> = serde_json::from_str(&text).unwrap();
    let options = LoadOptions { cache_dtype: DType::F32 };
    let model = Model::load_with(shared.join("stories260K.bin"), options).unwrap();
    assert_eq!((model.config().arch, model.config().vocab), ("llama", 512));
    assert!(copied(&model) < 1024);
    let error = model.tokenizer(None).err().unwrap();
    assert!(error.to_string().contains("--tokenizer"), "{error}");
    assert_eq!(model.tokenizer(Some(&shared.join("tok512.bin"))).unwrap().vocab_size(), 512);
    const COUNT: usize = 12;
    assert_eq!(Run::new(&model, 1 + COUNT).greedy(&ids[..1], COUNT), ids[1..=COUNT]);
}

#[test]
fn smollm2_stays_in_its_file() {
    let path = smollm2();
    let model = Model::load(&path).unwrap();
    let c = model.config();
    let found = (c.arch, c.parameters, c.layers, c.width, c.feed_forward);
    assert_eq!(found, ("llama", 134_515_008, 30, 576, 1536));
    let found = (c.heads, c.kv_heads, c.head_dim, c.vocab, c.max_context, c.tied);
    assert_eq!(found, (9, 3, 64, 49_152, 8192, true));
    assert!(copied(&model) < 1024, "{} bytes copied", copied(&model));
    // Keys and values of 30 layers of 3 heads of 64 halves.
    assert_eq!(model.kv_cache_bytes(1000), 2 * 30 * 3 * 64 * 2 * 1000);
    assert_eq!(model.tokenizer(None).unwrap().vocab_size(), 49_152);
    let inspection = inspect(&import::open(&path).unwrap());
    assert_eq!((inspection.tensors.len(), inspection.problems), (272, Vec::new()));
}

#[cfg(feature = "gemma")]
#[test]
fn gemma3_stays_in_its_file() {
    let model = Model::load(gemma()).unwrap();
    let c = model.config();
    let found = (c.arch, c.parameters, c.layers, c.width, c.feed_forward);
    assert_eq!(found, ("gemma3", 268_098_176, 18, 640, 2048));
    let found = (c.heads, c.kv_heads, c.head_dim, c.vocab, c.max_context, c.window, c.tied);
    assert_eq!(found, (4, 1, 256, 262_144, 32_768, Some(512), true));
    assert!(copied(&model) < 4096, "{} bytes copied", copied(&model));
}

/// Negative log-likelihoods of the first tokens of WikiText-2, of an independent f32 implementation.
#[derive(Deserialize)]
struct Likelihoods {
    ids: Vec<i32>,
    nll: Vec<f64>,
}

/// The interpreter is slow: a few tokens here, all 256 by the engines that are fast.
fn check_first_likelihoods(path: &Path, golden: &str) {
    const COUNT: usize = 8;
    let text = fs::read_to_string(testkit::shared_dir().join("models").join(golden)).unwrap();
    let golden: Likelihoods = serde_json::from_str(&text).unwrap();
    let model = Model::load(path).unwrap();
    let logits = Run::new(&model, COUNT).logits(interface::SCORE, &golden.ids[..COUNT], 0);
    let rows = logits.as_slice::<f32>().unwrap().chunks(model.config().vocab);
    for (t, row) in rows.enumerate() {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|x| f64::from(x - max).exp()).sum();
        let nll = sum.ln() + f64::from(max - row[golden.ids[t + 1] as usize]);
        assert!((nll - golden.nll[t]).abs() < 1e-3, "token {t}: {nll}, not {}", golden.nll[t]);
    }
}

#[test]
fn first_likelihoods_of_smollm2() {
    check_first_likelihoods(&smollm2(), "golden_smollm2_wiki256.json");
}

#[cfg(feature = "gemma")]
#[test]
fn first_likelihoods_of_gemma3() {
    check_first_likelihoods(&gemma(), "golden_gemma_wiki256.json");
}

/// GPT-2 at its published size, of random weights, as the example writes it.
#[test]
fn gpt2_124m_has_its_parameters() {
    let dir = tempfile::tempdir().unwrap();
    random_gpt2::write(dir.path()).unwrap();
    let model = Model::load(dir.path()).unwrap();
    assert_eq!((model.config().parameters, model.config().tied), (124_439_808, true));
    // The two embeddings, 39,383,808 numbers, are windows.
    assert_eq!(copied(&model), (124_439_808 - 39_383_808 - vectors(&model)) * 4);
}

/// Numbers in vectors, which are windows too.
fn vectors(model: &Model) -> usize {
    let weights = model.program().weights.iter().map(|(_, w)| &w.tensor);
    weights.filter(|t| t.shape().len() == 1).map(Tensor::len).sum()
}
