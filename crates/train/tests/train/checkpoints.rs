//! Runs that are broken off and taken up end as those that are not.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cpu::CpuBackend;
use rigel_train::checkpoint::{self, Checkpoint};
use rigel_train::{
    Checkpoints, Config, Decay, Observer, OptimizerConfig, Schedule, Silent, Step, TrainError,
    Trainer,
};
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

fn steps(dir: &Path) -> Vec<u64> {
    checkpoint::list(dir).unwrap().into_iter().map(|(step, _)| step).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
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
    assert_eq!(steps(&at), [4, 5]);
    trainer.save(&checkpoints, &data).unwrap();
    assert_eq!(names(&at), ["step-0000000004", "step-0000000005"], "nothing else is left");

    // Nothing is saved when there was nothing to do.
    struct Never;
    impl Observer for Never {
        fn saved(&mut self, step: u64, _: &Path) -> rigel_train::Result<()> {
            panic!("step {step} is saved again")
        }
    }
    trainer.run(&mut data, None, Some(&checkpoints), &mut Never).unwrap();
}

/// A run goes back before a damaged checkpoint: the new line is kept, and is the latest.
#[test]
fn going_back() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("checkpoints");
    let two = checkpoints(&at, 2);
    let mut data = loader(dir.path());
    let mut trainer = trainer(full(1), 1);
    let mut go = |to: u64, from: Option<&Path>, keep: &Checkpoints| {
        if let Some(from) = from {
            trainer.restore(&Checkpoint::read(from).unwrap(), &mut data).unwrap();
        }
        while trainer.progress().step < to {
            trainer.step(&mut data).unwrap();
        }
        trainer.save(keep, &data).unwrap()
    };
    let second = go(2, None, &two);
    fs::write(go(4, None, &two).join("weights.safetensors"), "damaged").unwrap();
    assert!(checkpoint::latest(&at).is_err());
    let third = go(3, Some(&second), &checkpoints(&at, 1));
    assert_eq!(checkpoint::latest(&at).unwrap().unwrap().saved.progress.step, 3);
    assert_eq!(names(&at), ["abandoned-step-0000000004", "step-0000000003"]);
    let damaged = fs::read(at.join("abandoned-step-0000000004/weights.safetensors")).unwrap();
    assert_eq!(damaged, b"damaged", "what is abandoned is left as it was");
    go(4, None, &two);
    assert_eq!(steps(&at), [3, 4]);
    go(3, Some(&third), &two);
    assert_eq!(names(&at), ["abandoned-step-0000000004", "step-0000000003"]);
    Checkpoint::read(&at.join("abandoned-step-0000000004")).unwrap();
}

/// What a process leaves that is killed while it replaces a checkpoint by one of the same step.
#[test]
fn broken_off_while_replacing() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("checkpoints");
    let data = loader(dir.path());
    let trainer = trainer(full(1), 1);
    let checkpoints = checkpoints(&at, 3);
    let path = trainer.save(&checkpoints, &data).unwrap();
    let old = at.join(".old-step-0000000000");
    fs::rename(&path, &old).unwrap();
    assert_eq!(checkpoint::latest(&at).unwrap().unwrap().path, old);
    assert_eq!(trainer.save(&checkpoints, &data).unwrap(), path);
    assert_eq!(names(&at), ["step-0000000000"]);
    fs::create_dir(&old).unwrap();
    assert_eq!(checkpoint::latest(&at).unwrap().unwrap().path, path);
    trainer.save(&checkpoints, &data).unwrap();
    assert_eq!(names(&at), ["step-0000000000"]);
}

/// That an old one cannot be removed does not mean that the new one is not there.
#[test]
fn failing_to_remove_is_not_failing_to_save() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("checkpoints");
    let mut data = loader(dir.path());
    let mut trainer = trainer(full(1), 1);
    // There is no room for a longer name.
    fs::create_dir_all(at.join(format!("step-{:0>250}", 0))).unwrap();
    trainer.step(&mut data).unwrap();
    let error = trainer.save(&checkpoints(&at, 1), &data).unwrap_err();
    assert!(matches!(error, TrainError::Io { doing: "remove", .. }), "{error}");
    assert_eq!(checkpoint::latest(&at).unwrap().unwrap().saved.progress.step, 1);
    // While this one cannot be written at all.
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = trainer.save(&checkpoints(&file, 1), &data).unwrap_err();
    assert!(matches!(error, TrainError::NotSaved { step: 1, .. }), "{error}");
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
    assert!(error.contains("is 1.0 in the checkpoint, null in the run"), "{error}");

    // What changes no step that was taken may be another.
    let longer = Schedule { total: 99, ..full(1).schedule };
    let more = Config { schedule: longer, evaluate_every: Some(3), ..full(1) };
    self::trainer(more, 1).restore(&whole, &mut data).unwrap();
    let Schedule { peak, .. } = full(1).schedule;
    let faster = Schedule { peak: 2.0 * peak, ..full(1).schedule };
    let mut other = self::trainer(Config { schedule: faster, ..full(1) }, 1);
    let error = other.restore(&whole, &mut data).unwrap_err().to_string();
    assert!(
        error.ends_with("schedule.peak is 0.003 in the checkpoint, 0.006 in the run"),
        "{error}"
    );
    whole.check_settings(&json!({"own": [1, 2], "of another version": 1})).unwrap();
    let error = whole.check_settings(&json!({"own": [1, 3]})).unwrap_err().to_string();
    assert!(error.ends_with("own is [1,2] in the checkpoint, [1,3] in the run"), "{error}");
}
