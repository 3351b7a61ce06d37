//! SmolLM2 (and, with the feature `gemma`, Gemma) from GGUF files: text, chat, likelihoods against golden ones.

use std::fs;
use std::path::Path;

use exec::Backend;
use serde_json::Value;

use crate::coreml::{floats, write_npy};
use crate::run::{command, finish, json, model, rigel};

/// A file that `tests/fetch.py` fetched.
fn fixture(name: &str) -> String {
    testkit::fixtures_dir().join(name).to_str().unwrap().to_owned()
}

fn smollm2() -> String {
    fixture("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Every likelihood within 0.05 of those of the dequantised weights in f32, their mean within 0.005, the last
/// position's likeliest five in the same order.
#[track_caller]
fn assert_golden(weights: &str, golden: &str) {
    let path = model(golden);
    let value = json(&rigel(["eval", "--model", weights, "--ids", &path, "--json"]));
    let golden: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let floats = |v: &Value| -> Vec<f64> {
        v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let (actual, expected) = (floats(&value["nll"]), floats(&golden["nll"]));
    assert_eq!(actual.len(), expected.len());
    for (i, (a, e)) in actual.iter().zip(&expected).enumerate() {
        assert!((a - e).abs() < 0.05, "token {}: {a}, golden {e}", i + 1);
    }
    let mean = expected.iter().sum::<f64>() / expected.len() as f64;
    assert!((value["mean_nll"].as_f64().unwrap() - mean).abs() < 0.005, "{}", value["mean_nll"]);
    let top = value["top"].as_array().unwrap().iter().map(|t| &t["id"]);
    let expected = golden["last_top5"].as_array().unwrap().iter().map(|t| &t[0]);
    assert!(top.eq(expected), "{}", value["top"]);
}

#[test]
fn likelihoods_are_golden() {
    assert_golden(&smollm2(), "golden_smollm2_wiki256.json");
}

#[cfg(feature = "gemma")]
#[test]
fn likelihoods_of_gemma_are_golden() {
    assert_golden(&fixture("gemma-3-270m-q4_k_m.gguf"), "golden_gemma_wiki256.json");
}

#[test]
fn generate_answers() {
    let run = |arguments: &[&str]| {
        let weights = smollm2();
        let fixed = ["generate", "--model", &weights, "--temperature", "0"];
        rigel(fixed.into_iter().chain(arguments.iter().copied()))
    };
    let outcome = run(&["The capital of France is", "-n", "4"]);
    assert!(outcome.code == 0 && outcome.out.starts_with(" Paris."), "{outcome:?}");
    let ask = ["What is the capital of France?", "--chat", "-n", "24", "--json"];
    let value = json(&run(&ask));
    assert!(value["text"].as_str().unwrap().contains("Paris"), "{value}");
    // <|im_start|> is one token, not the text of its name.
    assert_eq!(value["prompt_ids"][0], 1);
    let told = json(&run(&[&ask[..], &["--system", "You answer briefly."]].concat()));
    assert_ne!(told["prompt_ids"], value["prompt_ids"]);
}

#[test]
fn chat_by_lines_keeps_the_conversation() {
    let mut chat = command();
    chat.args(["chat", "--model", &smollm2(), "--temperature", "0", "-n", "24"]);
    let outcome = finish(
        chat,
        "/adapter nope\nWhat is the capital of France?\n\n/reset\n/nonsense\n/quit\nnever read\n",
    );
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    assert!(outcome.out.contains("Paris") && outcome.out.ends_with('\n'), "{}", outcome.out);
    assert!(outcome.err.contains("no command /nonsense"), "{}", outcome.err);
}

/// Converted to a Core ML package, the model gives what the engine gives for the GGUF file, over eight tokens that
/// are decoded one by one.
#[test]
fn a_package_of_it_decodes_alike() {
    const STEPS: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let package = path("smollm2.mlpackage");
    let sizes = ["--context", "64", "--prefill-length", "32"];
    let outcome = rigel(["convert", &smollm2(), "-o", &package].iter().chain(&sizes));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    let listing = json(&rigel(["inspect", &package, "--json"]));
    let states = listing["functions"]["decode"]["states"].as_array().unwrap();
    assert_eq!(states.len(), 2, "{states:?}");

    let golden = fs::read_to_string(model("golden_smollm2_wiki256.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let ids: Vec<u32> = serde_json::from_value(golden["ids"].clone()).unwrap();
    let ids = &ids[..STEPS];
    let bytes =
        |values: Vec<u32>| -> Vec<u8> { values.into_iter().flat_map(u32::to_le_bytes).collect() };
    let file = |name: &str, shape: &str, values| {
        let place = path(&format!("{name}.npy"));
        format!("{name}={}", write_npy(Path::new(&place), "<i4", shape, &bytes(values)))
    };
    let inputs = [
        file("ids", "8, 1, 1", ids.to_vec()),
        file("position", "8, 1", (0..STEPS as u32).collect()),
    ];
    let out = path("out.npz");
    let fixed = ["run", &package, "--function", "decode", "--steps", "8", "--arithmetic", "fp16"];
    let arguments = fixed.into_iter().chain(["--output", &out, "--json"]);
    let inputs = inputs.iter().flat_map(|i| ["--input", i]);
    json(&rigel(arguments.chain(inputs)));
    let (shape, actual) = floats(&out, "logits");
    assert_eq!(shape, "8, 1, 1, 49152");

    let engine = llm::Model::load(smollm2()).unwrap().specialize(64).unwrap();
    let engine = cpu::CpuBackend::new(2).prepare(&engine).unwrap();
    let mut session = llm::generate::Session::new(engine, 64, 49152).unwrap();
    for (step, actual) in actual.chunks_exact(49152).enumerate() {
        let expected = session.logits_after(&ids[..=step]).unwrap();
        let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        assert_eq!(best(actual), best(&expected), "step {step}");
        let worst = actual.iter().zip(&expected).map(|(a, e)| (a - e).abs()).fold(0f32, f32::max);
        assert!(worst < 0.15, "step {step}: logits differ by {worst}");
    }
}
