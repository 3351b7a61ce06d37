//! What runs a Core ML program step by step: the reference interpreter, the CPU by native kernels, or a
//! Neural Engine with the CPU for the rest.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use cpu::CpuBackend;
use exec::{Fallback, Runnable, State, Tensors};
use mil::eval::{Array, Value};
use mil::{Function, Program, Type};
use serde::Serialize;
use tensor::DType;

use crate::devices::{self, EngineArgs};

/// What runs a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Device {
    /// Native kernels on the CPU, each result rounded to its own type
    Cpu,
    /// The reference interpreter, slow, which defines what a program computes
    Interpreter,
    /// An emulated Neural Engine, with the CPU for what it does not take
    Emulator,
    /// This Mac's Neural Engine, with the CPU for the rest; never run on one so far
    Ane,
}

/// A program on a device, with its states.
pub(crate) struct OnDevice {
    device: devices::Device,
    /// Whether the program has no fp16 of its own: an engine then computes its fp32 in fp16.
    single: bool,
    runnable: Box<dyn Runnable>,
    state: State,
}

/// The operations of one kind that a device leaves to another: the CPU to the interpreter, an engine to
/// the CPU.
#[derive(Serialize)]
pub(crate) struct Left {
    operation: &'static str,
    count: usize,
    reason: String,
}

/// Why the CPU cannot give what `function` gives, if it cannot.
pub(crate) fn not_for_cpu(function: &Function) -> Option<String> {
    let other = |ty: &Type| ty.as_tensor().is_none_or(|t| t.dtype == DType::Str);
    let output = function.body.outputs.iter().find(|&&v| other(function.ty(v)))?;
    Some(format!("output {} is a {}", function.values[*output].name, function.ty(*output)))
}

impl OnDevice {
    /// Prepares `program` for `device`, which is not the interpreter, with `threads` threads for the CPU.
    pub(crate) fn new(
        program: &Program,
        device: Device,
        engine: &EngineArgs,
        threads: usize,
    ) -> Result<Self> {
        let host = Arc::new(CpuBackend::new(threads));
        let device = match device {
            Device::Emulator => engine.emulated(host, None, None)?(Vec::new()),
            Device::Ane => engine.own(host, None)?(Vec::new()),
            Device::Cpu | Device::Interpreter => devices::Device::host(host),
        };
        let runnable = device.backend.prepare(program)?;
        let state = runnable.new_state()?;
        let single = !program.functions.values().any(passes::ane::computes_in_half);
        Ok(OnDevice { device, single, runnable, state })
    }

    /// What an engine did: for programs, and in a line.
    pub(crate) fn engine(&self) -> Option<(serde_json::Value, String)> {
        let (mut report, mut summary) = self.device.report().zip(self.device.summary())?;
        report["fp32_in_fp16"] = self.single.into();
        if self.single {
            summary += "; what is fp32 in the program was fp16 there";
        }
        Some((report, summary))
    }

    /// Runs function `name` once; its outputs in order.
    pub(crate) fn step(
        &mut self,
        (program, name): (&Program, &str),
        given: &BTreeMap<String, Value>,
    ) -> Result<Vec<(String, Rc<Array>)>> {
        let function = program.functions.get(name).context("the function to run")?;
        let mut inputs = Tensors::new();
        for (name, value) in given {
            let tensor = value.array().and_then(|a| a.to_tensor());
            inputs.insert(name.clone(), tensor.with_context(|| format!("input {name}"))?);
        }
        let made = self.runnable.run(name, &inputs, &mut self.state)?;
        let output = |&v| {
            let name: &String = &function.values[v].name;
            let array = made.get(name).map(Array::from_tensor).transpose()?;
            Ok((name.clone(), Rc::new(array.with_context(|| format!("output {name}"))?)))
        };
        function.body.outputs.iter().map(output).collect()
    }

    /// What was left to another device in function `name`, by kind of operation and reason.
    pub(crate) fn left(&self, name: &str) -> Vec<Left> {
        let mut left: Vec<Left> = Vec::new();
        let of_function = |f: &&Fallback| f.function == name;
        for fallback in self.runnable.fallbacks().iter().filter(of_function) {
            let operation = fallback.kind.name();
            let same = |l: &&mut Left| l.operation == operation && l.reason == fallback.reason;
            match left.iter_mut().find(same) {
                Some(known) => known.count += 1,
                None => left.push(Left { operation, count: 1, reason: fallback.reason.clone() }),
            }
        }
        left
    }
}

/// A line that tells what `device` left to another.
pub(crate) fn summary(device: Device, left: &[Left]) -> String {
    let all: usize = left.iter().map(|l| l.count).sum();
    if all == 0 {
        return match device {
            Device::Emulator | Device::Ane => "all operations ran on the engine".to_owned(),
            Device::Cpu | Device::Interpreter => "all operations ran natively".to_owned(),
        };
    }
    let to = match device {
        Device::Emulator | Device::Ane => "CPU",
        Device::Cpu | Device::Interpreter => "interpreter",
    };
    let kind = |l: &Left| format!("{} x {} ({})", l.count, l.operation, l.reason);
    let kinds: Vec<String> = left.iter().map(kind).collect();
    format!("left to the {to}: {}", kinds.join(", "))
}

impl Device {
    /// The device to use: the one asked for, or else the interpreter where only it will do.
    ///
    /// `definitions` names the options given that are the interpreter's alone.
    ///
    /// # Errors
    /// When the CPU is asked for what it does not do.
    pub(crate) fn choose(
        asked: Option<Device>,
        definitions: &[&str],
        function: &Function,
    ) -> Result<Device> {
        let reason = not_for_cpu(function);
        match asked {
            Some(Device::Interpreter) => Ok(Device::Interpreter),
            Some(device) => {
                ensure!(
                    definitions.is_empty(),
                    "--device {} goes without {}, which only --device interpreter has",
                    device
                        .to_possible_value()
                        .map_or_else(String::new, |v| v.get_name().to_owned()),
                    definitions.join(" and ")
                );
                if let Some(reason) = reason {
                    bail!("{reason}, which only --device interpreter gives");
                }
                Ok(device)
            }
            None if definitions.is_empty() && reason.is_none() => Ok(Device::Cpu),
            None => Ok(Device::Interpreter),
        }
    }
}
