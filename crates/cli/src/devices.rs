//! The choice of a device for models and programs, and what it says of its work afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use ane_driver::{AneBackend, ConstantInputs, Options, Stats, Update};
use ane_emu::{Arithmetic, Emulator, Machine};
use ane_model::{Chip, Os};
use ane_port::AnePort;
use anyhow::{Error, Result, bail};
use clap::{Args, ValueEnum};
use cpu::CpuBackend;
use exec::Backend;
use exec::port::Port;
use llm::interface::{DECODE, PREFILL};
use passes::ane::{AdapterSlot, Variable};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tensor::Tensor;

use crate::{chips, environment, scratch};

/// More threads than any machine has processors only take memory.
pub(crate) const MAX_THREADS: i64 = 1024;

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
    /// What the CPU rounds the operands of products of many tokens to, as in reading a prompt [default: fp32]
    #[arg(long, value_enum)]
    precision: Option<Precision>,
    #[command(flatten)]
    engine: EngineArgs,
    /// What runs on an engine; everything by default
    #[arg(long, value_enum)]
    mode: Option<Mode>,
}

/// What the CPU rounds the operands of matrix products to. Sums are in fp32.
#[derive(Clone, Copy, PartialEq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Precision {
    /// Nothing: they are fp32
    #[default]
    Fp32,
    /// bfloat16, faster on processors with AMX or AVX-512 BF16
    Bf16,
}

impl Precision {
    /// The same for the CPU's backend.
    pub(crate) fn of_cpu(self) -> cpu::Precision {
        match self {
            Precision::Fp32 => cpu::Precision::Single,
            Precision::Bf16 => cpu::Precision::Bf16,
        }
    }
}

/// Which engine is emulated.
#[derive(Args, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EngineArgs {
    /// Chip of the emulated engine, such as m1, m4-max or a17-pro; m4 by default
    #[arg(long, value_name = "CHIP")]
    chip: Option<String>,
    /// Operating system of the emulated engine; macos15 by default
    #[arg(long, value_name = "OS")]
    os: Option<Os>,
    /// Arithmetic of the emulated engine; its own by default
    #[arg(long, value_enum)]
    engine_arithmetic: Option<Numbers>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Native kernels on the CPU
    Cpu,
    /// An emulated Neural Engine, for what it would do: a hundred times slower than the CPU
    Emulator,
    /// This Mac's Neural Engine, through the private framework; never run on one so far
    Ane,
}

#[derive(Clone, Copy, PartialEq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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

/// Tells what an engine did so far, and how many compilations this process has left where they are numbered.
pub(crate) type EngineStats = Arc<dyn Fn() -> (Stats, Option<usize>)>;

struct Engine {
    stats: EngineStats,
    constant: Box<dyn Fn(Vec<String>) -> Arc<dyn Backend>>,
    adapt: Box<dyn Fn(Factors) -> exec::Result<()>>,
    /// All if none is named.
    functions: Option<Vec<String>>,
    title: String,
    /// What lengths of caches are multiples of.
    multiple: usize,
}

/// An adapter's `A` and `B` by the names of weights.
type Factors = BTreeMap<String, (Tensor, Tensor)>;

/// Makes a device whose programs have slots for adapters.
type Open = Box<dyn FnOnce(Vec<AdapterSlot>) -> Device>;

impl DeviceArgs {
    /// Finds the device; what is returned makes it ready.
    ///
    /// # Errors
    /// When there is no such chip.
    pub(crate) fn find(&self) -> Result<Open> {
        if self.mode.is_some() && self.device == Kind::Cpu {
            bail!("--mode is of --device emulator and ane");
        }
        let host = self.cpu();
        let functions = match self.mode.unwrap_or(Mode::Full) {
            Mode::Full => vec![PREFILL.to_owned(), DECODE.to_owned()],
            Mode::Prefill => vec![PREFILL.to_owned()],
        };
        match self.device {
            Kind::Cpu => {
                self.engine.none()?;
                Ok(Box::new(|_| Device::host(host)))
            }
            Kind::Emulator => self.engine.emulated(host, Some(functions), None),
            Kind::Ane => self.engine.own(host, Some(functions)),
        }
    }

