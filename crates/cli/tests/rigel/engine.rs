//! Generation on an emulated Neural Engine, from the command line.

use serde_json::Value;

use crate::run::{assert_fails, json, rigel, with_stories};

fn generate(more: &[&str]) -> crate::run::Outcome {
    let all = ["Once upon a time", "--temperature", "0", "--max-tokens", "12", "--context", "64"];
    let all = [&all[..], more].concat();
    rigel(with_stories("generate", &all))
}

#[test]
fn an_emulated_engine_gives_the_same_tokens() {
    let wanted = json(&generate(&["--json"]));
    for (chip, more) in [("m1", &[][..]), ("m4-max", &["--mode", "prefill"])] {
        let device =
            ["--json", "--device", "emulator", "--chip", chip, "--engine-arithmetic", "fp16"];
        let found = json(&generate(&[&device[..], more].concat()));
        assert_eq!(found["ids"], wanted["ids"], "{chip}");
        let engine = &found["engine"];
        assert!(
            engine["dispatches"].as_u64() > Some(0) && engine["predicted_s"].as_f64() > Some(0.0)
        );
    }
    assert_eq!(wanted["engine"], Value::Null);
    let text = generate(&["--device", "emulator"]);
    assert_eq!(text.code, 0, "{}", text.err);
}

#[test]
fn engines_that_are_not_here_are_named() {
    assert_fails(&generate(&["--device", "ane"]), &["AppleNeuralEngine"]);
    assert_fails(&generate(&["--device", "emulator", "--chip", "m9"]), &["m9", "m4-max"]);
}
