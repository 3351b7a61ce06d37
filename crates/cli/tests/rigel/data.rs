//! Data for training: what is taken for it, what is said about it, and what is refused.

use std::fs;
#[cfg(unix)]
use std::process::{Command, Stdio};
#[cfg(unix)]
use std::thread;
#[cfg(unix)]
use std::time::Duration;

use crate::run::assert_fails;
#[cfg(unix)]
use crate::run::command;
use crate::training::Place;

const WORDS: [&str; 2] = ["--tokenizer", "words/tokenizer.json"];

/// A place with a tokenizer in `words`.
fn place() -> Place {
    let place = Place::new();
    let made = place.rigel(&["tokenizer", "train", "text.txt", "--vocab", "300", "-o", "words"]);
    assert_eq!(made.code, 0, "{}", made.err);
    place
}

#[test]
fn token_files_are_not_written_over() {
    let place = place();
    let tokenize =
        |arguments: &[&str]| place.rigel(&[&["data", "tokenize"], arguments, &WORDS].concat());
    assert_eq!(tokenize(&["text.txt", "-o", "a.bin"]).code, 0);
    let bytes = fs::read(place.path("a.bin")).unwrap();
    let again = tokenize(&["text.txt", "-o", "a.bin"]);
    assert_fails(&again, &["a.bin: is there already", "--force"]);
    for output in ["a.bin", "b.bin"] {
        let tokens = tokenize(&["a.bin", "-o", output, "--force"]);
        assert_fails(&tokens, &["a.bin: is tokens already"]);
    }
    assert_eq!(tokenize(&["text.txt", "-o", "a.bin", "--force"]).code, 0);
    assert!(fs::read(place.path("a.bin")).unwrap() == bytes);
    assert_eq!(tokenize(&["text.txt", "-o", "s.bin", "--shard", "500"]).code, 0);
    let again = tokenize(&["text.txt", "-o", "s.bin", "--shard", "500"]);
    assert_fails(&again, &["s-00000.bin: is there already"]);
    assert_fails(&tokenize(&["text.txt", "-o", "c.bin", "--separator", ""]), &["separator"]);
}

#[test]
fn data_by_the_names_of_files() {
    let place = place();
    fs::create_dir_all(place.path("mixed/deep")).unwrap();
    fs::create_dir_all(place.path("none")).unwrap();
    place.write("mixed/UP.JSONL", "{\"text\": \"The cat\"}\n{\"text\": \"saw\"}\n");
    place.write("mixed/a.csv", "The,cat");
    place.write("none/a.csv", "The,cat");
    place.write("whole.json", "{\"text\": \"The cat\"}");
    let tokenize = |data: &str| {
        place.rigel(&[&["data", "tokenize", data, "-o", "a.bin", "--force"][..], &WORDS].concat())
    };
    let done = tokenize("mixed");
    assert!(done.out.contains("documents: 2, files: 1"), "{} {}", done.out, done.err);
    assert_fails(&tokenize("none"), &["none: no file there ends in .txt"]);
    assert_fails(&tokenize("whole.json"), &["whole.json", ".jsonl"]);
    fs::copy(place.path("a.bin"), place.path("mixed/deep/B.BIN")).unwrap();
    let train = place.rigel(&["train", "--arch", "arch.toml", "--data", "mixed", "--out", "run"]);
    assert_fails(&train, &["UP.JSONL", "B.BIN", "tokenize all or none"]);
    #[cfg(unix)]
    {
        let pipe = std::process::Command::new("mkfifo").arg(place.path("pipe")).status();
        assert!(pipe.unwrap().success());
        let train =
            place.rigel(&["train", "--arch", "arch.toml", "--data", "pipe", "--out", "run"]);
        assert_fails(&train, &["pipe: is a pipe", "--tokenizer"]);
    }
}

#[test]
fn tokenizers_that_cannot_be_as_asked() {
    let place = place();
    let make = |vocab: &str, out: &str| {
        place.rigel(&["tokenizer", "train", "text.txt", "--vocab", vocab, "-o", out])
    };
    assert_fails(&make("1000000000000", "many"), &["1000000000000 ids", "at most 16777216"]);
    let few = make("100000", "few");
    assert_eq!(few.code, 0, "{}", few.err);
    let ids = few.out.split(' ').next().unwrap();
    assert!(
        few.err.contains(&format!("note: {ids} ids come of the text, not 100000")),
        "{}",
        few.err
    );
    let arch = fs::read_to_string(place.path("arch.toml")).unwrap();
    place.write("both.toml", &arch.replace("chars = true", "chars = true\nvocab = 300"));
    let both = place.rigel(&["train", "--arch", "both.toml", "--data", "text.txt", "--out", "run"]);
    assert_fails(&both, &["[tokenizer]", "vocab and chars"]);
}

#[test]
fn documents_that_are_cut_are_counted() {
    let place = Place::new();
    let record = |n: usize| {
        format!("{{\"prompt\": \"{}\", \"completion\": \"{}\"}}\n", "ab ".repeat(n), "ba")
    };
    place.write("answers.jsonl", &[2, 9, 20].map(record).concat());
    let arguments = ["train", "--arch", "arch.toml", "--data", "answers.jsonl", "--out", "run"];
    let more = ["--held-out", "0", "--steps", "2"];
    let run = place.rigel(&[&arguments[..], &more].concat());
    assert_eq!(run.code, 0, "{}", run.err);
    let note = "note: 2 of 3 documents are longer than --seq-len 16 and are cut";
    assert_eq!(run.err.matches(note).count(), 1, "{}", run.err);
}

/// A signal ends tokenizing at once, and of its shards nothing is left.
#[test]
#[cfg(unix)]
fn a_signal_while_shards_are_written() {
    let place = place();
    place.write("many.jsonl", &"{\"text\": \"The cat saw the dog.\"}\n".repeat(400_000));
    let names = |at: &str| -> Vec<String> {
        let entries = fs::read_dir(at).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let at = place.0.path().to_str().unwrap();
    let before = names(at);
    let mut command = command();
    let tokenize = ["data", "tokenize", "many.jsonl", "-o", "s.bin", "--shard", "50"];
    command.current_dir(&place.0).args(tokenize).args(WORDS);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let several = || {
        let new = names(at).into_iter().find(|name| !before.contains(name));
        // It may be gone before it is looked into.
        new.is_some_and(|dir| fs::read_dir(place.path(&dir)).is_ok_and(|shards| shards.count() > 3))
    };
    while !several() {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        thread::sleep(Duration::from_millis(5));
    }
    let kill = ["-INT".to_owned(), child.id().to_string()];
    assert!(Command::new("kill").args(kill).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(names(at), before);
}
