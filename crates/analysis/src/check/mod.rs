//! What the rules of the Neural Engine say of a program: findings with their places in its text, which of them
//! are denied, and where Core ML would run its operations.

mod baseline;
mod catalogue;
mod fingerprint;
mod json;
mod placed;
mod policy;
mod sarif;
mod subject;
mod text;
mod words;

use std::collections::{HashMap, HashSet};

use ane_model::placement::{Placement, PlacementError, placement};
use ane_model::{CheckOptions, Chip, Diagnostic, Os, Path as Route, Severity};
pub use baseline::{Baseline, Known};
pub use catalogue::{catalogue_json, catalogue_text};
pub use policy::{Policy, severities};
pub use subject::{Place, Subject};
pub use text::TextOptions;

use crate::error::{Result, ensure};

/// What to check for.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The chip.
    pub chip: &'a Chip,
    /// How the program gets to the engine.
    pub route: Route,
    /// The system; `None` stands for any.
    pub os: Option<Os>,
    /// The one function to look at; all by default.
    pub function: Option<&'a str>,
}

impl<'a> Options<'a> {
    /// What the rules are asked for.
    pub fn rules(&self) -> CheckOptions<'a> {
        let Options { chip, route, os, .. } = *self;
        CheckOptions { chip, path: route, os }
    }

    /// Makes sure that `program`, called `subject`, has the function to look at.
    ///
    /// # Errors
    /// When it has not.
    pub fn ensure_function(&self, program: &mil::Program, subject: &str) -> Result<()> {
        let Some(name) = self.function else { return Ok(()) };
        let functions = &program.functions;
        let names = || functions.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let found = functions.contains_key(name);
        ensure!(found, "{subject}: no function {name}; there are: {}", names());
        Ok(())
    }

    /// Whether a finding is of what is looked at.
    pub fn concerns(&self, diagnostic: &Diagnostic) -> bool {
        self.function.is_none_or(|name| diagnostic.function.as_deref().is_none_or(|of| of == name))
    }
}

/// One finding.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What the rule says.
    pub diagnostic: Diagnostic,
    /// Where in the text; `None` if the program has none.
    pub place: Option<Place>,
    /// What names the finding in a baseline: the same as long as rule, function, operation and message do not
    /// change, numbers apart.
    pub fingerprint: String,
    /// Whether it must not be.
    pub denied: bool,
}

/// Where Core ML would run the operations of a function.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The function.
    pub function: String,
    /// The prediction, or why there is none.
    pub outcome: std::result::Result<Placement, PlacementError>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    subject: &'a Subject,
    options: Options<'a>,
    /// Findings that are neither allowed nor known, in the order of the text.
    pub findings: Vec<Finding>,
    /// How many are allowed.
    pub allowed: usize,
    /// How many are known from the baseline, if there is one.
    pub known: Option<usize>,
    /// What the baseline has and the program has no more.
    pub vanished: Vec<Known>,
    /// Where operations would run, function by function; empty on the direct path.
    pub placements: Vec<Placed>,
}

/// Checks a program.
///
/// # Errors
/// When it has no function of the name, or the baseline is of another chip, path or system.
pub fn check<'a>(
    subject: &'a Subject,
    options: &Options<'a>,
    policy: &Policy,
    baseline: Option<&Baseline>,
) -> Result<Report<'a>> {
    options.ensure_function(subject.program(), subject.name())?;
    let functions = &subject.program().functions;
    if let Some(baseline) = baseline {
        baseline.ensure_for(options)?;
    }
    let looked_at = |name: &str| options.function.is_none_or(|f| f == name);
    let mut findings = findings(subject, options, policy);
    let vanished = baseline.map_or_else(Vec::new, |b| {
        let present: HashSet<&str> = findings.iter().map(|f| &*f.fingerprint).collect();
        let gone = b.findings.iter().filter(|k| !present.contains(&*k.fingerprint));
        gone.filter(|k| k.function.as_deref().is_none_or(looked_at)).cloned().collect()
    });
    let all = findings.len();
    findings.retain(|f| !policy.allows(f.diagnostic.rule));
    let allowed = all - findings.len();
    let known = baseline.map(|baseline| {
        let known: HashSet<&str> = baseline.findings.iter().map(|k| &*k.fingerprint).collect();
        let unknown = findings.len();
        findings.retain(|f| !known.contains(&*f.fingerprint));
        unknown - findings.len()
    });
    let mut placements = Vec::new();
    if options.route == Route::CoreMl {
        for function in functions.keys().filter(|f| looked_at(f)) {
            let outcome = placement(subject.program(), function, options.chip, options.os);
            placements.push(Placed { function: function.clone(), outcome });
        }
    }
    Ok(Report { subject, options: *options, findings, allowed, known, vanished, placements })
}

/// All findings in the functions looked at.
fn findings(subject: &Subject, options: &Options<'_>, policy: &Policy) -> Vec<Finding> {
    let mut diagnostics = ane_model::check(subject.program(), &options.rules());
    diagnostics.retain(|d| options.concerns(d));
    let mut ordinals = HashMap::new();
    let finding = |diagnostic: Diagnostic| Finding {
        place: subject.place(&diagnostic),
        fingerprint: fingerprint::of(&diagnostic, &mut ordinals),
        denied: policy.denies(diagnostic.rule, diagnostic.severity),
        diagnostic,
    };
    diagnostics.into_iter().map(finding).collect()
}

impl Report<'_> {
    /// Findings that must not be.
    pub fn denied(&self) -> usize {
        self.findings.iter().filter(|f| f.denied).count()
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|f| f.diagnostic.severity == severity).count()
    }
}
