//! `rigel bench`: what work costs. `training` compares the ways in which new weights reach an engine.

use std::sync::Arc;
use std::time::Duration;

use ane_driver::{AneBackend, ConstantInputs, Options, Stats, Update, self_test};
use ane_emu::{Arithmetic, Emulator, Machine};
use ane_model::Chip;
use ane_model::chip::Reload;
use anyhow::{Context, Error, Result};
use clap::{Args, Subcommand};
use cpu::CpuBackend;
use exec::Backend;
use llm::{Batch, LoadOptions, Model, interface};
use passes::ane::{Variable, width_multiple};
use passes::grad::{By, Gradients, Request, differentiate};
use serde::Serialize;
use tensor::Tensor;
use train::data::Position;
use train::{BatchSource, Config, Decay, LossScaling, OptimizerConfig, Schedule, Trainer};

use crate::loading::ModelName;
use crate::{chips, environment, output, progress, scratch};

/// Measure what work costs
#[derive(Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Training(Training),
}

impl Bench {
    pub(super) fn run(&self) -> Result<()> {
        match &self.what {
            What::Training(training) => training.run(),
        }
    }
}

/// Compare the ways in which weights in training reach an engine
///
/// Trains a few steps on an emulated engine with weights as inputs, compiled in anew, and reloaded in place, and
/// prints the engine's time of each by the rates of its chip's file. Nothing of it was measured on an engine.
#[derive(Args)]
struct Training {
    #[command(flatten)]
    model: ModelName,
    /// Chip of the emulated engine
    #[arg(long, value_name = "CHIP", default_value = "m4")]
    chip: String,
    /// Tokens of a sequence
    #[arg(long, value_name = "T", default_value_t = 64)]
    tokens: usize,
    /// Sequences of a batch
    #[arg(long, value_name = "B", default_value_t = 1)]
    batch: usize,
    /// Steps after the first
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// A way in which weights reach an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    Inputs,
    Recompile,
    Reload,
}

/// One way's cost; times are the emulated engine's, in milliseconds, those of a step on average.
#[derive(Serialize)]
struct Row {
    way: Way,
    /// Compiling and loading before the first step ends; this and the next two are unknown where the chip's
    /// file lacks a rate.
    start_ms: Option<f64>,
    compute_ms: Option<f64>,
    /// Compiling and loading in a step.
    update_ms: Option<f64>,
    compilations: f64,
    reloads: f64,
    dispatches: f64,
    copied_bytes: f64,
    last_loss: f64,
}

#[derive(Serialize)]
struct Report {
    chip: String,
    rows: Vec<Row>,
    /// Orion's measure of reloading: its start / (update by compiling - update by reloading), in steps.
    break_even_steps: Option<f64>,
    /// What the self-test on this chip says of reloading, if it does not work.
    reloading: Option<String>,
}

impl Training {
    fn run(&self) -> Result<()> {
        let file = self.model.open()?;
        let model = Model::from_file(file, LoadOptions::default())?;
        let chip = chips::named(&self.chip).map_err(Error::msg)?.clone();
        let gradients = self.gradients(&model)?;
        let vocab = model.config().vocab;
        let report = progress::spin("training", || self.compared(&chip, &gradients, vocab))?;
        if self.json { output::json(&report) } else { print(&report) }
    }

    fn compared(&self, chip: &Chip, gradients: &Gradients, vocab: usize) -> Result<Report> {
        let [inputs, compiled, reloaded] = [Way::Inputs, Way::Recompile, Way::Reload]
            .map(|way| self.measured(way, chip, gradients, vocab));
        let (compiled, reloaded) = (compiled?, reloaded?);
        let saved = compiled.update_ms.zip(reloaded.update_ms).map(|(c, r)| c - r);
        let start = reloaded.start_ms.zip(saved).filter(|(_, saved)| *saved > 0.0);
        let break_even_steps = start.map(|(start, saved)| start / saved);
        let reloading = self_test(&Arc::new(emulator(chip)?), chip)?.note;
        let rows = vec![inputs?, compiled, reloaded];
        Ok(Report { chip: chip.title.clone(), rows, break_even_steps, reloading })
    }

    fn gradients(&self, model: &Model) -> Result<Gradients> {
        let batch = Batch { sequences: self.batch, tokens: self.tokens, documents: false };
        let request = Request {
            function: interface::LOSS,
            loss: interface::LOSS,
            by: By::Weights(&|_| true),
            checkpoints: &[],
            scaled: true,
        };
        let mut program = model.loss_program(batch)?;
        // What is trained are floats: the weights of a quantised model in half precision.
        let dequantize = passes::pass("dequantize").context("the pass that dequantises")?;
        dequantize.run(&mut program, interface::LOSS)?;
        Ok(differentiate(&program, &request)?)
    }

