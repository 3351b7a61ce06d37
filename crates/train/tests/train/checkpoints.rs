//! Runs that are broken off and taken up end as those that are not.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cpu::CpuBackend;
use rigel_train::checkpoint::{self, Checkpoint};
use rigel_train::{Checkpoints, Config, Decay, OptimizerConfig, Schedule, Silent, Step, Trainer};
use serde_json::json;

use crate::common::{ADAMW, SGD, config, gradients, loader, model};

const STEPS: u64 = 12;

fn full(accumulation: usize) -> Config {
    Config {
        optimizer: OptimizerConfig::default(),
        schedule: Schedule {
            peak: 3e-3,
            warmup: 3,
            total: STEPS,
            floor: 0.1,
            decay: Decay::Cosine,
        },
        accumulation,
        ..config(ADAMW, 0.0, 0.0, 0)
    }
}

fn trainer(config: Config, threads: usize) -> Trainer {
    let gradients = gradients(&model("llama"), true);
    Trainer::new(&CpuBackend::new(threads), gradients, config, threads).unwrap()
}

fn checkpoints(dir: &Path, keep: usize) -> Checkpoints {
    Checkpoints { dir: dir.to_owned(), every: None, keep, settings: json!({"own": [1, 2]}) }
}

/// What of a step does not depend on time.
fn numbers(step: &Step) -> [u64; 5] {
    let Step { step, loss, gradient_norm, learning_rate, total_tokens, .. } = step;
    [*step, loss.to_bits(), gradient_norm.to_bits(), learning_rate.to_bits(), *total_tokens]
}

fn files(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(path).unwrap().map(|e| e.unwrap().path());
    entries.map(|p| (p.file_name().unwrap().into(), fs::read(p).unwrap())).collect()
}

/// Losses, and the last checkpoint, byte by byte. The run is broken off before each of `breaks`.
fn run(
    config: &Config,
    breaks: &[u64],
    threads: usize,
) -> (Vec<[u64; 5]>, BTreeMap<PathBuf, Vec<u8>>) {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = checkpoints(&dir.path().join("checkpoints"), 2);
    let (mut data, mut trainer) = (loader(dir.path()), self::trainer(config.clone(), threads));
    let mut steps = Vec::new();
    while trainer.progress().step < STEPS {
        if breaks.contains(&trainer.progress().step) {
            trainer.save(&checkpoints, &data).unwrap();
            trainer = self::trainer(config.clone(), threads);
            data = loader(dir.path());
            let last = checkpoint::latest(&checkpoints.dir).unwrap().unwrap();
            assert_eq!(last.saved.settings, checkpoints.settings);
            trainer.restore(&last, &mut data).unwrap();
        }
        steps.push(numbers(&trainer.step(&mut data).unwrap()));
    }
    let path = trainer.save(&checkpoints, &data).unwrap();
    (steps, files(&path))
}

#[test]
fn resuming_changes_no_bit() {
    let mut random = fastrand::Rng::with_seed(11);
    for accumulation in [1, 3] {
        let config = full(accumulation);
        let unbroken = run(&config, &[], 2);
        assert!(unbroken == run(&config, &[], 1), "threads");
        for _ in 0..4 {
            let breaks = [random.u64(0..STEPS), random.u64(0..STEPS)];
            assert!(unbroken == run(&config, &breaks, 2), "broken at {breaks:?}");
        }
    }
}

#[test]
fn the_last_ones_are_kept_and_can_be_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("checkpoints");
    let mut data = loader(dir.path());
    let mut trainer =
        trainer(Config { schedule: Schedule { total: 5, ..full(1).schedule }, ..full(1) }, 1);
    // What a killed process leaves.
    fs::create_dir_all(at.join(".partial-x")).unwrap();
    fs::write(at.join(".partial-x/weights.safetensors"), "half").unwrap();
    let checkpoints = Checkpoints { every: Some(1), ..checkpoints(&at, 2) };
    trainer.run(&mut data, None, Some(&checkpoints), &mut Silent).unwrap();
    let steps =
        || checkpoint::list(&at).unwrap().into_iter().map(|(step, _)| step).collect::<Vec<_>>();
    assert_eq!(steps(), [4, 5]);
    trainer.save(&checkpoints, &data).unwrap();
    assert_eq!(steps(), [4, 5]);
    assert_eq!(fs::read_dir(&at).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn damage_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = checkpoints(&dir.path().join("checkpoints"), 3);
    let mut data = loader(dir.path());
    let mut trainer = trainer(full(1), 1);
    trainer.step(&mut data).unwrap();
    let path = trainer.save(&checkpoints, &data).unwrap();
    for name in ["weights.safetensors", "optimizer.safetensors", "state.json", "SHA256SUMS"] {
        let file = path.join(name);
        let good = fs::read(&file).unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..5 {
            let mut bad = good.clone();
            bad[random.usize(..good.len())] ^= 1 << random.u8(..8);
            fs::write(&file, &bad).unwrap();
            let error = Checkpoint::read(&path).unwrap_err().to_string();
            assert!(error.contains("step-0000000001"), "{error}");
        }
        fs::remove_file(&file).unwrap();
        assert!(Checkpoint::read(&path).unwrap_err().to_string().contains(name));
        fs::write(&file, &good).unwrap();
    }
    let whole = Checkpoint::read(&path).unwrap();

    let gradients = gradients(&model("gpt2"), true);
    let mut other = Trainer::new(&CpuBackend::new(1), gradients, full(1), 1).unwrap();
    let error = other.restore(&whole, &mut data).unwrap_err().to_string();
    assert!(error.contains("there is nothing, the run has"), "{error}");
    let mut other = self::trainer(config(SGD, 0.0, 0.1, 5), 1);
    let error = other.restore(&whole, &mut data).unwrap_err().to_string();
    assert!(error.ends_with("is of another optimiser"), "{error}");
}