    /// The CPU with as many threads as are wanted.
    pub(crate) fn cpu(&self) -> Arc<CpuBackend> {
        let threads = self.threads.map_or_else(environment::threads, usize::from);
        let precision = self.precision.unwrap_or_default();
        Arc::new(CpuBackend::new(threads).with_matmul(precision.of_cpu()))
    }

    /// Whether a token after the prompt is computed by the device asked for and not by the host.
    pub(crate) fn decodes(&self) -> bool {
        !matches!(self.mode, Some(Mode::Prefill))
    }

    /// Whether operations that the device does not take are the expected course.
    pub(crate) fn is_engine(&self) -> bool {
        self.device != Kind::Cpu
    }
}

impl EngineArgs {
    /// The emulated engine's arithmetic by its name on the command line.
    pub(crate) fn arithmetic(&self) -> &'static str {
        match self.engine_arithmetic {
            Some(Numbers::Exact) => "exact",
            Some(Numbers::Fp16) => "fp16",
            Some(Numbers::Engine) | None => "engine",
        }
    }

    /// Makes sure that nothing is asked of an emulated engine where there is none.
    ///
    /// # Errors
    /// When something is.
    pub(crate) fn none(&self) -> Result<()> {
        let given = [
            ("--chip", self.chip.is_some()),
            ("--os", self.os.is_some()),
            ("--engine-arithmetic", self.engine_arithmetic.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => bail!("{name} is of --device emulator"),
            None => Ok(()),
        }
    }

    /// An emulated engine for `functions`, all if none is named, whose constant weights are changed by `update`,
    /// or as its self-test says.
    ///
    /// # Errors
    /// When there is no such chip.
    pub(crate) fn emulated(
        &self,
        host: Arc<CpuBackend>,
        functions: Option<Vec<String>>,
        update: Option<Update>,
    ) -> Result<Open> {
        let chip = chip(self.chip.as_deref().unwrap_or("m4"))?;
        let os = match self.os {
            Some(os) => os,
            None => "macos15".parse()?,
        };
        let arithmetic = match self.engine_arithmetic.unwrap_or(Numbers::Engine) {
            Numbers::Exact => Arithmetic::Exact,
            Numbers::Fp16 => Arithmetic::Fp16,
            Numbers::Engine => Arithmetic::Engine,
        };
        let machine = Machine::new(chip.clone(), os, arithmetic, scratch::folder()?);
        let title = format!("emulated {}", chip.title);
        let port = Emulator::new(machine);
        let chip = (chip, os, title);
        Ok(Box::new(move |slots| over(port, host, chip, functions, update, slots)))
    }

    /// This Mac's engine for `functions`, all if none is named, after its self-test.
    ///
    /// # Errors
    /// When there is none, or it does not do what the driver relies on.
    pub(crate) fn own(
        &self,
        host: Arc<CpuBackend>,
        functions: Option<Vec<String>>,
    ) -> Result<Open> {
        self.none()?;
        let port = AnePort::open()?;
        ane_port::self_test(&port)?;
        let machine = port.machine().clone();
        let (chip, os) = (chip(&machine.chip)?, format!("macos{}", machine.os).parse()?);
        let title = chip.title.clone();
        let chip = (chip, os, title);
        Ok(Box::new(move |slots| over(port, host, chip, functions, None, slots)))
    }
}

