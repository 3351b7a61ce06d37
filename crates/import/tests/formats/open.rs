//! Telling formats apart: by content, in files of any name, and in directories.

use rigel_import::{ErrorKind, open};

use crate::common::{message, noise, sample_gguf, sample_llama2c};

#[test]
fn names_do_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.txt");
    std::fs::write(&path, sample_gguf()).unwrap();
    assert_eq!(open(&path).unwrap().format_name(), "GGUF v3");
    std::fs::write(&path, sample_llama2c(true)).unwrap();
    assert_eq!(open(&path).unwrap().format_name(), "llama2.c v0");
}

#[test]
fn directories_with_one_gguf() {
    let dir = tempfile::tempdir().unwrap();
    let text = |dir: &tempfile::TempDir| message(&open(dir.path()).unwrap_err());
    assert!(text(&dir).contains("no model in this directory; what can be opened is a GGUF file"));
    std::fs::write(dir.path().join("a.gguf"), sample_gguf()).unwrap();
    std::fs::write(dir.path().join("README.md"), "text").unwrap();
    assert!(open(dir.path()).unwrap().path().ends_with("a.gguf"));
    // A configuration beside it, as GGUF repositories have, changes nothing.
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    assert!(open(dir.path()).unwrap().path().ends_with("a.gguf"));
    std::fs::write(dir.path().join("b.gguf"), sample_gguf()).unwrap();
    assert!(
        text(&dir).ends_with("2 GGUF models in this directory, name one of them: a.gguf, b.gguf")
    );
}

/// To open a pipe would wait for its writer, for ever if there is none.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_unopened() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("m");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let text = message(&open(&pipe).unwrap_err());
    assert_eq!(text, "m: invalid: is a pipe or device, not a file that can be mapped");
    assert!(rigel_import::map_file(&pipe).is_err());
    assert!(open("/dev/zero").unwrap_err().to_string().contains("is a pipe or device"));
}

#[test]
fn anything_else_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let e = open(&path).unwrap_err();
    assert!(e.kind == ErrorKind::Io && message(&e).starts_with("m: cannot open: "), "{e}");
    for contents in [&noise(5)[..], &noise(5000), b"hello world, this is no model at all\n"] {
        std::fs::write(&path, contents).unwrap();
        let text = message(&open(&path).unwrap_err());
        assert!(text.starts_with("m: invalid: not a model file; what can be opened is"), "{text}");
        assert!(text.contains("GGUF") && text.contains("safetensors") && text.contains("llama2.c"));
    }
    std::fs::write(&path, "").unwrap();
    assert_eq!(message(&open(&path).unwrap_err()), "m: invalid: file is empty");
    let cut = sample_llama2c(true);
    std::fs::write(&path, &cut[..cut.len() - 1]).unwrap();
    let text = message(&open(&path).unwrap_err());
    assert!(text.contains(r#"tensor "rotary table 1""#), "{text}");
    assert!(text.ends_with("12 bytes needed, 11 left"), "{text}");
}
