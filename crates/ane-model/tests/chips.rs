//! The chip files: every value has unit, source and status, what is unknown stays so, contradictions are kept.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

use rigel_ane_model::Chip;
use rigel_ane_model::chip::{Acceptance, Reload, SlotUnit, Status, Verdict};
use tensor::DType;
use toml::{Table, Value};

fn files() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("chips");
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .map(|p| {
            (p.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&p).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// Calls `f` on every value of a chip file, with its place.
fn facts(table: &Table, f: &mut dyn FnMut(&str, &Table)) {
    for (section, values) in table {
        let Value::Table(values) = values else { continue };
        for (field, fact) in values {
            f(&format!("{section}.{field}"), fact.as_table().unwrap());
        }
    }
}

#[test]
fn every_file_is_a_chip_of_its_name() {
    let files = files();
    assert_eq!(files.len(), Chip::all().len());
    for (name, text) in files {
        let chip = Chip::from_toml(&text).unwrap();
        assert_eq!(chip.name, name);
        assert_eq!(Chip::find(&name), Some(&chip));
    }
}

#[test]
fn every_value_has_a_source_and_disputes_have_claims() {
    for (name, text) in files() {
        facts(&toml::from_str(&text).unwrap(), &mut |field, fact| {
            let source = |t: &Table| t["source"].as_str().unwrap().trim().len();
            assert!(source(fact) > 2, "{name}: {field} has no source");
            let claims = fact.get("claims").and_then(Value::as_array).cloned().unwrap_or_default();
            for claim in &claims {
                let claim = claim.as_table().unwrap();
                assert!(source(claim) > 2, "{name}: a claim of {field} has no source");
                assert_ne!(claim["value"], fact["value"], "{name}: {field}");
            }
            let disputed = fact["status"].as_str() == Some("disputed");
            assert!(!disputed || !claims.is_empty(), "{name}: {field} is disputed by nobody");
        });
    }
}

#[test]
fn a_value_without_source_or_status_or_unit_is_refused() {
    let file = |fact: &str| {
        Chip::from_toml(&format!(
            "name = \"x\"\ntitle = \"X\"\nplatform = \"mac\"\n[limits]\nrank = {{ {fact} }}\n"
        ))
    };
    assert!(file("value = 5, unit = \"count\", status = \"measured\", source = \"s\"").is_ok());
    for (fact, message) in [
        ("value = 5, unit = \"count\", status = \"measured\"", "missing field `source`"),
        ("value = 5, unit = \"count\", source = \"s\"", "missing field `status`"),
        ("value = 5, status = \"measured\", source = \"s\"", "missing field `unit`"),
        ("value = 5, unit = \"count\", status = \"sure\", source = \"s\"", "\"sure\" is no status"),
        ("value = 5, unit = \"furlongs\", status = \"measured\", source = \"s\"", "furlongs"),
    ] {
        let error = file(fact).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let error =
        Chip::from_toml("name = \"x\"\ntitle = \"X\"\nplatform = \"mac\"\n[limits]\nranks = 1\n");
    assert!(error.unwrap_err().to_string().contains("ranks"));
    let error =
        Chip::from_toml("name = \"x\"\ntitle = \"X\"\nplatform = \"mac\"\ninherits = \"m0\"\n");
    assert!(error.unwrap_err().to_string().contains("\"m0\", which is no known chip"));
}

#[test]
fn what_is_inherited_is_assumed() {
    let max = Chip::find("m4-max").unwrap();
    let rank = max.limits.rank.as_ref().unwrap();
    assert_eq!((rank.value, &rank.status), (5, &Status::Assumed("m4".into())));
    let rate = max.rates.weight_gbps.as_ref().unwrap();
    assert_eq!((rate.value, &rate.status), (118.88, &Status::Measured));
    // Through two files: the name is of the chip that the value was found for.
    let phone = Chip::find("a18").unwrap().limits.width.clone().unwrap();
    assert_eq!((phone.value, phone.status), (65536, Status::Assumed("m4".into())));
}

#[test]
fn what_is_unknown_stays_unknown() {
    let m1 = Chip::find("m1").unwrap();
    assert_eq!(m1.limits.reduction, None);
    assert_eq!(m1.rates.int8_tops, None);
    assert_eq!(Chip::find("m3-ultra").unwrap().rates.weight_gbps, None);
    assert_eq!(
        Chip::find("a14").unwrap().identity.generation.clone().map(|g| g.status),
        Some(Status::Assumed("m2".into()))
    );
}

#[test]
fn generations_differ_as_published() {
    let chip = |name| Chip::find(name).unwrap();
    let verdict = |name, n| chip(name).limits.width.as_ref().unwrap().verdict(n);
    assert_eq!((verdict("m1", 16384), verdict("m1", 16385)), (Verdict::Within, Verdict::Exceeded));
    assert_eq!((verdict("m4", 65536), verdict("m4", 65537)), (Verdict::Within, Verdict::Exceeded));
    let channels = chip("m1").limits.channels.as_ref().unwrap();
    assert_eq!(channels.verdict(20000), Verdict::Disputed);
    let takes = |name, dtype| chip(name).io.dtypes.as_ref().unwrap().value.0.contains(&dtype);
    assert!(!takes("m1", DType::F32) && takes("m4", DType::F32));
    assert!(chip("m2").numerics.slice_offset_max.is_some());
    assert!(chip("m4").numerics.slice_offset_max.is_none());
    assert_eq!(chip("m6").identity.engines.as_ref().unwrap().value, 2);
}

#[test]
fn switches_hold_both_sides() {
    let s = &Chip::find("m4").unwrap().switches;
    let concat = s.concat.as_ref().unwrap();
    assert!(concat.is_disputed());
    assert_eq!(concat.value, Acceptance::Refused);
    assert_eq!(concat.claims[0].value, Acceptance::Accepted);
    assert_eq!(s.delta_reload.as_ref().unwrap().claims[0].value, Reload::Applied);
    assert_eq!(s.slot_unit.as_ref().unwrap().claims[0].value, SlotUnit::Files);
    let emulated = concat.clone().with(Acceptance::Accepted);
    assert_eq!(emulated.value, Acceptance::Accepted);
}
