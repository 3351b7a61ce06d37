//! The golden models as GGUF, converted here as llama.cpp's converter does, give the same logits.

use std::collections::BTreeMap;
use std::path::Path;

use import::gguf::{self, Value};
use tensor::Tensor;

use crate::common::{Golden, check};

/// A golden model under GGUF's names: (GGUF, Hugging Face) with `#` for the layer.
struct Conversion {
    golden: &'static str,
    arch: &'static str,
    layers: usize,
    names: &'static [(&'static str, &'static str)],
    metadata: &'static [(&'static str, Number)],
    change: fn(&str, Tensor) -> Tensor,
}

#[derive(Clone, Copy)]
enum Number {
    U(u32),
    F(f32),
}
use Number::{F, U};

const LLAMA_NAMES: &[(&str, &str)] = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output.weight", "lm_head.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("blk.#.attn_norm.weight", "model.layers.#.input_layernorm.weight"),
    ("blk.#.attn_q.weight", "model.layers.#.self_attn.q_proj.weight"),
    ("blk.#.attn_q.bias", "model.layers.#.self_attn.q_proj.bias"),
    ("blk.#.attn_k.weight", "model.layers.#.self_attn.k_proj.weight"),
    ("blk.#.attn_k.bias", "model.layers.#.self_attn.k_proj.bias"),
    ("blk.#.attn_v.weight", "model.layers.#.self_attn.v_proj.weight"),
    ("blk.#.attn_v.bias", "model.layers.#.self_attn.v_proj.bias"),
    ("blk.#.attn_output.weight", "model.layers.#.self_attn.o_proj.weight"),
    ("blk.#.attn_q_norm.weight", "model.layers.#.self_attn.q_norm.weight"),
    ("blk.#.attn_k_norm.weight", "model.layers.#.self_attn.k_norm.weight"),
    ("blk.#.ffn_norm.weight", "model.layers.#.post_attention_layernorm.weight"),
    ("blk.#.ffn_gate.weight", "model.layers.#.mlp.gate_proj.weight"),
    ("blk.#.ffn_up.weight", "model.layers.#.mlp.up_proj.weight"),
    ("blk.#.ffn_down.weight", "model.layers.#.mlp.down_proj.weight"),
];

const LLAMA_METADATA: &[(&str, Number)] = &[
    ("block_count", U(3)),
    ("embedding_length", U(48)),
    ("feed_forward_length", U(80)),
    ("context_length", U(64)),
    ("attention.head_count", U(4)),
    ("attention.head_count_kv", U(2)),
    ("attention.key_length", U(16)),
    ("attention.value_length", U(16)),
    ("attention.layer_norm_rms_epsilon", F(1e-6)),
    ("rope.dimension_count", U(16)),
    ("rope.freq_base", F(10_000.0)),
];

const LLAMA: Conversion = Conversion {
    golden: "llama",
    arch: "llama",
    layers: 3,
    names: LLAMA_NAMES,
    metadata: LLAMA_METADATA,
    change: permuted,
};

/// Rows of each head from halves to neighbours: what the converter does to Llama's queries and keys.
fn permuted(name: &str, t: Tensor) -> Tensor {
    if !name.contains("attn_q.") && !name.contains("attn_k.") {
        return t;
    }
    const HEAD: usize = 16;
    let (values, width) = (t.as_slice::<f32>().unwrap(), t.shape()[1]);
    let from = |row: usize| {
        let (head, within) = (row / HEAD, row % HEAD);
        head * HEAD + within % 2 * (HEAD / 2) + within / 2
    };
    let rows: Vec<f32> = (0..t.shape()[0])
        .flat_map(|row| values[from(row) * width..(from(row) + 1) * width].to_vec())
        .collect();
    Tensor::from_slice(t.shape(), &rows).unwrap()
}

fn unchanged(_: &str, t: Tensor) -> Tensor {
    t
}

fn convert(c: &Conversion, extra: Option<(&str, Tensor)>) {
    let golden = Golden::open(c.golden);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    write(c, &golden, extra, &path);
    check(&golden, &path, &format!("{} as GGUF", c.golden));
}

