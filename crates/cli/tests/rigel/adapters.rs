//! Adapters and the agreement of devices, from the command line.

use std::path::Path;

use import::peft::{LowRank, write};
use serde_json::Value;
use tensor::Tensor;
use testkit::seeded;

use crate::run::{Outcome, assert_fails, json, rigel, with_stories};

/// An adapter of queries, values and a part of the feed-forward layers of the stories model.
fn adapter(dir: &Path, seed: u64, rank: usize) -> String {
    let layer = |module: String, [out, inner]: [usize; 2]| {
        let factor = |name: &str, shape: [usize; 2]| {
            let values = seeded::tensor(seed, &format!("{module}{name}"), shape[0] * shape[1], 0.3);
            Tensor::from_slice(&shape, &values).unwrap()
        };
        LowRank { a: factor("a", [rank, inner]), b: factor("b", [out, rank]), scale: 2.0, module }
    };
    let layers = (0..5).flat_map(|n| {
        let at = |name: &str| format!("model.layers.{n}.{name}");
        [
            layer(at("self_attn.q_proj"), [64, 64]),
            layer(at("self_attn.v_proj"), [32, 64]),
            layer(at("mlp.down_proj"), [64, 172]),
        ]
    });
    let path = dir.join(format!("adapter-{seed}"));
    write(&path, Some("stories260K"), &layers.collect::<Vec<_>>()).unwrap();
    path.to_str().unwrap().to_owned()
}

const PROMPT: [&str; 7] =
    ["Once upon a time", "--temperature", "0", "--max-tokens", "8", "--context", "64"];

fn generate(more: &[&str]) -> Outcome {
    rigel(with_stories("generate", &[&PROMPT[..], more].concat()))
}

#[test]
fn adapters_answer_in_turn_on_each_device() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (adapter(dir.path(), 1, 4), adapter(dir.path(), 2, 2));
    let (a, b) = (format!("a={a}"), format!("b={b}"));
    let names = ["a", "b", "none", "a"];
    let adapters = ["--adapter", &a, "--adapter", &b];
    let turns = ["--json", "--use", "a", "--use", "b", "--use", "none", "--use", "a"];
    let ids = |answers: &Value| -> Vec<Value> {
        let answers = answers.as_array().unwrap();
        let used: Vec<&str> = answers.iter().map(|r| r["adapter"].as_str().unwrap()).collect();
        assert_eq!(used, names);
        answers.iter().map(|r| r["ids"].clone()).collect()
    };
    let wanted = ids(&json(&generate(&[&adapters[..], &turns].concat())));
    assert!(wanted[0] != wanted[1] && wanted[1] != wanted[2] && wanted[0] != wanted[2]);
    assert_eq!(wanted[0], wanted[3]);
    // None is the model as it is, and the first is in use where nothing is said.
    let plain = json(&generate(&["--json"]));
    assert_eq!((&plain["ids"], &plain["adapter"]), (&wanted[2], &Value::Null));
    let first = json(&generate(&[&adapters[..], &["--json"]].concat()));
    assert_eq!((&first["ids"], &first["adapter"]), (&wanted[0], &"a".into()));

    let emulator = ["--device", "emulator", "--engine-arithmetic", "fp16"];
    for mode in [&[][..], &["--mode", "prefill"]] {
        let found = json(&generate(&[&adapters[..], &turns, &emulator, mode].concat()));
        assert_eq!(ids(&found), wanted);
        let compiled: Vec<u64> =
            (0..4).map(|n| found[n]["engine"]["compilations"].as_u64().unwrap()).collect();
        assert!(compiled[0] > 0 && compiled.iter().all(|&n| n == compiled[0]), "{compiled:?}");
    }

    // Without a seed each run has its own, and its answers have one.
    let twice = |more: &[&str]| {
        let same = ["Once", "-n", "8", "--temperature", "2", "--json", "--use", "a", "--use", "a"];
        json(&rigel(with_stories("generate", &[&adapters[..], &same, more].concat())))
    };
    let found = twice(&[]);
    assert_eq!(found[0]["ids"], found[1]["ids"]);
    let seed = found[0]["seed"].to_string();
    let again = twice(&["--seed", &seed]);
    assert_eq!((&again[0]["ids"], &again[1]["seed"]), (&found[0]["ids"], &found[0]["seed"]));

    let text = generate(&[&adapters[..], &["--use", "b", "--use", "none"]].concat());
    assert_eq!(text.code, 0, "{}", text.err);
    assert!(text.out.starts_with("[b]\n") && text.out.contains("\n\n[none]\n"), "{}", text.out);
}

