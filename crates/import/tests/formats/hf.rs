//! Hugging Face directories: one file, shards, configuration, and what can be wrong with them.

use std::path::{Path, PathBuf};

use rigel_import::{ErrorKind, HfDir, ModelFile, open, safetensors};
use tempfile::TempDir;
use tensor::{DType, Tensor};

use crate::common::message;

fn put(dir: &Path, name: &str, contents: &str) -> PathBuf {
    std::fs::write(dir.join(name), contents).unwrap();
    dir.join(name)
}

fn put_tensors(dir: &Path, file: &str, names: &[&str]) {
    let tensor = Tensor::from_slice(&[2], &[1f32, 2.0]).unwrap();
    let tensors: Vec<_> = names.iter().map(|&n| (n, &tensor)).collect();
    safetensors::write(dir.join(file), &[], &tensors).unwrap();
}

fn put_index(dir: &Path, entries: &str) {
    let text = format!(r#"{{"metadata":{{"total_size":16}},"weight_map":{{{entries}}}}}"#);
    put(dir, "model.safetensors.index.json", &text);
}

const CONFIG: &str = r#"{"model_type":"llama","hidden_size":64,"rope_scaling":{"factor":8.0},
    "sliding_window":null,"layer_types":["full_attention"]}"#;

/// A directory with a configuration and two shards, `a` and `b` in one, `c` in the other.
fn sharded() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "config.json", CONFIG);
    put_tensors(dir.path(), "s1.safetensors", &["a", "b"]);
    put_tensors(dir.path(), "s2.safetensors", &["c"]);
    put_index(dir.path(), r#""a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors""#);
    dir
}

fn error(dir: &TempDir) -> (ErrorKind, String) {
    let e = open(dir.path()).unwrap_err();
    (e.kind, message(&e))
}

#[test]
fn shards_make_one_model() {
    let dir = sharded();
    for path in [dir.path().to_path_buf(), dir.path().join("model.safetensors.index.json")] {
        let model = open(path).unwrap();
        assert_eq!(model.format_name(), "Hugging Face safetensors");
        let tensors = model.tensors();
        assert_eq!(tensors.iter().map(|t| t.name).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(tensors[2].file.ends_with("s2.safetensors"));
        assert_eq!((tensors[0].dtype, tensors[0].byte_len), (Some(DType::F32), Some(8)));
        let c = model.tensor("c").unwrap();
        assert!(c.bytes().is_mapped());
        assert_eq!(c.as_slice::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(model.tensor("d").unwrap_err().kind, ErrorKind::Invalid);
    }
}

#[test]
fn one_file_by_directory_or_by_name() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "config.json", CONFIG);
    put_tensors(dir.path(), "model.safetensors", &["a"]);
    put_tensors(dir.path(), "other.safetensors", &["z"]);
    put(dir.path(), "tokenizer.json", "{}");
    let by_dir = open(dir.path()).unwrap();
    assert!(by_dir.contains("a"));
    let ModelFile::HuggingFace(by_dir) = by_dir else { panic!() };
    assert_eq!(by_dir.side_files().tokenizer_json, Some(dir.path().join("tokenizer.json")));
    assert_eq!(by_dir.side_files().tokenizer_model, None);
    assert!(open(dir.path().join("other.safetensors")).unwrap().contains("z"));
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    let e = open(dir.path().join("other.safetensors")).unwrap_err();
    assert!(message(&e).starts_with("config.json: cannot open"), "{e}");
}

#[test]
fn configuration_is_typed() {
    let dir = sharded();
    let model = HfDir::open(dir.path()).unwrap();
    assert_eq!(model.get::<usize>("hidden_size").unwrap(), 64);
    assert_eq!(model.get::<f32>("rope_scaling.factor").unwrap(), 8.0);
    assert_eq!(model.get::<Vec<String>>("layer_types").unwrap(), ["full_attention"]);
    assert_eq!(model.find::<usize>("sliding_window").unwrap(), None);
    assert_eq!(model.find::<f32>("rope_scaling.none").unwrap(), None);
    assert_eq!(model.find::<f32>("hidden_size.none").unwrap(), None);
    let text = |e| message(&e);
    assert_eq!(
        text(model.get::<u32>("vocab_size").unwrap_err()),
        r#"config.json: key "vocab_size": invalid: no such key"#
    );
    assert_eq!(
        text(model.get::<u32>("model_type").unwrap_err()),
        r#"config.json: key "model_type": invalid: invalid type: string "llama", expected u32"#
    );
    put(dir.path(), "config.json", "{\n \"a\": nope}");
    assert_eq!(error(&dir).1, "config.json: offset 9: invalid: JSON: expected ident");
    put(dir.path(), "config.json", "[]");
    assert_eq!(error(&dir).1, "config.json: invalid: is not a JSON object");
}

#[test]
fn broken_indices() {
    let dir = sharded();
    put_index(dir.path(), r#""a":"s1.safetensors","x":"s1.safetensors""#);
    let expected = r#"model.safetensors.index.json: tensor "x": invalid: the index puts it in "s1.safetensors", which lacks it"#;
    assert_eq!(error(&dir), (ErrorKind::Invalid, expected.to_owned()));
    put_index(dir.path(), r#""a":"s1.safetensors","c":"s1.safetensors","b":"s2.safetensors""#);
    assert!(error(&dir).1.contains("which lacks it"));
    put_index(dir.path(), r#""a":"gone.safetensors""#);
    let (kind, text) = error(&dir);
    assert!(kind == ErrorKind::Io && text.starts_with("gone.safetensors: cannot open"), "{text}");
    for outside in ["../s1.safetensors", "/etc/passwd", "", "a/b"] {
        put_index(dir.path(), &format!(r#""a":"{outside}""#));
        assert!(error(&dir).1.ends_with("is not a file of this directory"), "{outside}");
    }
    put_index(dir.path(), r#""a":"s1.safetensors","a":"s2.safetensors""#);
    assert!(error(&dir).1.contains(r#"JSON: "a" occurs twice"#));
    put(dir.path(), "model.safetensors.index.json", "{}");
    assert!(error(&dir).1.contains("missing field `weight_map`"));
    put_tensors(dir.path(), "s2.safetensors", &["a", "c"]);
    put_index(dir.path(), r#""a":"s1.safetensors","c":"s2.safetensors""#);
    assert!(error(&dir).1.starts_with(r#"s2.safetensors: tensor "a": invalid: tensor is also in"#));
}

#[test]
fn pickled_weights_are_unsupported() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "config.json", CONFIG);
    let pickle = put(dir.path(), "pytorch_model.bin", "PK\x03\x04");
    let (kind, text) = error(&dir);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("pytorch_model.bin holds pickled weights; convert them to safetensors"));
    let e = open(pickle).unwrap_err();
    assert!(
        e.kind == ErrorKind::Unsupported && message(&e).ends_with("convert them to safetensors")
    );
}
