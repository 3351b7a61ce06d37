//! Comparing programs, and drawing them.

use std::fs;

use crate::coreml::artefact;
use crate::run::{Outcome, json, model, rigel};

fn diff(a: &str, b: &str, more: &[&str]) -> Outcome {
    let (a, b) = (artefact(a), artefact(b));
    rigel(["diff", &a, &b].iter().chain(more))
}

#[test]
fn the_exit_status_says_whether_they_differ() {
    let same = diff(
        "gpt2_stateful.mlpackage",
        "gpt2_stateful.mlpackage",
        &["--input", "random", "--steps", "2"],
    );
    assert_eq!(same.code, 0, "{}", same.err);
    assert!(same.out.contains("function main: operations 81 same"), "{}", same.out);
    assert!(same.out.contains("step 1 output logits"), "{}", same.out);
    let differ = diff("mlp_fp32.mlpackage", "mlp_ios18.mlpackage", &[]);
    assert_eq!((differ.code, differ.err.as_str()), (1, ""));
    for part in ["+ cast \"x_to_fp16\" of x", "~ weight a_weight", "fp32 → fp16"] {
        assert!(differ.out.contains(part), "no {part} in {}", differ.out);
    }
    let close = ["--input", "random", "--tolerance", "0.01"];
    assert_eq!(diff("mlp_fp32.mlpackage", "mlp_ios18.mlpackage", &close).code, 0);
    let missing = diff("mlp_fp32.mlpackage", "none.mlpackage", &[]);
    assert_eq!((missing.code, missing.out.as_str()), (2, ""));
    assert_eq!(missing.err.lines().count(), 1, "{}", missing.err);
    let other = diff("mlp_fp32.mlpackage", "gpt2_stateful.mlpackage", &["--input", "random"]);
    assert_eq!((other.code, other.out.as_str()), (2, ""), "{}", other.err);
    assert!(other.err.contains("has no counterpart"), "{}", other.err);
    let unused = diff("mlp_fp32.mlpackage", "mlp_fp32.mlpackage", &["--ops"]);
    assert_eq!(unused.code, 2);
}

#[test]
fn the_first_divergence_is_named() {
    let more = ["--input", "x=random", "--ops", "--json", "--arithmetic", "fp16"];
    let differ = diff("base_big.mlpackage", "int4_block32.mlpackage", &more);
    assert_eq!(differ.code, 1, "{}", differ.err);
    let shown: serde_json::Value = serde_json::from_str(&differ.out).unwrap();
    let first = &shown["numbers"]["first_divergence"];
    assert_eq!(first["operation"], "linear \"linear_0_cast_fp16\"");
    assert!(first["difference"]["relative"].as_f64() > Some(0.01));
    let weight = &shown["structure"]["functions"][0]["weights"][0];
    assert_eq!(weight["to"]["encoding"], "int4 in blocks of [1, 32], scales fp16");
    assert_eq!(shown["same"], false);
}

#[test]
fn models_are_compared_as_programs() {
    let stories = model("stories260K.bin");
    let same = rigel(["diff", &stories, &stories]);
    assert_eq!(same.code, 0, "{}", same.err);
    assert!(same.out.contains("function decode"), "{}", same.out);
}

#[test]
fn programs_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let package = artefact("gpt2_stateful.mlpackage");
    for (name, start) in [("g.svg", "<?xml"), ("g.html", "<!doctype html>")] {
        let out = dir.path().join(name);
        let drawn = rigel(["inspect", &package, "--graph", out.to_str().unwrap()]);
        assert_eq!((drawn.code, drawn.out.as_str(), drawn.err.as_str()), (0, "", ""));
        assert!(fs::read_to_string(out).unwrap().starts_with(start));
    }
    let wrong = rigel(["inspect", &package, "--graph", "g.png"]);
    assert_eq!(wrong.code, 1);
    assert!(wrong.err.contains("g.png"), "{}", wrong.err);
    let model = rigel(["inspect", &model("stories260K.bin"), "--graph", "g.svg"]);
    assert!(model.code == 1 && model.err.contains("no Core ML program"), "{}", model.err);
}

#[test]
fn work_and_encodings_are_listed() {
    let shown = json(&rigel(["inspect", &artefact("pal4_pertensor_ios18.mlpackage"), "--json"]));
    let main = &shown["functions"]["main"];
    // Two rows of 128 to 256 to 64, two operations a multiply-add.
    assert!(main["flops"].as_u64() >= Some(2 * 2 * (128 * 256 + 256 * 64)));
    let palette = &main["encodings"]["4-bit palette of fp16"];
    assert_eq!(
        (&palette["tensors"], &palette["elements"]),
        (&2.into(), &(128 * 256 + 256 * 64).into())
    );
}