    fn measured(&self, way: Way, chip: &Chip, gradients: &Gradients, vocab: usize) -> Result<Row> {
        let mut chip = chip.clone();
        // Steps are compared, not how often a process must start again.
        chip.runtime.compiles = None;
        if way == Way::Reload {
            chip.switches.delta_reload =
                chip.switches.delta_reload.map(|fact| fact.with(Reload::Applied));
        }
        let port = Arc::new(emulator(&chip)?);
        let update = match way {
            Way::Inputs => None,
            Way::Recompile => Some(Update::Recompile),
            Way::Reload => Some(Update::Delta),
        };
        let options = Options {
            columns: vec![width_multiple(&chip)],
            chip,
            os: "macos15".parse()?,
            functions: Some(vec![gradients.function.clone()]),
            variable: Variable::default(),
            update,
            exhausted: None,
        };
        let threads = environment::threads();
        let engine = Arc::new(AneBackend::new(port, Arc::new(CpuBackend::new(threads)), options));
        let inputs = || gradients.parameters.iter().map(|p| p.input.clone()).collect();
        let constants;
        let backend: &dyn Backend = match way {
            Way::Inputs => engine.as_ref(),
            _ => {
                constants = ConstantInputs::new(engine.clone(), inputs());
                &constants
            }
        };
        let mut trainer = Trainer::new(backend, gradients.clone(), self.config(), threads)?;
        let mut data = RandomTokens { rng: 1, vocab, shape: [self.batch, self.tokens] };
        let mut last = trainer.step(&mut data)?;
        let first = engine.stats();
        for _ in 0..self.steps {
            last = trainer.step(&mut data)?;
        }
        Ok(self.row(way, [&first, &engine.stats()], last.loss))
    }

    fn row(&self, way: Way, [first, all]: [&Stats; 2], last_loss: f64) -> Row {
        let steps = f64::from(self.steps);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let of_step = |first: Option<Duration>, all: Option<Duration>| {
            Some(ms(all?.saturating_sub(first?)) / steps)
        };
        let each = |count: fn(&Stats) -> usize| (count(all) - count(first)) as f64 / steps;
        Row {
            way,
            start_ms: first.preparing.map(ms),
            compute_ms: of_step(first.predicted, all.predicted),
            update_ms: of_step(first.preparing, all.preparing),
            compilations: each(|s| s.compilations),
            reloads: each(|s| s.reloads),
            dispatches: each(|s| s.dispatches),
            copied_bytes: each(|s| s.copied),
            last_loss,
        }
    }

    fn config(&self) -> Config {
        let total = u64::from(self.steps) + 1;
        Config {
            optimizer: OptimizerConfig::default(),
            schedule: Schedule { peak: 1e-4, warmup: 0, total, floor: 1.0, decay: Decay::Constant },
            accumulation: 1,
            // Low enough that no step is taken twice for an overflow, which would count twice.
            loss_scaling: Some(LossScaling { initial: 256.0, ..LossScaling::default() }),
            evaluate_every: None,
            evaluate_batches: None,
            early_stop: None,
        }
    }
}

fn emulator(chip: &Chip) -> Result<Emulator> {
    let directory = scratch::folder()?;
    Ok(Emulator::new(Machine::new(chip.clone(), "macos15".parse()?, Arithmetic::Fp16, directory)))
}

fn known(ms: Option<f64>) -> String {
    ms.map_or_else(|| "unknown".to_owned(), |ms| format!("{ms:.2}"))
}

fn print(report: &Report) -> Result<()> {
    let header = "way        compute ms  update ms   total ms  compilations  reloads  dispatches  copied MB  start ms";
    output::line(header)?;
    for r in &report.rows {
        let way = match r.way {
            Way::Inputs => "inputs",
            Way::Recompile => "recompile",
            Way::Reload => "reload",
        };
        output::line(&format!(
            "{way:<10} {:>10} {:>10} {:>10} {:>13.1} {:>8.1} {:>11.1} {:>10.2} {:>9}",
            known(r.compute_ms),
            known(r.update_ms),
            known(r.update_ms.zip(r.compute_ms).map(|(update, compute)| update + compute)),
            r.compilations,
            r.reloads,
            r.dispatches,
            r.copied_bytes / 1e6,
            known(r.start_ms)
        ))?;
    }
    if let Some(steps) = report.break_even_steps {
        output::line(&format!("start of reload / (recompile - reload): {steps:.1} steps"))?;
    }
    output::remark(&format!(
        "times of a step on an emulated {}, by the rates of its chip's file; none was measured here",
        report.chip
    ));
    if let Some(note) = &report.reloading {
        output::remark(note);
    }
    Ok(())
}

/// Batches of tokens without a meaning.
struct RandomTokens {
    rng: u64,
    vocab: usize,
    shape: [usize; 2],
}

impl BatchSource for RandomTokens {
    fn next_batch(&mut self) -> train::Result<Option<train::Batch>> {
        let [sequences, tokens] = self.shape;
        let mut ids = || -> Vec<i32> {
            let mut id = || {
                // Knuth's generator (MMIX), of which the high bits are good.
                self.rng =
                    self.rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((self.rng >> 33) % self.vocab as u64) as i32
            };
            (0..sequences * tokens).map(|_| id()).collect()
        };
        let invalid = |e: tensor::TensorError| train::TrainError::Invalid(e.to_string());
        let rows = |ids: Vec<i32>| Tensor::from_slice(&self.shape, &ids).map_err(invalid);
        let positions: Vec<i32> = (0..tokens as i32).collect();
        let (own, targets) = (ids(), ids());
        let inputs = [
            (interface::IDS.to_owned(), rows(own)?),
            (interface::TARGETS.to_owned(), rows(targets)?),
            (
                interface::POSITIONS.to_owned(),
                Tensor::from_slice(&[tokens], &positions).map_err(invalid)?,
            ),
        ];
        let count = sequences * tokens;
        Ok(Some(train::Batch { inputs: inputs.into(), tokens: count, targets: count }))
    }

    fn is_endless(&self) -> bool {
        true
    }

    fn position(&self) -> Position {
        Position::default()
    }

    fn seek(&mut self, _: &Position) -> train::Result<()> {
        Ok(())
    }
}
