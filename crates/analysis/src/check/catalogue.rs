//! The rules and chips that there are.

use std::fmt::Write as _;

use ane_model::Chip;
use ane_model::rules::TOPICS;
use serde_json::{Map, Value, json};

use super::json::rule_json;
use super::words;

/// Rules by topic, then chips, for people.
pub fn catalogue_text() -> String {
    let mut out = String::new();
    for (topic, rules) in TOPICS {
        let _ = writeln!(out, "{topic}");
        for rule in *rules {
            let paths: Vec<&str> = rule.paths.iter().map(|&p| words::route(p)).collect();
            let _ = writeln!(
                out,
                "  {:<30} {:<8} {:<14} {}",
                rule.id,
                words::severity(rule.severity),
                paths.join(", "),
                rule.title
            );
        }
    }
    out.push_str("chips\n ");
    for chip in Chip::all() {
        let _ = write!(out, " {}", chip.name);
    }
    out
}

/// The same as JSON: `rules` by name, each with `topic`, `paths`, `title`, `severity`, `outcome`, `symptom`,
/// `code`, `scope`, `evidence`, `fix`, `rewriting`; and `chips`, each with `name` and `title`.
pub fn catalogue_json() -> Value {
    let mut all = Map::new();
    for (topic, rules) in TOPICS {
        for rule in *rules {
            let mut value = rule_json(rule);
            value["topic"] = json!(topic);
            value["paths"] = rule.paths.iter().map(|&p| words::route(p)).collect();
            all.insert(rule.id.to_owned(), value);
        }
    }
    let chips = Chip::all().iter().map(|c| json!({ "name": c.name, "title": c.title }));
    json!({ "rules": all, "chips": chips.collect::<Vec<_>>() })
}
