//! `rigel check --fix`: rewrites what the rules complain of, compares results before and after, and writes it.

use std::path::{Path, PathBuf};

use analysis::check::{self, Policy};
use analysis::equivalence::{Checked, Closeness, Reference};
use analysis::inputs::InputArg;
use anyhow::{Context, Result, ensure};
use clap::Args;
use mil::package::Package;
use passes::fixes::{Applied, Fixed, InterfaceChange, Left, Why};
use serde_json::{Value, json};

use super::super::opt::checked_line;
use crate::{destination, interrupt, output};

/// Arguments of the rewriting.
#[derive(Args)]
#[command(next_help_heading = "Fixing")]
pub(super) struct FixArgs {
    /// Rewrite what rules complain of where that keeps results, and report on the program that was written. Every
    /// function runs before and after on the same random inputs, several times if it has states, in exact
    /// arithmetic; a program that gives something else is not written, nor one of which nothing was rewritten
    #[arg(long, requires = "output", conflicts_with_all = ["baseline", "write_baseline", "list"])]
    pub(super) fix: bool,
    /// Where to write it, as .mlpackage or .mil; MIL text has its weights in weights/weight.bin beside it
    #[arg(short, long, value_name = "DST", requires = "fix")]
    output: Option<PathBuf>,
    /// Replace what is at the destination
    #[arg(long, requires = "fix")]
    force: bool,
    /// Make inputs, outputs and states longer too where rules ask for that. What was there comes first along each
    /// axis; of what is new in inputs nothing is read, and in outputs it is zero
    #[arg(long, requires = "fix")]
    fix_interface: bool,
    /// An input of the comparison, as for `rigel run`; the others are random
    #[arg(long, value_name = "NAME=SOURCE", requires = "fix")]
    input: Vec<InputArg>,
    /// Seed of random inputs
    #[arg(long, value_name = "N", default_value_t = 0, requires = "fix")]
    seed: u64,
    /// Do not run the program to compare results
    #[arg(long, requires = "fix")]
    no_compare: bool,
}

/// What was done, and what was written.
pub(super) struct Outcome {
    /// The program as it is now.
    pub(super) package: Package,
    /// Where it was written, unless nothing was rewritten.
    pub(super) written: Option<PathBuf>,
    fixed: Fixed,
    checked: Option<(Closeness, Vec<Checked>)>,
}

impl FixArgs {
    /// The destination.
    ///
    /// # Errors
    /// When there is something in the way.
    pub(super) fn destination(&self, source: &Path) -> Result<&Path> {
        let to = self.output.as_deref().context("--fix needs --output")?;
        destination::check(to, destination::is_text(to)?, source, self.force)?;
        Ok(to)
    }

    /// Rewrites `package`, compares, and writes it to `to`.
    ///
    /// # Errors
    /// When it cannot be rewritten, compared or written, or gives something else afterwards.
    pub(super) fn apply(
        &self,
        mut package: Package,
        options: &check::Options<'_>,
        policy: &Policy,
        to: &Path,
    ) -> Result<Outcome> {
        let before = package.clone();
        let mut program = package.program.clone();
        // What is written has all weights in one file, wherever they lay before.
        program.blobs.clear();
        let fixed =
            passes::fixes::fix(&mut program, &options.rules(), self.fix_interface, &|finding| {
                options.concerns(finding) && !policy.allows(finding.rule)
            })?;
        if fixed.applied.is_empty() {
            // Of whatever was there before nobody should think that it is the result.
            ensure!(
                to.symlink_metadata().is_err(),
                "{}: nothing was rewritten, and what is there is left as it was",
                to.display()
            );
            return Ok(Outcome { package, written: None, fixed, checked: None });
        }
        let checked = match self.no_compare {
            true => None,
            false => Some(self.compare(&before, &program, &fixed)?),
        };
        package.set_program(program)?;
        let is_text = destination::is_text(to)?;
        interrupt::after(|| if is_text { package.save_text(to) } else { package.save(to) })?;
        Ok(Outcome { package, written: Some(to.to_owned()), fixed, checked })
    }