fn over<P: Port + 'static>(
    port: P,
    host: Arc<CpuBackend>,
    (chip, os, title): (Chip, Os, String),
    functions: Option<Vec<String>>,
    update: Option<Update>,
    adapters: Vec<AdapterSlot>,
) -> Device {
    let multiple = passes::ane::width_multiple(&chip);
    let options = Options {
        chip,
        os,
        functions: functions.clone(),
        columns: COLUMNS.to_vec(),
        variable: Variable { adapters, ..Variable::default() },
        update,
        exhausted: None,
    };
    let (port, budget) = (Arc::new(port), options.chip.runtime.compiles.as_ref());
    let budget = budget.map(|fact| fact.value as usize);
    let backend = Arc::new(AneBackend::new(port.clone(), host, options));
    let (told, adapted, fixed) = (backend.clone(), backend.clone(), backend.clone());
    let engine = Engine {
        stats: Arc::new(move || {
            let left = budget.map(|all| all.saturating_sub(port.usage().compilations));
            (told.stats(), left)
        }),
        constant: Box::new(move |inputs| Arc::new(ConstantInputs::new(fixed.clone(), inputs))),
        adapt: Box::new(move |factors| adapted.use_adapter(Some(factors))),
        functions,
        title,
        multiple,
    };
    Device { backend, engine: Some(engine) }
}

impl Device {
    /// The CPU alone.
    pub(crate) fn host(backend: Arc<CpuBackend>) -> Self {
        Device { backend, engine: None }
    }

    /// Whether function `name` is the host's.
    pub(crate) fn is_on_host(&self, name: &str) -> bool {
        let on_engine =
            |e: &Engine| e.functions.as_ref().is_none_or(|all| all.iter().any(|f| f == name));
        !self.engine.as_ref().is_some_and(on_engine)
    }

    /// The length of caches for a context of `wanted` tokens, of `most` that the model knows: on an engine a
    /// multiple of what its chip takes, the next one up, or down where that is too long.
    pub(crate) fn context(&self, wanted: usize, most: usize) -> usize {
        let multiple = self.engine.as_ref().map_or(1, |e| e.multiple);
        let up = wanted.next_multiple_of(multiple);
        let down = wanted - wanted % multiple;
        if up > most && down > 0 { down } else { up }
    }

    /// Gives the engine, if there is one, another adapter.
    ///
    /// # Errors
    /// When it does not fit the slots.
    pub(crate) fn adapt(&self, factors: Factors) -> Result<()> {
        self.engine.as_ref().map_or(Ok(()), |e| Ok((e.adapt)(factors)?))
    }

    /// The backend for which `inputs` are constants of an engine's programs; the CPU as it is.
    pub(crate) fn with_constants(&self, inputs: Vec<String>) -> Arc<dyn Backend> {
        self.engine.as_ref().map_or_else(|| self.backend.clone(), |e| (e.constant)(inputs))
    }

    /// What an engine, if there is one, tells of its work.
    pub(crate) fn stats(&self) -> Option<EngineStats> {
        self.engine.as_ref().map(|e| e.stats.clone())
    }

    /// Time of an engine's dispatches so far by its clock.
    pub(crate) fn predicted(&self) -> Option<std::time::Duration> {
        (self.engine.as_ref()?.stats)().0.predicted
    }

    /// What an engine did, for programs: its times on an emulated engine's clock are predictions.
    pub(crate) fn report(&self) -> Option<Value> {
        let engine = self.engine.as_ref()?;
        let (stats, _) = (engine.stats)();
        Some(json!({
            "name": engine.title,
            "compilations": stats.compilations,
            "loads": stats.loads,
            "reloads": stats.reloads,
            "evictions": stats.evictions,
            "dispatches": stats.dispatches,
            "copied_bytes": stats.copied,
            "predicted_s": stats.predicted.map(|t| t.as_secs_f64()),
            "preparing_s": stats.preparing.map(|t| t.as_secs_f64()),
        }))
    }

    /// What an engine did, in a line.
    pub(crate) fn summary(&self) -> Option<String> {
        let engine = self.engine.as_ref()?;
        let (Stats { compilations, dispatches, copied, predicted, .. }, _) = (engine.stats)();
        let time = predicted.map_or_else(String::new, |t| {
            let ms = t.as_secs_f64() * 1e3;
            format!("; the dispatches take {ms:.1} ms by the rates of its chip's file, which nobody measured here")
        });
        Some(format!(
            "{}: {compilations} programs, {dispatches} dispatches, {:.1} MB copied{time}",
            engine.title,
            copied as f64 / 1e6,
        ))
    }
}

fn chip(name: &str) -> Result<Chip> {
    Ok(chips::named(name).map_err(Error::msg)?.clone())
}
