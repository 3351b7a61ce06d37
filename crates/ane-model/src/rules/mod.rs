//! The engine's rules as data: what is refused, goes wrong or is slow, on which path and chip, how it
//! shows, who says so, and what to do.

mod call;
mod compression;
mod coreml;
mod cx;
mod direct;
mod fix;
mod numerics;
mod shapes;
mod size;
mod state;
mod surfaces;
mod types;
mod weights;

use mil::{OpId, Program, Span};

pub use call::{Call, TextObject, check_call};
pub(crate) use cx::is_constant_kind;
pub use cx::{FunctionCx, OpCx, ProgramCx};
pub use fix::Fix;
pub(crate) use size::elementwise;
pub use weights::{Product, in_notch};

use crate::chip::Chip;
use crate::os::Os;

/// How a program gets to the engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Path {
    /// The private framework is given MIL text; the engine's compiler takes it or not.
    Direct,
    /// Core ML is given a package; it cuts the program, and other backends run what the engine
    /// does not take.
    CoreMl,
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// It may fail, be slow, or run elsewhere.
    Warning,
    /// It fails or gives wrong results.
    Error,
}

/// What happens on the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The program's text is not accepted, or not compiled; through Core ML, if it is about one
    /// operation, that one runs on the CPU or GPU.
    CompileFails,
    /// It compiles and cannot be loaded.
    LoadFails,
    /// It loads and cannot be evaluated.
    EvaluationFails,
    /// It runs and the results are wrong.
    WrongResult,
    /// The process dies.
    Crash,
    /// Core ML runs the operation on the CPU or GPU.
    OffEngine,
    /// It is right and slow.
    Slow,
    /// Nothing by itself: a caller has to do something.
    Contract,
}

/// How far a piece of evidence can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Trust {
    /// Measured by the source.
    Measured,
    /// Said by the source.
    Claimed,
    /// Contradicted by another source.
    Disputed,
}

/// Who says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// The source, and where in it.
    pub source: &'static str,
    /// How far to trust it.
    pub trust: Trust,
}

const fn measured(source: &'static str) -> Evidence {
    Evidence { source, trust: Trust::Measured }
}

const fn claimed(source: &'static str) -> Evidence {
    Evidence { source, trust: Trust::Claimed }
}

const fn disputed(source: &'static str) -> Evidence {
    Evidence { source, trust: Trust::Disputed }
}

/// On which chips a rule holds.
#[derive(Clone, Copy, Debug)]
pub enum Chips {
    /// On all, as far as their values make it apply.
    All,
    /// On those that a function picks, with words for it.
    Where(&'static str, fn(&Chip) -> bool),
}

/// Versions of the operating system on which a rule holds, as iOS versions (see [`Os::year`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Years {
    /// The first.
    pub from: u16,
    /// The last.
    pub to: u16,
}

/// Every version.
pub const ANY_YEAR: Years = Years { from: 0, to: u16::MAX };

/// One rule of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its name for ever, such as `ane-axis-limit`.
    pub id: &'static str,
    /// What it says, in one line.
    pub title: &'static str,
    /// The paths it holds for.
    pub paths: &'static [Path],
    /// The chips it holds for.
    pub chips: Chips,
    /// The operating systems it holds for.
    pub years: Years,
    /// What happens.
    pub outcome: Outcome,
    /// How bad that is, unless a finding says otherwise.
    pub severity: Severity,
    /// How it shows on a device.
    pub symptom: &'static str,
    /// The error's text or status code.
    pub code: Option<&'static str>,
    /// Who says so.
    pub evidence: &'static [Evidence],
    /// The smallest change that avoids it.
    pub fix: &'static str,
    /// The rewriting that makes this change, if there is one.
    pub rewriting: Option<Fix>,
    /// When it applies.
    pub condition: Condition,
}