/// The golden Llama or GPT-2 as GGUF.
pub(crate) fn write_golden(name: &str, path: &Path) {
    let conversion = match name {
        "gpt2" => &GPT2,
        _ => &LLAMA,
    };
    assert_eq!(conversion.golden, name);
    write(conversion, &Golden::open(name), None, path);
}

fn write(c: &Conversion, golden: &Golden, extra: Option<(&str, Tensor)>, path: &Path) {
    let weights = golden.weights();
    let mut tensors = BTreeMap::new();
    for (to, from) in c.names {
        for layer in 0..c.layers {
            let layer = layer.to_string();
            let (to, from) = (to.replace('#', &layer), from.replace('#', &layer));
            if let Some(t) = weights.get(&from) {
                tensors.insert(to.clone(), (c.change)(&to, t.clone()));
            }
        }
    }
    assert_eq!(tensors.len(), weights.len());
    tensors.extend(extra.map(|(name, t)| (name.to_owned(), t)));
    let mut metadata: Vec<(String, Value)> =
        vec![("general.architecture".into(), Value::from(c.arch))];
    metadata.extend(c.metadata.iter().map(|&(key, number)| {
        let value = match number {
            U(n) => Value::from(n),
            F(x) => Value::from(x),
        };
        (format!("{}.{key}", c.arch), value)
    }));
    let metadata: Vec<(&str, Value)> = metadata.iter().map(|(k, v)| (&**k, v.clone())).collect();
    let tensors: Vec<(&str, &Tensor)> = tensors.iter().map(|(k, t)| (&**k, t)).collect();
    gguf::write(path, &metadata, &tensors).unwrap();
}

#[test]
fn llama() {
    convert(&LLAMA, None);
}

#[test]
fn mistral_with_its_window() {
    let metadata = &[LLAMA_METADATA, &[("attention.sliding_window", U(7))]].concat();
    let metadata: &'static [_] = metadata.clone().leak();
    convert(&Conversion { golden: "mistral", metadata, ..LLAMA }, None);
}

/// The converter turns Llama 3's scaling into divisors, by transformers' own three-way formula.
#[test]
fn llama3_rope_factors() {
    let factors: Vec<f32> = (0..8)
        .map(|i| {
            let wavelength = std::f32::consts::TAU * 10_000f32.powf(i as f32 / 8.0);
            let (factor, low, high, original) = (8.0, 1.0, 4.0, 128.0);
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        })
        .collect();
    let factors = Tensor::from_slice(&[8], &factors).unwrap();
    let golden = Conversion { golden: "llama3_rope", ..LLAMA };
    convert(&golden, Some(("rope_freqs.weight", factors)));
}

#[test]
fn qwen2() {
    let metadata = &[
        ("block_count", U(3)),
        ("embedding_length", U(48)),
        ("feed_forward_length", U(80)),
        ("context_length", U(64)),
        ("attention.head_count", U(4)),
        ("attention.head_count_kv", U(2)),
        ("attention.layer_norm_rms_epsilon", F(1e-6)),
        ("rope.freq_base", F(1e6)),
    ];
    convert(
        &Conversion { golden: "qwen2", arch: "qwen2", metadata, change: unchanged, ..LLAMA },
        None,
    );
}

#[test]
fn qwen3() {
    let metadata = &[
        ("block_count", U(3)),
        ("embedding_length", U(48)),
        ("feed_forward_length", U(80)),
        ("context_length", U(64)),
        ("attention.head_count", U(4)),
        ("attention.head_count_kv", U(2)),
        ("attention.key_length", U(16)),
        ("attention.value_length", U(16)),
        ("attention.layer_norm_rms_epsilon", F(1e-6)),
        ("rope.freq_base", F(1e6)),
    ];
    convert(
        &Conversion { golden: "qwen3", arch: "qwen3", metadata, change: unchanged, ..LLAMA },
        None,
    );
}

