//! Models that cannot be loaded: one clear error each.

use std::collections::BTreeMap;
use std::fs;

use mil::ErrorKind;
use rigel_llm::{Error, Model, inspect};
use serde_json::{Value, json};
use tensor::{DType, Tensor};

use crate::common::{Golden, golden_dir, write_hf};

type Weights = BTreeMap<String, Tensor>;

/// The error of golden model `name` after a change, and what `inspect` says of it.
fn broken(name: &str, change: impl Fn(&mut Value, &mut Weights)) -> (Error, Vec<String>) {
    let mut weights = Golden::open(name).weights();
    let config = fs::read_to_string(golden_dir(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    change(&mut config, &mut weights);
    let dir = tempfile::tempdir().unwrap();
    write_hf(dir.path(), &config.to_string(), &weights);
    let error = Model::load(dir.path()).expect_err("the model is broken");
    assert!(!error.to_string().contains('\n'), "{error}");
    let problems = inspect(&import::open(dir.path()).unwrap()).problems;
    (error, problems.into_iter().map(|p| p.message).collect())
}

#[test]
fn configurations() {
    let cases: &[(&str, &str, Value, ErrorKind, &str)] = &[
        (
            "llama",
            "model_type",
            json!("mamba"),
            ErrorKind::Unsupported,
            "architecture \"mamba\"; there are gemma3_text, gpt2, llama, mistral, qwen2, qwen3",
        ),
        ("llama", "hidden_act", json!("relu2"), ErrorKind::Unsupported, "hidden_act = \"relu2\""),
        ("llama", "mlp_bias", json!(true), ErrorKind::Unsupported, "mlp_bias = true"),
        (
            "llama",
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 4.0}),
            ErrorKind::Unsupported,
            "rope type \"yarn\"; there are default, linear and llama3",
        ),
        (
            "llama",
            "rope_scaling",
            json!({"rope_type": "linear", "factor": 0.0}),
            ErrorKind::Invalid,
            "rotary base",
        ),
        (
            "llama",
            "rope_scaling",
            json!({"rope_type": "linear"}),
            ErrorKind::Invalid,
            "key \"rope_scaling.factor\"",
        ),
        (
            "llama",
            "quantization_config",
            json!({"quant_method": "gptq"}),
            ErrorKind::Unsupported,
            "method \"gptq\"",
        ),
        ("llama", "hidden_size", json!("wide"), ErrorKind::Invalid, "key \"hidden_size\""),
        (
            "llama",
            "num_hidden_layers",
            Value::Null,
            ErrorKind::Invalid,
            "key \"num_hidden_layers\"",
        ),
        (
            "llama",
            "num_key_value_heads",
            json!(3),
            ErrorKind::Invalid,
            "do not share 3 key-value heads",
        ),
        (
            "llama",
            "num_hidden_layers",
            json!(4_000_000_000u64),
            ErrorKind::Invalid,
            "layers of 4000000000",
        ),
        (
            "llama",
            "num_hidden_layers",
            json!(4),
            ErrorKind::Invalid,
            "\"model.layers.3.self_attn.q_proj.weight\" is missing",
        ),
        (
            "llama",
            "num_hidden_layers",
            json!(2),
            ErrorKind::Unsupported,
            "\"model.layers.2.input_layernorm.weight\" has no place in architecture llama (nor have 8 others)",
        ),
        (
            "llama",
            "vocab_size",
            json!(95),
            ErrorKind::Invalid,
            "\"model.embed_tokens.weight\" has shape [96, 48], expected [95, 48]",
        ),
        (
            "qwen2",
            "layer_types",
            json!(["full_attention", "chunked_attention", "full_attention"]),
            ErrorKind::Unsupported,
            "layer type \"chunked_attention\"",
        ),
        (
            "qwen2",
            "layer_types",
            json!(["full_attention"]),
            ErrorKind::Invalid,
            "1 entries for 3 layers",
        ),
        (
            "gemma3",
            "use_bidirectional_attention",
            json!(true),
            ErrorKind::Unsupported,
            "use_bidirectional_attention = true",
        ),
        (
            "gemma3",
            "query_pre_attn_scalar",
            json!(0),
            ErrorKind::Invalid,
            "factor inf of attention scores",
        ),
        ("gpt2", "n_head", json!(5), ErrorKind::Invalid, "width 48 does not divide into 5"),
    ];
    for (name, key, value, kind, message) in cases {
        let (error, problems) = broken(name, |config, _| config[*key] = value.clone());
        assert_eq!(error.kind(), *kind, "{name} {key}: {error}");
        assert!(error.to_string().contains(message), "{name} {key}: {error}");
        assert!(problems.iter().any(|p| p.contains(message)), "{name} {key}: {problems:?}");
    }
}

/// All that a configuration asks for in vain is said at once.
#[test]
fn several_refusals_are_one_error() {
    let (error, problems) = broken("llama", |config, _| {
        config["mlp_bias"] = json!(true);
        config["hidden_act"] = json!("relu");
    });
    assert!(error.to_string().contains("mlp_bias = true; hidden_act = \"relu\""), "{error}");
    assert_eq!(problems.len(), 2);
}