/// When a rule applies, and what it looks at.
#[derive(Clone, Copy, Debug)]
pub enum Condition {
    /// One operation.
    Op(fn(&OpCx<'_>) -> Option<Finding>),
    /// One function.
    Function(fn(&FunctionCx<'_>) -> Vec<Found>),
    /// The whole program.
    Program(fn(&ProgramCx<'_>) -> Option<Finding>),
    /// A call of the private framework, whatever the program.
    Call(fn(&Call, &Chip) -> Option<Finding>),
}

/// What a rule's condition found.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// What is the matter here, with the numbers.
    pub message: String,
    /// Another severity than the rule's, where sources disagree.
    pub severity: Option<Severity>,
}

impl Finding {
    fn new(message: impl Into<String>) -> Self {
        Finding { message: message.into(), severity: None }
    }

    fn at(message: impl Into<String>, severity: Severity) -> Self {
        Finding { message: message.into(), severity: Some(severity) }
    }
}

/// What the condition of a whole function found, and at which operation.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The operation, if it is about one.
    pub op: Option<OpId>,
    /// What is the matter.
    pub finding: Finding,
}

/// What rules of the direct path have in common.
const DIRECT: Rule = Rule {
    id: "",
    title: "",
    paths: &[Path::Direct],
    chips: Chips::All,
    years: ANY_YEAR,
    outcome: Outcome::CompileFails,
    severity: Severity::Error,
    symptom: "compilation fails without a reason",
    code: Some("ANECCompile() FAILED: err=()"),
    evidence: &[],
    fix: "",
    rewriting: None,
    condition: Condition::Op(|_| None),
};

/// Every rule, by topic.
pub const TOPICS: &[(&str, &[Rule])] = &[
    ("calls of the private framework", call::RULES),
    ("operations on the direct path", direct::RULES),
    ("surfaces", surfaces::RULES),
    ("weights", weights::RULES),
    ("sizes and shapes", shapes::RULES),
    ("element types", types::RULES),
    ("states", state::RULES),
    ("compressed weights", compression::RULES),
    ("arithmetic", numerics::RULES),
    ("size of programs", size::RULES),
    ("operations through Core ML", coreml::RULES),
];

/// Every rule.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    TOPICS.iter().flat_map(|(_, rules)| rules.iter())
}

/// What to check for.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions<'a> {
    /// The chip. Fields that are unknown make no findings.
    pub chip: &'a Chip,
    /// The path.
    pub path: Path,
    /// The system; `None` stands for any.
    pub os: Option<Os>,
}

/// One finding of one rule in a program.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// The rule: symptom, evidence and fix are there.
    pub rule: &'static Rule,
    /// How bad it is here.
    pub severity: Severity,
    /// The function, unless it is about the program.
    pub function: Option<String>,
    /// The operation, unless it is about a function.
    pub op: Option<OpId>,
    /// The operation's number in the order of the text, from 0, nested blocks included.
    pub index: Option<usize>,
    /// The operation as errors name it: kind and name.
    pub name: Option<String>,
    /// Where it stands in the text that the program was parsed from.
    pub span: Option<Span>,
    /// What is the matter, with the numbers.
    pub message: String,
}

/// Every finding of every rule, program first, then functions by name, operations in order.
///
/// Operations with sizes that are not known are judged by what is known; the rule on dynamic shapes
/// speaks of the rest.
pub fn check(program: &Program, options: &CheckOptions<'_>) -> Vec<Diagnostic> {
    let rules: Vec<&'static Rule> = rules().filter(|r| applies(r, options)).collect();
    let cx = ProgramCx::new(program, options);
    let mut diagnostics = Vec::new();
    for rule in &rules {
        if let Condition::Program(condition) = rule.condition
            && let Some(finding) = condition(&cx)
        {
            diagnostics.push(diagnostic(rule, None, None, finding));
        }
    }
    for function in &cx.functions {
        let start = diagnostics.len();
        for rule in &rules {
            match rule.condition {
                Condition::Op(condition) => {
                    for &op in &function.order {
                        if let Some(finding) = condition(&OpCx::new(function, op)) {
                            diagnostics.push(diagnostic(rule, Some(function), Some(op), finding));
                        }
                    }
                }
                Condition::Function(condition) => {
                    for found in condition(function) {
                        diagnostics.push(diagnostic(rule, Some(function), found.op, found.finding));
                    }
                }
                Condition::Program(_) | Condition::Call(_) => {}
            }
        }
        diagnostics[start..].sort_by_key(|d| d.index);
    }
    diagnostics
}

/// Whether a rule holds for the path, chip and system at all.
pub(crate) fn applies(rule: &Rule, options: &CheckOptions<'_>) -> bool {
    let chip = match rule.chips {
        Chips::All => true,
        Chips::Where(_, picks) => picks(options.chip),
    };
    let os = options.os.is_none_or(|os| (rule.years.from..=rule.years.to).contains(&os.year()));
    rule.paths.contains(&options.path) && chip && os
}

fn diagnostic(
    rule: &'static Rule,
    cx: Option<&FunctionCx<'_>>,
    op: Option<OpId>,
    finding: Finding,
) -> Diagnostic {
    let place = cx.zip(op);
    Diagnostic {
        rule,
        severity: finding.severity.unwrap_or(rule.severity),
        function: cx.map(|f| f.name.to_owned()),
        op,
        index: place.and_then(|(f, op)| f.position(op)),
        name: place.map(|(f, op)| f.function.describe(op)),
        span: place.and_then(|(f, op)| f.function.spans[op]),
        message: finding.message,
    }
}
