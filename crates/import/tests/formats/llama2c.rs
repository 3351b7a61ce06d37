//! llama2.c checkpoints: version 0 made here, version 2 against a golden, and broken headers.

use rigel_import::{ErrorKind, Llama2c, ModelFile, open};
use tensor::Bytes;
use testkit::workspace_dir;

use crate::common::{LLAMA2C_DIMS, message, sample_llama2c};

fn read(bytes: &[u8]) -> rigel_import::Result<Llama2c> {
    Llama2c::from_bytes("m.bin", Bytes::copy_from(bytes))
}

fn floats(model: &Llama2c, name: &str) -> Vec<f32> {
    model.tensor(name).unwrap().as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn version_0_places_every_tensor() {
    // The file holds 0, 1, 2 …, so that the first value of a tensor tells where it was found.
    let model = read(&sample_llama2c(false)).unwrap();
    let first = |name: &str| floats(&model, name)[0];
    // Embedding 5x4, then by kind: norm 2x4, q 2x16, k 2x8, v 2x8, o 2x16, norm 2x4, gate 2x24, down, up.
    assert_eq!(first("model.embed_tokens.weight"), 0.0);
    assert_eq!(first("model.layers.1.input_layernorm.weight"), 24.0);
    assert_eq!(first("model.layers.0.self_attn.q_proj.weight"), 28.0);
    assert_eq!(first("model.layers.1.self_attn.k_proj.weight"), 68.0);
    assert_eq!(first("model.layers.0.self_attn.v_proj.weight"), 76.0);
    assert_eq!(first("model.layers.0.self_attn.o_proj.weight"), 92.0);
    assert_eq!(first("model.layers.0.post_attention_layernorm.weight"), 124.0);
    assert_eq!(first("model.layers.0.mlp.gate_proj.weight"), 132.0);
    assert_eq!(first("model.layers.0.mlp.down_proj.weight"), 180.0);
    assert_eq!(first("model.layers.1.mlp.up_proj.weight"), 252.0);
    assert_eq!(first("model.norm.weight"), 276.0);
    // Two rotary tables of 3 x 1 lie between.
    assert_eq!(first("lm_head.weight"), 286.0);
    assert_eq!(model.tensor("model.layers.0.mlp.down_proj.weight").unwrap().shape(), [4, 6]);
    assert!(!model.config().shared_classifier);
    assert_eq!(model.config().vocab_size, 5);
    let shared = read(&sample_llama2c(true)).unwrap();
    assert!(shared.config().shared_classifier && shared.info("lm_head.weight").is_none());
}

#[test]
fn version_1_is_version_0_in_another_order() {
    let [dim, hidden, layers, heads, _, vocab, _] = LLAMA2C_DIMS;
    let mut bytes = b"24ka\x01\0\0\0".to_vec();
    bytes.extend(LLAMA2C_DIMS.iter().flat_map(|v| v.to_le_bytes()));
    bytes.push(1);
    bytes.resize(256, 0);
    let kv = dim / heads;
    let layer = 2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * dim * hidden;
    let count = vocab * dim + layers * layer + dim;
    bytes.extend((0..count).flat_map(|i| (i as f32).to_le_bytes()));
    let model = read(&bytes).unwrap();
    assert_eq!((model.version(), model.group_size()), (1, None));
    let first = |name: &str| floats(&model, name)[0];
    // Both norms of both layers, the last norm, the embedding, then the matrices.
    assert_eq!(first("model.layers.0.post_attention_layernorm.weight"), 8.0);
    assert_eq!(first("model.norm.weight"), 16.0);
    assert_eq!(first("model.embed_tokens.weight"), 20.0);
    assert_eq!(first("model.layers.1.self_attn.q_proj.weight"), 56.0);
    assert_eq!(first("model.layers.1.mlp.up_proj.weight"), (count - 24) as f32);
}

#[test]
fn version_2_equals_the_golden() {
    let golden = std::fs::read(workspace_dir().join("tests/golden/llama2c_int8.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
    let hex = |v: &serde_json::Value| -> Vec<u8> {
        let text = v.as_str().unwrap().as_bytes();
        let digit = |b: u8| (b as char).to_digit(16).unwrap() as u8;
        text.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("anything");
    std::fs::write(&path, hex(&golden["file_hex"])).unwrap();
    let model = open(&path).unwrap();
    let ModelFile::Llama2c(checkpoint) = &model else { panic!("{model:?}") };
    assert_eq!((checkpoint.version(), checkpoint.group_size()), (2, Some(4)));
    let expected = golden["tensors"].as_object().unwrap();
    assert_eq!(model.tensors().len(), expected.len());
    for (name, expected) in expected {
        let tensor = model.tensor(name).unwrap();
        let shape: Vec<usize> = serde_json::from_value(expected["shape"].clone()).unwrap();
        assert_eq!(tensor.shape(), shape, "{name}");
        assert_eq!(tensor.bytes().to_vec(), hex(&expected["f32_hex"]), "{name}");
    }
    let entry = |name: &str| model.tensors().into_iter().find(|t| t.name == name).unwrap();
    assert_eq!(entry("model.embed_tokens.weight").type_name, "INT8 in groups of 4");
    assert_eq!(entry("model.norm.weight").type_name, "F32");
}

#[test]
fn broken_headers() {
    let with = |index: usize, value: i32| {
        let mut bytes = sample_llama2c(true);
        bytes[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
        let e = read(&bytes).unwrap_err();
        (e.kind, message(&e))
    };
    let invalid = |text: &str| (ErrorKind::Invalid, text.to_owned());
    assert_eq!(with(0, -4), invalid("m.bin: offset 0: invalid: the width is -4"));
    let (kind, text) = with(2, i32::MAX);
    assert_eq!(kind, ErrorKind::Limit);
    assert!(text.contains("2147483647 layers, at most"), "{text}");
    let (_, text) = with(3, 3);
    assert!(text.contains("width 4, 3 heads and 1 key-value heads do not divide evenly"), "{text}");
    assert!(with(5, 0).1.contains("offset 20: invalid: the vocabulary's size is 0"));
    assert!(with(5, i32::MIN).1.contains("model.embed_tokens.weight"));
    let (_, text) = with(1, 7);
    assert!(text.contains("tensor \"model.layers.") && text.contains("bytes needed"), "{text}");
    let (_, text) = with(6, 1);
    assert!(text.ends_with("16 bytes after the last tensor belong to none"), "{text}");
    assert!(with(6, 0).1.contains("offset 24: invalid: the sequence length is 0"));
    let version_9 = [b"24ka\x09\0\0\0".to_vec(), vec![0; 300]].concat();
    let e = read(&version_9).unwrap_err();
    assert_eq!(
        (e.kind, message(&e).as_str()),
        (ErrorKind::Unsupported, "m.bin: offset 4: unsupported: llama2.c checkpoint version 9")
    );
}
