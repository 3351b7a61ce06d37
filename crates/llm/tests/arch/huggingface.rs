//! Hugging Face directories: the golden models under both forms of their configuration.

use std::fs;

use crate::common::{GOLDENS, Golden, check, golden_dir, write_hf};

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
    let mut weights: std::collections::BTreeMap<_, _> = golden
        .weights()
        .into_iter()
        .map(|(name, t)| (name.trim_start_matches("transformer.").to_owned(), t))
        .collect();
    let mask = tensor::Tensor::from_slice(&[1, 1, 2, 2], &[1f32, 0.0, 1.0, 1.0]).unwrap();
    weights.insert("h.0.attn.bias".into(), mask);
    let dir = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(golden_dir("gpt2").join("config.json")).unwrap();
    write_hf(dir.path(), &config, &weights);
    check(&golden, dir.path(), "gpt2 without prefix");
}
