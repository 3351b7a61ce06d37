//! The catalogue against the operations that coremltools registers.

use std::collections::{BTreeMap, BTreeSet};

use mil::ops::{OPS, UNSUPPORTED};
use mil::{OpKind, Opset};

#[test]
fn names_opsets_and_parameters_are_those_of_coremltools() {
    let golden = testkit::workspace_dir().join("tests/golden/mil_ops.txt");
    let golden = std::fs::read_to_string(golden).unwrap();
    let mut expected = BTreeMap::new();
    for line in golden.lines() {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        // What neural networks had before is in the first operation set of programs.
        let opset = words.next().unwrap().parse().unwrap_or(Opset::Ios15);
        expected.insert(name, (opset, words.collect::<BTreeSet<_>>()));
    }
    let mut failures = Vec::new();
    for (name, (opset, params)) in &expected {
        let Some(kind) = OpKind::from_name(name) else {
            if !UNSUPPORTED.contains(name) {
                failures.push(format!("{name} is missing"));
            }
            continue;
        };
        let def = kind.def();
        if def.opset() != *opset {
            failures.push(format!("{name} is of {opset}, not {}", def.opset()));
        }
        let own: BTreeSet<&str> = def.params().iter().map(|p| p.name).collect();
        // Compressed constants may have operands as attributes.
        let fits = if kind.is_constexpr() { own.is_subset(params) } else { own == *params };
        if !fits {
            failures.push(format!("{name} has {params:?}, not {own:?}"));
        }
    }
    for kind in OPS.iter().filter(|k| !k.name().starts_with("llm.")) {
        if !expected.contains_key(kind.name()) && *kind != OpKind::WriteState {
            failures.push(format!("{} is not of coremltools", kind.name()));
        }
    }
    for name in UNSUPPORTED {
        if OpKind::from_name(name).is_some() || !expected.contains_key(name) {
            failures.push(format!("{name} is not unsupported"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
