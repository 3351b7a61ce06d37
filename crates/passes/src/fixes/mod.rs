//! Rewritings that answer findings of the Neural Engine's rules: each is applied to the operations that a rule
//! complains of, for the chip, path and system asked for, and to nothing else.
//!
//! A rewriting keeps what a program computes. In exact arithmetic results agree to the rounding of that arithmetic,
//! constants apart that a rewriting makes and rounds to the program's types ([`Fix::rounds_constants`]). Two kinds
//! change the sizes of inputs, outputs or states ([`Fix::changes_interface`]) and say so in [`Fixed::interface`].
//! What would break another rule is taken back.

mod conv_bias;
mod decompose;
mod emit;
mod epsilon;
mod named_constants;
mod operations;
mod pack_weights;
mod pad_state;
mod root;
mod silu;
mod split_reduction;
mod uniform_surfaces;

use std::collections::BTreeMap;

use ane_model::{CheckOptions, Diagnostic, Fix, Rule, Severity, check};
use mil::{Program, TensorType};

use crate::dead_code::DeadCode;
use crate::{Pass, PassError, Result, rewrite};

/// Rounds in which all rules are answered; a chain of rewritings that each call for the next one is far shorter.
const MOST_ATTEMPTS: usize = 256;

/// One rewriting that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Which.
    pub fix: Fix,
    /// The rule that called for it.
    pub rule: &'static str,
    /// The function.
    pub function: String,
    /// The operation, input, output or state, as it was called.
    pub subject: String,
    /// What it became.
    pub what: String,
}

/// A finding for whose rule there is a rewriting, and that is still there.
#[derive(Clone, Debug)]
pub struct Left {
    /// The finding, in the program as it is now.
    pub finding: Diagnostic,
    /// Why.
    pub why: Why,
}

/// Why a finding is left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// The rewriting changes the interface, and that was not allowed.
    Interface,
    /// The rewriting was not possible, or not enough.
    Impossible(String),
}

/// What a function's input, output or state is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceChange {
    /// The function.
    pub function: String,
    /// Whether it is an input, an output or a state.
    pub part: Part,
    /// Its name, which stays.
    pub name: String,
    /// Its type before.
    pub from: TensorType,
    /// Its type now: the same but for longer axes. What was there before comes first along each.
    pub to: TensorType,
}

/// A part of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// What a caller gives. The elements that are new have no effect.
    Input,
    /// What a caller gets. The elements that are new are zero.
    Output,
    /// What stays from call to call.
    State,
}

impl Part {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Input => "input",
            Part::Output => "output",
            Part::State => "state",
        }
    }
}

/// What was done to a program.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// In order.
    pub applied: Vec<Applied>,
    /// Findings that have a rewriting and are still there.
    pub left: Vec<Left>,
    /// How the interface changed.
    pub interface: Vec<InterfaceChange>,
}

/// What one rewriting did for the findings of one rule.
#[derive(Default)]
struct Attempt {
    /// Function, subject, and what became of it.
    applied: Vec<(String, String, String)>,
    /// Why something was not possible, by function and operation.
    refused: BTreeMap<Place, String>,
    interface: Vec<InterfaceChange>,
}

/// Where a finding is: function, and operation as errors name it.
type Place = (Option<String>, Option<String>);

fn place(finding: &Diagnostic) -> Place {
    (finding.function.clone(), finding.name.clone())
}

/// Rewrites `program` where rules complain for whose advice there is a rewriting, and `wanted` takes the finding.
/// `interface` allows rewritings that change the interface. The program is valid, tidied where it was rewritten,
/// and verified.
///
/// # Errors
/// When the program is invalid, or a rewriting meets an operation that it should be able to handle and cannot. The
/// program is then as it was.
pub fn fix(
    program: &mut Program,
    options: &CheckOptions<'_>,
    interface: bool,
    wanted: &dyn Fn(&Diagnostic) -> bool,
) -> Result<Fixed> {
    mil::verify(program).map_err(PassError::Input)?;
    let errors = |program: &Program| -> BTreeMap<&'static str, String> {
        let found = check(program, options).into_iter().filter(|d| d.severity == Severity::Error);
        found.map(|d| (d.rule.id, d.message)).collect()
    };
    let before = errors(program);
    // Rules whose rewriting led to an error that no other one answered in the end.
    let mut harmful: BTreeMap<&'static str, String> = BTreeMap::new();
    loop {
        let mut changed = program.clone();
        let tried = |d: &Diagnostic| wanted(d) && !harmful.contains_key(d.rule.id);
        let mut fixed = rounds(&mut changed, options, interface, &tried)?;
        let new = errors(&changed).into_iter().find(|(id, _)| !before.contains_key(id));
        match (new, fixed.applied.last()) {
            // One rule fewer each time.
            (Some((id, message)), Some(last)) => {
                harmful.insert(last.rule, format!("{id} would complain in the end: {message}"));
            }
            _ => {
                let not_tried = check(&changed, options).into_iter().filter(wanted);
                fixed.left.extend(not_tried.filter_map(|finding| {
                    let why = Why::Impossible(harmful.get(finding.rule.id)?.clone());
                    Some(Left { finding, why })
                }));
                *program = changed;
                return Ok(fixed);
            }
        }
    }
}

