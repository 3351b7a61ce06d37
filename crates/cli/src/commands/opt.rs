//! `rigel opt`: rewrites a Core ML program by passes, and proves on random inputs that it still is the same.

use std::path::{Path, PathBuf};

use analysis::equivalence::{Checked, Closeness, Reference, first_failing};
use analysis::inputs::InputArg;
use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args};
use mil::package::Package;
use passes::{PASSES, Pass, PassStats, pipelines::PIPELINES};
use serde_json::json;

use crate::{destination, output};

/// Rewrite a Core ML program (.mlpackage, .mlmodelc, .mil) by passes and write it as .mlpackage or .mil
///
/// The program is verified after each pass. Then every function runs before and after on the same random inputs:
/// at its default shapes and, where others are allowed, at a second set; several times if it has states. Where
/// every pass keeps results to the bit they must be equal, else equal but for rounding. A program that fails is not
/// written, and the pass that broke it is named.
#[derive(Args)]
#[command(group = ArgGroup::new("what").args(["pass", "pipeline"]))]
pub(crate) struct Opt {
    /// Path of the package, compiled model or MIL text
    #[arg(required_unless_present = "list")]
    path: Option<PathBuf>,
    /// Where to write it; MIL text has its weights in weights/weight.bin beside it
    #[arg(short, long, value_name = "DST", required_unless_present = "list")]
    output: Option<PathBuf>,
    /// Replace what is at the destination
    #[arg(long)]
    force: bool,
    /// Run this pass; may be given several times. Passes that it needs before it are added
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PASSES.iter().map(|p| p.name())))]
    pass: Vec<String>,
    /// Run the passes of this pipeline
    #[arg(long, value_name = "NAME", default_value = "optimize",
          value_parser = PossibleValuesParser::new(PIPELINES.iter().map(|(name, _)| *name)))]
    pipeline: String,
    /// List passes and pipelines
    #[arg(long)]
    list: bool,
    /// Do not run the program to compare results
    #[arg(long)]
    no_check: bool,
    /// An input of the comparison, as for `rigel run`; the others are random
    #[arg(long, value_name = "NAME=SOURCE")]
    input: Vec<InputArg>,
    /// Seed of random inputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print a JSON object: passes (of each pass, ops_before, ops_after, changes, kinds, seconds), closeness,
    /// checked (of each function, shapes, steps, difference), written
    #[arg(long)]
    json: bool,
}

impl Opt {
    pub(super) fn run(&self) -> Result<()> {
        let (Some(path), Some(to)) = (&self.path, &self.output) else {
            return self.show_passes();
        };
        if self.list {
            return self.show_passes();
        }
        let text = destination::is_text(to)?;
        destination::check(to, text, path, self.force)?;
        let mut package = Package::open(path)?;
        let chosen = self.passes()?;
        let before = package.clone();
        let place = || path.display().to_string();
        let stats = passes::run(&mut package.program, &chosen).with_context(place)?;
        let checked =
            if self.no_check { None } else { Some(self.check(&before, &package, &chosen)?) };
        if text {
            package.save_text(to)?
        } else {
            package.save(to)?
        }
        self.report(&stats, checked.as_ref(), to)
    }

