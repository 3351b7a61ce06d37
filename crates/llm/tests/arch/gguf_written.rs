//! Models of Hugging Face's form as GGUF files: the same logits, and llama.cpp's own metadata.

use std::fs;

use import::Gguf;
use rigel_llm::{Model, Tokenizer, initialise};
use serde_json::{Value, json};
use tensor::DType;

use crate::common::{Golden, check, golden_dir, write_hf};

/// A byte-level BPE of 90 pieces, 4 of them by merges and one a control token.
fn small_tokenizer() -> Value {
    let letters = ('!'..='~').take(85).map(|c| c.to_string());
    let merged = ["th", "the", "an", "and"].map(str::to_owned);
    let pieces = letters.chain(merged).enumerate();
    let vocab: serde_json::Map<String, Value> =
        pieces.map(|(id, piece)| (piece, id.into())).collect();
    json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 89, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        }],
        "normalizer": null,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        },
        "post_processor": null,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
        },
        "model": {
            "type": "BPE", "vocab": vocab,
            "merges": ["t h", "th e", "a n", "an d"],
        },
    })
}

#[test]
fn logits_stay() {
    for name in ["gpt2", "llama", "mistral", "qwen2", "qwen3"] {
        let golden = Golden::open(name);
        let dir = tempfile::tempdir().unwrap();
        let config = fs::read_to_string(golden_dir(name).join("config.json")).unwrap();
        write_hf(dir.path(), &config, &golden.weights());
        fs::write(dir.path().join("tokenizer.json"), small_tokenizer().to_string()).unwrap();
        let model = Model::load(dir.path()).unwrap();
        let tokenizer = model.tokenizer(None).unwrap();
        let to = dir.path().join("model.gguf");
        model.write_gguf(&tokenizer, None, &to).unwrap_or_else(|e| panic!("{name}: {e}"));
        check(&golden, &to, name);
        let written = Tokenizer::from_file(&to).unwrap();
        assert_eq!(written.vocab_size(), 96);
        let text = "the<|endoftext|>andthat";
        let ids = written.encode_with_control(text, false).unwrap();
        assert_eq!(ids, tokenizer.encode_with_control(text, false).unwrap(), "{name}");
        assert!(ids.contains(&89) && ids.len() < text.len());
    }
}

/// Matrices in blocks: near what they were, vectors as they were, and a model that still runs.
#[test]
fn matrices_can_be_quantised() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), small_tokenizer().to_string()).unwrap();
    let mut config = json!({
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2,
        "intermediate_size": 96, "vocab_size": 90, "max_position_embeddings": 8,
        "tie_word_embeddings": true,
    });
    let written = |config: &Value, dtype: Option<DType>| {
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let (to, file) = (tempfile::tempdir().unwrap(), dir.path().join("model.gguf"));
        let _ = fs::remove_file(&file);
        initialise(dir.path(), 3, to.path().join("model")).unwrap();
        let model = Model::load(to.path().join("model")).unwrap();
        model.write_gguf(&model.tokenizer(None).unwrap(), dtype, &file).map(|()| file)
    };
    let whole = Gguf::open(written(&config, None).unwrap()).unwrap();
    let names: Vec<String> = whole.tensors().map(|(name, _)| name.to_owned()).collect();
    let values = |gguf: &Gguf| -> Vec<Vec<f64>> {
        let floats = |n: &String| mil::eval::tensor_floats(&gguf.tensor(n).unwrap()).unwrap();
        names.iter().map(floats).collect()
    };
    let expected = values(&whole);
    let file = written(&config, Some(DType::Q8_0)).unwrap();
    let packed = Gguf::open(&file).unwrap();
    assert_eq!(packed.metadata().get::<u32>("general.file_type").unwrap(), 7);
    for ((name, is), should) in names.iter().zip(values(&packed)).zip(expected) {
        let matrix = packed.info(name).unwrap().shape.len() == 2;
        let dtype = if matrix { DType::Q8_0 } else { DType::F32 };
        assert_eq!(packed.tensor(name).unwrap().dtype(), dtype, "{name}");
        for (is, should) in is.chunks(32).zip(should.chunks(32)) {
            let most = should.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            let bound = if matrix { most / 127.0 * 0.57 } else { 0.0 };
            assert!(is.iter().zip(should).all(|(a, b)| (a - b).abs() <= bound), "{name}");
        }
    }
    Model::load(&file).unwrap().specialize(8).unwrap();
    config["intermediate_size"] = 80.into();
    let error = written(&config, Some(DType::Q8_0)).unwrap_err().to_string();
    assert!(error.contains("down_proj") && error.contains("cut blocks of q8_0"), "{error}");
}

