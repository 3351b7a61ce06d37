//! `rigel run`: runs a function of a Core ML program, natively, on a Neural Engine, or by the reference
//! interpreter.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use analysis::inputs::{InputArg, Inputs};
use analysis::nonfinite::{Origin, Watch};
use analysis::npy::Archive;
use analysis::outputs::{Named, named, stacked};
use analysis::statistics::{Argmax, Summary, argmax, summary};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use mil::eval::{self, Arithmetic, Array, Data, Value};
use mil::package::Package;
use mil::{Program, ValueId};
use serde::Serialize;
use serde_json::json;

use crate::devices::EngineArgs;
use crate::executor::{self, Device, Left, OnDevice};
use crate::{environment, output};

/// Rows of which the largest element is shown.
const ROWS: usize = 8;

/// Run a Core ML program (.mlpackage, .mlmodelc, .mil) and show its outputs
///
/// States begin as zeros and are kept from step to step.
#[derive(Args)]
pub(crate) struct Run {
    /// Path of the package, compiled model or MIL text
    path: PathBuf,
    /// An input: NAME=FILE.npy, NAME=FILE.npz:ARRAY, NAME=1,2,3 (all elements, or one for each step), NAME=zeros
    /// or NAME=random (floats from -1 to 1, integers from 0 to 9), of a shape that is open as NAME=zeros:2x3;
    /// `zeros` or `random` alone for all inputs not named. A file whose array has one more axis of N in front has
    /// an input for each of N steps
    #[arg(long, value_name = "NAME=SOURCE")]
    input: Vec<InputArg>,
    /// Function to run; by default the package's own default
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// How many times to run it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// What computes; by default the interpreter where --arithmetic, --dump-ops or --locate-nan ask for what only
    /// it has, or an output is no tensor of numbers, and otherwise the CPU
    #[arg(long, value_enum)]
    device: Option<Device>,
    #[command(flatten)]
    engine: EngineArgs,
    /// How the interpreter rounds results, f32 by default; the CPU's way is fp16
    #[arg(long, value_enum)]
    arithmetic: Option<Rounding>,
    /// Write the outputs here, by name; of several steps along a new first axis
    #[arg(long, value_name = "FILE.npz")]
    output: Option<PathBuf>,
    /// Write the result of every operation here, by name; of several steps as STEP/NAME
    #[arg(long, value_name = "FILE.npz")]
    dump_ops: Option<PathBuf>,
    /// Name the operation that first makes a NaN or an infinity which its arguments do not have
    #[arg(long)]
    locate_nan: bool,
    /// Show the largest element of each row, and its lead over the second, of all outputs and not only of one
    /// called logits
    #[arg(long)]
    argmax: bool,
    /// Seed of random inputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print a JSON object: function, device, arithmetic, steps (of each the outputs: name, type, min, max, mean,
    /// nan, infinite, first, argmax), of the CPU fallbacks (operations left to the interpreter: operation, count,
    /// reason; of an engine to the CPU), what an engine did, and with --locate-nan origin
    #[arg(long)]
    json: bool,
}

/// The arithmetic of a run.
#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Rounding {
    /// Not at all: double precision throughout
    Exact,
    /// Every float to single precision
    F32,
    /// Every float to its own type, once after each operation
    Fp16,
}

impl From<Rounding> for Arithmetic {
    fn from(rounding: Rounding) -> Self {
        match rounding {
            Rounding::Exact => Arithmetic::Exact,
            Rounding::F32 => Arithmetic::F32,
            Rounding::Fp16 => Arithmetic::Fp16,
        }
    }
}

/// What is shown of an output of one step.
#[derive(Serialize)]
struct Shown {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    #[serde(flatten)]
    summary: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    argmax: Option<Vec<Option<Argmax>>>,
}

