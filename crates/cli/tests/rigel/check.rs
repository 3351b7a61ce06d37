//! Checking programs against the Neural Engine's rules: exit status, formats, baselines.

use std::fs;

use crate::run::{json, model, rigel};

fn artefact(name: &str) -> String {
    let path = testkit::shared_dir().join("coreml").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn findings_decide_the_exit_status() {
    let package = artefact("mlp_ios18.mlpackage");
    let check =
        |arguments: &[&str]| rigel([&["check", &package, "--path", "direct"], arguments].concat());
    let refused = check(&[]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(refused.out.contains("error[ane-gelu]"), "{}", refused.out);
    assert!(refused.out.contains("for M4 through the private framework"), "{}", refused.out);
    assert!(!refused.out.contains('\x1b'));
    assert_eq!(check(&["--deny", "none"]).code, 0);
    assert_eq!(check(&["--deny", "none", "--deny", "ane-gelu"]).code, 1);
    let allowed = check(&["--allow", "ane-gelu"]);
    assert_eq!(allowed.code, 0, "{}", allowed.out);
    assert!(allowed.out.contains("1 finding allowed"), "{}", allowed.out);
}

#[test]
fn what_cannot_be_checked_is_status_2() {
    let cases: [&[&str]; 7] = [
        &["check"],
        &["check", "./no/such.mlpackage"],
        &["check", &artefact("mlp_ios18.mlpackage"), "--chip", "m99"],
        &["check", &artefact("mlp_ios18.mlpackage"), "--os", "windows11"],
        &["check", &artefact("mlp_ios18.mlpackage"), "--deny", "ane-nonsense"],
        &["check", &artefact("mlp_ios18.mlpackage"), "--function", "nonsense"],
        &["check", &artefact("mlp_ios18.mlpackage"), "--baseline", "./no/such.json"],
    ];
    for arguments in cases {
        let outcome = rigel(arguments);
        assert_eq!((outcome.code, outcome.out.as_str()), (2, ""), "{arguments:?}: {}", outcome.err);
        assert!(outcome.err.starts_with("error: "), "{}", outcome.err);
    }
}

#[test]
fn a_baseline_is_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let known = dir.path().join("known.json");
    let (package, known) = (artefact("gpt2_stateful.mlpackage"), known.to_str().unwrap());
    let check = |arguments: &[&str]| {
        rigel([&["check", &package, "--format", "json", "--deny", "info"], arguments].concat())
    };
    let written = json(&check(&["--write-baseline", known]));
    let all = written["findings"].as_array().unwrap().len();
    assert!(all > 0);
    let again = json(&check(&["--baseline", known]));
    assert_eq!((&again["summary"]["known"], &again["summary"]["denied"]), (&all.into(), &0.into()));
    let [placement] = again["placements"].as_array().unwrap().as_slice() else { panic!() };
    let first = &placement["ops"][0];
    assert!(first["line"].is_u64() && first["estimates_ms"]["ane"].is_f64(), "{first}");
    fs::write(known, "{}").unwrap();
    assert_eq!(check(&["--baseline", known]).code, 2);
}

#[test]
fn a_language_model_is_checked_as_it_would_be_converted() {
    let outcome = rigel([
        "check",
        &model("stories260K.bin"),
        "--deny",
        "none",
        "--format",
        "sarif",
        "--function",
        "decode",
    ]);
    let sarif = json(&outcome);
    let run = &sarif["runs"][0];
    assert_eq!(
        (&sarif["version"], &run["tool"]["driver"]["name"]),
        (&"2.1.0".into(), &"rigel".into())
    );
    let results = run["results"].as_array().unwrap();
    assert!(!results.is_empty());
    for result in results {
        let region = &result["locations"][0]["physicalLocation"]["region"];
        assert!(region["startLine"].is_u64(), "{result}");
    }
}

#[test]
fn rules_and_chips_are_listed() {
    let list = rigel(["check", "--list"]);
    assert_eq!(list.code, 0);
    assert!(list.out.contains("ane-conv-bias") && list.out.contains("m4-max"), "{}", list.out);
    let list = json(&rigel(["check", "--list", "--format", "json"]));
    assert_eq!(list["rules"]["ane-conv-bias"]["paths"][0], "direct");
}
