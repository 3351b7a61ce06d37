//! Running the binary in an environment of the test's own.

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a run left.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Exit status.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

/// The binary with nothing of the user's environment but what finds programs.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rigel"));
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("empty-cache");
    command.env_clear().env("RIGEL_CACHE", &cache).env("HF_HOME", &cache);
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command
}

/// Runs `command` with `input` as its standard input.
pub(crate) fn finish(mut command: Command, input: &str) -> Outcome {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that fails early closes its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Outcome {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs `rigel` with arguments.
pub(crate) fn rigel<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Outcome {
    let mut command = command();
    command.args(arguments);
    finish(command, "")
}

/// The JSON that a successful run printed.
#[track_caller]
pub(crate) fn json(outcome: &Outcome) -> Value {
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    serde_json::from_str(&outcome.out).unwrap()
}

/// Checks that a run failed with one line on standard error, nothing on standard output, and that the line
/// has all of `parts`.
#[track_caller]
pub(crate) fn assert_fails(outcome: &Outcome, parts: &[&str]) {
    assert_eq!((outcome.code, outcome.out.as_str()), (1, ""), "{}", outcome.err);
    assert_eq!(outcome.err.trim_end().lines().count(), 1, "{}", outcome.err);
    assert!(outcome.err.starts_with("error: "), "{}", outcome.err);
    for part in parts {
        assert!(outcome.err.contains(part), "{:?} lacks {part:?}", outcome.err);
    }
}

/// A shared model's path.
pub(crate) fn model(name: &str) -> String {
    let path = testkit::shared_dir().join("models").join(name);
    path.to_str().unwrap().to_owned()
}

/// The arguments that name the stories model and its tokenizer.
pub(crate) fn stories() -> [String; 4] {
    ["--model".into(), model("stories260K.bin"), "--tokenizer".into(), model("tok512.bin")]
}

/// `subcommand`, the stories model, and further arguments.
pub(crate) fn with_stories(subcommand: &str, arguments: &[&str]) -> Vec<String> {
    let mut all = vec![subcommand.to_owned()];
    all.extend(stories());
    all.extend(arguments.iter().map(|a| (*a).to_owned()));
    all
}
