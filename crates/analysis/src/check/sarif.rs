//! The report in SARIF 2.1.0, the form that code hosts and editors read findings in.

use std::path::Path;

use ane_model::{Rule, Severity};
use serde_json::{Value, json};

use super::{Finding, Report, words};

/// The schema that the report follows.
const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// The name of our fingerprints; its number grows when they are made otherwise.
const FINGERPRINT: &str = "rigelFinding/v1";

impl Report<'_> {
    /// The report in SARIF.
    pub fn sarif(&self) -> Value {
        let mut rules: Vec<&'static Rule> = Vec::new();
        let results: Vec<Value> = self
            .findings
            .iter()
            .map(|f| self.result(f, index_of(f.diagnostic.rule, &mut rules)))
            .collect();
        let o = &self.options;
        let mut artifact = json!({ "location": { "uri": self.uri() } });
        if self.subject.is_printed() {
            let text = "Lines are those of the program's MIL text, as `rigel convert` writes it.";
            artifact["description"] = json!({ "text": text });
        }
        json!({
            "$schema": SCHEMA,
            "version": "2.1.0",
            "runs": [{
                "tool": { "driver": {
                    "name": "rigel",
                    "semanticVersion": env!("CARGO_PKG_VERSION"),
                    "rules": rules.into_iter().map(descriptor).collect::<Vec<_>>(),
                } },
                "columnKind": "unicodeCodePoints",
                "artifacts": [artifact],
                "results": results,
                "properties": {
                    "chip": o.chip.name,
                    "path": words::route(o.route),
                    "system": words::system(o.os),
                },
            }],
        })
    }

    fn result(&self, finding: &Finding, rule: usize) -> Value {
        let Finding { diagnostic: d, place, fingerprint, denied } = finding;
        let mut physical = json!({ "artifactLocation": { "uri": self.uri(), "index": 0 } });
        if let Some(p) = place {
            physical["region"] = json!({
                "startLine": p.line,
                "startColumn": p.column,
                "endColumn": p.end_column,
            });
        }
        let mut location = json!({ "physicalLocation": physical });
        if let Some(function) = &d.function {
            let name =
                d.name.as_ref().map_or_else(|| function.clone(), |op| format!("{function}: {op}"));
            location["logicalLocations"] =
                json!([{ "fullyQualifiedName": name, "kind": "function" }]);
        }
        let mut result = json!({
            "ruleId": d.rule.id,
            "ruleIndex": rule,
            "level": level(d.severity),
            "message": { "text": d.message },
            "locations": [location],
            "partialFingerprints": { FINGERPRINT: fingerprint },
            "properties": { "denied": denied },
        });
        if self.known.is_some() {
            result["baselineState"] = json!("new");
        }
        result
    }

    /// The program's file as a reference.
    fn uri(&self) -> String {
        let name = self.subject.name();
        let mut uri = if Path::new(name).is_absolute() { "file://" } else { "" }.to_owned();
        for byte in name.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                    uri.push(char::from(byte));
                }
                other => uri.push_str(&format!("%{other:02X}")),
            }
        }
        uri
    }
}

/// The number of a rule in the list, to whose end it is added.
fn index_of(rule: &'static Rule, rules: &mut Vec<&'static Rule>) -> usize {
    let found = rules.iter().position(|r| r.id == rule.id);
    found.unwrap_or_else(|| {
        rules.push(rule);
        rules.len() - 1
    })
}

const fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    }
}

fn descriptor(rule: &Rule) -> Value {
    let code = rule.code.map_or_else(String::new, |code| format!(" ({code})"));
    let does = |fix| format!("{}; `rigel check {}` does it", rule.fix, words::remedy(fix));
    let help = rule.rewriting.map_or_else(|| rule.fix.to_owned(), does);
    let sources = rule.evidence.iter().map(|e| format!("{} [{}]", e.source, words::trust(e.trust)));
    let mut descriptor = json!({
        "id": rule.id,
        "shortDescription": { "text": rule.title },
        "fullDescription": { "text": format!("{}. On the device: {}{code}.", rule.title, rule.symptom) },
        "help": { "text": help },
        "defaultConfiguration": { "level": level(rule.severity) },
        "properties": {
            "scope": words::scope(rule),
            "outcome": words::outcome(rule.outcome).0,
            "evidence": sources.collect::<Vec<_>>(),
        },
    });
    if let Some(fix) = rule.rewriting {
        descriptor["properties"]["rewriting"] = json!(fix.name());
    }
    descriptor
}