impl Run {
    pub(super) fn run(&self) -> Result<()> {
        let package = Package::open(&self.path)?;
        let default = package.default_function();
        let name = self.function.as_deref().or(default).context("the program has no function")?;
        let name = &*name.to_owned();
        let steps = self.steps as usize;
        let inputs = Inputs::new(&package, name, &self.input, steps, self.seed);
        let mut inputs = inputs.with_context(|| self.path.display().to_string())?;
        mil::verify(&package.program).map_err(|e| e.in_file(&self.path))?;
        let program = if inputs.sizes.is_empty() {
            package.program
        } else {
            package.program.specialize_function(name, &inputs.sizes)?
        };
        let function = program.functions.get(name).context("the function to run")?;
        let device = Device::choose(self.device, &self.definitions(), function)?;
        if device != Device::Emulator {
            self.engine.none()?;
        }
        if device != Device::Interpreter {
            return self.on_device(&program, name, device, &mut inputs);
        }
        let mut states = eval::new_states(&program, name)?;
        let arithmetic = Arithmetic::from(self.rounding(device));
        let mut dump = self.dump_ops.as_ref().map(|_| Archive::new(arithmetic));
        let (mut origin, mut all) = (None, Vec::new());
        for step in 0..steps {
            let given = inputs.step(step);
            let (values, found) =
                self.step((&program, name), step, &given, &mut states, dump.as_mut())?;
            all.push(values);
            origin = origin.or(found);
        }
        if let (Some(path), Some(dump)) = (&self.dump_ops, dump) {
            dump.save(path)?;
        }
        if let Some(path) = &self.output {
            save(&all, arithmetic)?.save(path)?;
        }
        let shown: Vec<Vec<Shown>> =
            all.iter().map(|step| step.iter().map(|o| self.shown(o)).collect()).collect();
        self.report(name, &shown, (device, &[], None), origin.as_ref())
    }

    /// The options given that say how the interpreter is to compute or what of it is to be seen.
    fn definitions(&self) -> Vec<&'static str> {
        let mut given = Vec::new();
        match self.arithmetic {
            Some(Rounding::Exact) => given.push("--arithmetic exact"),
            Some(Rounding::F32) => given.push("--arithmetic f32"),
            // Which is what the CPU does, but for the last bit.
            Some(Rounding::Fp16) if self.device != Some(Device::Cpu) => {
                given.push("--arithmetic fp16")
            }
            Some(Rounding::Fp16) | None => {}
        }
        if self.dump_ops.is_some() {
            given.push("--dump-ops");
        }
        if self.locate_nan {
            given.push("--locate-nan");
        }
        given
    }

    /// How results are rounded.
    fn rounding(&self, device: Device) -> Rounding {
        match device {
            Device::Cpu | Device::Emulator | Device::Ane => Rounding::Fp16,
            Device::Interpreter => self.arithmetic.unwrap_or(Rounding::F32),
        }
    }

    /// Runs all steps by native kernels or on an engine.
    fn on_device(
        &self,
        program: &Program,
        name: &str,
        device: Device,
        inputs: &mut Inputs,
    ) -> Result<()> {
        let single = Program {
            functions: program.functions.get_key_value(name).into_iter().map(cloned).collect(),
            ..program.clone()
        };
        let mut on = OnDevice::new(&single, device, &self.engine, environment::threads())?;
        let mut all = Vec::new();
        for step in 0..self.steps as usize {
            all.push(on.step((program, name), &inputs.step(step))?);
        }
        if let Some(path) = &self.output {
            save(&all, Arithmetic::Fp16)?.save(path)?;
        }
        let shown: Vec<Vec<Shown>> =
            all.iter().map(|step| step.iter().map(|o| self.shown(o)).collect()).collect();
        self.report(name, &shown, (device, &on.left(name), on.engine()), None)
    }

    /// The outputs of one step, and with `--locate-nan` where numbers ended.
    fn step(
        &self,
        (program, name): (&Program, &str),
        step: usize,
        given: &BTreeMap<String, Value>,
        states: &mut eval::States,
        dump: Option<&mut Archive>,
    ) -> Result<(Named, Option<Origin>)> {
        let function = program.functions.get(name).context("the function to run")?;
        let mut watch = self.locate_nan.then(|| Watch::new(program, function, step, given));
        let mut made = BTreeMap::new();
        let mut observe = |v: ValueId, value: &Value| {
            if let Some(watch) = &mut watch {
                watch.observe(v, value);
            }
            if dump.is_some()
                && let Value::Array(array) = value
            {
                made.insert(function.values[v].name.clone(), array.clone());
            }
        };
        let arithmetic = self.rounding(Device::Interpreter).into();
        let out = eval::run_observed(program, name, arithmetic, given, states, &mut observe)?;
        if let Some(dump) = dump {
            for (name, array) in &made {
                let name = if self.steps > 1 { format!("{step}/{name}") } else { name.clone() };
                dump.add(&name, array)?;
            }
        }
        Ok((named(function, out)?, watch.and_then(|w| w.origin)))
    }

    fn shown(&self, (name, array): &(String, Rc<Array>)) -> Shown {
        let wanted = (self.argmax || name == "logits") && !matches!(array.data, Data::Str(_));
        let argmax = wanted.then(|| argmax(array));
        let ty = mil::TensorType::new(array.dtype, array.shape.iter().copied()).to_string();
        Shown { name: name.clone(), ty, summary: summary(array), argmax }
    }

    fn report(
        &self,
        name: &str,
        steps: &[Vec<Shown>],
        (device, left, engine): (Device, &[Left], Option<(serde_json::Value, String)>),
        origin: Option<&Origin>,
    ) -> Result<()> {
        if self.json {
            let arithmetic = match device {
                Device::Emulator => json!(self.engine.arithmetic()),
                Device::Ane => json!("engine"),
                Device::Cpu | Device::Interpreter => json!(self.rounding(device)),
            };
            let mut value = json!({
                "function": name,
                "device": device,
                "arithmetic": arithmetic,
                "steps": steps,
            });
            if device != Device::Interpreter {
                value["fallbacks"] = json!(left);
            }
            if let Some((engine, _)) = engine {
                value["engine"] = engine;
            }
            if self.locate_nan {
                value["origin"] = json!(origin);
            }
            return output::json(&value);
        }
        for (i, outputs) in steps.iter().enumerate() {
            if steps.len() > 1 {
                output::line(&format!("step {i}"))?;
            }
            for o in outputs {
                output::line(&listing(o))?;
            }
        }
        let left = executor::summary(device, left);
        if let Some((_, engine)) = engine {
            output::line(&engine)?;
            return output::line(&left);
        }
        if device == Device::Cpu {
            return output::line(&format!("on the CPU: {left}"));
        }
        match origin {
            Some(o) => output::line(&format!(
                "first of {} NaN and {} infinities: op {} in step {}, result {}, {}",
                o.nan, o.infinite, o.operation, o.step, o.result, o.ty
            )),
            None if self.locate_nan => output::line("no operation makes a NaN or an infinity"),
            None => Ok(()),
        }
    }
}