    fn compare(
        &self,
        before: &Package,
        after: &mil::Program,
        fixed: &Fixed,
    ) -> Result<(Closeness, Vec<Checked>)> {
        for input in &self.input {
            let name = input.name().context("an input of the comparison needs a name")?;
            let known = before.program.functions.values().any(|f| f.input(name).is_some());
            ensure!(known, "no function has an input {name}");
        }
        let rounded = fixed.applied.iter().any(|a| a.fix.rounds_constants());
        let closeness = if rounded { Closeness::Rounding } else { Closeness::Exact };
        let reference = Reference::new(before, &self.input, closeness, self.seed).context(
            "the program cannot be run for comparison (see --input and --no-compare); nothing is written",
        )?;
        let held = match fixed.interface.is_empty() {
            true => reference.hold(after),
            false => reference.hold_grown(after),
        };
        let checked = held.with_context(|| {
            let fixes = fixed.applied.iter().map(|a| a.fix.name());
            let names: std::collections::BTreeSet<&str> = fixes.collect();
            let names: Vec<&str> = names.into_iter().collect();
            format!("rewriting changes results ({}); nothing is written", names.join(", "))
        })?;
        Ok((closeness, checked))
    }
}

impl Outcome {
    /// Says for people what was done.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub(super) fn show(&self) -> Result<()> {
        for a in &self.fixed.applied {
            let Applied { rule, function, subject, what, .. } = a;
            output::line(&format!("fixed {rule}: {function}: {subject}: {what}"))?;
        }
        for change in &self.fixed.interface {
            let InterfaceChange { function, part, name, from, to } = change;
            let part = part.name();
            output::line(&format!("changed {function}: {part} {name}: {from} is {to} now"))?;
        }
        for Left { finding, why } in &self.fixed.left {
            let place = [finding.function.as_deref(), finding.name.as_deref()];
            let place = place.into_iter().flatten().collect::<Vec<_>>().join(": ");
            let why = match why {
                Why::Interface => "changes the interface (--fix-interface)",
                Why::Impossible(why) => why,
            };
            output::line(&format!(
                "left {}: {place}: {}: {why}",
                finding.rule.id, finding.message
            ))?;
        }
        match &self.checked {
            Some((closeness, checked)) => {
                if *closeness == Closeness::Rounding {
                    output::line(
                        "constants that rewritings made are rounded to the program's types",
                    )?;
                }
                for c in checked {
                    output::line(&checked_line(c))?;
                }
            }
            None if self.written.is_none() => {}
            None => output::line("not compared")?,
        }
        match &self.written {
            Some(to) => output::line(&format!("wrote {}\n", to.display())),
            None => output::line("nothing was rewritten, and nothing is written\n"),
        }
    }

    /// The same for programs: `applied` (of each rewriting fix, rule, function, subject, what), `interface` (of each
    /// change function, part, name, from, to), `left` (of each finding rule, function, op, message, why), `closeness`,
    /// `checked`, `written` (null where nothing was rewritten).
    pub(super) fn json(&self) -> Value {
        let applied = self.fixed.applied.iter().map(|a| {
            let Applied { fix, rule, function, subject, what } = a;
            json!({ "fix": fix.name(), "rule": rule, "function": function, "subject": subject, "what": what })
        });
        let interface = self.fixed.interface.iter().map(|c| {
            json!({
                "function": c.function,
                "part": c.part.name(),
                "name": c.name,
                "from": c.from.to_string(),
                "to": c.to.to_string(),
            })
        });
        let left = self.fixed.left.iter().map(|l| {
            let why = match &l.why {
                Why::Interface => "interface",
                Why::Impossible(why) => why,
            };
            let Left { finding, .. } = l;
            json!({ "rule": finding.rule.id, "function": finding.function, "op": finding.name, "message": finding.message, "why": why })
        });
        json!({
            "applied": applied.collect::<Vec<_>>(),
            "interface": interface.collect::<Vec<_>>(),
            "left": left.collect::<Vec<_>>(),
            "closeness": self.checked.as_ref().map(|c| c.0),
            "checked": self.checked.as_ref().map(|c| &c.1),
            "written": self.written,
        })
    }
}
