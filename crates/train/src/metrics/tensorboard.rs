//! TensorBoard's event files: protobuf messages in TFRecord frames.
//!
//! A frame is the length (8 bytes), its masked CRC-32C, the message, and its masked CRC-32C, all little-endian.
//! The messages are those parts of `tensorboard/compat/proto/{event,summary}.proto` that scalars need.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use crate::{Evaluation, Observer, Result, Step, TrainError};

/// `tensorflow.Event`.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    /// The step.
    #[prost(int64, tag = "2")]
    pub step: i64,
    /// `brain.Event:2`, in the first event of a file.
    #[prost(string, optional, tag = "3")]
    pub file_version: Option<String>,
    /// Scalars.
    #[prost(message, optional, tag = "5")]
    pub summary: Option<Summary>,
    /// That a run was taken up.
    #[prost(message, optional, tag = "7")]
    pub session_log: Option<SessionLog>,
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    /// Scalars.
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Scalar>,
}

/// `tensorflow.Summary.Value` of a scalar.
#[derive(Clone, PartialEq, Message)]
pub struct Scalar {
    /// Its name.
    #[prost(string, tag = "1")]
    pub tag: String,
    /// The value.
    #[prost(float, optional, tag = "2")]
    pub simple_value: Option<f32>,
}

/// `tensorflow.SessionLog`.
#[derive(Clone, PartialEq, Message)]
pub struct SessionLog {
    /// 1: start, at which TensorBoard drops what it knows of later steps.
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// Writes scalars of steps and evaluations.
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// A new event file in `dir`, of a run that has done `done` steps.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(dir: &Path, done: u64) -> Result<Self> {
        fs::create_dir_all(dir).map_err(TrainError::io(dir, "create"))?;
        let seconds = now() as u64;
        let id = std::process::id();
        // TensorBoard reads the files of a run by name; two of one second must not be one.
        let mut number = 0;
        let (path, file) = loop {
            let path = dir.join(format!("events.out.tfevents.{seconds:010}.rigel.{id}.{number}"));
            match OpenOptions::new().create_new(true).append(true).open(&path) {
                Ok(file) => break (path, file),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(TrainError::io(&path, "create")(e)),
            }
        };
        let mut events = EventFile { path, file };
        let version = Some("brain.Event:2".to_owned());
        events.write(&Event { wall_time: now(), file_version: version, ..Event::default() })?;
        // What an earlier file has of later steps was given up; of a first file this says nothing.
        let session_log = Some(SessionLog { status: 1 });
        let step = done as i64 + 1;
        events.write(&Event { wall_time: now(), step, session_log, ..Event::default() })?;
        Ok(events)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes scalars of one step.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn scalars(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<()> {
        let value =
            |&(tag, v): &(&str, f64)| Scalar { tag: tag.to_owned(), simple_value: Some(v as f32) };
        let summary = Some(Summary { value: scalars.iter().map(value).collect() });
        self.write(&Event { wall_time: now(), step: step as i64, summary, ..Event::default() })
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        self.file.write_all(&frame(event)).map_err(TrainError::io(&self.path, "write"))
    }
}

impl Observer for EventFile {
    fn step(&mut self, step: &Step) -> Result<ControlFlow<()>> {
        let mut scalars = vec![
            ("loss/train", step.loss),
            ("gradient_norm", step.gradient_norm),
            ("learning_rate", step.learning_rate),
            ("tokens_per_second", step.tokens as f64 / step.seconds),
        ];
        scalars.extend(step.loss_scale.map(|s| ("loss_scale", f64::from(s))));
        self.scalars(step.step, &scalars)?;
        Ok(ControlFlow::Continue(()))
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> Result<()> {
        self.scalars(evaluation.step, &[("loss/held_out", evaluation.loss)])
    }
}

/// The event as a file holds it.
pub fn frame(event: &Event) -> Vec<u8> {
    let message = event.encode_to_vec();
    let length = (message.len() as u64).to_le_bytes();
    let mut frame = length.to_vec();
    frame.extend(masked_crc(&length).to_le_bytes());
    frame.extend(&message);
    frame.extend(masked_crc(&message).to_le_bytes());
    frame
}

/// The events in the file at `path`. A last frame that was cut off, as by a killed process, is left out.
///
/// # Errors
/// When the file cannot be read, or a frame is damaged; says where.
pub fn read(path: &Path) -> Result<Vec<Event>> {
    let bytes = fs::read(path).map_err(TrainError::io(path, "read"))?;
    let (mut events, mut at) = (Vec::new(), 0);
    let damaged = |at: usize| TrainError::file(path, format!("the frame at byte {at} is damaged"));
    while let Some((length, rest)) = bytes[at..].split_first_chunk::<8>() {
        let Some((crc, rest)) = rest.split_first_chunk::<4>() else { break };
        if u32::from_le_bytes(*crc) != masked_crc(length) {
            return Err(damaged(at));
        }
        let size = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| damaged(at))?;
        let Some((message, rest)) = rest.split_at_checked(size) else { break };
        let Some((crc, _)) = rest.split_first_chunk::<4>() else { break };
        if u32::from_le_bytes(*crc) != masked_crc(message) {
            return Err(damaged(at));
        }
        events.push(Event::decode(message).map_err(|_| damaged(at))?);
        at += 8 + 4 + size + 4;
    }
    Ok(events)
}

/// CRC-32C, turned by 15 bits and moved by a constant, as TFRecord frames have it.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