const GPT2: Conversion = Conversion {
    golden: "gpt2",
    arch: "gpt2",
    layers: 3,
    names: &[
        ("token_embd.weight", "transformer.wte.weight"),
        ("position_embd.weight", "transformer.wpe.weight"),
        ("output_norm.weight", "transformer.ln_f.weight"),
        ("output_norm.bias", "transformer.ln_f.bias"),
        ("blk.#.attn_norm.weight", "transformer.h.#.ln_1.weight"),
        ("blk.#.attn_norm.bias", "transformer.h.#.ln_1.bias"),
        ("blk.#.attn_qkv.weight", "transformer.h.#.attn.c_attn.weight"),
        ("blk.#.attn_qkv.bias", "transformer.h.#.attn.c_attn.bias"),
        ("blk.#.attn_output.weight", "transformer.h.#.attn.c_proj.weight"),
        ("blk.#.attn_output.bias", "transformer.h.#.attn.c_proj.bias"),
        ("blk.#.ffn_norm.weight", "transformer.h.#.ln_2.weight"),
        ("blk.#.ffn_norm.bias", "transformer.h.#.ln_2.bias"),
        ("blk.#.ffn_up.weight", "transformer.h.#.mlp.c_fc.weight"),
        ("blk.#.ffn_up.bias", "transformer.h.#.mlp.c_fc.bias"),
        ("blk.#.ffn_down.weight", "transformer.h.#.mlp.c_proj.weight"),
        ("blk.#.ffn_down.bias", "transformer.h.#.mlp.c_proj.bias"),
    ],
    metadata: &[
        ("block_count", U(3)),
        ("embedding_length", U(48)),
        ("feed_forward_length", U(192)),
        ("context_length", U(64)),
        ("attention.head_count", U(4)),
        ("attention.layer_norm_epsilon", F(1e-5)),
    ],
    change: transposed,
};

/// Matrices from `[in, out]` to `[out, in]`.
fn transposed(name: &str, t: Tensor) -> Tensor {
    let &[height, width] = t.shape() else { return t };
    if name.contains("embd") {
        return t;
    }
    let values = t.as_slice::<f32>().unwrap();
    let turned: Vec<f32> =
        (0..width * height).map(|i| values[i % height * width + i / height]).collect();
    Tensor::from_slice(&[width, height], &turned).unwrap()
}

#[test]
fn gpt2() {
    convert(&GPT2, None);
}

#[test]
fn gemma3() {
    /// The weights of norms with their 1 added.
    fn offset(name: &str, t: Tensor) -> Tensor {
        if !name.contains("norm") {
            return t;
        }
        let values: Vec<f32> = t.as_slice::<f32>().unwrap().iter().map(|w| w + 1.0).collect();
        Tensor::from_slice(t.shape(), &values).unwrap()
    }
    let names: &[(&str, &str)] = &[
        ("blk.#.post_attention_norm.weight", "model.layers.#.post_attention_layernorm.weight"),
        ("blk.#.ffn_norm.weight", "model.layers.#.pre_feedforward_layernorm.weight"),
        ("blk.#.post_ffw_norm.weight", "model.layers.#.post_feedforward_layernorm.weight"),
    ];
    let others: Vec<_> =
        LLAMA_NAMES.iter().filter(|(to, _)| !to.contains("ffn_norm")).copied().collect();
    let names: &'static [_] = [names, &others].concat().leak();
    let metadata = &[
        ("block_count", U(7)),
        ("embedding_length", U(48)),
        ("feed_forward_length", U(80)),
        ("context_length", U(64)),
        ("attention.head_count", U(4)),
        ("attention.head_count_kv", U(1)),
        ("attention.key_length", U(16)),
        ("attention.value_length", U(16)),
        ("attention.layer_norm_rms_epsilon", F(1e-6)),
        ("attention.sliding_window", U(6)),
        // 24 in place of the head's 16, as only Gemma 3 27B has it among published models.
        ("attention.scale", F(0.204_124_15)),
        ("rope.freq_base", F(1e6)),
    ];
    let arch = "gemma3";
    convert(&Conversion { golden: arch, arch, layers: 7, names, metadata, change: offset }, None);
}
