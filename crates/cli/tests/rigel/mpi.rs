//! Processes that `mpirun` starts together train as one with all their batches.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use import::SafeTensors;
use serde_json::{Value, json};

use crate::run::{Outcome, finish};
use crate::training::{Place, number};

/// `mpirun -n COUNT rigel` in the place, on any number of processors, as any user.
fn mpirun(place: &Place, count: usize, arguments: &[&str]) -> Outcome {
    let rigel = crate::run::command();
    let mut command = Command::new("mpirun");
    command.env_clear().envs(rigel.get_envs().filter_map(|(name, value)| Some((name, value?))));
    for name in ["ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"] {
        command.env(format!("OMPI_{name}"), "1");
    }
    command.args(["-n", &count.to_string()]).arg(rigel.get_program()).args(arguments);
    command.current_dir(&place.0);
    finish(command, "")
}

#[track_caller]
fn succeeds(outcome: &Outcome) {
    assert_eq!(outcome.code, 0, "{}", outcome.err);
}

/// The values that a run's records have under `key`, by kind and step.
fn values(place: &Place, run: &str, key: &str) -> BTreeMap<String, f64> {
    let records = place.records(run);
    let records = records.iter().filter(|r| !r[key].is_null());
    records.map(|r| (format!("{} {}", r["kind"], r["step"]), number(&r[key]))).collect()
}

fn weights(file: &str) -> BTreeMap<String, f64> {
    let file = SafeTensors::open(Path::new(file)).unwrap();
    let mut all = BTreeMap::new();
    for (name, _) in file.tensors() {
        let tensor = file.tensor(name).unwrap();
        let values = tensor.as_slice::<f32>().unwrap().iter().zip(0..);
        all.extend(values.map(|(&value, i)| (format!("{name} {i}"), f64::from(value))));
    }
    all
}

#[track_caller]
fn close(a: &BTreeMap<String, f64>, b: &BTreeMap<String, f64>, what: &str) {
    assert!(!a.is_empty() && a.keys().eq(b.keys()), "{what}");
    let differences = a.values().zip(b.values()).map(|(a, b)| (a - b).abs());
    let largest = differences.fold(0.0, f64::max);
    println!("{what}: {} numbers, largest difference {largest:e}", a.len());
    assert!(largest < 1e-5, "{what}: {largest:e}");
}

/// Runs `arguments` by two processes with batches of 4 and by one with 8, and compares what they tell and make.
fn compare(place: &Place, names: [&str; 2], arguments: &[&str], weights_file: &str) {
    let [two, one] = names;
    let recipe = ["--steps", "20", "--lr", "1e-3", "--accumulation", "2", "--eval-every", "5"];
    let all = [arguments, &recipe, &["--save-every", "10"]].concat();
    let outcome = mpirun(place, 2, &[&all[..], &["--batch", "4", "--out", two]].concat());
    succeeds(&outcome);
    assert_eq!(outcome.out.matches("finished at step 20").count(), 1, "one process tells");
    succeeds(&place.rigel(&[&all[..], &["--batch", "8", "--out", one]].concat()));
    for (key, count) in [("loss", 25), ("gradient_norm", 20), ("total_tokens", 20), ("targets", 5)]
    {
        let [two, one] = names.map(|name| values(place, name, key));
        assert_eq!(two.len(), count, "{key}");
        close(&two, &one, key);
    }
    let file = |run: &str, file: &str| place.path(&format!("{run}/{file}"));
    for name in ["checkpoints/step-0000000010/weights.safetensors", weights_file] {
        close(&weights(&file(two, name)), &weights(&file(one, name)), name);
    }
    let position = |run: &str| -> Value {
        let text = fs::read(file(run, "checkpoints/step-0000000020/state.json")).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap()["position"].clone()
    };
    assert_eq!(position(two), position(one));
}

#[test]
fn two_processes_are_one_with_twice_the_batch() {
    let place = Place::new();
    let train = ["train", "--arch", "arch.toml", "--data", "text.txt"];
    compare(&place, ["two", "one"], &train, "final/model.safetensors");

    // Taken up in the middle they end with the same bits.
    let last = place.path("two/checkpoints/step-0000000020");
    fs::rename(&last, place.path("whole")).unwrap();
    let resume = ["train", "--resume", "--out", "two"];
    succeeds(&mpirun(&place, 2, &resume));
    for file in ["weights.safetensors", "optimizer.safetensors"] {
        place.same(file, ["whole", "two/checkpoints/step-0000000020"]);
    }
    let alone = place.rigel(&resume);
    assert!(alone.code == 1 && alone.err.contains("processes of the run: 2"), "{}", alone.err);
}

/// Also where the processes have different numbers of tokens to predict.
#[test]
fn an_adapter() {
    let place = Place::new();
    let base = ["train", "--arch", "arch.toml", "--data", "text.txt", "--steps", "9"];
    succeeds(&place.rigel(&[&base[..], &["--out", "base"]].concat()));
    let row = |i: usize| {
        let completion = " saw the hen. The cow.".get(..5 + i % 17);
        format!("{}\n", json!({ "prompt": "The cat", "completion": completion }))
    };
    place.write("pairs.jsonl", &(0..90).map(row).collect::<String>());
    let tune =
        ["finetune", "base/final", "--data", "pairs.jsonl", "--lora", "r=2,targets=q,v,down"];
    compare(&place, ["two", "one"], &tune, "adapter/adapter_model.safetensors");
}

/// The first process finds that there is a run, while the second waits for it.
#[test]
fn one_that_fails_ends_all() {
    let place = Place::new();
    place.write("run", "");
    let train = ["train", "--arch", "arch.toml", "--data", "text.txt", "--out", "run"];
    let outcome = mpirun(&place, 2, &train);
    assert_ne!(outcome.code, 0);
    assert!(outcome.err.contains("process 0 of 2: run: is there already"), "{}", outcome.err);
}
