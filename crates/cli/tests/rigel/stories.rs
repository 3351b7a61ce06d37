//! The stories model from file to text, against the reference's own output.

use std::fs;

use serde_json::{Value, json};

use crate::run::{assert_fails, command, finish, json, model, rigel, with_stories};

fn generate(arguments: &[&str]) -> crate::run::Outcome {
    rigel(with_stories("generate", arguments))
}

#[test]
fn greedy_text_equals_the_reference() {
    let expected = fs::read_to_string(model("stories260K.greedy256.txt")).unwrap();
    let outcome = generate(&["--temperature", "0", "--max-tokens", "256"]);
    assert_eq!((outcome.code, outcome.out), (0, expected));
    // Nobody watches standard error here.
    assert_eq!(outcome.err, "");
}

#[test]
fn greedy_ids_equal_the_reference() {
    let text = fs::read_to_string(model("stories260K.greedy_ids.json")).unwrap();
    let expected: Vec<u64> = serde_json::from_str(&text).unwrap();
    let outcome =
        generate(&["--temperature", "0", "--max-tokens", "100", "--json", "--logprobs", "2"]);
    let value = json(&outcome);
    let ids = |key: &str| -> Vec<u64> {
        value[key].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect()
    };
    assert_eq!([ids("prompt_ids"), ids("ids")].concat(), expected);
    assert_eq!(value["finish_reason"], "length");
    let text = value["text"].as_str().unwrap();
    assert!(text.starts_with("Once upon a time, there was a little girl named Lily."));
    let logprobs = value["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 100);
    assert!(
        logprobs
            .iter()
            .all(|l| l["top"][0]["id"] == l["id"] && l["top"].as_array().unwrap().len() == 2)
    );
    for key in ["load_s", "prefill_s", "decode_s", "prefill_tok_s", "decode_tok_s"] {
        assert!(value["timings"][key].as_f64().unwrap() > 0.0, "{key}");
    }
}

#[test]
fn a_seed_gives_the_same_text_again() {
    let text =
        |seed: &str| generate(&["Once", "--seed", seed, "--temperature", "1.2", "-n", "30"]).out;
    assert_eq!(text("1"), text("1"));
    assert_ne!(text("1"), text("2"));
}

#[test]
fn samples_are_the_texts_of_the_seeds_that_follow() {
    let sampling = ["Once", "--temperature", "1.2", "-n", "20"];
    let text = |seed: &str| generate(&[&sampling[..], &["--seed", seed]].concat()).out;
    let options = [&sampling[..], &["--seed", "5", "--samples", "2"]].concat();
    let together = generate(&options);
    assert_eq!(
        (together.code, &together.out),
        (0, &format!("[1]\n{}\n[2]\n{}", text("5"), text("6")))
    );
    let report = json(&generate(&[&options[..], &["--json"]].concat()));
    let reports = report.as_array().unwrap();
    assert_eq!(reports.len(), 2);
    assert_eq!((&reports[0]["seed"], &reports[1]["seed"]), (&json!(5), &json!(6)));
    assert_eq!(format!("{}\n", reports[1]["text"].as_str().unwrap()), text("6"));
    let slide = generate(&[&options[..], &["--slide", "0"]].concat());
    assert!(slide.code == 2 && slide.err.contains("cannot be used with"), "{}", slide.err);
    let engine = generate(&[&options[..], &["--device", "emulator"]].concat());
    assert_fails(&engine, &["one sequence at a time"]);
}

#[test]
fn stop_strings_end_the_text() {
    let outcome = generate(&["--temperature", "0", "--stop", "girl", "--stop", "never", "--json"]);
    let value = json(&outcome);
    assert_eq!(value["text"], "Once upon a time, there was a little ");
    assert_eq!(value["finish_reason"], "stop");
}

#[test]
fn the_prompt_may_come_from_standard_input() {
    let arguments = ["--temperature", "0", "-n", "8", "--json"];
    let mut piped = command();
    piped.args(with_stories("generate", &["-"])).args(arguments);
    let piped = json(&finish(piped, "Once upon\n"));
    let given = json(&generate(&[&["Once upon"], &arguments[..]].concat()));
    assert_eq!((&piped["prompt_ids"], &piped["ids"]), (&given["prompt_ids"], &given["ids"]));
}

#[test]
fn the_context_is_an_end_or_slides() {
    let run = |more: &[&str]| {
        json(&generate(
            &[&["--temperature", "0", "--context", "24", "-n", "60", "--json"], more].concat(),
        ))
    };
    let ended = run(&[]);
    assert_eq!(ended["finish_reason"], "context");
    assert_eq!(ended["ids"].as_array().unwrap().len(), 24);
    let slid = run(&["--slide", "1"]);
    assert_eq!(slid["finish_reason"], "length");
    assert_eq!(slid["ids"].as_array().unwrap().len(), 60);
    let long = "Once upon a time ".repeat(20);
    let outcome = generate(&[&long, "--context", "24"]);
    assert_fails(&outcome, &["the prompt has ", " tokens, but the context only 24"]);
    assert_fails(&generate(&["--context", "100000"]), &["context of 100000", "512"]);
}

#[test]
fn tokenize_and_back() {
    let tokenizer = ["--tokenizer".to_owned(), model("tok512.bin")];
    let run = |arguments: &[&str]| {
        let arguments = arguments.iter().map(|a| (*a).to_owned());
        rigel(["tokenize".to_owned()].into_iter().chain(arguments).chain(tokenizer.clone()))
    };
    let value = json(&run(&["Once upon a time, 🦀", "--json"]));
    let ids = value["ids"].as_array().unwrap();
    assert_eq!(
        &value["ids"].as_array().unwrap()[..6],
        json!([1, 403, 407, 261, 378, 432]).as_array().unwrap()
    );
    assert_eq!(ids.len(), value["pieces"].as_array().unwrap().len());
    let listed = ids[1..].iter().map(Value::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(run(&["--decode", &listed]).out, "Once upon a time, 🦀\n");
    assert!(run(&["Once"]).out.starts_with("1\t"));
    assert_fails(&run(&["--decode", "12 x"]), &["not a token id", "\"x\""]);
    assert_fails(&run(&["--decode", "12 512"]), &["no token 512"]);
}

#[test]
fn eval_agrees_with_what_generate_says() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ids.json");
    let generated = json(&generate(&["--temperature", "0", "-n", "40", "--json", "--logprobs"]));
    let mut ids = vec![json!(1)];
    ids.extend(generated["ids"].as_array().unwrap().iter().cloned());
    fs::write(&file, json!({ "ids": ids }).to_string()).unwrap();
    // The ids are enough; no tokenizer is needed.
    let (checkpoint, file) = (model("stories260K.bin"), file.to_str().unwrap());
    let value = json(&rigel(["eval", "--model", &checkpoint, "--ids", file, "--json"]));
    assert_eq!(value["ids"], json!(ids));
    let nll: Vec<f64> =
        value["nll"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    assert_eq!(nll.len(), 40);
    for (nll, l) in nll.iter().zip(generated["logprobs"].as_array().unwrap()) {
        // The cache of `generate` rounds to fp16.
        assert!((nll + l["logprob"].as_f64().unwrap()).abs() < 0.01);
    }
    let mean = nll.iter().sum::<f64>() / 40.0;
    assert!((value["mean_nll"].as_f64().unwrap() - mean).abs() < 1e-9);
    assert!((value["perplexity"].as_f64().unwrap() - mean.exp()).abs() < 1e-9);
    assert_eq!(value["top"].as_array().unwrap().len(), 5);
    let short = json(&rigel([
        "eval",
        "--model",
        &checkpoint,
        "--ids",
        file,
        "--json",
        "--max-tokens",
        "9",
    ]));
    assert_eq!(short["nll"].as_array().unwrap().len(), 8);
}

#[test]
fn eval_of_a_text_longer_than_the_window() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, "Once upon a time, there was a little girl named Lily. ".repeat(8)).unwrap();
    let outcome = rigel(with_stories(
        "eval",
        &["--text", file.to_str().unwrap(), "--window", "32", "--json"],
    ));
    let value = json(&outcome);
    let (ids, nll) = (value["ids"].as_array().unwrap(), value["nll"].as_array().unwrap());
    assert!(ids.len() > 100 && nll.len() == ids.len() - 1);

    // Operands rounded to bfloat16 change likelihoods, and little.
    let more = ["--text", file.to_str().unwrap(), "--window", "32", "--json"];
    let more = [&more[..], &["--precision", "bf16"]].concat();
    let rounded = json(&rigel(with_stories("eval", &more)))["mean_nll"].as_f64().unwrap();
    let whole = value["mean_nll"].as_f64().unwrap();
    assert!(rounded != whole && (rounded / whole - 1.0).abs() < 0.01, "{rounded}, not {whole}");
}

#[test]
fn inspect_lists_the_file() {
    let value = json(&rigel(["inspect", &model("stories260K.bin"), "--json"]));
    assert_eq!(value["config"]["layers"], 5);
    assert_eq!(value["problems"], json!([]));
    let text = rigel(["inspect", &model("stories260K.bin")]).out;
    assert!(text.contains("5 layers, width 64") && text.ends_with("runs\n"), "{text}");
}

#[test]
fn chat_needs_a_template() {
    assert_fails(&rigel(with_stories("chat", &[])), &[]);
}

/// A reader that leaves, as `head` does, ends the writer quietly.
#[test]
fn a_closed_pipe_is_no_error() {
    use std::process::Stdio;
    let mut command = command();
    command.args(with_stories("generate", &["--temperature", "0", "-n", "256"]));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}
