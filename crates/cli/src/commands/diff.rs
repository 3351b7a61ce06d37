//! `rigel diff`: what two Core ML programs or models differ in, and how far apart their results are.

use std::path::Path;
use std::process::ExitCode;

use analysis::diff::{self, NumericDiff, NumericOptions, ProgramDiff};
use analysis::inputs::InputArg;
use analysis::package_listing;
use anyhow::{Context, Result};
use clap::Args;
use llm::{LoadOptions, Model};
use mil::package::Package;
use serde_json::json;

use super::run::Rounding;
use crate::loading::open_model;
use crate::{failure, output};

/// What counts as apart if nothing is said: about half precision's epsilon.
const TOLERANCE: f64 = 1e-3;

/// Compare two Core ML programs or models: functions, interface, operations, weights, and with --input results
///
/// Operations are matched by what they compute, what becomes of them, and their names, so that a program whose
/// values have other names differs in nothing else. Exit status: 0 the same but for such names, 1 different,
/// 2 failure.
#[derive(Args)]
pub(crate) struct Diff {
    /// The first: .mlpackage, .mlmodelc, .mlmodel or .mil; or path, alias or Hugging Face repository of a model
    a: String,
    /// The second
    b: String,
    /// Run both on this input, as `rigel run` takes it; also `random` or `zeros` for all inputs not named. The
    /// names are those of the first
    #[arg(long, value_name = "NAME=SOURCE")]
    input: Vec<InputArg>,
    /// Function to run; by default the first one's own default
    #[arg(long, value_name = "NAME", requires = "input")]
    function: Option<String>,
    /// How many times to run it, states being kept
    #[arg(long, value_name = "N", default_value_t = 1, requires = "input", value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// How results are rounded
    #[arg(long, value_enum, default_value_t = Rounding::F32, requires = "input")]
    arithmetic: Rounding,
    /// Compare the results of all operations that both have, and name the first that diverges while what it is
    /// given agrees
    #[arg(long, requires = "input")]
    ops: bool,
    /// Largest difference over largest magnitude that is not marked [default: 0.001]. If given, results alone
    /// decide the exit status: 0 if all outputs and states are within
    #[arg(long, value_name = "T", requires = "input", value_parser = tolerance)]
    tolerance: Option<f64>,
    /// Seed of random inputs
    #[arg(long, value_name = "N", default_value_t = 0, requires = "input")]
    seed: u64,
    /// Print a JSON object: same, structure (package, removed, added, functions), and with --input numbers
    /// (function, tolerance, outputs, states, operations, first_divergence)
    #[arg(long)]
    json: bool,
}

fn tolerance(argument: &str) -> Result<f64, String> {
    let value = argument.parse::<f64>().ok().filter(|t| *t >= 0.0);
    value.ok_or_else(|| "is no number from 0 up".to_owned())
}

impl Diff {
    pub(super) fn run(&self) -> Result<ExitCode> {
        failure::verdict(self.compare())
    }

    /// Whether the two are the same, as the exit status has it.
    fn compare(&self) -> Result<bool> {
        let (a, b) = (open(&self.a)?, open(&self.b)?);
        let structure = diff::compare(&a, &b)?;
        let numbers = if self.input.is_empty() { None } else { Some(self.numbers(&a, &b)?) };
        let same = match (&numbers, self.tolerance) {
            (Some(numbers), Some(_)) => numbers.is_close(),
            (numbers, _) => {
                structure.is_same() && numbers.as_ref().is_none_or(NumericDiff::is_same)
            }
        };
        self.report(same, &structure, numbers.as_ref())?;
        Ok(same)
    }

    fn numbers(&self, a: &Package, b: &Package) -> Result<NumericDiff> {
        let options = NumericOptions {
            function: self.function.as_deref(),
            inputs: &self.input,
            steps: self.steps as usize,
            seed: self.seed,
            arithmetic: self.arithmetic.into(),
            operations: self.ops,
            tolerance: self.tolerance.unwrap_or(TOLERANCE),
        };
        let compared = diff::compare_runs(a, b, &options);
        compared.with_context(|| format!("{} and {}", self.a, self.b))
    }

    fn report(
        &self,
        same: bool,
        structure: &ProgramDiff,
        numbers: Option<&NumericDiff>,
    ) -> Result<()> {
        if self.json {
            let mut value = json!({ "same": same, "structure": structure });
            if let Some(numbers) = numbers {
                value["numbers"] = json!(numbers);
            }
            return output::json(&value);
        }
        output::line(&diff::program_text(structure))?;
        numbers.map_or(Ok(()), |numbers| output::line(&diff::numeric_text(numbers)))
    }
}

/// The program that `name` stands for, verified.
fn open(name: &str) -> Result<Package> {
    let package = match package_listing::recognised(Path::new(name)) {
        Some(path) => Package::open(path)?,
        None => {
            let model = Model::from_file(open_model(name)?, LoadOptions::default())?;
            Package::from_program(model.program().clone())
        }
    };
    mil::verify(&package.program).map_err(|e| e.in_file(Path::new(name)))?;
    Ok(package)
}
