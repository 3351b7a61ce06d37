//! Differences for people, one a line: `-` for what only the first has, `+` for what only the second has, `~` for
//! what differs.

use super::{
    Change, Compared, FunctionDiff, NumericDiff, OperationDifference, ProgramDiff, Single,
    WeightChange,
};
use crate::difference::Difference;
use crate::units;

/// Renames listed before the rest are only counted.
const RENAMES: usize = 10;

/// The structural differences, one a line.
pub fn program_text(diff: &ProgramDiff) -> String {
    let mut lines: Vec<String> = diff.package.iter().map(changed).collect();
    lines.extend(diff.removed.iter().map(|name| format!("- function {name}")));
    lines.extend(diff.added.iter().map(|name| format!("+ function {name}")));
    for f in &diff.functions {
        function(f, &mut lines);
    }
    lines.join("\n")
}

fn function(f: &FunctionDiff, lines: &mut Vec<String>) {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let operations = [(f.same, "same"), (f.changed.len(), "changed"), (f.removed.len(), "removed")];
    let operations = operations.into_iter().chain([(f.added.len(), "added")]);
    let operations = operations.filter(|(n, what)| *n > 0 || *what == "same");
    let mut summary: Vec<String> = operations.map(|(n, what)| format!("{n} {what}")).collect();
    summary.extend((!f.weights.is_empty()).then(|| count(f.weights.len(), "weight") + " differ"));
    summary.extend((!f.renamed.is_empty()).then(|| format!("{} renamed", f.renamed.len())));
    let renamed = f.renamed_to.as_ref().map(|to| format!(" → {to}")).unwrap_or_default();
    lines.push(format!("function {}{renamed}: operations {}", f.name, summary.join(", ")));
    let mut add = |text: String| lines.push(format!("  {text}"));
    f.interface.iter().for_each(|c| add(changed(c)));
    f.removed.iter().for_each(|o| add(format!("- {}", single(o))));
    f.added.iter().for_each(|o| add(format!("+ {}", single(o))));
    for o in &f.changed {
        let changes: Vec<String> = o.changes.iter().map(|c| changed(c).split_off(2)).collect();
        add(format!("~ {} \"{}\": {}", o.kind, o.name, changes.join("; ")));
    }
    f.weights.iter().for_each(|w| add(weight(w)));
    let renames = f.renamed.iter().take(RENAMES);
    renames.for_each(|r| add(format!("name {} → {}", r.from, r.to)));
    if f.renamed.len() > RENAMES {
        add(format!("… {} names differ in all", f.renamed.len()));
    }
}

fn changed(change: &Change) -> String {
    let what = &change.what;
    match (&change.from, &change.to) {
        (Some(from), Some(to)) => format!("~ {what}: {from} → {to}"),
        (Some(from), None) => format!("- {what}: {from}"),
        (None, Some(to)) => format!("+ {what}: {to}"),
        (None, None) => format!("~ {what}"),
    }
}

fn single(o: &Single) -> String {
    let uses = if o.uses.is_empty() { String::new() } else { format!(" of {}", o.uses.join(", ")) };
    format!("{} \"{}\"{uses}: {}", o.kind, o.name, o.types.join(", "))
}

fn weight(w: &WeightChange) -> String {
    let (sign, name) = match (&w.from, &w.to) {
        (Some(_), None) => ('-', w.from.as_ref()),
        (None, _) => ('+', w.to.as_ref()),
        _ => ('~', w.from.as_ref()),
    };
    let name = name.map_or("", |s| s.name.as_str());
    let apart = if name.is_empty() { "" } else { " " };
    let mut parts = Vec::new();
    let both = |x: String, y: String| if x == y { x } else { format!("{x} → {y}") };
    match (&w.from, &w.to) {
        (Some(x), Some(y)) => {
            parts.push(both(x.ty.clone(), y.ty.clone()));
            if x.encoding != y.encoding {
                parts.push(format!("{} → {}", x.encoding, y.encoding));
            }
            parts.push(both(units::size(x.bytes), units::size(y.bytes)));
        }
        (Some(x), None) | (None, Some(x)) => {
            parts.extend([x.ty.clone(), x.encoding.clone(), units::size(x.bytes)]);
        }
        (None, None) => {}
    }
    parts.extend(w.difference.as_ref().map(figures));
    format!("{sign} weight{apart}{name} ({}): {}", w.used_by, parts.join("; "))
}

/// The figures of a difference on one line.
pub(super) fn figures(d: &Difference) -> String {
    if d.is_none() {
        return "same values".to_owned();
    }
    let mut parts = vec![format!("{} of {} differ", d.differing, d.elements)];
    if d.max_abs > 0.0 {
        parts.push(format!(
            "max abs {:.3e}, relative {:.3e}, rms {:.3e}",
            d.max_abs, d.relative, d.rms
        ));
    }
    parts.extend(d.cosine.filter(|_| d.max_abs > 0.0).map(|c| format!("cosine {c:.9}")));
    parts.extend(d.ulps.filter(|&n| n > 0).map(|n| format!("{n} ulp")));
    parts.extend((d.nan > 0).then(|| format!("{} NaN in one alone", d.nan)));
    parts.extend((d.infinite > 0).then(|| format!("{} infinite in one alone", d.infinite)));
    parts.join(", ")
}

/// The numeric differences, one a line.
pub fn numeric_text(diff: &NumericDiff) -> String {
    let steps = diff.outputs.iter().map(|o| o.step).max().unwrap_or(0) + 1;
    let place = |step: usize| if steps > 1 { format!("step {step} ") } else { String::new() };
    let mut lines = Vec::new();
    let same = |o: &&OperationDifference| o.difference.as_ref().is_some_and(Difference::is_none);
    for o in diff.operations.iter().filter(|o| !same(o)) {
        let OperationDifference { step, kind, name, difference, exceeds } = o;
        let figures = difference.as_ref().map_or("shapes differ".to_owned(), figures);
        let mark = if *exceeds { '!' } else { ' ' };
        lines.push(format!("{mark} {}{kind} \"{name}\": {figures}", place(*step)));
    }
    if !diff.operations.is_empty() {
        let count = diff.operations.iter().filter(same).count();
        lines.push(format!(
            "  {count} of {} results of operations are the same",
            diff.operations.len()
        ));
    }
    let compared = [("output", &diff.outputs), ("state", &diff.states)];
    for (what, c) in compared.into_iter().flat_map(|(what, all)| all.iter().map(move |c| (what, c)))
    {
        lines.push(result(what, &place(c.step), c));
    }
    if let Some(d) = &diff.first_divergence {
        let other = if d.other == d.operation { String::new() } else { format!(" ({})", d.other) };
        lines.push(format!(
            "first divergence: {}{}{other}: {}",
            place(d.step),
            d.operation,
            figures(&d.difference)
        ));
    } else if !diff.operations.is_empty() {
        lines.push(format!("no operation diverges by more than {:e}", diff.tolerance));
    }
    lines.join("\n")
}

fn result(what: &str, place: &str, c: &Compared) -> String {
    let mark = if c.exceeds { '!' } else { ' ' };
    let ty = c.other_type.as_ref().map_or(c.ty.clone(), |other| format!("{} → {other}", c.ty));
    let figures = c.difference.as_ref().map_or("shapes differ".to_owned(), figures);
    let argmax =
        c.argmax.map(|a| format!(", largest in the same place in {} of {} rows", a.agree, a.rows));
    format!("{mark} {place}{what} {} ({ty}): {figures}{}", c.name, argmax.unwrap_or_default())
}
