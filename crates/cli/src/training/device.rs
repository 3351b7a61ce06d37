//! What a run computes on.

use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use cpu::CpuBackend;
use exec::Backend;
use passes::grad::Gradients;
use serde::{Deserialize, Serialize};

use crate::devices::{Device, EngineArgs, MAX_THREADS, Precision};
use crate::environment;

/// What computes losses and gradients; the optimiser is the CPU's always.
#[derive(Args, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[command(next_help_heading = "Device")]
pub(crate) struct ComputeArgs {
    /// What computes losses and gradients [default: cpu]
    #[arg(long, value_enum)]
    device: Option<Kind>,
    #[command(flatten)]
    #[serde(flatten)]
    engine: EngineArgs,
    /// Threads of the CPU; all processors by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS))]
    threads: Option<u16>,
    /// How the engine gets the weights of each step [default: inputs, the cheapest by every rate that is known]
    #[arg(long, value_enum)]
    update: Option<Update>,
    /// What the CPU rounds the operands of matrix products to; sums and weights are kept in fp32 [default: fp32]
    #[arg(long, value_enum)]
    precision: Option<Precision>,
}

/// See [`ane_driver::Update`].
#[derive(Clone, Copy, PartialEq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Update {
    /// As inputs of its programs
    Inputs,
    /// As constants, by overwriting weight files and loading them again if the engine's self-test says that this works,
    /// else by compiling
    Tested,
    /// As constants, by compiling all programs again
    Recompile,
}

#[derive(Clone, Copy, PartialEq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Native kernels on the CPU
    Cpu,
    /// An emulated Neural Engine, for what it would do: weights are inputs, the loss is scaled
    Emulator,
}

impl ComputeArgs {
    /// The same with the device that is meant where none is named.
    pub(super) fn explicit(&self) -> Self {
        ComputeArgs { device: self.device.or(Some(Kind::Cpu)), ..self.clone() }
    }

    /// What may not change in a run.
    pub(super) fn lasting(&self) -> Self {
        ComputeArgs { threads: None, ..self.explicit() }
    }

    /// Takes over what may change in a run.
    pub(super) fn change(&mut self, given: &ComputeArgs) {
        self.threads = given.threads.or(self.threads);
    }

    /// Threads of the CPU.
    pub(super) fn threads(&self) -> usize {
        self.threads.map_or_else(environment::threads, usize::from)
    }

    /// Whether gradients are computed in half precision, which small ones are lost in unless the loss is scaled.
    pub(super) fn is_half(&self) -> bool {
        self.device == Some(Kind::Emulator)
    }

    /// Whether each step may compile for the engine.
    pub(super) fn compiles(&self) -> bool {
        self.update.is_some_and(|update| update != Update::Inputs)
    }

    /// Checks what can be before there is a device.
    ///
    /// # Errors
    /// As for [`ComputeArgs::open`].
    pub(super) fn check(&self) -> Result<()> {
        if self.is_half() {
            let host = Arc::new(CpuBackend::new(1));
            return self.engine.emulated(host, None, None).map(drop);
        }
        ensure!(self.update.is_none(), "--update is of --device emulator");
        self.engine.none()
    }

    /// The device.
    ///
    /// # Errors
    /// When there is no such chip, or something is asked of an engine where there is none.
    pub(super) fn open(&self) -> Result<Device> {
        let precision = self.precision.unwrap_or_default();
        let host = Arc::new(CpuBackend::new(self.threads()).with_matmul(precision.of_cpu()));
        if self.is_half() {
            let update = match self.update {
                Some(Update::Recompile) => Some(ane_driver::Update::Recompile),
                Some(Update::Inputs | Update::Tested) | None => None,
            };
            return Ok(self.engine.emulated(host, None, update)?(Vec::new()));
        }
        self.engine.none()?;
        Ok(Device::host(host))
    }

    /// What prepares programs whose parameters are the inputs `parameters`.
    pub(super) fn backend(&self, device: &Device, parameters: Vec<String>) -> Arc<dyn Backend> {
        match self.update {
            Some(Update::Inputs) | None => device.backend.clone(),
            Some(_) => device.with_constants(parameters),
        }
    }

    /// The program as the device takes it: engines take plain MIL.
    ///
    /// # Errors
    /// When an operation is invalid.
    pub(super) fn lower(&self, gradients: &mut Gradients) -> Result<()> {
        if self.is_half() {
            passes::run(&mut gradients.program, passes::pipelines::PLAIN)?;
        }
        Ok(())
    }
}
