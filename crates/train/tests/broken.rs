//! Training processes that are killed, and disks that are full. The program starts itself as the child.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "train/common.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cpu::CpuBackend;
use rigel_train::checkpoint::{self, Checkpoint};
use rigel_train::metrics::{JsonLines, Record, read};
use rigel_train::{Checkpoints, OptimizerConfig, Trainer};

const STEPS: u64 = 40;
const KILLS: usize = 20;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, child, dir] = &args[..]
        && child == "--child"
    {
        let result = train(Path::new(dir));
        return result.unwrap_or_else(|e| {
            eprintln!("{e}");
            std::process::exit(1)
        });
    }
    let (expected, time) = unbroken();
    killed(&expected, time);
    limited(&expected);
    full_disk();
}

/// Trains in `dir`, from the last checkpoint there on, with a checkpoint after each step.
fn train(dir: &Path) -> rigel_train::Result<()> {
    let mut data = common::loader(&fresh(dir, "data"));
    let gradients = common::gradients(&common::model("llama"), true);
    let optimizer = OptimizerConfig::default();
    let config =
        rigel_train::Config { optimizer, ..common::config(common::ADAMW, 0.0, 2e-3, STEPS) };
    let mut trainer = Trainer::new(&CpuBackend::new(2), gradients, config, 2)?;
    let dir_of = dir.join("checkpoints");
    if let Some(last) = checkpoint::latest(&dir_of)? {
        trainer.restore(&last, &mut data)?;
    }
    let settings = serde_json::Value::Null;
    let checkpoints = Checkpoints { dir: dir_of, every: Some(1), keep: 2, settings };
    let mut lines = <JsonLines>::open(&dir.join("metrics.jsonl"), trainer.progress().step)?;
    trainer.run(&mut data, None, Some(&checkpoints), &mut lines).map(|_| ())
}

fn fresh(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

fn child(dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--child").arg(dir);
    command
}

/// All that a run leaves but its times: the last checkpoint byte by byte, and the losses.
#[derive(PartialEq)]
struct Left {
    files: BTreeMap<PathBuf, Vec<u8>>,
    losses: Vec<(u64, u64)>,
}

fn left(dir: &Path) -> Left {
    let (step, path) = checkpoint::list(&dir.join("checkpoints")).unwrap().pop().unwrap();
    assert_eq!(step, STEPS);
    let entries = fs::read_dir(path).unwrap().map(|e| e.unwrap().path());
    let files = entries.map(|p| (p.file_name().unwrap().into(), fs::read(p).unwrap())).collect();
    let records = read(&dir.join("metrics.jsonl")).unwrap();
    let loss = |record: &Record| match record {
        Record::Step(s) => Some((s.step, s.loss.to_bits())),
        Record::Evaluation(_) => None,
    };
    let losses: Vec<(u64, u64)> = records.iter().filter_map(loss).collect();
    assert!(losses.iter().map(|l| l.0).eq(1..=STEPS), "a line for each step");
    Left { files, losses }
}

fn unbroken() -> (Left, Duration) {
    let dir = tempfile::tempdir().unwrap();
    let start = Instant::now();
    assert!(child(dir.path()).status().unwrap().success());
    (left(dir.path()), start.elapsed())
}

/// Whether a checkpoint is being written.
fn is_writing(dir: &Path) -> bool {
    let entries = fs::read_dir(dir.join("checkpoints")).into_iter().flatten();
    let mut names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    names.any(|n| n.starts_with(".partial-"))
}

/// Waits for a random moment: of the run, or of the writing of a checkpoint. Whether the child still lives.
fn wait(
    child: &mut Child,
    dir: &Path,
    time: Duration,
    writing: bool,
    random: &mut fastrand::Rng,
) -> bool {
    sleep(time.mul_f64(random.f64() / 3.0));
    while writing && !is_writing(dir) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        sleep(Duration::from_micros(100));
    }
    sleep(Duration::from_micros(random.u64(0..3000)));
    child.try_wait().unwrap().is_none()
}

fn killed(expected: &Left, time: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let (mut kills, mut partial, mut resumed) = (0, 0, 0);
    while kills < KILLS {
        let from = checkpoint::latest(&dir.path().join("checkpoints")).unwrap();
        let mut process = child(dir.path()).spawn().unwrap();
        let lives = wait(&mut process, dir.path(), time, kills % 2 == 0, &mut random);
        process.kill().unwrap();
        process.wait().unwrap();
        // Whatever the moment was, what is found is whole.
        let last = checkpoint::latest(&dir.path().join("checkpoints")).unwrap();
        if last.is_some_and(|c| c.saved.progress.step == STEPS) {
            fs::remove_dir_all(dir.path().join("checkpoints")).unwrap();
            continue;
        }
        resumed += usize::from(from.is_some());
        kills += usize::from(lives);
        partial += usize::from(is_writing(dir.path()));
    }
    assert!(child(dir.path()).status().unwrap().success());
    assert!(left(dir.path()) == *expected, "a run that was killed is as one that was not");
    assert!(partial > 0, "no kill hit the writing of a checkpoint");
    println!(
        "{kills} kills, {partial} while a checkpoint was written, {resumed} runs taken up: no bit differs"
    );
}

fn failed(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

/// Files that may not grow any more: the write fails as on a full disk, and the run goes on when it is not.
fn limited(expected: &Left) {
    let dir = tempfile::tempdir().unwrap();
    let mut process = child(dir.path()).spawn().unwrap();
    while checkpoint::list(&dir.path().join("checkpoints")).unwrap().is_empty() {
        assert!(process.try_wait().unwrap().is_none(), "ended without a checkpoint");
        sleep(Duration::from_millis(1));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    let last = checkpoint::latest(&dir.path().join("checkpoints")).unwrap().unwrap();
    // More than the weights, less than the moments.
    let most = fs::metadata(last.path.join("weights.safetensors")).unwrap().len() * 3 / 2;
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", most / 512);
    let mut command = Command::new("sh");
    command
        .args(["-c", &script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .arg("--child")
        .arg(dir.path());
    let error = failed(command);
    let kept = format!("the last good one is {}", last.path.display());
    assert!(error.contains("is not written") && error.contains(&kept), "{error}");
    assert!(error.contains("optimizer.safetensors"), "{error}");
    assert_eq!(Checkpoint::read(&last.path).unwrap().saved, last.saved);
    assert!(!is_writing(dir.path()), "what was half written is removed");
    assert!(child(dir.path()).status().unwrap().success());
    assert!(left(dir.path()) == *expected, "a run that had no room is as one that had");
    println!("no room: {}", error.trim());
}

/// A file system of 1 MB, where the user may mount one.
fn full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1300k", "tmpfs"])
        .arg(dir.path())
        .output();
    if !mount.is_ok_and(|m| m.status.success()) {
        println!("no file system can be mounted here; the limit of file sizes stood for it");
        return;
    }
    let error = failed(child(dir.path()));
    let last = checkpoint::latest(&dir.path().join("checkpoints"));
    let unmounted = Command::new("umount").arg("-l").arg(dir.path()).status();
    let step = last.unwrap().unwrap().saved.progress.step;
    assert!(unmounted.unwrap().success());
    assert!(error.contains("No space left on device") && step == 1, "step {step}: {error}");
    println!("full disk: {}", error.trim());
}
