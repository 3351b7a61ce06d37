//! What runs a Core ML program step by step: the reference interpreter, or the CPU by native kernels.

use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use cpu::CpuBackend;
use exec::{Backend, Fallback, Runnable, State, Tensors};
use mil::eval::{Array, Value};
use mil::{Function, Program, Type};
use serde::Serialize;
use tensor::DType;

/// What runs a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Device {
    /// Native kernels on the CPU, each result rounded to its own type
    Cpu,
    /// The reference interpreter, slow, which defines what a program computes
    Interpreter,
}

/// A program on the CPU, with its states.
pub(crate) struct OnCpu {
    runnable: Box<dyn Runnable>,
    state: State,
}

/// The operations of one kind that the CPU leaves to the interpreter.
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

impl OnCpu {
    /// Prepares `program` for `threads` threads.
    pub(crate) fn new(program: &Program, threads: usize) -> Result<Self> {
        let runnable = CpuBackend::new(threads).prepare(program)?;
        let state = runnable.new_state()?;
        Ok(OnCpu { runnable, state })
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

    /// What was left to the interpreter in function `name`, by kind of operation and reason.
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

/// A line that tells what was left to the interpreter.
pub(crate) fn summary(left: &[Left]) -> String {
    let all: usize = left.iter().map(|l| l.count).sum();
    if all == 0 {
        return "all operations ran natively".to_owned();
    }
    let kind = |l: &Left| format!("{} x {} ({})", l.count, l.operation, l.reason);
    let kinds: Vec<String> = left.iter().map(kind).collect();
    format!("left to the interpreter: {}", kinds.join(", "))
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
            Some(Device::Cpu) => {
                ensure!(
                    definitions.is_empty(),
                    "--device cpu goes without {}, which only --device interpreter has",
                    definitions.join(" and ")
                );
                if let Some(reason) = reason {
                    bail!("{reason}, which only --device interpreter gives");
                }
                Ok(Device::Cpu)
            }
            None if definitions.is_empty() && reason.is_none() => Ok(Device::Cpu),
            None => Ok(Device::Interpreter),
        }
    }
}
