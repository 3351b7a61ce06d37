//! Measurements as JSON lines, one for each step and evaluation.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Evaluation, Observer, Result, Step, TrainError};

/// One line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Record {
    /// A step.
    Step(Step),
    /// An evaluation.
    Evaluation(Evaluation),
}

/// What is known after a step.
pub trait Line: Serialize + DeserializeOwned {
    /// The step.
    fn step(&self) -> u64;
}

impl Line for Record {
    fn step(&self) -> u64 {
        match self {
            Record::Step(s) => s.step,
            Record::Evaluation(e) => e.step,
        }
    }
}

/// The lines of `path`. A last line that was cut off, as by a killed process, is left out.
///
/// # Errors
/// When the file cannot be read or another line is none.
pub fn read<L: Line>(path: &Path) -> Result<Vec<L>> {
    let text = fs::read_to_string(path).map_err(TrainError::io(path, "read"))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let record = |(i, line): (usize, &str)| {
        serde_json::from_str(line)
            .map_err(|e| TrainError::file(path, format!("line {}: {e}", i + 1)))
    };
    whole.lines().enumerate().map(record).collect()
}

/// Writes each line when it comes.
pub struct JsonLines<L = Record> {
    path: PathBuf,
    file: File,
    set_aside: Option<PathBuf>,
    damaged: bool,
    lines: PhantomData<L>,
}

impl<L: Line> JsonLines<L> {
    /// Goes on with the file at `path` behind step `done`: what a broken run wrote of later steps is
    /// removed. With 0, it begins anew. A file that is damaged, or that has steps while none are done, stays
    /// beside it, as [`JsonLines::set_aside`].
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn open(path: &Path, done: u64) -> Result<Self> {
        let (mut lines, mut lost, mut damaged) = (Vec::new(), false, false);
        if path.exists() {
            let bytes = fs::read(path).map_err(TrainError::io(path, "read"))?;
            // What follows the last one was cut off.
            for line in bytes.split_inclusive(|&b| b == b'\n').filter(|l| l.ends_with(b"\n")) {
                match serde_json::from_slice::<L>(line) {
                    Ok(found) if done == 0 => lost |= found.step() > 0,
                    Ok(found) if found.step() <= done => lines.extend_from_slice(line),
                    Ok(_) => {}
                    Err(_) => damaged = true,
                }
            }
        }
        let set_aside = (lost || damaged).then(|| set_aside(path)).transpose()?;
        import::write_file(path, |out| out.write_all(&lines))?;
        let file = OpenOptions::new().append(true).open(path);
        let file = file.map_err(TrainError::io(path, "open"))?;
        Ok(JsonLines { path: path.to_owned(), file, set_aside, damaged, lines: PhantomData })
    }

    /// What the file that was there is called now, if not all of it was taken over.
    pub fn set_aside(&self) -> Option<&Path> {
        self.set_aside.as_deref()
    }

    /// Whether the file that was there had a line that is none.
    pub fn damaged(&self) -> bool {
        self.damaged
    }

    /// Writes a line.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(&mut self, written: &L) -> Result<()> {
        let mut bytes = Vec::new();
        line(written, &self.path, &mut bytes)?;
        self.file.write_all(&bytes).map_err(TrainError::io(&self.path, "write"))
    }
}

/// Gives the file at `path` a name that is free: the same with a number behind it.
fn set_aside(path: &Path) -> Result<PathBuf> {
    let numbered = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    let free = (1..).map(numbered).find(|p| p.symlink_metadata().is_err());
    let free = free.ok_or_else(|| TrainError::file(path, "has no other name left"))?;
    fs::rename(path, &free).map_err(TrainError::io(path, "rename"))?;
    Ok(free)
}

fn line(written: &impl Line, path: &Path, out: &mut Vec<u8>) -> Result<()> {
    serde_json::to_writer(&mut *out, written).map_err(|e| TrainError::file(path, e.to_string()))?;
    out.push(b'\n');
    Ok(())
}

impl Observer for JsonLines {
    fn step(&mut self, step: &Step) -> Result<ControlFlow<()>> {
        self.write(&Record::Step(step.clone()))?;
        Ok(ControlFlow::Continue(()))
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> Result<()> {
        self.write(&Record::Evaluation(*evaluation))
    }
}
