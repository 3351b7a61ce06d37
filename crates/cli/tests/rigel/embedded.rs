//! The model that is part of the program: it needs no network, no cache and no name.

use std::fs;

use crate::run::{Outcome, assert_fails, command, finish, json, rigel};

/// Runs `rigel` where nothing can be fetched, found in a cache or kept.
fn offline(arguments: &[&str]) -> Outcome {
    let mut command = command();
    let nowhere = "/dev/null/none";
    for name in ["RIGEL_CACHE", "HF_HOME", "HOME", "XDG_CACHE_HOME", "RIGEL_PYTHON"] {
        command.env(name, nowhere);
    }
    command.args(arguments);
    finish(command, "")
}

/// Words that English cannot do without.
const COMMON: [&str; 24] = [
    "the", "and", "to", "a", "of", "he", "she", "it", "was", "in", "that", "said", "you", "his",
    "her", "i", "had", "as", "with", "they", "for", "not", "but", "at",
];

#[test]
fn a_story_goes_on_without_a_model_or_a_network() {
    let go_on = |seed: &str| {
        offline(&["generate", "Once upon a time", "-n", "200", "--seed", seed, "--slide", "0"])
    };
    let (once, again, other) = (go_on("1"), go_on("1"), go_on("2"));
    assert_eq!((once.code, once.err.as_str()), (0, ""));
    assert_eq!(once.out, again.out);
    assert_ne!(once.out, other.out);
    let text = format!("{} {}", once.out, other.out).to_lowercase();
    let words: Vec<&str> =
        text.split(|c: char| !c.is_ascii_alphabetic()).filter(|w| !w.is_empty()).collect();
    let common = words.iter().filter(|w| COMMON.contains(w)).count();
    assert!(words.len() > 150 && common * 4 > words.len(), "{common} of {}: {text}", words.len());
}

#[test]
fn its_name_means_it_to_every_command() {
    let model = ["-m", "rigel-stories", "--temperature", "0", "-n", "12"];
    let arguments =
        |more: &[&'static str]| [&["generate", "One day"][..], more, &model[2..]].concat();
    let named = offline(&arguments(&model[..2]));
    assert_eq!((named.code, named.out.as_str()), (0, offline(&arguments(&[])).out.as_str()));
    let inspection = json(&offline(&["inspect", "rigel-stories", "--json"]));
    assert_eq!(inspection["path"], "rigel-stories");
    assert_eq!(inspection["problems"].as_array().unwrap().len(), 0);
    assert_fails(&offline(&["pull", "rigel-stories"]), &["part of this program"]);
    assert_fails(&offline(&["chat", "-m", "rigel-stories"]), &["chat template"]);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model.gguf");
    let outcome = offline(&["convert", "rigel-stories", "-o", to.to_str().unwrap()]);
    assert_fails(&outcome, &["rigel-stories", "not of Hugging Face's form"]);
}

/// A tale that it was not trained on.
#[test]
fn it_expects_what_a_tale_says() {
    let tale = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/stories/held-out.txt");
    let perplexity = |text: &str| {
        let outcome = offline(&["eval", "--text", text, "--json"]);
        json(&outcome)["perplexity"].as_f64().unwrap()
    };
    let own = perplexity(tale);
    assert!(own < 13.0, "{own}");
    // The same words in another order are no tale.
    let dir = tempfile::tempdir().unwrap();
    let shuffled = dir.path().join("shuffled.txt");
    let text = fs::read_to_string(tale).unwrap();
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words.sort_by_key(|w| (w.len() % 5, w.chars().rev().collect::<String>()));
    fs::write(&shuffled, words.join(" ")).unwrap();
    let other = perplexity(shuffled.to_str().unwrap());
    assert!(other > 2.0 * own, "{other} and {own}");
}

/// An adapter's run has its own copy of the model that it is for.
#[test]
fn an_adapter_can_be_trained() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let tale = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/stories/held-out.txt");
    let mut arguments = vec!["finetune", "rigel-stories", "--data", tale];
    arguments.extend(["--out", run.to_str().unwrap(), "--steps", "2", "--seq-len", "16"]);
    let outcome = rigel(arguments.into_iter().chain(["--batch", "1", "--held-out", "0"]));
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    assert!(run.join("base.gguf").exists() && run.join("adapter").exists());
}