/// What the type of the file does not hold is refused, not written as something else.
#[test]
fn numbers_that_a_type_does_not_hold_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), small_tokenizer().to_string()).unwrap();
    let config = json!({
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1,
        "intermediate_size": 96, "vocab_size": 90, "max_position_embeddings": 8,
    });
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    initialise(dir.path(), 3, dir.path().join("model")).unwrap();
    let file = dir.path().join("model/model.safetensors");
    let whole = fs::read(&file).unwrap();
    let to = dir.path().join("model.gguf");
    let cases = [
        (f32::NAN, DType::Q8_0, "not finite"),
        (f32::INFINITY, DType::F16, "not finite"),
        (1e6, DType::F16, "does not hold"),
        (1e12, DType::Q8_0, "does not hold"),
    ];
    for (number, dtype, why) in cases {
        let mut bytes = whole.clone();
        // In the middle of what follows the header: a matrix of the layer.
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let at = start + (bytes.len() - start) / 8 * 4;
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        fs::write(&file, bytes).unwrap();
        let model = Model::load(dir.path().join("model")).unwrap();
        let tokenizer = model.tokenizer(None).unwrap();
        let error = model.write_gguf(&tokenizer, Some(dtype), &to).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("weight model.layers.0."), "{error}");
        assert!(!to.exists());
    }
}

/// What is done to a configuration and a tokenizer.
type Change = dyn Fn(&mut Value, &mut Value);

/// Settings and tokenizers that a GGUF file cannot have, or that its reader would take for others.
#[test]
fn what_has_no_form_is_refused() {
    let same = |_: &mut Value, _: &mut Value| {};
    let cases: [(&str, &Change, &str); 8] = [
        ("gemma3", &same, "gemma3 models are not written as GGUF"),
        ("llama3_rope", &same, "a scaled rotary embedding has no form"),
        ("llama", &|c, _| c["hidden_act"] = "gelu".into(), "its activation has no form"),
        ("gpt2", &|c, _| c["activation_function"] = "gelu".into(), "its activation has no form"),
        (
            "gpt2",
            &|c, _| c["scale_attn_by_inverse_layer_idx"] = true.into(),
            "its scale of attention has no form",
        ),
        (
            "qwen2",
            &|c, _| {
                c["use_sliding_window"] = true.into();
                c["sliding_window"] = 8.into();
                c["layer_types"] = Value::Null;
                c["max_window_layers"] = 1.into();
            },
            "a window of some layers has no form",
        ),
        (
            "llama",
            &|_, t| t["pre_tokenizer"]["use_regex"] = false.into(),
            "way of cutting text into words has no form",
        ),
        (
            "llama",
            &|_, t| {
                t["post_processor"] = json!({
                    "type": "TemplateProcessing",
                    "single": [
                        { "Sequence": { "id": "A", "type_id": 0 } },
                        { "SpecialToken": { "id": "a", "type_id": 0 } },
                    ],
                    "pair": [],
                    "special_tokens": { "a": { "id": "a", "ids": [64], "tokens": ["a"] } },
                });
            },
            "around a text has no form",
        ),
    ];
    for (name, change, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        let config = fs::read_to_string(golden_dir(name).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&config).unwrap();
        let mut tokenizer = small_tokenizer();
        change(&mut config, &mut tokenizer);
        write_hf(dir.path(), &config.to_string(), &Golden::open(name).weights());
        fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let model = Model::load(dir.path()).unwrap();
        let to = dir.path().join("model.gguf");
        let error = model.write_gguf(&model.tokenizer(None).unwrap(), None, &to).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(!to.exists());
    }
}

/// SmolLM2's tokenizer.json becomes what llama.cpp's converter made of it.
#[test]
fn a_tokenizer_is_that_of_llama_cpp() {
    let real = crate::real::fixture("SmolLM2-135M-Instruct.Q4_1.gguf");
    let real = Gguf::open(real).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = testkit::shared_dir().join("models/smollm2_tokenizer.json");
    fs::copy(tokenizer, dir.path().join("tokenizer.json")).unwrap();
    let config = json!({
        "model_type": "llama", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1,
        "intermediate_size": 8, "vocab_size": 49152, "max_position_embeddings": 8,
        "tie_word_embeddings": true,
    });
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let model = dir.path().join("model");
    initialise(dir.path(), 0, &model).unwrap();
    let model = Model::load(model).unwrap();
    let to = dir.path().join("model.gguf");
    model.write_gguf(&model.tokenizer(None).unwrap(), None, &to).unwrap();
    let written = Gguf::open(&to).unwrap();
    let strings = |gguf: &Gguf, key: &str| -> Vec<String> {
        let found: Vec<&str> = gguf.metadata().get(&format!("tokenizer.ggml.{key}")).unwrap();
        found.into_iter().map(str::to_owned).collect()
    };
    for key in ["tokens", "merges"] {
        assert!(strings(&written, key) == strings(&real, key), "{key}");
    }
    let [ours, theirs] = [&written, &real].map(|gguf| {
        let text =
            |key: &str| gguf.metadata().get::<&str>(&format!("tokenizer.ggml.{key}")).unwrap();
        let types: Vec<i32> = gguf.metadata().get("tokenizer.ggml.token_type").unwrap();
        (text("model").to_owned(), text("pre").to_owned(), types)
    });
    assert_eq!(ours, theirs);
}