fn cloned<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

/// An archive of the outputs; those of several steps are stacked.
fn save(steps: &[Named], arithmetic: Arithmetic) -> Result<Archive> {
    let mut archive = Archive::new(arithmetic);
    let Some((first, rest)) = steps.split_first() else { return Ok(archive) };
    for (i, (name, array)) in first.iter().enumerate() {
        if rest.is_empty() {
            archive.add(name, array)?;
            continue;
        }
        let of_steps = steps.iter().filter_map(|s| Some(s.get(i)?.1.clone()));
        let all = stacked(&of_steps.collect::<Vec<_>>());
        archive.add(name, &all.with_context(|| format!("output {name} of several steps"))?)?;
    }
    Ok(archive)
}

fn listing(o: &Shown) -> String {
    let s = &o.summary;
    let mut text = format!("{}: {}", o.name, o.ty);
    if let (Some(min), Some(max), Some(mean)) = (s.min, s.max, s.mean) {
        text += &format!("\n  min {min:.6} max {max:.6} mean {mean:.6}");
    }
    if s.nan + s.infinite > 0 {
        text += &format!("\n  {} NaN, {} infinite", s.nan, s.infinite);
    }
    let first: Vec<String> = s.first.iter().map(ToString::to_string).collect();
    text += &format!("\n  first {}", first.join(" "));
    let rows = o.argmax.as_deref().unwrap_or_default();
    for (i, row) in rows.iter().enumerate().take(ROWS) {
        let place = if rows.len() > 1 { format!(" of row {i}") } else { String::new() };
        text += &match row {
            Some(Argmax { index, margin: Some(margin) }) => {
                format!("\n  argmax{place} {index}, leading by {margin:.6}")
            }
            Some(Argmax { index, margin: None }) => format!("\n  argmax{place} {index}"),
            None => format!("\n  argmax{place}: no number"),
        };
    }
    if rows.len() > ROWS {
        text += &format!("\n  … {} rows in all", rows.len());
    }
    text
}
