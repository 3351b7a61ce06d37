//! What surrounds the rules: places, order, paths, systems, unknown values.

use std::collections::BTreeSet;

use rigel_ane_model::chip::{Acceptance, Chip};
use rigel_ane_model::rules::rules;
use rigel_ane_model::{CheckOptions, Path, Severity, check};

use crate::common::{chip, findings, program};

#[test]
fn rules_are_complete_and_their_ids_unique() {
    let mut ids = BTreeSet::new();
    for rule in rules() {
        assert!(ids.insert(rule.id), "{} is there twice", rule.id);
        let named = rule.id.strip_prefix("ane-").is_some_and(|s| {
            s.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        });
        assert!(named, "{} is no id", rule.id);
        for text in [rule.title, rule.symptom, rule.fix] {
            assert!(!text.is_empty() && text == text.trim(), "{}: \"{text}\"", rule.id);
        }
        assert!(!rule.evidence.is_empty() && !rule.paths.is_empty(), "{}", rule.id);
    }
}

#[test]
fn a_finding_says_where_it_is() {
    let text =
        "h[1, 4, 1, 64] x | h[1, 4, 1, 64] a = relu(x = x);\nh[1, 4, 1, 64] y = gelu(x = a); | y";
    let p = program(text);
    let options = CheckOptions { chip: chip("m4"), path: Path::Direct, os: None };
    let all = check(&p, &options);
    let found = all.iter().find(|d| d.rule.id == "ane-gelu").unwrap();
    assert_eq!(found.function.as_deref(), Some("main"));
    assert_eq!((found.index, found.name.as_deref()), (Some(1), Some("gelu \"y\"")));
    assert_eq!(found.severity, Severity::Error);
    assert!(found.span.unwrap().start > 0);
    let places: Vec<_> = all.iter().map(|d| (d.function.clone(), d.index)).collect();
    let mut sorted = places.clone();
    sorted.sort();
    assert_eq!(places, sorted);
}

#[test]
fn the_path_picks_the_rules() {
    let gelu = "h[1, 4, 1, 64] x | h[1, 4, 1, 64] y = gelu(x = x); | y";
    let ids = |path| -> Vec<_> {
        findings(gelu, chip("m4"), path, "").into_iter().map(|d| d.rule.id).collect()
    };
    assert!(ids(Path::Direct).contains(&"ane-gelu"));
    assert!(!ids(Path::CoreMl).contains(&"ane-gelu"));
}

#[test]
fn nothing_is_concluded_from_what_is_unknown() {
    let blank = Chip::from_toml("name = \"x\"\ntitle = \"X\"\nplatform = \"mac\"\n").unwrap();
    let long = "h[1, 4, 1, 90000] a, h[1, 4, 1, 90000] b | \
                h[1, 4, 1, 180000] y = concat(values = (a, b), axis = int32(3), interleave = bool(false)); | y";
    let found = findings(long, &blank, Path::Direct, "");
    assert!(
        !found
            .iter()
            .any(|d| ["ane-axis-limit", "ane-concat", "ane-io-dtype"].contains(&d.rule.id))
    );
}

#[test]
fn a_switch_turns_an_error_into_a_warning() {
    let text = "h[1, 4, 1, 64] x | h[1, 8, 1, 64] y = concat(values = (x, x), axis = int32(1), interleave = bool(false)); | y";
    let severity = |chip: &Chip| {
        let found = findings(text, chip, Path::Direct, "");
        found.into_iter().find(|d| d.rule.id == "ane-concat").map(|d| d.severity)
    };
    let mut machine = chip("m4").clone();
    assert_eq!(severity(&machine), Some(Severity::Error));
    machine.switches.concat = machine.switches.concat.map(|f| f.with(Acceptance::Accepted));
    assert_eq!(severity(&machine), None);
    assert_eq!(severity(chip("m1")), Some(Severity::Warning));
}

#[test]
fn a_settled_machine_has_no_doubts() {
    let text = "h[1, 20000, 1, 64] x | h[1, 20000, 1, 64] y = relu(x = x); | y";
    let severity = |chip: &Chip| {
        let found = findings(text, chip, Path::Direct, "");
        found.into_iter().find(|d| d.rule.id == "ane-axis-limit").map(|d| d.severity)
    };
    assert_eq!(severity(chip("m1")), Some(Severity::Warning));
    assert_eq!(severity(&chip("m1").settled()), Some(Severity::Error));
    assert_eq!(severity(chip("m4")), None);
}