#[test]
fn tensors() {
    const QUERY: &str = "model.layers.1.self_attn.q_proj";
    type Change = fn(&mut Weights);
    let cases: &[(&str, Change, &str)] = &[
        (
            "llama",
            |w| drop(w.remove(&format!("{QUERY}.weight"))),
            "\"model.layers.1.self_attn.q_proj.weight\" is missing, of shape [64, 48]",
        ),
        (
            "llama",
            |w| {
                let t = Tensor::zeros(DType::F32, &[48, 64]).unwrap();
                drop(w.insert(format!("{QUERY}.weight"), t));
            },
            "model.safetensors: tensor \"model.layers.1.self_attn.q_proj.weight\" has shape [48, 64], expected [64, 48]",
        ),
        (
            "llama",
            |w| {
                let t = Tensor::zeros(DType::I32, &[64, 48]).unwrap();
                drop(w.insert(format!("{QUERY}.weight"), t));
            },
            "\"model.layers.1.self_attn.q_proj.weight\" is int32, not of floats",
        ),
        (
            "qwen2",
            |w| drop(w.remove(&format!("{QUERY}.bias"))),
            "\"model.layers.1.self_attn.q_proj.bias\" is missing, of shape [48]",
        ),
        (
            "llama",
            |w| drop(w.insert("score.weight".into(), Tensor::zeros(DType::F32, &[2, 48]).unwrap())),
            "\"score.weight\" has no place in architecture llama",
        ),
    ];
    for (name, change, message) in cases {
        let (error, problems) = broken(name, |_, weights| change(weights));
        assert!(error.to_string().contains(message), "{error}");
        assert!(problems.iter().any(|p| p.contains(message)), "{problems:?}");
    }
}

/// Where the configuration promises biases of attention, each one must be there.
#[test]
fn promised_biases() {
    const PROJECTIONS: [&str; 4] = ["q_proj", "k_proj", "v_proj", "o_proj"];
    for missing in PROJECTIONS {
        let (error, _) = broken("llama", |config, weights| {
            config["attention_bias"] = json!(true);
            let named =
                |name: &str| PROJECTIONS.iter().any(|p| name.ends_with(&format!("{p}.weight")));
            let matrices: Vec<_> = weights
                .iter()
                .filter(|(n, _)| named(n))
                .map(|(n, t)| (n.clone(), t.shape()[0]))
                .collect();
            for (name, rows) in matrices.iter().filter(|(n, _)| !n.contains(missing)) {
                let bias = Tensor::zeros(DType::F32, &[*rows]).unwrap();
                weights.insert(name.replace(".weight", ".bias"), bias);
            }
        });
        let message = format!("\"model.layers.0.self_attn.{missing}.bias\" is missing");
        assert!(error.to_string().contains(&message), "{error}");
    }
}

#[test]
fn contexts() {
    let dir = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(golden_dir("llama").join("config.json")).unwrap();
    write_hf(dir.path(), &config, &Golden::open("llama").weights());
    let model = Model::load(dir.path()).unwrap();
    assert!(model.specialize(64).is_ok());
    for context in [0, 65] {
        let error = model.specialize(context).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.to_string().contains("takes 1 to 64"), "{error}");
    }
}

#[test]
fn gguf_metadata() {
    use import::gguf::{self, Value};
    let number = |n: u32| Value::from(n);
    let cases: &[(&str, Value, ErrorKind, &str)] = &[
        (
            "general.architecture",
            "mamba".into(),
            ErrorKind::Unsupported,
            "architecture \"mamba\"; there are gemma3, gpt2, llama, qwen2, qwen3",
        ),
        ("llama.expert_count", number(8), ErrorKind::Unsupported, "a mixture of 8 experts"),
        ("llama.rope.scaling.type", "yarn".into(), ErrorKind::Unsupported, "rope scaling \"yarn\""),
        (
            "llama.rope.dimension_count",
            number(17),
            ErrorKind::Invalid,
            "rotary embedding of 17 elements in heads of 16",
        ),
        (
            "llama.attention.value_length",
            number(8),
            ErrorKind::Unsupported,
            "values of another width",
        ),
        (
            "llama.attention.head_count",
            "four".into(),
            ErrorKind::Invalid,
            "key \"llama.attention.head_count\"",
        ),
        (
            "llama.feed_forward_length",
            [80u32, 96].as_slice().into(),
            ErrorKind::Unsupported,
            "feed_forward_length that differs between layers",
        ),
        ("llama.block_count", number(0), ErrorKind::Invalid, "layers of 0"),
        ("llama.block_count", number(u32::MAX), ErrorKind::Invalid, "layers of 4294967295"),
        (
            "llama.attention.key_length",
            number(1 << 20),
            ErrorKind::Invalid,
            "head width of 1048576",
        ),
        (
            "llama.block_count",
            number(1),
            ErrorKind::Invalid,
            "tensor \"blk.0.attn_q.weight\" is missing, of shape [64, 48]",
        ),
    ];
    let embedding = Tensor::zeros(DType::F32, &[96, 48]).unwrap();
    for (key, value, kind, message) in cases {
        let mut metadata: BTreeMap<&str, Value> = [
            ("general.architecture", "llama".into()),
            ("llama.block_count", number(2)),
            ("llama.embedding_length", number(48)),
            ("llama.feed_forward_length", number(80)),
            ("llama.context_length", number(64)),
            ("llama.attention.head_count", number(4)),
            ("llama.attention.key_length", number(16)),
            ("llama.attention.layer_norm_rms_epsilon", 1e-6f32.into()),
        ]
        .into();
        metadata.insert(key, value.clone());
        let metadata: Vec<(&str, Value)> = metadata.into_iter().collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        gguf::write(&path, &metadata, &[("token_embd.weight", &embedding)]).unwrap();
        let error = Model::load(&path).expect_err("the model is broken");
        assert_eq!(error.kind(), *kind, "{key}: {error}");
        assert!(error.to_string().contains(message), "{key}: {error}");
        let problems = inspect(&import::open(&path).unwrap()).problems;
        assert!(problems.iter().any(|p| p.message.contains(message)), "{key}: {problems:?}");
    }
}
