//! Hugging Face directories: the golden models under both forms of their configuration.

use std::collections::BTreeMap;
use std::fs;

use half::bf16;
use rigel_llm::{Model, interface};
use tensor::{DType, Tensor};
use testkit::{Tolerance, compare};

use crate::common::{GOLDENS, Golden, Run, check, golden_dir, write_hf};

#[test]
fn golden_models_agree_with_transformers() {
    for name in GOLDENS {
        let golden = Golden::open(name);
        let weights = golden.weights();
        for config in ["config.json", "config.v5.json"] {
            let dir = tempfile::tempdir().unwrap();
            let text = fs::read_to_string(golden_dir(name).join(config)).unwrap();
            write_hf(dir.path(), &text, &weights);
            check(&golden, dir.path(), &format!("{name} with {config}"));
        }
    }
}

/// The first checkpoints of GPT-2 were saved without the head's class: no prefix, and causal masks.
#[test]
fn gpt2_without_prefix_and_with_masks() {
    let golden = Golden::open("gpt2");
    let mut weights: BTreeMap<_, _> = golden
        .weights()
        .into_iter()
        .map(|(name, t)| (name.trim_start_matches("transformer.").to_owned(), t))
        .collect();
    let mask = Tensor::from_slice(&[1, 1, 2, 2], &[1f32, 0.0, 1.0, 1.0]).unwrap();
    weights.insert("h.0.attn.bias".into(), mask);
    let dir = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(golden_dir("gpt2").join("config.json")).unwrap();
    write_hf(dir.path(), &config, &weights);
    check(&golden, dir.path(), "gpt2 without prefix");
}

/// Published checkpoints are of half precision: matrices stay so, norms and biases become fp32, and
/// the results are those of the same values in fp32.
#[test]
fn half_precision_checkpoints() {
    for name in ["gemma3", "gpt2", "qwen2"] {
        let golden = Golden::open(name);
        let config = fs::read_to_string(golden_dir(name).join("config.json")).unwrap();
        let (mut halves, mut singles) = (BTreeMap::new(), BTreeMap::new());
        for (name, t) in golden.weights() {
            let rounded = t.as_slice::<f32>().unwrap().iter().map(|&x| bf16::from_f32(x));
            let half: Vec<bf16> = rounded.collect();
            let single: Vec<f32> = half.iter().map(|x| x.to_f32()).collect();
            halves.insert(name.clone(), Tensor::from_slice(t.shape(), &half).unwrap());
            singles.insert(name, Tensor::from_slice(t.shape(), &single).unwrap());
        }
        let [half, single] = [halves, singles].map(|weights| {
            let dir = tempfile::tempdir().unwrap();
            write_hf(dir.path(), &config, &weights);
            Model::load(dir.path()).unwrap()
        });
        for (_, weight) in half.program().weights.iter() {
            let vector = weight.tensor.shape().len() == 1;
            let expected = if vector { DType::F32 } else { DType::Bf16 };
            assert_eq!(weight.tensor.dtype(), expected, "{name}: {}", weight.name);
        }
        let [half, single] =
            [half, single].map(|m| Run::new(&m, 32).logits(interface::SCORE, &golden.ids, 0));
        compare(&half, &single, Tolerance::EXACT).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
