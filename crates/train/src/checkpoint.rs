//! Checkpoints: directories that are whole or not there.
//!
//! `step-0000000020` holds
//! - `weights.safetensors`: the `fp32` masters by parameter name;
//! - `optimizer.safetensors`: the moments by `KIND.PARAMETER`;
//! - `state.json`: everything else that the rest of the run depends on ([`Saved`]);
//! - `SHA256SUMS`: their digests, as `sha256sum --check` reads them.
//!
//! It is written under a name that begins with `.partial-`, synced, and renamed; what was interrupted is
//! removed the next time that one is written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use import::SafeTensors;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tensor::Tensor;

use crate::data::Position;
use crate::{Config, LossScale, Progress, Result, TrainError};

/// The version of the layout.
pub(crate) const FORMAT: u32 = 1;

const WEIGHTS: &str = "weights.safetensors";
const MOMENTS: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
const SUMS: &str = "SHA256SUMS";
const PREFIX: &str = "step-";
const PARTIAL: &str = ".partial-";

/// What of a run is no tensor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Saved {
    /// Version of the layout: 1.
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
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(TrainError::io(dir, "list"))?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.parse().ok());
        found.extend(step.map(|step| (step, entry.path())));
    }
    found.sort();
    Ok(found)
}

/// The newest checkpoint in `dir`, if there is any.
///
/// # Errors
/// When it is damaged; older ones can still be read with [`Checkpoint::read`].
pub fn latest(dir: &Path) -> Result<Option<Checkpoint>> {
    list(dir)?.last().map(|(_, path)| Checkpoint::read(path)).transpose()
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
            let why = format!("is of version {}, this program reads {FORMAT}", value["format"]);
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

/// Writes a checkpoint into `dir`, removes all but the last `keep`, and returns its path.
///
/// # Errors
/// When the system refuses; older checkpoints are then untouched.
pub(crate) fn save(
    dir: &Path,
    keep: usize,
    saved: &Saved,
    contents: &Contents<'_>,
) -> Result<PathBuf> {
    let step = saved.progress.step;
    write(dir, saved, contents).and_then(|path| prune(dir, keep).map(|()| path)).map_err(|source| {
        let last = list(dir).ok().and_then(|all| all.last().cloned());
        let kept = match last {
            Some((_, path)) => format!("the last good one is {}", path.display()),
            None => "and there is none before it".to_owned(),
        };
        TrainError::NotSaved { step, kept, source: Box::new(source) }
    })
}

fn write(dir: &Path, saved: &Saved, contents: &Contents<'_>) -> Result<PathBuf> {
    fs::create_dir_all(dir).map_err(TrainError::io(dir, "create"))?;
    sweep(dir)?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(PARTIAL);
    #[cfg(unix)]
    {
        // The default is for the owner alone; the umask still applies.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o777));
    }
    let partial = builder.tempdir_in(dir).map_err(TrainError::io(dir, "write to"))?;
    let at = partial.path();
    import::safetensors::write(at.join(WEIGHTS), &[], &contents.weights)?;
    import::safetensors::write(at.join(MOMENTS), &[], &contents.moments)?;
    let state = serde_json::to_vec_pretty(saved)
        .map_err(|e| TrainError::file(&at.join(STATE), e.to_string()))?;
    write_synced(&at.join(STATE), &state)?;
    let sum = |name: &&str| Ok(format!("{}  {name}\n", digest(&at.join(name))?));
    let sums = [WEIGHTS, MOMENTS, STATE].iter().map(sum).collect::<Result<String>>()?;
    write_synced(&at.join(SUMS), sums.as_bytes())?;
    sync_dir(at)?;
    let path = dir.join(format!("{PREFIX}{:010}", saved.progress.step));
    if path.exists() {
        set_aside(dir, &path)?;
    }
    fs::rename(at, &path).map_err(TrainError::io(&path, "write"))?;
    // It has its name now; nothing is left to be removed.
    let _ = partial.keep();
    sync_dir(dir)?;
    Ok(path)
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(TrainError::io(path, "create"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(TrainError::io(path, "write"))
}

/// Makes the names in a directory last.
fn sync_dir(dir: &Path) -> Result<()> {
    #[cfg(unix)]
    File::open(dir).and_then(|d| d.sync_all()).map_err(TrainError::io(dir, "sync"))?;
    Ok(())
}

/// Removes a checkpoint, which loses its name first: one that is half gone is never found.
fn set_aside(dir: &Path, path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = dir.join(format!("{PARTIAL}{name}"));
    fs::rename(path, &aside).map_err(TrainError::io(path, "remove"))?;
    fs::remove_dir_all(&aside).map_err(TrainError::io(&aside, "remove"))
}

fn prune(dir: &Path, keep: usize) -> Result<()> {
    let all = list(dir)?;
    let old = all.len().saturating_sub(keep.max(1));
    all[..old].iter().try_for_each(|(_, path)| set_aside(dir, path))
}

/// Removes what interrupted runs left.
fn sweep(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(TrainError::io(dir, "list"))? {
        let path = entry.map_err(TrainError::io(dir, "list"))?.path();
        let name = path.file_name().and_then(|n| n.to_str());
        if name.is_some_and(|n| n.starts_with(PARTIAL)) {
            fs::remove_dir_all(&path).map_err(TrainError::io(&path, "remove"))?;
        }
    }
    Ok(())
}
