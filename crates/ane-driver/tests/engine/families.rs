//! Every family of models, made from seeds, on the engine and on the CPU.

use std::fs;

use ane_emu::Arithmetic;
use cpu::CpuBackend;
use llm::Model;
use serde_json::Value;
use tensor::Tensor;
use testkit::seeded;

use crate::common::{Setup, greedy, largest_difference, session};

/// Writes a golden model as a Hugging Face directory and loads it; its prompt. GPT-2's table of
/// positions is made longer than the golden's, of which nothing but the prompt is compared here.
pub(crate) fn golden(name: &str) -> (Model, Vec<u32>) {
    let from = testkit::workspace_dir().join("tests/golden/arch").join(name);
    let expected: Value =
        serde_json::from_str(&fs::read_to_string(from.join("expected.json")).unwrap()).unwrap();
    let seed = expected["seed"].as_u64().unwrap();
    let weights: Vec<(String, Tensor)> = expected["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            let name = entry[0].as_str().unwrap();
            let mut shape: Vec<usize> =
                entry[1].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
            if name.ends_with("wpe.weight") {
                shape[0] = 128;
            }
            let values = seeded::weight(seed, name, shape.iter().product());
            (name.to_owned(), Tensor::from_slice(&shape, &values).unwrap())
        })
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(from.join("config.json")).unwrap();
    let config = config.replace("\"n_positions\": 64", "\"n_positions\": 128");
    fs::write(directory.path().join("config.json"), config).unwrap();
    let named: Vec<(&str, &Tensor)> = weights.iter().map(|(n, t)| (n.as_str(), t)).collect();
    import::safetensors::write(directory.path().join("model.safetensors"), &[], &named).unwrap();
    let model = Model::load(directory.path()).unwrap();
    let ids = expected["ids"].as_array().unwrap();
    (model, ids.iter().map(|id| id.as_u64().unwrap() as u32).collect())
}

/// Rotary and learned positions, grouped heads, windows, norms of heads, biases, tanh-capped and
/// exact GELU: the logits agree to what fp16 surfaces leave.
#[test]
fn logits_agree() {
    for name in ["gemma3", "gpt2", "llama", "llama3_rope", "mistral", "qwen2", "qwen3"] {
        let (model, prompt) = golden(name);
        let mut cpu = session(&CpuBackend::new(1), &model);
        let wanted = cpu.logits_after(&prompt).unwrap();
        let scale = wanted.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        for arithmetic in [Arithmetic::Exact, Arithmetic::Fp16] {
            let rig = Setup::new("m4", arithmetic).rig();
            let found = session(&rig.backend, &model).logits_after(&prompt).unwrap();
            let difference = largest_difference(&found, &wanted) / scale;
            println!("{name} {arithmetic:?}: {difference:.2e} of the largest logit");
            assert!(difference < 1.5e-2, "{name} {arithmetic:?}: {difference}");
        }
    }
}

#[test]
fn gpt2_continues_as_on_the_cpu() {
    let (model, prompt) = golden("gpt2");
    let (wanted, margin) = greedy(&mut session(&CpuBackend::new(1), &model), &prompt, 64);
    for arithmetic in [Arithmetic::Exact, Arithmetic::Fp16] {
        let rig = Setup::new("m4", arithmetic).rig();
        let (ids, _) = greedy(&mut session(&rig.backend, &model), &prompt, 64);
        assert_eq!(ids, wanted, "{arithmetic:?}, margin {margin}");
    }
}
