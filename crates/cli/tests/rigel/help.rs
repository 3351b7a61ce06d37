//! Help, completions and wrong usage.

use crate::run::{json, rigel};

const SUBCOMMANDS: [&str; 20] = [
    "generate",
    "chat",
    "eval",
    "tokenize",
    "inspect",
    "run",
    "diff",
    "opt",
    "check",
    "convert",
    "bench",
    "train",
    "finetune",
    "merge",
    "plot",
    "data",
    "tokenizer",
    "pull",
    "models",
    "completions",
];

#[test]
fn help_names_every_subcommand_and_teaches_by_examples() {
    let help = rigel(["--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    for part in SUBCOMMANDS.iter().chain(&["Examples:", "HF_TOKEN", "RIGEL_CACHE", "Exit status"]) {
        assert!(help.out.contains(part), "no {part} in {}", help.out);
    }
    for subcommand in SUBCOMMANDS {
        let help = rigel([subcommand, "--help"]);
        assert!(help.code == 0 && help.out.contains("Usage: rigel"), "{subcommand}");
    }
}

#[test]
fn generate_has_the_options_that_its_users_know() {
    let help = rigel(["generate", "--help"]).out;
    for option in [
        "--model",
        "--tokenizer",
        "--device",
        "--threads",
        "--context",
        "--max-tokens",
        "--temperature",
        "--top-k",
        "--top-p",
        "--min-p",
        "--repetition-penalty",
        "--seed",
        "--stop",
        "--logprobs",
        "--chat",
        "--json",
    ] {
        assert!(help.contains(option), "no {option}");
    }
}

#[test]
fn completions_complete() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = rigel(["completions", shell]);
        assert!(script.code == 0 && script.out.contains("generate"), "{shell}");
    }
}

#[test]
fn wrong_usage_is_status_2() {
    let cases: [&[&str]; 9] = [
        &[],
        &["dance"],
        &["generate", "--temperature", "hot"],
        &["generate", "--device", "abacus"],
        &["generate", "--logprobs"],
        &["generate", "--threads", "0"],
        &["eval"],
        &["eval", "--text", "a", "--ids", "b"],
        &["completions", "cmd"],
    ];
    for arguments in cases {
        let outcome = rigel(arguments);
        assert_eq!((outcome.code, outcome.out.as_str()), (2, ""), "{arguments:?}: {}", outcome.err);
    }
}

#[test]
fn models_are_listed() {
    let models = json(&rigel(["models", "--json"]));
    let models = models.as_array().unwrap();
    let names: Vec<_> = models.iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["rigel-stories", "smollm2-135m", "gemma3-270m"]);
    assert!(models[0]["embedded"] == true && models[0]["bytes"].as_u64().unwrap() < 4_000_000);
    assert!(models[1]["path"].is_null() && models[1]["bytes"] == 98_362_432);
    let listed = rigel(["models"]).out;
    assert!(listed.contains("not fetched") && listed.contains("part of this program"));
}
