//! Checkpoints: directories that are whole or not there.
//!
//! `step-0000000020` holds
//! - `weights.safetensors`: the `fp32` masters by parameter name;
//! - `optimizer.safetensors`: the moments by `KIND.PARAMETER`;
//! - `state.json`: everything else that the rest of the run depends on ([`Saved`]);
//! - `SHA256SUMS`: their digests, as `sha256sum --check` reads them.
//!
//! It is written under a name that begins with [`import::PARTIAL`], synced, and renamed; what was interrupted is
//! removed the next time that one is written. While one of the same step is replaced, the old one is called
//! `.old-step-…`, and counts as long as there is no other. The last K are kept and, of a run that may stop early, that
//! of the best evaluation, however long ago it was. Where a run goes back and on from there, the later steps
//! of the line that it gave up are renamed `abandoned-step-…`, and left to the user.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use import::SafeTensors;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tensor::Tensor;

use crate::data::Position;
use crate::{Config, LossScale, Progress, Result, TrainError};

/// The version of the layout, and of what a position in the data means.
pub(crate) const FORMAT: u32 = 2;

const WEIGHTS: &str = "weights.safetensors";
const MOMENTS: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
const SUMS: &str = "SHA256SUMS";
const PREFIX: &str = "step-";
/// Before the name of one that is being replaced.
const OLD: &str = ".old-";
/// Before the name of one that the run has gone back before.
const ABANDONED: &str = "abandoned-";

/// What of a run is no tensor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Saved {
    /// Version of the layout: 2.
    pub format: u32,
    /// How far the run is.
    pub progress: Progress,
    /// What it does.
    pub config: Config,
    /// Updates of the optimiser.
    pub updates: u64,
    /// The loss scale.
    pub loss_scale: Option<LossScale>,
    /// Where the data is, which holds the random state too.
    pub position: Position,
    /// The caller's own configuration.
    pub settings: Value,
}

/// A checkpoint that was read and found whole.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Its directory.
    pub path: PathBuf,
    /// What is no tensor.
    pub saved: Saved,
    /// Masters by parameter.
    pub weights: BTreeMap<String, Tensor>,
    /// Moments by `KIND.PARAMETER`.
    pub moments: BTreeMap<String, Tensor>,
}

/// Tensors to be written.
pub(crate) struct Contents<'a> {
    pub(crate) weights: Vec<(&'a str, &'a Tensor)>,
    pub(crate) moments: Vec<(&'a str, &'a Tensor)>,
}

/// The checkpoints in `dir`, oldest first, with their steps; none if there is no such directory.
///
/// # Errors
/// When it cannot be read.
pub fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(TrainError::io(dir, "list"))?,
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(TrainError::io(dir, "list"))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let new = name.strip_prefix(OLD);
        let step = new.unwrap_or(name).strip_prefix(PREFIX).and_then(|n| n.parse().ok());
        if let Some(step) = step.filter(|_| new.is_none_or(|new| !dir.join(new).exists())) {
            found.insert(step, path);
        }
    }
    Ok(found.into_iter().collect())
}

/// The newest checkpoint in `dir`, if there is any.
///
/// # Errors
/// When it is damaged; older ones can still be read with [`Checkpoint::read`].
pub fn latest(dir: &Path) -> Result<Option<Checkpoint>> {
    list(dir)?.last().map(|(_, path)| Checkpoint::read(path)).transpose()
}

/// The checkpoint in `dir` of `step`, if there is one.
///
/// # Errors
/// When it is damaged.
pub fn of_step(dir: &Path, step: u64) -> Result<Option<Checkpoint>> {
    let all = list(dir)?;
    let found = all.iter().find(|(other, _)| *other == step);
    found.map(|(_, path)| Checkpoint::read(path)).transpose()
}

impl Checkpoint {
    /// Reads the checkpoint at `path` and compares its digests. Tensors are windows of the mapped files.
    ///
    /// # Errors
    /// When a file is missing, damaged or of another version.
    pub fn read(path: &Path) -> Result<Self> {
        let sums = read_sums(path)?;
        for name in [WEIGHTS, MOMENTS, STATE] {
            let file = path.join(name);
            let sum = sums.get(name);
            let sum =
                sum.ok_or_else(|| TrainError::file(&path.join(SUMS), format!("lacks {name}")))?;
            if digest(&file)? != *sum {
                return Err(TrainError::file(&file, "is damaged: its digest is another"));
            }
        }
        let file = path.join(STATE);
        let text = fs::read(&file).map_err(TrainError::io(&file, "read"))?;
        let value: Value =
            serde_json::from_slice(&text).map_err(|e| TrainError::file(&file, e.to_string()))?;
        if value["format"] != FORMAT {
            let why = format!(
                "was written by another version of Rigel: its format is {}, this one reads {FORMAT}",
                value["format"]
            );
            return Err(TrainError::file(&file, why));
        }
        let saved =
            serde_json::from_value(value).map_err(|e| TrainError::file(&file, e.to_string()))?;
        let weights = tensors(&path.join(WEIGHTS))?;
        let moments = tensors(&path.join(MOMENTS))?;
        Ok(Checkpoint { path: path.to_owned(), saved, weights, moments })
    }
}

