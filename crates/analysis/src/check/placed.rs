//! Where Core ML would run the operations of a function, as a table for people and as JSON.

use std::fmt::Write as _;

use ane_model::Chip;
use ane_model::placement::{Backend, OpPlacement, Placement, Support};
use mil::Function;
use serde_json::{Value, json};

use super::words::counted;
use super::{Placed, Subject};

/// What is said of every number of it.
pub(super) const SOURCE: &str =
    "predicted with fits to a few of Apple's published estimates; nothing is measured";

/// Rows that are shown if not all are.
const SHOWN: usize = 20;

/// A path that costs less than so much more may be taken instead, in milliseconds.
const TIE_MS: f64 = 1e-4;

/// The table.
pub(super) fn text(placed: &Placed, subject: &Subject, chip: &Chip, all: bool) -> String {
    let Placed { function: name, outcome } = placed;
    let placement = match outcome {
        Ok(placement) => placement,
        Err(error) => return format!("placement of {name}: {error}\n"),
    };
    let Some(function) = subject.program().functions.get(name) else { return String::new() };
    let mut out =
        format!("placement of {name} on {}, {SOURCE}\n  {}\n", chip.title, said(placement));
    let alike = |a: &OpPlacement, b: &OpPlacement| {
        !all && (a.chosen, a.supported) == (b.chosen, b.supported) && rules(a) == rules(b)
    };
    let rows: Vec<&[OpPlacement]> = placement.ops.chunk_by(alike).collect();
    let shown = if all { rows.len() } else { SHOWN };
    out.push_str(
        "   line  operations                                  supported  runs on      why\n",
    );
    for row in rows.iter().take(shown) {
        let line = subject.line_of(name, row[0].op).map_or_else(String::new, |n| n.to_string());
        let _ = writeln!(
            out,
            "  {line:>5}  {:<43} {:<10} {:<12} {}",
            kinds(function, row),
            supported(row[0].supported),
            row[0].chosen.name(),
            why(row, all)
        );
    }
    if let Some(more) = rows.len().checked_sub(shown).filter(|&n| n > 0) {
        let _ = writeln!(out, "         and {more} more rows; --all shows every operation");
    }
    out
}

/// What of a placement is said in one line.
fn said(placement: &Placement) -> String {
    let ops = &placement.ops;
    let number = |support| ops.iter().filter(|op| op.supported == support).count();
    format!(
        "{}: {} supported by the engine, {} not, {} unknown; {} would run on it, in {}",
        counted(ops.len(), "operation", "operations"),
        number(Support::Yes),
        number(Support::No),
        number(Support::Unknown),
        placement.on_ane(),
        counted(placement.ane_segments(), "segment", "segments"),
    )
}

/// The kinds of a run of operations.
fn kinds(function: &Function, row: &[OpPlacement]) -> String {
    const WIDTH: usize = 34;
    if let [op] = row {
        return function.describe(op.op);
    }
    let mut kinds: Vec<&str> = Vec::new();
    for op in row {
        let kind = function.ops[op.op].kind.name();
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let mut text = format!("{}: {}", row.len(), kinds.join(", "));
    if let Some((cut, _)) = text.char_indices().nth(WIDTH) {
        text.truncate(cut);
        text.push('…');
    }
    text
}

const fn supported(support: Support) -> &'static str {
    match support {
        Support::Yes => "yes",
        Support::No => "no",
        Support::Unknown => "unknown",
    }
}

fn rules(op: &OpPlacement) -> Vec<&'static str> {
    op.why_not.iter().map(|(rule, _)| *rule).collect()
}

/// Why a run of operations is where it is.
fn why(row: &[OpPlacement], numbers: bool) -> String {
    let first = &row[0];
    let mut why = match (first.supported, first.chosen) {
        (Support::No, _) if !first.why_not.is_empty() => rules(first).join(", "),
        (Support::No, _) => "models of this one operation were refused".to_owned(),
        (_, Backend::Ane) => String::new(),
        _ => "the path costs less there".to_owned(),
    };
    if row.iter().any(|op| op.margin_ms.is_some_and(|ms| ms < TIE_MS)) {
        why.push_str(if why.is_empty() { "a tie" } else { "; a tie" });
    }
    if numbers {
        let e = &first.estimates;
        let each = [e.ane_ms, e.bnns_ms, e.classic_ms].map(|ms| format!("{ms:.4}"));
        let separator = if why.is_empty() { "" } else { "; " };
        let _ = write!(why, "{separator}estimates {} ms", each.join(" / "));
    }
    why
}

/// The same as JSON.
pub(super) fn json(placed: &Placed, subject: &Subject) -> Value {
    let Placed { function: name, outcome } = placed;
    let placement = match outcome {
        Ok(placement) => placement,
        Err(error) => return json!({ "function": name, "unknown": error.to_string() }),
    };
    let function = subject.program().functions.get(name);
    let operation = |op: &OpPlacement| {
        let obstacle =
            |(rule, message): &(&str, String)| json!({ "rule": rule, "message": message });
        let e = &op.estimates;
        json!({
            "index": op.index,
            "op": function.map(|f| f.describe(op.op)),
            "line": subject.line_of(name, op.op),
            "supported": supported(op.supported),
            "why_not": op.why_not.iter().map(obstacle).collect::<Vec<_>>(),
            "chosen": op.chosen.name(),
            "margin_ms": op.margin_ms,
            "estimates_ms": { "ane": e.ane_ms, "bnns": e.bnns_ms, "classic_cpu": e.classic_ms },
        })
    };
    json!({
        "function": name,
        "source": SOURCE,
        "operations": placement.ops.len(),
        "on_ane": placement.on_ane(),
        "ane_segments": placement.ane_segments(),
        "path_cost_ms": placement.cost_ms,
        "ops": placement.ops.iter().map(operation).collect::<Vec<_>>(),
    })
}
