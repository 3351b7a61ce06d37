//! What computes a language model: the choice of a device and what it says of its work afterwards.

use std::sync::Arc;

use ane_driver::{AneBackend, Options, Stats};
use ane_emu::{Arithmetic, Emulator, Machine};
use ane_model::{Chip, Os};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use cpu::CpuBackend;
use exec::Backend;
use exec::port::Port;
use llm::interface::{DECODE, PREFILL};

use crate::environment;

/// More threads than any machine has processors only take memory.
const MAX_THREADS: i64 = 1024;

/// Columns of the engine's programs: a token at a time, and a piece of a prompt.
const COLUMNS: [usize; 2] = [16, 64];

/// What computes.
#[derive(Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// What computes
    #[arg(long, value_enum, default_value_t = Kind::Cpu)]
    device: Kind,
    /// Threads of the CPU; all processors by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS))]
    threads: Option<u16>,
    /// Chip of the emulated engine, such as m1, m4-max or a17-pro
    #[arg(long, value_name = "CHIP", default_value = "m4")]
    chip: String,
    /// Operating system of the emulated engine
    #[arg(long, value_name = "OS", default_value = "macos15")]
    os: Os,
    /// Arithmetic of the emulated engine
    #[arg(long, value_enum, default_value_t = Numbers::Engine)]
    engine_arithmetic: Numbers,
    /// What runs on the engine, with --device emulator
    #[arg(long, value_enum, default_value_t = Mode::Full)]
    mode: Mode,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Native kernels on the CPU
    Cpu,
    /// An emulated Neural Engine, slow: for what it would do, not for speed
    Emulator,
}

#[derive(Clone, Copy, ValueEnum)]
enum Numbers {
    /// f64
    Exact,
    /// Every result rounded to fp16
    Fp16,
    /// The chip's accumulator, tables and lost subnormals
    Engine,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Prompt and decoding on the engine, caches as its surfaces
    Full,
    /// The prompt on the engine, decoding on the CPU
    Prefill,
}

/// A backend, and what it can tell of its work.
pub(crate) struct Device {
    pub(crate) backend: Arc<dyn Backend>,
    engine: Option<Engine>,
}

struct Engine {
    backend: Arc<AneBackend<Emulator>>,
    chip: Chip,
}

impl DeviceArgs {
    /// Makes the device ready.
    ///
    /// # Errors
    /// When there is no such chip.
    pub(crate) fn open(&self) -> Result<Device> {
        let threads = self.threads.map_or_else(environment::threads, usize::from);
        let host = Arc::new(CpuBackend::new(threads));
        if self.device == Kind::Cpu {
            return Ok(Device { backend: host, engine: None });
        }
        let Some(chip) = Chip::find(&self.chip).cloned() else {
            let names: Vec<&str> = Chip::all().iter().map(|c| c.name.as_str()).collect();
            bail!("there is no chip \"{}\"; known are {}", self.chip, names.join(", "));
        };
        let arithmetic = match self.engine_arithmetic {
            Numbers::Exact => Arithmetic::Exact,
            Numbers::Fp16 => Arithmetic::Fp16,
            Numbers::Engine => Arithmetic::Engine,
        };
        let directory = environment::temporary();
        let machine = Machine::new(chip.clone(), self.os, arithmetic, directory);
        let functions = match self.mode {
            Mode::Full => vec![PREFILL.to_owned(), DECODE.to_owned()],
            Mode::Prefill => vec![PREFILL.to_owned()],
        };
        let options = Options {
            chip: chip.clone(),
            os: self.os,
            functions,
            columns: COLUMNS.to_vec(),
            adapters: Vec::new(),
            exhausted: None,
        };
        let backend = Arc::new(AneBackend::new(Arc::new(Emulator::new(machine)), host, options));
        Ok(Device { backend: backend.clone(), engine: Some(Engine { backend, chip }) })
    }

    /// Whether operations that the device does not take are the expected course.
    pub(crate) fn is_engine(&self) -> bool {
        self.device != Kind::Cpu
    }
}

impl Device {
    /// What an engine did, if there is one.
    pub(crate) fn stats(&self) -> Option<Stats> {
        self.engine.as_ref().map(|e| e.backend.stats())
    }

    /// The same in a line.
    pub(crate) fn summary(&self) -> Option<String> {
        let engine = self.engine.as_ref()?;
        let Stats { compilations, dispatches, copied, virtual_time, .. } = engine.backend.stats();
        let time = virtual_time.map_or_else(String::new, |t| {
            format!("; {:.1} ms on its clock (predicted, not measured)", t.as_secs_f64() * 1e3)
        });
        Some(format!(
            "emulated {}: {compilations} programs, {dispatches} dispatches, {:.1} MB copied{time}",
            engine.chip.title,
            copied as f64 / 1e6,
        ))
    }
}
