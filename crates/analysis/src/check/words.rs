//! What the notions of the rules are called in reports.

use ane_model::rules::{ANY_YEAR, Chips, Outcome, Trust, Years};
use ane_model::{Fix, Os, Path as Route, Rule, Severity};

/// A severity.
pub(super) const fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "info",
    }
}

/// A path, as arguments name it.
pub(super) const fn route(route: Route) -> &'static str {
    match route {
        Route::Direct => "direct",
        Route::CoreMl => "coreml",
    }
}

/// A path, in a sentence behind "through".
pub(super) const fn route_in_words(route: Route) -> &'static str {
    match route {
        Route::Direct => "the private framework",
        Route::CoreMl => "Core ML",
    }
}

/// What happens, as a key and in words.
pub(super) const fn outcome(outcome: Outcome) -> (&'static str, &'static str) {
    match outcome {
        Outcome::CompileFails => ("compile-fails", "not compiled"),
        Outcome::LoadFails => ("load-fails", "not loaded"),
        Outcome::EvaluationFails => ("evaluation-fails", "not evaluated"),
        Outcome::WrongResult => ("wrong-result", "wrong results"),
        Outcome::Crash => ("crash", "the process dies"),
        Outcome::OffEngine => ("off-engine", "not on the engine"),
        Outcome::Slow => ("slow", "slow"),
        Outcome::Contract => ("contract", "for the caller to see to"),
    }
}

/// How far evidence is trusted.
pub(super) const fn trust(trust: Trust) -> &'static str {
    match trust {
        Trust::Measured => "measured",
        Trust::Claimed => "claimed",
        Trust::Disputed => "disputed",
    }
}

/// The argument that asks for rewritings.
pub(super) const FIX: &str = "--fix";

/// The arguments that ask for all of them, those too that change the interface.
pub(super) const FIX_INTERFACE: &str = "--fix --fix-interface";

/// The arguments that ask for a rewriting.
pub(super) const fn remedy(fix: Fix) -> &'static str {
    if fix.changes_interface() { FIX_INTERFACE } else { FIX }
}

/// A system, or that any is meant.
pub(super) fn system(os: Option<Os>) -> String {
    os.map_or_else(|| "any system".to_owned(), |os| os.to_string())
}

/// What a rule is said of: chips, paths, systems.
pub(super) fn scope(rule: &Rule) -> String {
    let chips = match rule.chips {
        Chips::All => "all chips, as their limits have it",
        Chips::Where(words, _) => words,
    };
    let routes: Vec<&str> = rule.paths.iter().map(|&p| route_in_words(p)).collect();
    let systems = years(rule.years).map_or_else(String::new, |years| format!(", {years}"));
    format!("{chips}, through {}{systems}", routes.join(" or "))
}

fn years(years: Years) -> Option<String> {
    match years {
        ANY_YEAR => None,
        Years { from: 0, to } => Some(format!("up to iOS {to} and the macOS of its year")),
        Years { from, to: u16::MAX } => Some(format!("from iOS {from} and the macOS of its year")),
        Years { from, to } => Some(format!("iOS {from} to {to} and the macOS of those years")),
    }
}

/// A number of things.
pub(super) fn counted(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}
