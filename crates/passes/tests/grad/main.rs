//! Gradients against central finite differences in double precision, rule by rule and composed.
#![allow(clippy::unwrap_used, reason = "a test")]

extern crate rigel_passes as passes;

mod harness;
mod interface;
mod language;
mod moves;
mod plain;

use std::collections::BTreeSet;

use harness::{Made, check};
use mil::OpKind;
use mil::ops::OPS;
use passes::grad::{Coverage, coverage};
use passes::pipelines::{OPTIMIZE, PLAIN};

/// How many draws of sizes and values each case has.
const SEEDS: u64 = 5;

fn all(seed: u64) -> Vec<Made> {
    let mut made = plain::cases(seed);
    made.extend(moves::cases(seed));
    made.extend(language::cases(seed));
    made
}

#[test]
fn every_rule_agrees_with_finite_differences() {
    let (mut failures, mut worst, mut cases) = (Vec::new(), (0.0, String::new()), 0);
    for seed in 0..SEEDS {
        for made in all(seed) {
            cases += 1;
            match check(&made, &[]) {
                Ok(error) if error > worst.0 => worst = (error, made.name()),
                Ok(_) => {}
                Err(e) => failures.push(format!("{} (seed {seed}): {e}", made.name())),
            }
        }
    }
    println!("{cases} cases; the largest relative error is {:.1e}, of {}", worst.0, worst.1);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The gradients are programs like others: rewritten for a backend or into plain MIL they are the same.
#[test]
fn gradients_survive_the_pipelines() {
    for (pipeline, seed) in [(OPTIMIZE, 0), (PLAIN, 1)] {
        // Folding rounds constants to half precision where the program does.
        for made in all(seed).into_iter().filter(|m| m.name() != "cast") {
            check(&made, pipeline).unwrap_or_else(|e| panic!("{}: {e}", made.name()));
        }
    }
}

#[test]
fn every_rule_has_a_case() {
    let used: BTreeSet<OpKind> = all(0).iter().flat_map(Made::kinds).collect();
    let missing: Vec<&str> = OPS
        .iter()
        .filter(|&&k| matches!(coverage(k), Coverage::Rule | Coverage::Expanded))
        .filter(|k| !used.contains(k))
        .map(|k| k.name())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The table in the documentation; `RIGEL_BLESS=1` writes it.
#[test]
fn coverage_table() {
    let mut table = String::from(
        "# Gradients\n\nHow `passes::grad` differentiates each operation; made by the tests of `passes`.\n",
    );
    let headings = [
        (Coverage::Rule, "By a rule"),
        (Coverage::Expanded, "As simpler operations"),
        (
            Coverage::Zero,
            "Zero: steps, integers, truth values, constants, what depends on sizes alone",
        ),
        (Coverage::Unsupported, "Not supported: an error where the loss depends on it"),
    ];
    for (which, heading) in headings {
        let mut names: Vec<String> = OPS
            .iter()
            .filter(|&&k| coverage(k) == which)
            .map(|k| format!("`{}`", k.name()))
            .collect();
        names.sort();
        table += &format!("\n## {heading} ({})\n\n{}\n", names.len(), names.join(", "));
    }
    let path = testkit::workspace_dir().join("crates/passes/gradients.md");
    if std::env::var_os("RIGEL_BLESS").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), table, "RIGEL_BLESS=1 writes it anew");
}