fn rounds(
    program: &mut Program,
    options: &CheckOptions<'_>,
    interface: bool,
    wanted: &dyn Fn(&Diagnostic) -> bool,
) -> Result<Fixed> {
    let mut fixed = Fixed::default();
    let mut refused: BTreeMap<(&str, Place), String> = BTreeMap::new();
    // Findings of a rule after its rewriting was tried: fewer will not come of trying again.
    let mut tried: BTreeMap<&str, usize> = BTreeMap::new();
    let mut findings = check(program, options);
    findings.retain(wanted);
    for _ in 0..MOST_ATTEMPTS {
        let allowed = |rule: &Rule| rule.rewriting.filter(|f| interface || !f.changes_interface());
        let untried = |d: &&Diagnostic| {
            let count = count(&findings, d.rule, Severity::Info);
            allowed(d.rule).is_some() && tried.get(d.rule.id).is_none_or(|&before| count > before)
        };
        let next = findings.iter().filter(untried).min_by_key(|d| d.rule.rewriting);
        let Some((rule, kind)) = next.and_then(|d| Some((d.rule, d.rule.rewriting?))) else {
            break;
        };
        let mine: Vec<&Diagnostic> = findings.iter().filter(|d| d.rule.id == rule.id).collect();
        let mut changed = program.clone();
        let mut attempt = operations::apply(&mut changed, kind, &mine, options)
            .map_err(|error| PassError::Failed { pass: kind.name(), error })?;
        if !attempt.applied.is_empty() {
            tidy(&mut changed).map_err(|error| PassError::Broke { pass: kind.name(), error })?;
            let mut after = check(&changed, options);
            after.retain(wanted);
            match worse(&findings, &after, rule, &allowed) {
                Some(why) => {
                    attempt.refused.extend(mine.iter().map(|d| (place(d), why.clone())));
                }
                None => {
                    let applied = std::mem::take(&mut attempt.applied).into_iter();
                    fixed.applied.extend(applied.map(|(function, subject, what)| Applied {
                        fix: kind,
                        rule: rule.id,
                        function,
                        subject,
                        what,
                    }));
                    fixed.interface.append(&mut attempt.interface);
                    (*program, findings) = (changed, after);
                }
            }
        }
        refused.extend(attempt.refused.into_iter().map(|(place, why)| ((rule.id, place), why)));
        tried.insert(rule.id, count(&findings, rule, Severity::Info));
    }
    fixed.left = left(findings, interface, &refused);
    Ok(fixed)
}

/// Findings of `rule` that are at least as bad as `least`.
fn count(findings: &[Diagnostic], rule: &Rule, least: Severity) -> usize {
    findings.iter().filter(|d| d.rule.id == rule.id && d.severity >= least).count()
}

/// What is worse after a rewriting for `rule`: as many findings of it, or an error of another one that did not
/// complain before and that no rewriting answers.
fn worse(
    before: &[Diagnostic],
    after: &[Diagnostic],
    rule: &Rule,
    allowed: &dyn Fn(&Rule) -> Option<Fix>,
) -> Option<String> {
    if count(after, rule, Severity::Info) >= count(before, rule, Severity::Info) {
        return Some("the rule complains all the same afterwards".to_owned());
    }
    let new =
        |d: &&Diagnostic| allowed(d.rule).is_none() && count(before, d.rule, Severity::Error) == 0;
    let new = after.iter().filter(|d| d.severity == Severity::Error).find(new)?;
    Some(format!("{} would complain instead: {}", new.rule.id, new.message))
}

/// Takes away what nothing uses any more, and verifies.
fn tidy(program: &mut Program) -> mil::Result<()> {
    let names: Vec<String> = program.functions.keys().cloned().collect();
    for name in &names {
        DeadCode.run(program, name)?;
        if let Some(function) = program.functions.get_mut(name) {
            rewrite::compact(function);
        }
    }
    mil::verify(program)
}

fn left(
    findings: Vec<Diagnostic>,
    interface: bool,
    refused: &BTreeMap<(&str, Place), String>,
) -> Vec<Left> {
    let open = findings.into_iter().filter_map(|finding| {
        let kind = finding.rule.rewriting?;
        let why = if kind.changes_interface() && !interface {
            Why::Interface
        } else {
            let why = refused.get(&(finding.rule.id, place(&finding))).cloned();
            Why::Impossible(why.unwrap_or_else(|| "it is not enough".to_owned()))
        };
        Some(Left { finding, why })
    });
    open.collect()
}
