//! Writes a Hugging Face directory of GPT-2 124M with seeded random weights, for measurements of
//! time and memory: `cargo run --release --example random_gpt2 -- DIR`. It has no tokenizer.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tensor::Tensor;
use testkit::seeded;

const SEED: u64 = 124;
const VOCAB: usize = 50_257;
const CONTEXT: usize = 1024;
const WIDTH: usize = 768;
const LAYERS: usize = 12;
const HEADS: usize = 12;

/// Names and shapes as transformers saves them; matrices of `Conv1D` are `[in, out]`.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let d = WIDTH;
    let mut all = vec![
        ("transformer.wte.weight".to_owned(), vec![VOCAB, d]),
        ("transformer.wpe.weight".to_owned(), vec![CONTEXT, d]),
        ("transformer.ln_f.weight".to_owned(), vec![d]),
        ("transformer.ln_f.bias".to_owned(), vec![d]),
    ];
    for layer in 0..LAYERS {
        let parts: [(&str, &[usize]); 12] = [
            ("ln_1.weight", &[d]),
            ("ln_1.bias", &[d]),
            ("attn.c_attn.weight", &[d, 3 * d]),
            ("attn.c_attn.bias", &[3 * d]),
            ("attn.c_proj.weight", &[d, d]),
            ("attn.c_proj.bias", &[d]),
            ("ln_2.weight", &[d]),
            ("ln_2.bias", &[d]),
            ("mlp.c_fc.weight", &[d, 4 * d]),
            ("mlp.c_fc.bias", &[4 * d]),
            ("mlp.c_proj.weight", &[4 * d, d]),
            ("mlp.c_proj.bias", &[d]),
        ];
        let named =
            parts.map(|(name, shape)| (format!("transformer.h.{layer}.{name}"), shape.to_vec()));
        all.extend(named);
    }
    all
}

/// Norms about 1, everything else of the deviation that GPT-2 begins its training with.
fn weight(name: &str, shape: &[usize]) -> Result<Tensor, tensor::TensorError> {
    let len = shape.iter().product();
    let (offset, _) = seeded::offset_and_scale(name);
    // Uniform in [-s, s) has the deviation s / sqrt(3).
    let mut values = seeded::tensor(SEED, name, len, 0.02 * 3f32.sqrt());
    values.iter_mut().for_each(|v| *v += offset);
    Tensor::from_slice(shape, &values)
}

/// Writes the model into `dir`.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(dir: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(dir)?;
    let config = json!({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
        "vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS,
        "layer_norm_epsilon": 1e-5, "bos_token_id": 50_256, "eos_token_id": 50_256,
        "tie_word_embeddings": true,
    });
    fs::write(dir.join("config.json"), serde_json::to_string_pretty(&config)?)?;
    let named = shapes();
    let tensors = named.iter().map(|(n, s)| weight(n, s)).collect::<Result<Vec<_>, _>>()?;
    let tensors: Vec<(&str, &Tensor)> =
        named.iter().map(|(n, _)| n.as_str()).zip(&tensors).collect();
    import::safetensors::write(dir.join("model.safetensors"), &[], &tensors)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: random_gpt2 DIR")?;
    write(&dir)
}
