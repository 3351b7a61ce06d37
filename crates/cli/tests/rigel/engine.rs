//! Generation on an emulated Neural Engine, from the command line.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::run::{assert_fails, command, json, rigel, with_stories};

fn generate(more: &[&str]) -> crate::run::Outcome {
    let all = ["Once upon a time", "--temperature", "0", "--max-tokens", "12"];
    let context: &[&str] = if more.contains(&"--context") { &[] } else { &["--context", "64"] };
    rigel(with_stories("generate", &[&all[..], context, more].concat()))
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

/// Looks every few milliseconds until `done`, for a minute at most.
#[track_caller]
fn wait(what: &str, mut done: impl FnMut() -> bool) {
    assert!(
        (0..6000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            done()
        }),
        "{what}"
    );
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_signal_leaves_nothing_in_the_temporary_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (text, temporary) = (dir.path().join("text"), dir.path().join("tmp"));
    fs::write(&text, "Once upon a time there was a little girl. ".repeat(200)).unwrap();
    fs::create_dir(&temporary).unwrap();
    let eval = with_stories("eval", &["--text", text.to_str().unwrap(), "--device", "emulator"]);
    let story = ["--max-tokens", "400", "--ignore-end", "--device", "emulator"];
    let generate = with_stories("generate", &story);
    for (arguments, name, status) in
        [(&eval, "-INT", 130), (&eval, "-TERM", 143), (&generate, "-TERM", 143)]
    {
        let mut command = command();
        command.args(arguments).env("TMPDIR", &temporary);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let entries = || fs::read_dir(&temporary).unwrap().count();
        let programs = || {
            let folder = fs::read_dir(&temporary).unwrap().next().unwrap().unwrap();
            fs::read_dir(folder.path()).unwrap().count()
        };
        wait("a folder of programs", || entries() > 0 && programs() > 0);
        signal(&child, name);
        let mut ended = None;
        wait("the end", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!((ended.unwrap().code(), entries()), (Some(status), 0), "{arguments:?}");
    }
}

#[test]
fn a_context_that_no_cache_can_have_is_rounded() {
    let found = generate(&["--context", "50", "--device", "emulator"]);
    assert_eq!(found.code, 0, "{}", found.err);
    let note = "note: --context 64 instead of 50, which the engine does not take";
    assert!(found.err.contains(note), "{}", found.err);
    let cpu = generate(&["--context", "50"]);
    assert!(cpu.code == 0 && !cpu.err.contains("note: --context"), "{}", cpu.err);
}
