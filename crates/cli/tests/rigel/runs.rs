//! Runs that two processes want, whose files were changed or damaged, or that are to be what none can be.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::run::{Outcome, assert_fails, command, json};
use crate::training::{ARCH, Place};

/// A run of a few steps, with a checkpoint of each.
const SHORT: [&str; 6] = ["--steps", "4", "--save-every", "1", "--eval-every", "2"];

fn resume(place: &Place, more: &[&str]) -> Outcome {
    place.rigel(&[&["train", "--resume", "--out", "run"][..], more].concat())
}

fn names(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn replace(path: &str, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text} lacks {from}");
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// Numbers that are none are no way to say nothing.
#[test]
fn numbers_are_finite() {
    let place = Place::new();
    for option in ["--lr", "--min-lr", "--clip", "--weight-decay", "--beta1", "--held-out"] {
        for number in ["nan", "inf", "1e999"] {
            let refused = place.train("run", &[option, number]);
            assert_eq!(refused.code, 2, "{option} {number}: {}", refused.err);
            assert!(refused.err.contains("is not finite"), "{}", refused.err);
        }
    }
    assert_eq!(resume(&place, &["--lr", "nan"]).code, 2);
    for (from, to, said) in [
        ("lr = 1e-2", "lr = inf", "train.lr is inf"),
        ("lr = 1e-2", "clip = nan", "train.clip is NaN"),
        ("rms_norm_eps = 1e-5", "rms_norm_eps = nan", "rms_norm_eps is NaN"),
        ("rope_theta = 10000.0", "rope_theta = inf", "rope_theta is inf"),
    ] {
        place.write("arch.toml", &ARCH.replace(from, to));
        assert_fails(&place.train("run", &[]), &["arch.toml: ", said]);
    }
}

#[test]
fn recipes_that_none_can_follow() {
    let place = Place::new();
    let most = u64::MAX.to_string();
    for (options, part) in [
        (&["--batch", "0"][..], "--batch is 0"),
        (&["--seq-len", "0"], "--seq-len is 0"),
        (&["--batch", &most], "a batch has at most 2147483647 tokens"),
        (&["--patience", "0"], "--patience is 0"),
        (&["--patience", "2", "--eval-every", "0"], "--eval-every is 0"),
        (&["--patience", "2", "--held-out", "0"], "--held-out is 0"),
        (&["--optimizer", "sgd", "--beta2", "0.9"], "--beta2 is of AdamW"),
    ] {
        assert_fails(&place.train("run", options), &[part]);
    }
    // What an architecture says of AdamW is no such contradiction.
    place.write("beta2.toml", &format!("{ARCH}beta2 = 0.9\n"));
    let dry = |arch: &str, more: &[&str]| {
        let own = ["train", "--arch", arch, "--data", "text.txt", "--dry-run", "--json"];
        place.rigel(&[&own[..], more].concat())
    };
    assert_eq!(dry("beta2.toml", &["--optimizer", "sgd"]).code, 0);
    // A run that lasts for ever is measured as any.
    let told = json(&dry("arch.toml", &["--steps", &most, "--accumulation", &most]));
    assert_eq!(told["tokens"]["run"], u64::MAX);
    for (lora, part) in [
        ("r=4,r=8", "r= is there twice"),
        ("targets=q,targets=v", "targets= is there twice"),
        ("r=1,alpha=1e300", "fp32"),
    ] {
        let tune = ["finetune", "x", "--data", "text.txt", "--out", "run", "--lora", lora];
        let refused = place.rigel(&tune);
        assert_eq!(refused.code, 2);
        assert!(refused.err.contains(part), "{}", refused.err);
    }
    let made = place.rigel(&["tokenizer", "train", "text.txt", "--vocab", "300", "-o", "words"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let tokens = ["data", "tokenize", "text.txt", "-o", "text.bin", "--tokenizer"];
    assert_eq!(place.rigel(&[&tokens[..], &["words/tokenizer.json"]].concat()).code, 0);
    let mixed = ["train", "--arch", "arch.toml", "--data", "text.bin", "--out", "run"];
    let mixed = place.rigel(&[&mixed[..], &["--eval-data", "text.txt"]].concat());
    assert_fails(&mixed, &["some of the data is text", "tokenize all or none"]);
}

/// Tables are known, what is wrong is said by the file's own name, and paths are relative to it.
#[test]
fn architectures_of_the_user() {
    let place = Place::new();
    place.write("arch.toml", &ARCH.replace("[tokenizer]", "[tokenizr]"));
    assert_fails(&place.train("run", &[]), &["arch.toml: ", "[tokenizr]", "tokenizer"]);
    place.write("arch.toml", &ARCH.replace("hidden_size = 32", "hidden_size = -16"));
    let refused = place.train("run", &[]);
    assert_fails(&refused, &["arch.toml: ", "hidden_size"]);
    assert!(!refused.err.contains("config.json"), "{}", refused.err);
    let made = place.rigel(&["tokenizer", "train", "text.txt", "--vocab", "300", "-o", "words"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let arch = ARCH.replace("chars = true", "tokenizer = \"tokenizer.json\"");
    place.write("words/arch.toml", &arch);
    let train = ["train", "--arch", "words/arch.toml", "--data", "text.txt", "--out", "run"];
    let made = place.rigel(&[&train[..], &["--steps", "1"]].concat());
    assert_eq!(made.code, 0, "{}", made.err);
}

#[test]
fn one_process_at_a_time() {
    let place = Place::new();
    assert_eq!(place.train("run", &SHORT).code, 0);
    place.write("run/.partial-x", "half a file");
    let lock = File::options().write(true).open(place.path("run/lock")).unwrap();
    lock.try_lock().unwrap();
    assert_fails(&resume(&place, &[]), &["run: another process goes on with this run"]);
    assert!(names(&place.path("run")).contains(&".partial-x".to_owned()));
    drop(lock);
    assert_eq!(resume(&place, &[]).code, 0);
    assert!(!names(&place.path("run")).contains(&".partial-x".to_owned()));
    // Nothing is written where there is no run.
    fs::create_dir(place.path("none")).unwrap();
    let none = place.rigel(&["train", "--resume", "--out", "none"]);
    assert_fails(&none, &["none: no run there"]);
    assert_eq!(names(&place.path("none")), [""; 0]);
}

/// A run goes on with the model and the settings that it was begun with, or not at all.
#[test]
fn what_was_changed_beneath_a_run() {
    let place = Place::new();
    for (base, seed) in [("base", "1"), ("other", "2")] {
        assert_eq!(place.train(base, &["--steps", "2", "--seed", seed]).code, 0);
    }
    let tune = ["finetune", "base/final", "--data", "text.txt", "--out", "run", "--seq-len", "16"];
    let lora = ["--lora", "r=2,alpha=8", "--batch", "2"];
    let made = place.rigel(&[&tune[..], &lora, &SHORT].concat());
    assert_eq!(made.code, 0, "{}", made.err);
    let resume = || place.rigel(&["finetune", "--resume", "--out", "run", "--steps", "6"]);
    let settings = place.path("run/run.json");
    let good = fs::read_to_string(&settings).unwrap();

    replace(&settings, "\"alpha\": 8.0", "\"alpha\": 800.0");
    assert_fails(&resume(), &["task.alpha is 8.0 in the checkpoint, 800.0 in the run"]);
    fs::write(&settings, &good).unwrap();
    replace(&settings, "\"weight_decay\": 0.0", "\"weight_decay\": 0.5");
    assert_fails(&resume(), &["optimizer.weight_decay is 0.0 in the checkpoint, 0.5 in the run"]);
    fs::write(&settings, &good).unwrap();
    let batch = ["\"batch\": 2", "\"batch\": 3"];
    replace(&settings, batch[0], batch[1]);
    assert_fails(&resume(), &["recipe.batch is 2 in the checkpoint, 3 in the run"]);
    fs::write(&settings, &good).unwrap();

    let weights = |run: &str| place.path(&format!("{run}/final/model.safetensors"));
    let own = fs::read(weights("base")).unwrap();
    fs::copy(weights("other"), weights("base")).unwrap();
    assert_fails(&resume(), &["base/final: is not the model that the run was begun with"]);
    assert_eq!(fs::read_to_string(&settings).unwrap(), good, "what failed changed nothing");
    fs::write(weights("base"), own).unwrap();

    let train = place.rigel(&["train", "--resume", "--out", "run"]);
    assert_fails(&train, &["begun by `rigel finetune`"]);
    let finetune = place.rigel(&["finetune", "--resume", "--out", "base"]);
    assert_fails(&finetune, &["begun by `rigel train`"]);
    assert!(resume().out.starts_with("finished at step 6"));
}

/// What of a run is lost or damaged is said, and what there is of it stays.
#[test]
fn what_was_lost_or_damaged() {
    let place = Place::new();
    assert_eq!(place.train("run", &SHORT).code, 0);
    let metrics = place.path("run/metrics.jsonl");
    let good = fs::read_to_string(&metrics).unwrap();
    let damaged = good.replacen("{", "<", 1);
    fs::write(&metrics, &damaged).unwrap();
    let again = resume(&place, &["--steps", "5"]);
    assert!(again.out.starts_with("finished at step 5"), "{}", again.err);
    assert!(again.err.contains("metrics.jsonl: has a damaged line"), "{}", again.err);
    assert_eq!(fs::read_to_string(place.path("run/metrics.jsonl.1")).unwrap(), damaged);
    let (_, rest) = good.split_once('\n').unwrap();
    let longer = fs::read_to_string(&metrics).unwrap();
    assert!(longer.starts_with(rest) && longer.len() > rest.len(), "{longer}");

    fs::remove_dir_all(place.path("run/checkpoints")).unwrap();
    let again = resume(&place, &[]);
    assert!(again.out.starts_with("finished at step 5"), "{}", again.err);
    for part in ["no checkpoint; the run begins anew", "metrics.jsonl.2"] {
        assert!(again.err.contains(part), "{} lacks {part}", again.err);
    }
    assert_eq!(fs::read_to_string(place.path("run/metrics.jsonl.2")).unwrap(), longer);
    assert!(again.err.contains("metrics.jsonl: has steps that are taken anew"), "{}", again.err);
    let steps = place.records("run").iter().filter(|r| r["kind"] == "step").count();
    assert_eq!(steps, 5);

    fs::remove_dir_all(place.path("run/checkpoints")).unwrap();
    fs::write(&metrics, "<\n").unwrap();
    let again = resume(&place, &[]);
    assert!(again.err.contains("metrics.jsonl: has a damaged line"), "{}", again.err);

    // The first evaluation stays the best one of a run that learns nothing.
    let options = ["--lr", "1e-30", "--patience", "2", "--eval-every", "2", "--keep", "1"];
    let stopped = json(&place.train("early", &[&options[..], &["--json"]].concat()));
    let best = stopped["best"]["step"].as_u64().unwrap();
    assert_eq!(stopped["step"], best + 4, "{stopped}");
    let file = format!("early/checkpoints/step-{best:010}/state.json");
    fs::write(place.path(&file), "damaged").unwrap();
    let again = place.rigel(&["train", "--resume", "--out", "early", "--json"]);
    assert!(again.err.contains("no checkpoint that is whole"), "{}", again.err);
    assert_eq!(json(&again)["result_step"], stopped["step"]);

    fs::write(&metrics, "").unwrap();
    let drawn = place.rigel(&["plot", "run", "-o", "curves.svg"]);
    assert_fails(&drawn, &["error: run: no step was measured"]);
}

/// A signal ends what prepares a run at once, and nothing of it is left.
#[test]
#[cfg(unix)]
fn a_signal_while_a_run_is_prepared() {
    let place = Place::new();
    let text = fs::read_to_string(place.path("text.txt")).unwrap();
    place.write("text.txt", &text.repeat(8_000));
    let mut command = command();
    let train = ["train", "--arch", "arch.toml", "--data", "text.txt", "--out", "run"];
    command.current_dir(&place.0).args(train).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let is_partial = |name: &String| name.starts_with(".partial-");
    let at = place.0.path().to_str().unwrap();
    while !names(at).iter().any(is_partial) {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        thread::sleep(Duration::from_millis(20));
    }
    let kill = ["-INT".to_owned(), child.id().to_string()];
    assert!(Command::new("kill").args(kill).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut left = names(at);
    left.sort();
    assert_eq!(left, ["arch.toml", "text.txt"]);
}

/// And while it is evaluated: the evaluation is made up for.
#[test]
#[cfg(unix)]
fn a_signal_while_a_run_is_evaluated() {
    let place = Place::new();
    let text = fs::read_to_string(place.path("text.txt")).unwrap();
    place.write("held-out.txt", &text.repeat(300));
    let mut command = command();
    let train = ["train", "--arch", "arch.toml", "--data", "text.txt", "--out", "run"];
    let more = ["--eval-data", "held-out.txt", "--steps", "2", "--eval-every", "2"];
    command.current_dir(&place.0).args(train).args(more);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Made when all is ready, and the evaluation begins.
    while !Path::new(&place.path("run/metrics.jsonl")).exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_millis(100));
    let kill = ["-INT".to_owned(), child.id().to_string()];
    assert!(Command::new("kill").args(kill).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(place.records("run"), [Value::Null; 0], "it was evaluated to its end");
}