fn tensors(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let file = SafeTensors::open(path)?;
    file.tensors().map(|(name, _)| Ok((name.to_owned(), file.tensor(name)?))).collect()
}

fn read_sums(path: &Path) -> Result<BTreeMap<String, String>> {
    let file = path.join(SUMS);
    let text = fs::read_to_string(&file).map_err(TrainError::io(&file, "read"))?;
    let entry = |line: &str| {
        let (sum, name) = line.split_once("  ")?;
        Some((name.to_owned(), sum.to_owned()))
    };
    let wrong = || TrainError::file(&file, "is not a list of digests");
    text.lines().map(|line| entry(line).ok_or_else(wrong)).collect()
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn digest(file: &Path) -> Result<String> {
    Ok(hex(&import::map_file(file)?))
}

/// Writes a checkpoint into `dir`, removes all but the last `keep` up to its step and that of the best evaluation
/// under early stop, and returns its path.
///
/// # Errors
/// When the system refuses: [`TrainError::NotSaved`] if older checkpoints are untouched, another if the new one is
/// there and old ones cannot be removed.
pub(crate) fn save(
    dir: &Path,
    keep: usize,
    saved: &Saved,
    contents: &Contents<'_>,
) -> Result<PathBuf> {
    let step = saved.progress.step;
    let path = write(dir, saved, contents).map_err(|source| {
        let all = list(dir).unwrap_or_default();
        let kept = match all.iter().rfind(|(other, _)| *other <= step) {
            Some((_, path)) => format!("the last good one is {}", path.display()),
            None => "and there is none before it".to_owned(),
        };
        TrainError::NotSaved { step, kept, source: Box::new(source) }
    })?;
    let best = saved.config.early_stop.and(saved.progress.best).map(|(step, _)| step);
    prune(dir, keep, step, best)?;
    Ok(path)
}

fn name_of(step: u64) -> String {
    format!("{PREFIX}{step:010}")
}

fn write(dir: &Path, saved: &Saved, contents: &Contents<'_>) -> Result<PathBuf> {
    fs::create_dir_all(dir).map_err(TrainError::io(dir, "create"))?;
    sweep(dir)?;
    let name = name_of(saved.progress.step);
    let path = dir.join(&name);
    import::replace_directory(&path, &dir.join(format!("{OLD}{name}")), |at| {
        import::safetensors::write(at.join(WEIGHTS), &[], &contents.weights)?;
        import::safetensors::write(at.join(MOMENTS), &[], &contents.moments)?;
        let write = |name: &str, bytes: &[u8]| {
            let file = at.join(name);
            fs::write(&file, bytes).map_err(TrainError::io(&file, "write"))
        };
        let state = serde_json::to_vec_pretty(saved);
        write(STATE, &state.map_err(|e| TrainError::file(&at.join(STATE), e.to_string()))?)?;
        let sum = |name: &&str| Ok(format!("{}  {name}\n", digest(&at.join(name))?));
        let sums = [WEIGHTS, MOMENTS, STATE].iter().map(sum).collect::<Result<String>>()?;
        write(SUMS, sums.as_bytes())
    })?;
    Ok(path)
}

/// Removes all but the last `keep` checkpoints and the `best` of the line that ends with `step`, and renames what is
/// beyond it, so that this step is the latest.
fn prune(dir: &Path, keep: usize, step: u64, best: Option<u64>) -> Result<()> {
    sweep(dir)?;
    let all = list(dir)?;
    let (line, beyond) = all.split_at(all.partition_point(|(other, _)| *other <= step));
    for (other, path) in beyond {
        let abandoned = dir.join(format!("{ABANDONED}{}", name_of(*other)));
        if abandoned.exists() {
            remove(&abandoned)?;
        }
        fs::rename(path, &abandoned).map_err(TrainError::io(path, "rename"))?;
    }
    let old = line.len().saturating_sub(keep.max(1));
    let old = line[..old].iter().filter(|(step, _)| Some(*step) != best);
    old.map(|(_, path)| path).try_for_each(|path| remove(path))
}

/// Removes a checkpoint, which loses its name first: one that is half gone is never found.
fn remove(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!("{}{name}", import::PARTIAL));
    fs::rename(path, &partial).map_err(TrainError::io(path, "remove"))?;
    fs::remove_dir_all(&partial).map_err(TrainError::io(&partial, "remove"))
}

/// Removes what interrupted runs left, and what has been replaced.
fn sweep(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(TrainError::io(dir, "list"))? {
        let path = entry.map_err(TrainError::io(dir, "list"))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let replaced = name.strip_prefix(OLD).is_some_and(|new| dir.join(new).exists());
        if replaced || name.starts_with(import::PARTIAL) {
            fs::remove_dir_all(&path).map_err(TrainError::io(&path, "remove"))?;
        }
    }
    Ok(())
}