    fn passes(&self) -> Result<Vec<&'static dyn Pass>> {
        if self.pass.is_empty() {
            let pipeline = PIPELINES.iter().find(|(name, _)| *name == self.pipeline);
            return Ok(pipeline.context("no such pipeline")?.1.to_vec());
        }
        let named = |name: &String| passes::pass(name).with_context(|| format!("no pass {name}"));
        let named = self.pass.iter().map(named).collect::<Result<Vec<_>>>()?;
        Ok(passes::with_requirements(&named))
    }

    /// Compares results; on a difference finds the pass that made it.
    fn check(
        &self,
        before: &Package,
        after: &Package,
        chosen: &[&'static dyn Pass],
    ) -> Result<(Closeness, Vec<Checked>)> {
        let exact = chosen.iter().all(|p| p.exact());
        let closeness = if exact { Closeness::Bits } else { Closeness::Rounding };
        for input in &self.input {
            let name = input.name().context("an input of the comparison needs a name")?;
            let mut functions = before.program.functions.values();
            let known = functions.any(|f| f.input(name).is_some());
            ensure!(known, "no function has an input {name}");
        }
        let reference = Reference::new(before, &self.input, closeness, self.seed);
        let reference = reference.context(
            "the program cannot be run for comparison (see --input and --no-check); nothing is written",
        )?;
        let error = match reference.hold(&after.program) {
            Ok(checked) => return Ok((closeness, checked)),
            Err(error) => error,
        };
        let number = first_failing(chosen.len(), |count| {
            let mut program = before.program.clone();
            passes::run(&mut program, &chosen[..count]).is_ok() && reference.hold(&program).is_ok()
        });
        let name = chosen[number - 1].name();
        Err(anyhow::Error::from(error)
            .context(format!("pass {name} (number {number}) changes results; nothing is written")))
    }

    fn report(
        &self,
        stats: &[PassStats],
        checked: Option<&(Closeness, Vec<Checked>)>,
        to: &Path,
    ) -> Result<()> {
        if self.json {
            let passes: Vec<_> = stats.iter().map(pass_json).collect();
            return output::json(&json!({
                "passes": passes,
                "closeness": checked.map(|c| c.0),
                "checked": checked.map(|c| &c.1),
                "written": to,
            }));
        }
        output::line("pass                    ops before   after  changes      time")?;
        for s in stats {
            output::line(&format!(
                "{:<22} {:>11} {:>7} {:>8} {:>6.1} ms{}",
                s.pass,
                s.ops_before,
                s.ops_after,
                s.changes,
                s.time.as_secs_f64() * 1e3,
                kinds(s)
            ))?;
        }
        for c in checked.iter().flat_map(|c| &c.1) {
            output::line(&checked_line(c))?;
        }
        output::line(&format!("wrote {}", to.display()))
    }

    fn show_passes(&self) -> Result<()> {
        if self.json {
            let passes: Vec<_> = PASSES
                .iter()
                .map(|p| json!({ "name": p.name(), "doc": p.doc(), "exact": p.exact() }))
                .collect();
            let names = |passes: &[&dyn Pass]| passes.iter().map(|p| p.name()).collect::<Vec<_>>();
            let pipelines: serde_json::Map<_, _> =
                PIPELINES.iter().map(|(n, p)| ((*n).to_owned(), json!(names(p)))).collect();
            return output::json(&json!({ "passes": passes, "pipelines": pipelines }));
        }
        for pass in PASSES {
            let exact = if pass.exact() { "" } else { " (up to rounding)" };
            output::line(&format!("{}{exact}", pass.name()))?;
            for line in pass.doc().lines() {
                output::line(&format!(
                    "    {}",
                    line.split_whitespace().collect::<Vec<_>>().join(" ")
                ))?;
            }
        }
        for (name, passes) in PIPELINES {
            let names: Vec<&str> = passes.iter().map(|p| p.name()).collect();
            output::line(&format!("pipeline {name}: {}", names.join(", ")))?;
        }
        Ok(())
    }
}

/// What was compared of a function, and how far apart results are.
pub(super) fn checked_line(c: &Checked) -> String {
    let result = match c.difference {
        0.0 => "equal".to_owned(),
        d => format!("largest difference {d:.1e} of the largest element"),
    };
    let (shapes, steps) = (counted(c.shapes, "set"), counted(c.steps, "step"));
    format!("checked {}: {shapes} of input shapes, {steps} each: {result}", c.function)
}

fn pass_json(s: &PassStats) -> serde_json::Value {
    let kinds: serde_json::Map<_, _> =
        s.kinds.iter().map(|(kind, n)| (kind.name().to_owned(), json!(n))).collect();
    json!({
        "pass": s.pass,
        "ops_before": s.ops_before,
        "ops_after": s.ops_after,
        "changes": s.changes,
        "kinds": kinds,
        "seconds": s.time.as_secs_f64(),
    })
}

/// What there is more and less of, after two spaces.
fn kinds(s: &PassStats) -> String {
    let kinds: Vec<String> = s.kinds.iter().map(|(k, n)| format!("{n:+} {}", k.name())).collect();
    if kinds.is_empty() { String::new() } else { format!("  {}", kinds.join(", ")) }
}

fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
