//! The report as JSON.

use ane_model::Rule;
use ane_model::rules::Evidence;
use serde_json::{Map, Value, json};

use super::policy::SEVERITIES;
use super::{Finding, Report, placed, words};

/// The form; it grows when a field changes or goes, not when one comes.
const VERSION: u32 = 1;

impl Report<'_> {
    /// The report for programs:
    ///
    /// - `version`, `file`, `chip`, `path` (`direct` or `coreml`), `system` (or null),
    /// - `summary`: counts `error`, `warning`, `info`, `denied`, `allowed`, and with a baseline `known` and `vanished`,
    /// - `findings`, each with `rule`, `severity`, `denied`, `function`, `op` (kind and name), `index` (in the
    ///   order of the text), `line`, `column`, `end_column` (null where they are not known), `message`,
    ///   `fingerprint`,
    /// - `rules`: by name, of those that speak, as [`catalogue_json`](super::catalogue_json) has them; `rewriting` is
    ///   not null if there is one that makes the change (`name`, `changes_interface`, `arguments` that ask for it),
    /// - `vanished`: what a baseline has and the program does not,
    /// - `placements`: by function, with each operation's support, backend and estimates.
    pub fn json(&self) -> Value {
        let o = &self.options;
        let mut rules = Map::new();
        for finding in &self.findings {
            let rule = finding.diagnostic.rule;
            rules.entry(rule.id).or_insert_with(|| rule_json(rule));
        }
        let mut summary = json!({ "denied": self.denied(), "allowed": self.allowed });
        for severity in SEVERITIES {
            summary[words::severity(severity)] = json!(self.count(severity));
        }
        if let Some(known) = self.known {
            summary["known"] = json!(known);
            summary["vanished"] = json!(self.vanished.len());
        }
        let placements = self.placements.iter().map(|p| placed::json(p, self.subject));
        json!({
            "version": VERSION,
            "file": self.subject.name(),
            "chip": o.chip.name,
            "path": words::route(o.route),
            "system": o.os.map(|os| os.to_string()),
            "summary": summary,
            "findings": self.findings.iter().map(finding_json).collect::<Vec<_>>(),
            "rules": rules,
            "vanished": self.vanished,
            "placements": placements.collect::<Vec<_>>(),
        })
    }
}

fn finding_json(finding: &Finding) -> Value {
    let Finding { diagnostic: d, place, fingerprint, denied } = finding;
    let place = place.as_ref();
    json!({
        "rule": d.rule.id,
        "severity": words::severity(d.severity),
        "denied": denied,
        "function": d.function,
        "op": d.name,
        "index": d.index,
        "line": place.map(|p| p.line),
        "column": place.map(|p| p.column),
        "end_column": place.map(|p| p.end_column),
        "message": d.message,
        "fingerprint": fingerprint,
    })
}

/// What a rule says.
pub(super) fn rule_json(rule: &Rule) -> Value {
    let evidence = |e: &Evidence| json!({ "source": e.source, "trust": words::trust(e.trust) });
    json!({
        "title": rule.title,
        "severity": words::severity(rule.severity),
        "outcome": words::outcome(rule.outcome).0,
        "symptom": rule.symptom,
        "code": rule.code,
        "scope": words::scope(rule),
        "evidence": rule.evidence.iter().map(evidence).collect::<Vec<_>>(),
        "fix": rule.fix,
        "rewriting": rule.rewriting.map(|fix| json!({
            "name": fix.name(),
            "changes_interface": fix.changes_interface(),
            "arguments": words::remedy(fix),
        })),
    })
}
