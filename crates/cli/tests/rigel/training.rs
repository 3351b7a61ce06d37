//! Training from text to a model that writes, broken off and taken up, tuned, merged.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::run::{Outcome, assert_fails, command, json, model, rigel};

/// A small architecture, its recipe and its tokenizer, as a user writes them.
pub(crate) const ARCH: &str = r#"
model_type = "llama"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
max_position_embeddings = 64
rms_norm_eps = 1e-5
rope_theta = 10000.0
hidden_act = "silu"
tie_word_embeddings = true

[tokenizer]
chars = true

[train]
batch = 4
seq-len = 16
steps = 60
lr = 1e-2
"#;

/// A place with an architecture and a text.
pub(crate) struct Place(pub(crate) tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Place(tempfile::tempdir().unwrap());
        place.write("arch.toml", ARCH);
        let animals = ["cat", "dog", "hen", "cow", "fox"];
        let line = |i: usize| format!("The {} saw the {}.\n", animals[i % 5], animals[i * i % 3]);
        place.write("text.txt", &(0..200).map(line).collect::<String>());
        place
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// `rigel` in this place.
    pub(crate) fn rigel(&self, arguments: &[&str]) -> Outcome {
        let mut command = command();
        command.current_dir(&self.0).args(arguments);
        crate::run::finish(command, "")
    }

    /// Trains the small architecture on the text.
    pub(crate) fn train(&self, out: &str, more: &[&str]) -> Outcome {
        let arguments = ["train", "--arch", "arch.toml", "--data", "text.txt", "--out", out];
        self.rigel(&[&arguments, more].concat())
    }

    fn generate(&self, model: &str, more: &[&str]) -> Value {
        let arguments =
            ["generate", "The cat", "-m", model, "--temperature", "0", "-n", "16", "--json"];
        json(&self.rigel(&[&arguments, more].concat()))
    }

    pub(crate) fn records(&self, run: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(&format!("{run}/metrics.jsonl"))).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn same(&self, file: &str, runs: [&str; 2]) {
        let [a, b] = runs.map(|run| fs::read(self.path(&format!("{run}/{file}"))).unwrap());
        assert!(a == b, "{file} of {runs:?} differ");
    }

    /// Nothing half-made beside what the test wrote.
    #[track_caller]
    fn holds_no_more_than(&self, names: &[&str]) {
        let entries = fs::read_dir(&self.0).unwrap();
        for entry in entries {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(names.contains(&&*name), "{name} was left");
        }
    }
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn a_new_model_learns_and_writes() {
    let place = Place::new();
    let end = json(&place.train("run", &["--json", "--eval-every", "20", "--save-every", "25"]));
    assert_eq!((&end["end"], &end["step"]), (&"finished".into(), &60.into()));
    assert_eq!(end["result"], "run/final");
    let records = place.records("run");
    let losses = |kind: &str| -> Vec<f64> {
        records.iter().filter(|r| r["kind"] == kind).map(|r| number(&r["loss"])).collect()
    };
    let (steps, held_out) = (losses("step"), losses("evaluation"));
    assert_eq!((steps.len(), held_out.len()), (60, 4));
    // 17 characters: at first all are as likely.
    assert!((steps[0] - 17f64.ln()).abs() < 0.1 && steps[59] < 1.0, "{steps:?}");
    assert!(held_out[3] < held_out[1] && held_out[3] < 1.0, "{held_out:?}");
    assert!((held_out[0] - 17f64.ln()).abs() < 0.1, "{held_out:?}");
    assert_eq!(
        number(&end["best"]["loss"]),
        held_out.iter().copied().fold(f64::INFINITY, f64::min)
    );
    assert_eq!(place.generate("run/final", &[])["ids"].as_array().unwrap().len(), 16);
    let mut kept: Vec<String> = fs::read_dir(place.path("run/checkpoints"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    kept.sort();
    assert_eq!(kept, ["step-0000000050", "step-0000000060"]);

    let drawn = place.rigel(&["plot", "run"]);
    assert_eq!((drawn.code, &*drawn.out), (0, "run/curves.svg\n"), "{}", drawn.err);
    assert!(fs::read_to_string(place.path("run/curves.svg")).unwrap().contains("held out"));
    assert_eq!(place.rigel(&["plot", "run", "-o", "curves.png"]).code, 0);
    assert!(fs::read(place.path("curves.png")).unwrap().starts_with(b"\x89PNG"));
    assert_fails(&place.rigel(&["plot", "run", "-o", "curves.gif"]), &["neither .svg nor .png"]);

    // What is over stays as it is.
    let weights = fs::read(place.path("run/final/model.safetensors")).unwrap();
    let again = place.rigel(&["train", "--resume", "--out", "run"]);
    assert!(again.code == 0 && again.out.starts_with("finished at step 60"), "{again:?}");
    assert_eq!(fs::read(place.path("run/final/model.safetensors")).unwrap(), weights);
}

/// Broken off by `signal` after the first checkpoint, and taken up; the run is named after the signal.
fn broken_off(place: &Place, signal: &str) {
    let mut command = command();
    let arguments = ["train", "--arch", "arch.toml", "--data", "text.txt", "--out", signal];
    command.current_dir(&place.0).args(arguments).args(LONG);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("step 10: saved ")));
    let kill = [format!("-{signal}"), child.id().to_string()];
    assert!(Command::new("kill").args(kill).status().unwrap().success());
    lines.for_each(drop);
    let status = child.wait().unwrap();
    assert!(signal == "KILL" || status.code() == Some(130), "{status}");
    let done = place.records(signal).len();
    let resumed = place.rigel(&["train", "--resume", "--out", signal]);
    assert!(resumed.code == 0 && resumed.out.starts_with("finished at step 400"), "{resumed:?}");
    assert!(done < 400, "it was over before it was broken off");
}

const LONG: [&str; 6] = ["--steps", "400", "--save-every", "10", "--eval-every", "50"];

#[test]
#[cfg(unix)]
fn a_run_that_was_broken_off_ends_as_one_that_was_not() {
    let place = Place::new();
    assert_eq!(place.train("whole", &LONG).code, 0);
    for signal in ["INT", "KILL"] {
        broken_off(&place, signal);
        for file in [
            "final/model.safetensors",
            "checkpoints/step-0000000400/weights.safetensors",
            "checkpoints/step-0000000400/optimizer.safetensors",
        ] {
            place.same(file, ["whole", signal]);
        }
        let losses = |run: &str| -> Vec<Value> {
            place.records(run).iter().map(|r| json!([r["kind"], r["step"], r["loss"]])).collect()
        };
        assert_eq!(losses("whole"), losses(signal));
    }
}

#[test]
fn what_may_change_when_a_run_goes_on() {
    let place = Place::new();
    assert_eq!(place.train("run", &["--steps", "20", "--eval-every", "10"]).code, 0);
    place.write("other.txt", "The cat.");
    let resume =
        |more: &[&str]| place.rigel(&[&["train", "--resume", "--out", "run"][..], more].concat());
    let settings = || fs::read_to_string(place.path("run/run.json")).unwrap();
    let begun = settings();
    for (options, parts) in [
        (&["--lr", "0.5"][..], &["--lr is 0.5, in the run 0.01"][..]),
        (&["--chip", "m1"], &["--chip is m1, in the run nothing"]),
        (&["--device", "emulator"], &["--device is emulator, in the run cpu"]),
        (
            &["--seed", "2", "--batch", "3"],
            &["--seed is 2, in the run 1", "--batch is 3, in the run 4"],
        ),
        (&["--data", "other.txt"], &["other.txt, in the run ", "/text.txt"]),
        (&["--eval-data", "other.txt"], &["--eval-data is ", "in the run nothing"]),
        (&["--separator", "x"], &["--separator is x, in the run nothing"]),
        (&["--recompute"], &["--recompute is true"]),
        (&["--steps", "10"], &["--steps is 10, and 20 are done"]),
        (&["--steps", "30", "--clip", "2"], &["--clip is 2.0, in the run 1.0"]),
    ] {
        assert_fails(&resume(options), parts);
        assert_eq!(settings(), begun, "{options:?}");
    }
    for options in [["--arch", "tiny"], ["--vocab", "300"], ["--tokenizer", "x"]] {
        assert_eq!(resume(&options).code, 2, "{options:?}");
    }
    for options in [["--lora", "r=2"], ["--tokenizer", "x"]] {
        let finetune = ["finetune", "--resume", "--out", "run"];
        assert_eq!(place.rigel(&[&finetune, &options[..]].concat()).code, 2, "{options:?}");
    }
    let same = [
        "--data", "text.txt", "--lr", "1e-2", "--min-lr", "1e-3", "--device", "cpu", "--steps",
        "20",
    ];
    let outcome = resume(&same);
    assert!(outcome.out.starts_with("finished at step 20") && !outcome.err.contains("note:"));
    assert_eq!(settings(), begun);

    let outcome = resume(&["--steps", "30", "--eval-every", "5", "--threads", "1"]);
    assert!(outcome.out.starts_with("finished at step 30"), "{outcome:?}");
    for note in ["note: --steps is 30, was 20", "note: --eval-every is 5, was 10", "--threads is 1"]
    {
        assert!(outcome.err.contains(note), "{} lacks {note}", outcome.err);
    }
    let evaluated: Vec<u64> = place
        .records("run")
        .iter()
        .filter(|r| r["kind"] == "evaluation")
        .map(|r| r["step"].as_u64().unwrap())
        .collect();
    assert_eq!(evaluated, [0, 10, 20, 25, 30]);
    assert!(resume(&[]).out.starts_with("finished at step 30"));
}

/// What is held out is nothing like the data: the longer the run, the worse.
#[test]
fn a_run_that_stops_early_gives_its_best_weights() {
    let place = Place::new();
    let foreign = "went eht .woc eht taw ehT\nhen oxe tdc .".repeat(20);
    place.write("held-out.txt", &foreign.replace(|c| !"The catdogsnwx.\n".contains(c), ""));
    let stop = ["--eval-data", "held-out.txt", "--eval-every", "2", "--patience", "3"];
    let end = json(&place.train("run", &[&stop[..], &["--keep", "1", "--json"]].concat()));
    let (best, last) = (end["best"]["step"].as_u64().unwrap(), end["step"].as_u64().unwrap());
    assert_eq!((&end["end"], last), (&"no improvement".into(), best + 6), "{end}");
    assert_eq!(end["result_step"], best);
    let norm = |file: &str, name: &str| {
        let file = import::SafeTensors::open(place.path(file)).unwrap();
        file.tensor(name).unwrap().as_slice::<f32>().unwrap().to_vec()
    };
    let name = "model.norm.weight";
    let at =
        |step: u64| norm(&format!("run/checkpoints/step-{step:010}/weights.safetensors"), name);
    let written = norm("run/final/model.safetensors", name);
    assert!(written == at(best) && written != at(last));
    // Again after it is over, and where there is no such checkpoint any more.
    let again = json(&place.rigel(&["train", "--resume", "--out", "run", "--json"]));
    assert_eq!(again["result_step"], best);
    fs::remove_dir_all(place.path(&format!("run/checkpoints/step-{best:010}"))).unwrap();
    let again = place.rigel(&["train", "--resume", "--out", "run", "--json"]);
    assert!(again.err.contains("no checkpoint of the best evaluation"), "{}", again.err);
    assert_eq!(json(&again)["result_step"], last);
}

#[test]
fn an_adapter_that_is_merged_writes_what_it_wrote_beside_the_model() {
    let place = Place::new();
    assert_eq!(place.train("base", &["--steps", "30"]).code, 0);
    let rows = (0..40).map(|i| {
        let name = ["owl", "ant"][i % 2];
        json!({ "prompt": "The cat", "completion": format!(" saw the {name}. The cow.") })
    });
    let rows: String = rows.map(|row| format!("{row}\n")).collect();
    // Characters that the tokenizer knows.
    place.write("pairs.jsonl", &rows.replace("owl", "fox").replace("ant", "hen"));
    let tune = ["finetune", "base/final", "--data", "pairs.jsonl", "--lr", "1e-2", "--steps", "30"];
    let lora = ["--lora", "r=4,alpha=8,targets=q,v,down", "--out", "tuned", "--json"];
    let end = json(&place.rigel(&[&tune[..], &lora].concat()));
    assert_eq!(end["result"], "tuned/adapter");
    let config = fs::read_to_string(place.path("tuned/adapter/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!((&config["r"], number(&config["lora_alpha"])), (&4.into(), 8.0));
    assert_eq!(config["base_model_name_or_path"], "base/final");
    let losses: Vec<f64> = place
        .records("tuned")
        .iter()
        .filter(|r| r["kind"] == "step")
        .map(|r| number(&r["loss"]))
        .collect();
    assert!(losses[29] < 0.7 * losses[0], "{losses:?}");

    let plain = place.generate("base/final", &[]);
    let beside = place.generate("base/final", &["--adapter", "a=tuned/adapter"]);
    let merge = ["merge", "base/final", "--adapter", "tuned/adapter", "-o"];
    let merged = place.rigel(&[&merge[..], &["merged"]].concat());
    assert_eq!(merged.code, 0, "{}", merged.err);
    assert_ne!(plain["ids"], beside["ids"]);
    assert_eq!(place.generate("merged", &[])["ids"], beside["ids"]);
    assert_fails(&place.rigel(&[&merge[..], &["merged"]].concat()), &["merged: is there already"]);

    let full = ["--full", "--out", "full", "--json"];
    let end = json(&place.rigel(&[&tune[..], &full].concat()));
    assert_eq!(end["result"], "full/final");
    assert_ne!(place.generate("full/final", &[])["ids"], plain["ids"]);
}

/// Chats of a form that SmolLM2 has not seen (`tests/golden/chats.py`): it learns the form, and so predicts answers that
/// it was not trained on.
#[test]
fn an_adapter_of_a_quantised_model_learns_what_it_has_not_seen() {
    let place = Place::new();
    let fixture = testkit::fixtures_dir().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let chats = testkit::workspace_dir().join("tests/golden/chats");
    let [train, held_out] = ["train.jsonl", "held-out.jsonl"].map(|name| chats.join(name));
    let [model, train, held_out] = [&fixture, &train, &held_out].map(|p| p.to_str().unwrap());
    let tune = ["finetune", model, "--data", train, "--eval-data", held_out, "--out", "run"];
    let small =
        ["--batch", "2", "--seq-len", "160", "--eval-batches", "3", "--lora", "r=8,targets=q,v"];
    let short = ["--steps", "8", "--eval-every", "8", "--lr", "5e-3", "--warmup", "1"];
    let end = place.rigel(&[&tune[..], &small, &short].concat());
    assert_eq!(end.code, 0, "{}", end.err);
    let records = place.records("run");
    let evaluations: Vec<f64> =
        records.iter().filter(|r| r["kind"] == "evaluation").map(|r| number(&r["loss"])).collect();
    let [before, after] = evaluations[..] else { panic!("{evaluations:?}") };
    assert!(after < 0.6 * before, "{before} to {after}");
    let refused = place.rigel(&["finetune", model, "--full", "--data", train, "--out", "x"]);
    assert_fails(&refused, &["unsupported"]);
}

#[test]
fn tokenizers_and_token_files() {
    let place = Place::new();
    let made = place.rigel(&["tokenizer", "train", "text.txt", "--vocab", "300", "-o", "words"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let tokenizer = ["--tokenizer", "words/tokenizer.json"];
    let text = "The cat saw 🦀 <|endoftext|>.";
    let shown = json(&place.rigel(&[&["tokenize", text, "--json"][..], &tokenizer].concat()));
    let ids: Vec<String> = shown["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    let back = place.rigel(&[&["tokenize", "--decode", &ids.join(" ")][..], &tokenizer].concat());
    assert_eq!(back.out, format!("{text}\n"));
    assert!(!ids.contains(&"0".to_owned()), "a name in a text is no token");

    let output = ["data", "tokenize", "text.txt", "-o", "text.bin", "--json"];
    let done = json(&place.rigel(&[&output[..], &tokenizer].concat()));
    assert_eq!((&done["documents"], &done["files"]), (&1.into(), &json!(["text.bin"])));
    // The same run from tokens as from their text.
    let more = ["--tokenizer", "words/tokenizer.json", "--steps", "5"];
    assert_eq!(place.train("a", &more).code, 0);
    let tokens = ["train", "--arch", "arch.toml", "--data", "text.bin", "--out", "b"];
    assert_eq!(place.rigel(&[&tokens[..], &more].concat()).code, 0);
    place.same("final/model.safetensors", ["a", "b"]);
}

#[test]
fn a_dry_run_says_what_a_run_takes_and_leaves_nothing() {
    let place = Place::new();
    let dry = ["train", "--arch", "arch.toml", "--data", "text.txt", "--dry-run", "--steps", "50"];
    let told = json(&place.rigel(&[&dry[..], &["--json", "--accumulation", "3"]].concat()));
    // Embedding, norms, and per layer: queries and output, keys and values, feed-forward.
    let parameters = 17 * 32 + 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64);
    assert_eq!((&told["parameters"], &told["trained"]), (&json!(parameters), &json!(parameters)));
    assert_eq!(told["memory"]["moments"], 8 * parameters);
    assert_eq!(told["tokens"]["run"], 50 * 3 * 4 * 16);
    assert!(number(&told["predicted_s"]) > 49.0 * number(&told["measured"]["step_s"]));
    let shown = place.rigel(&dry);
    assert!(shown.code == 0 && shown.out.contains("measured over 3 steps"), "{shown:?}");
    place.holds_no_more_than(&["arch.toml", "text.txt"]);
}

/// The architectures that have names, for a few steps: their recipes are made for long runs.
#[test]
fn presets() {
    let place = Place::new();
    for (arch, more) in [("tiny", None), ("stories110m", Some("300")), ("gpt2-124m", Some("300"))] {
        let tokens = [["--vocab"].as_slice(), more.as_slice()].concat();
        let own = ["train", "--arch", arch, "--data", "text.txt", "--dry-run", "--json"];
        let small = ["--steps", "3", "--seq-len", "16", "--batch", "1"];
        let tokens = if more.is_some() { &tokens[..] } else { &[] };
        let told = json(&place.rigel(&[&own[..], &small, tokens].concat()));
        assert_eq!(told["steps"], 3, "{arch}: {told}");
    }
    // A tokenizer is made of text alone, and nobody asked for one of the characters here.
    place.write("words.txt", &"once upon a time there was a fox. ".repeat(40));
    let tokenizer = model("tok512.bin");
    let made =
        place.rigel(&["data", "tokenize", "words.txt", "-o", "t.bin", "--tokenizer", &tokenizer]);
    assert_eq!(made.code, 0, "{}", made.err);
    let own = ["train", "--arch", "tiny", "--data", "t.bin", "--dry-run", "--steps", "3"];
    let small = ["--seq-len", "16", "--batch", "1"];
    assert_eq!(place.rigel(&[&own[..], &small].concat()).code, 0);
    let told = place.rigel(&[&own[..], &small, &["--separator", "x"]].concat());
    assert_fails(&told, &["--separator", "tokens already"]);
    assert_fails(&place.rigel(&[&own[..], &small, &["--chars"]].concat()), &["--chars"]);
}

/// On an emulated engine, by each way of giving it the weights: the same losses, and what each step takes.
#[test]
fn on_an_engine() {
    let place = Place::new();
    let common = ["--device", "emulator", "--engine-arithmetic", "fp16"];
    let more = ["--batch", "1", "--eval-batches", "1", "--schedule", "constant", "--warmup", "0"];
    let cpu = place.train("cpu", &[&more[..], &["--steps", "4"]].concat());
    assert_eq!(cpu.code, 0, "{}", cpu.err);
    let losses = |run: &str| -> Vec<f64> {
        let records = place.records(run);
        records.iter().filter(|r| r["kind"] == "step").map(|r| number(&r["loss"])).collect()
    };
    // The last are more steps than a process can compile for: it starts itself again.
    for (update, count) in [("inputs", 4), ("tested", 4), ("recompile", 20)] {
        let steps = ["--update", update, "--steps", &count.to_string(), "--json"];
        let run = place.train(update, &[&common[..], &more, &steps].concat());
        assert!(number(&json(&run)["engine"]["dispatches"]) > 0.0, "{update}: {}", run.out);
        for (engine, cpu) in losses(update).iter().zip(losses("cpu")) {
            assert!((engine / cpu - 1.0).abs() < 0.01, "{update}: {engine}, not {cpu}");
        }
        let lines = fs::read_to_string(place.path(&format!("{update}/engine.jsonl"))).unwrap();
        let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
        assert_eq!((lines.lines().count(), &last["step"]), (count, &count.into()), "{lines}");
        // An M4 ignores what was reloaded, so that what is tested is to compile.
        assert_eq!(number(&last["reloads"]), 0.0, "{update}: {last}");
        assert_eq!(number(&last["compilations"]) > 0.0, update != "inputs", "{update}: {last}");
        assert!(number(&last["predicted_s"]) > 0.0, "{last}");
        let compiled = lines.lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            number(&line["compilations"])
        });
        let compiled: Vec<f64> = compiled.collect();
        assert_eq!(compiled.iter().sum::<f64>() > 119.0, count == 20, "{lines}");
        if update == "inputs" {
            assert!(compiled[0] > 0.0 && compiled[1..].iter().all(|&c| c == 0.0), "{lines}");
        }
    }
    assert_fails(&place.train("x", &["--update", "inputs"]), &["--update", "emulator"]);
}

/// Products of pairs that are rounded train as well.
#[test]
fn in_bf16() {
    let place = Place::new();
    let made = place.train("run", &["--precision", "bf16", "--json"]);
    let best = json(&made)["best"]["loss"].as_f64().unwrap();
    assert!(best < 1.5, "{best}");
}

/// Processes that cannot reach each other would all write the same files.
#[test]
#[cfg(not(feature = "mpi"))]
fn processes_need_mpi() {
    let place = Place::new();
    for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"] {
        let with = |count: &str| {
            let mut command = command();
            let train = ["train", "--arch", "arch.toml", "--data", "text.txt", "--steps", "2"];
            command.current_dir(&place.0).args(train).args(["--out", variable]);
            command.env(variable, count);
            crate::run::finish(command, "")
        };
        assert_fails(&with("2"), &["is one of 2 processes", "built without MPI"]);
        place.holds_no_more_than(&["arch.toml", "text.txt", "OMPI_COMM_WORLD_SIZE"]);
        assert_eq!(with("1").code, 0);
    }
}

#[test]
fn what_cannot_be_trained() {
    let place = Place::new();
    let fails = |more: &[&str], parts: &[&str]| {
        assert_fails(&place.train("run", more), parts);
        place.holds_no_more_than(&["arch.toml", "text.txt"]);
    };
    fails(&["--seq-len", "65"], &["65", "64"]);
    fails(&["--lr", "0"], &["--lr is 0"]);
    fails(&["--held-out", "1"], &["--held-out is 1"]);
    fails(&["--warmup", "100"], &["--warmup is 100", "--steps 60"]);
    fails(&["--beta1", "1.5"], &["--beta1 is 1.5"]);
    fails(&["--clip=-1"], &["--clip is -1"]);
    fails(&["--eval-batches", "0"], &["--eval-batches is 0"]);
    fails(&["--keep", "0"], &["--keep is 0"]);
    fails(&["--chip", "m4"], &["--chip"]);
    fails(&["--device", "emulator", "--chip", "m9"], &["m9", "m4-max"]);
    fails(&["--vocab", "100"], &["257"]);
    fails(&["--tokenizer", "none.json"], &["none.json"]);
    fails(&["--eval-data", "none.txt"], &["none.txt"]);
    let foreign = tempfile::tempdir().unwrap();
    let foreign = foreign.path().join("held-out.txt");
    fs::write(&foreign, "The cat saw.\nThe €.").unwrap();
    let why = ["held-out.txt: document 1", "no token for '€' (line 2, column 5)"];
    fails(&["--eval-data", foreign.to_str().unwrap()], &why);
    let train = |arch: &str, data: &str| {
        place.rigel(&["train", "--arch", arch, "--data", data, "--out", "run"])
    };
    assert_fails(&train("huge", "text.txt"), &["no architecture \"huge\"", "stories110m"]);
    assert_fails(&train("stories110m", "text.txt"), &["text needs a tokenizer", "--vocab"]);
    place.holds_no_more_than(&["arch.toml", "text.txt"]);
    place.write("arch.toml", &ARCH.replace("steps", "stepps"));
    assert_fails(&train("arch.toml", "text.txt"), &["arch.toml", "stepps"]);
    place.write("arch.toml", &ARCH.replace("hidden_act = \"silu\"", "hidden_act = \"step\""));
    assert_fails(&train("arch.toml", "text.txt"), &["step"]);
    place.holds_no_more_than(&["arch.toml", "text.txt"]);
    assert_fails(&place.rigel(&["train", "--resume", "--out", "run"]), &["run: no run there"]);
    place.write("run", "");
    assert_fails(&place.train("run", &[]), &["run: is there already"]);

    let stories = model("stories260K.bin");
    let tune = |more: &[&str]| {
        let own = ["finetune", &stories, "--tokenizer", &model("tok512.bin"), "--out", "x"]
            .map(str::to_owned);
        let more = more.iter().map(|a| (*a).to_owned());
        rigel(own.into_iter().chain(["--data".to_owned(), place.path("text.txt")]).chain(more))
    };
    assert_fails(&tune(&["--lora", "targets=queries"]), &["\"queries\"", "q_proj"]);
    assert_fails(&tune(&["--full"]), &["llama2.c", "not written"]);
    assert_eq!(tune(&["--lora", "rank=3"]).code, 2);
}
