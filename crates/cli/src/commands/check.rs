//! `rigel check`: what the Neural Engine's rules say of a program, and where Core ML would run its operations.

mod fix;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use analysis::check::{self, Baseline, Policy, Report, Subject, TextOptions};
use analysis::package_listing;
use ane_model::{Chip, Os, Path as Route, rules};
use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, ValueEnum};
use mil::package::Package;

use fix::FixArgs;

use super::convert::ModelOptions;
use crate::loading::open_model;
use crate::{chips, failure, output, progress};

/// Say what the Neural Engine would refuse, get wrong or do slowly in a Core ML program or a model, and why
///
/// Every finding points at its operation in the program's text and says what happens on the device, who says so,
/// and the smallest change that helps. Through Core ML a table predicts which operations run on the engine.
/// Nothing is run, unless --fix compares results. Exit status: 0 nothing denied, 1 something denied, 2 failure.
#[derive(Args)]
pub(crate) struct Check {
    /// Path of a .mlpackage, .mlmodelc, .mlmodel or .mil; or of a language model, as `rigel convert` would
    /// convert it: path, alias or Hugging Face repository
    #[arg(required_unless_present = "list")]
    program: Option<String>,
    /// Chip, such as m1, m4-max or a17-pro; --list shows all
    #[arg(long, value_name = "CHIP", default_value = "m4", value_parser = chips::named)]
    chip: &'static Chip,
    /// Operating system, such as macos15 or ios18; any by default
    #[arg(long, value_name = "OS")]
    os: Option<Os>,
    /// How the program gets to the engine
    #[arg(long, value_enum, default_value_t = Way::Coreml)]
    path: Way,
    /// Look at this function only
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// A rule, or error, warning, info for all that is at least as bad, or none; again for several
    /// [default: error]
    #[arg(long, value_name = "RULE|SEVERITY", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(
              check::severities().into_iter().chain(rules::rules().map(|r| r.id))))]
    deny: Vec<String>,
    /// A rule whose findings are not told; again for several
    #[arg(long, value_name = "RULE", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(rules::rules().map(|r| r.id)))]
    allow: Vec<String>,
    /// Leave out the findings in this file, and tell those that have vanished
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write the findings to a file for --baseline; nothing is denied then
    #[arg(long, value_name = "FILE", conflicts_with = "baseline")]
    write_baseline: Option<PathBuf>,
    /// text for people; json is an object: version, file, chip, path, system, summary, findings, rules, vanished,
    /// placements, and with --fix fixes; sarif is SARIF 2.1.0
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Show every finding of every rule, and every operation's placement
    #[arg(long, action = ArgAction::SetTrue)]
    all: bool,
    /// List the rules and chips
    #[arg(long, action = ArgAction::SetTrue, conflicts_with = "program")]
    list: bool,
    #[command(flatten)]
    fixing: FixArgs,
}

/// A path to the engine.
#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// The private framework is given the text
    Direct,
    /// Core ML is given the package
    Coreml,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
    Sarif,
}

impl From<Way> for Route {
    fn from(way: Way) -> Self {
        match way {
            Way::Direct => Route::Direct,
            Way::Coreml => Route::CoreMl,
        }
    }
}

impl Check {
    pub(super) fn run(&self) -> Result<ExitCode> {
        failure::verdict(self.check())
    }

    /// Whether nothing is denied.
    fn check(&self) -> Result<bool> {
        let Some(program) = &self.program else {
            self.show_catalogue()?;
            return Ok(true);
        };
        let options = check::Options {
            chip: self.chip,
            route: self.path.into(),
            os: self.os,
            function: self.function.as_deref(),
        };
        let policy = Policy::new(&self.deny, &self.allow)?;
        let baseline = self.baseline.as_deref().map(Baseline::read).transpose()?;
        if self.fixing.fix {
            return self.fix(program, &options, &policy);
        }
        let subject = open(program)?;
        let report = check::check(&subject, &options, &policy, baseline.as_ref())?;
        if let Some(path) = &self.write_baseline {
            Baseline::of(&report).write(path)?;
        }
        self.show(&report)?;
        Ok(report.denied() == 0 || self.write_baseline.is_some())
    }

    /// Rewrites the program and checks what was written. Whether nothing is denied.
    fn fix(&self, program: &str, options: &check::Options<'_>, policy: &Policy) -> Result<bool> {
        self.fixing.destination(Path::new(program))?;
        let (source, package) = match package_listing::recognised(Path::new(program)) {
            Some(path) => (path.to_owned(), Package::open(path)?),
            None => exported(program)?,
        };
        let to = self.fixing.destination(&source)?;
        options.ensure_function(&package.program, &source.display().to_string())?;
        let outcome = self.fixing.apply(package, options, policy, to);
        let outcome = outcome.with_context(|| source.display().to_string())?;
        let place = outcome.written.as_ref().unwrap_or(&source);
        let subject = Subject::of_package(place.display().to_string(), outcome.package.clone());
        let report = check::check(&subject, options, policy, None)?;
        match self.format {
            Format::Text => {
                outcome.show()?;
                self.show(&report)?;
            }
            Format::Json => {
                let mut value = report.json();
                value["fixes"] = outcome.json();
                output::json(&value)?;
            }
            Format::Sarif => {
                let mut value = report.sarif();
                value["runs"][0]["properties"]["fixes"] = outcome.json();
                output::json(&value)?;
            }
        }
        Ok(report.denied() == 0)
    }

    fn show(&self, report: &Report<'_>) -> Result<()> {
        match self.format {
            Format::Text => {
                let options = TextOptions { colour: output::colours(), all: self.all };
                output::line(&report.text(options))
            }
            Format::Json => output::json(&report.json()),
            Format::Sarif => output::json(&report.sarif()),
        }
    }

    fn show_catalogue(&self) -> Result<()> {
        match self.format {
            Format::Json => output::json(&check::catalogue_json()),
            Format::Text => output::line(&check::catalogue_text()),
            Format::Sarif => anyhow::bail!("the list is text or json"),
        }
    }
}

/// The program that `name` stands for.
fn open(name: &str) -> Result<Subject> {
    if let Some(path) = package_listing::recognised(Path::new(name)) {
        return Ok(Subject::open(path)?);
    }
    Ok(Subject::of_package(name.to_owned(), exported(name)?.1))
}

/// Where the language model called `name` is, and the program that it is converted to.
fn exported(name: &str) -> Result<(PathBuf, Package)> {
    let file = open_model(name)?;
    let path = file.path().to_owned();
    let exported = progress::spin("converting", || ModelOptions::default().export(file))?;
    exported.notes.iter().for_each(|note| output::note(&format!("note: {note}")));
    Ok((path, exported.package))
}