#[test]
fn adapters_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let a = format!("a={}", adapter(dir.path(), 1, 4));
    assert_fails(
        &generate(&["--adapter", "a=./none"]),
        &["./none/adapter_config.json: cannot open"],
    );
    assert_fails(
        &generate(&["--adapter", &a, "--use", "c"]),
        &["there is no adapter \"c\"; there are a and none"],
    );
    assert_fails(
        &generate(&["--adapter", &a, "--adapter", &a]),
        &["two adapters are called \"a\""],
    );
    for usage in [&["--adapter", "a"][..], &["--use", "a"]] {
        assert_eq!(generate(usage).code, 2);
    }
    let other = dir.path().join("other");
    let factor = Tensor::from_slice(&[1, 1], &[1f32]).unwrap();
    let (a, b) = (factor.clone(), factor);
    write(&other, None, &[LowRank { module: "h.0.attn.c_attn".into(), a, b, scale: 1.0 }]).unwrap();
    let other = format!("o={}", other.display());
    assert_fails(
        &generate(&["--adapter", &other]),
        &["unsupported: changes h.0.attn.c_attn: no linear layers of this llama model"],
    );
}

fn eval(text: &Path, more: &[&str]) -> Outcome {
    let text = text.to_str().unwrap();
    rigel(with_stories("eval", &[&["--text", text, "--max-tokens", "40"], more].concat()))
}

#[test]
fn devices_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    let sentence = "Once upon a time, there was a little girl named Lily. She loved to play. ";
    std::fs::write(&text, sentence.repeat(3)).unwrap();
    let a = format!("a={}", adapter(dir.path(), 1, 4));
    let emulator = ["--device", "emulator", "--chip", "m1", "--window", "24"];
    for adapters in [&[][..], &["--adapter", &a]] {
        let whole = json(&eval(&text, &[adapters, &["--window", "24", "--json"]].concat()));
        let fp16 = ["--engine-arithmetic", "fp16", "--against", "cpu", "--json"];
        let found = json(&eval(&text, &[adapters, &emulator, &fp16].concat()));
        let number = |key: &str| found[key].as_f64().unwrap();
        assert_eq!((number("predicted"), found["ids"].as_array().unwrap().len()), (39.0, 40));
        let disagreements = found["disagreements"].as_array().unwrap();
        assert_eq!(number("agree") as usize + disagreements.len(), 39);
        assert!(number("agreement") > 0.9, "{found}");
        assert!(disagreements.iter().all(|d| d["margin"].as_f64().unwrap() < 0.2), "{found}");
        assert!(number("largest_difference") > 0.0 && number("largest_relative_difference") < 2e-2);
        let mean = whole["mean_nll"].as_f64().unwrap();
        assert!((found["reference"]["mean_nll"].as_f64().unwrap() - mean).abs() < 1e-6);
        assert!((number("mean_nll") - mean).abs() < 2e-2);
        assert!(number("predicted_s") > 0.0 && number("time_s") > 0.0);
        assert!(number("predicted_s") <= found["engine"]["predicted_s"].as_f64().unwrap());
        // The CPU with itself: what differs is the cache's fp16, which scoring has none of.
        let same = json(&eval(&text, &[adapters, &["--against", "cpu", "--json"]].concat()));
        assert_eq!(same["largest_difference"], 0.0);
        assert_eq!((&same["agreement"], &same["engine"]), (&1.0.into(), &Value::Null));
    }
    let shown = eval(&text, &[&emulator[..], &["--against", "cpu"]].concat());
    assert_eq!(shown.code, 0, "{}", shown.err);
    for part in
        ["40 (39 predicted)", "same likeliest", "for emulating it here", "by the engine's clock"]
    {
        assert!(shown.out.contains(part), "{}", shown.out);
    }
    // What the engine computes itself, and not the host for it.
    let own = json(&eval(&text, &[&emulator[..], &["--json"]].concat()));
    let cpu = json(&eval(&text, &["--window", "24", "--json"]));
    assert!(own["mean_nll"] != cpu["mean_nll"]);
    assert_fails(
        &eval(&text, &[&emulator[..], &["--mode", "prefill"]].concat()),
        &["--mode prefill"],
    );
    assert_eq!(eval(&text, &["--adapter", &a, "--use", "a", "--use", "none"]).code, 1);
    let one = dir.path().join("one");
    std::fs::write(&one, "[1]").unwrap();
    for against in [&[][..], &["--against", "cpu"]] {
        let arguments = [&["--ids", one.to_str().unwrap()], against].concat();
        assert_fails(&rigel(with_stories("eval", &arguments)), &["the text has one token"]);
    }
    let usage = ["--text", text.to_str().unwrap(), "--max-tokens", "1"];
    assert_eq!(rigel(with_stories("eval", &usage)).code, 2);
}
