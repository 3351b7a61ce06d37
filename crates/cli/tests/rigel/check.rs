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

/// What `check --fix` made of an artefact, as JSON.
fn fixed(name: &str, to: &str, arguments: &[&str]) -> serde_json::Value {
    let source = artefact(name);
    let always =
        ["check", &source, "--fix", "-o", to, "--force", "--format", "json", "--deny", "none"];
    let outcome = rigel([&always[..], arguments].concat());
    assert_eq!(outcome.code, 0, "{name}: {}", outcome.err);
    json(&outcome)
}

#[test]
fn what_is_fixed_is_compared_written_and_reported_on() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("fixed.mlpackage");
    let (source, to) = (artefact("mlp_ios18.mlpackage"), to.to_str().unwrap());
    let arguments = ["check", &source, "--path", "direct", "--fix", "-o", to];
    let outcome = rigel(arguments);
    assert_eq!(outcome.code, 0, "{}{}", outcome.out, outcome.err);
    for part in ["fixed ane-gelu: main: gelu ", "checked main: 1 set of input shapes", "wrote "] {
        assert!(outcome.out.contains(part), "no {part} in {}", outcome.out);
    }
    assert!(!outcome.out.contains("error[ane-gelu]"), "{}", outcome.out);
    let again = rigel(["check", to, "--path", "direct"]);
    assert_eq!(again.code, 0, "{}", again.out);
    // Nothing is written over by accident, and the source never.
    let second = rigel(arguments);
    assert_eq!(second.code, 2);
    assert!(second.err.contains("--force replaces it"), "{}", second.err);
    let over = rigel(["check", &source, "--fix", "--force", "-o", &source]);
    assert!(over.err.contains("belongs to the source"), "{}", over.err);
    assert_eq!(rigel(["check", &source, "--fix"]).code, 2);
}

#[test]
fn single_operations_are_fixed() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("fixed.mil");
    let to = to.to_str().unwrap();
    let cases = [
        ("zoo/gelu_EXACT.fp16", "gelu", 5e-3),
        ("zoo/gelu_EXACT.fp32", "gelu", 1e-6),
        ("zoo/gelu_TANH_APPROXIMATION.fp16", "gelu", 5e-3),
        ("zoo/rsqrt.fp16", "rsqrt", 1e-9),
        ("ane_block_ios18", "conv-bias", 5e-3),
    ];
    for (name, fix, limit) in cases {
        let package = format!("{name}.mlpackage");
        // Positive numbers, for the root.
        let input: &[&str] =
            if fix == "rsqrt" { &["--input", "x=1,2,3,4,5,6,7,8,9,0.5"] } else { &[] };
        let report = fixed(&package, to, &[&["--path", "direct"], input].concat());
        let fixes = &report["fixes"];
        let applied = fixes["applied"].as_array().unwrap();
        assert!(applied.iter().any(|a| a["fix"] == fix), "{name}: {fixes}");
        let checked = fixes["checked"].as_array().unwrap();
        assert!(!checked.is_empty());
        for c in checked {
            assert!(c["difference"].as_f64().unwrap() <= limit, "{name}: {c}");
        }
    }
}

#[test]
fn states_are_padded_if_the_interface_may_change() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("fixed.mlpackage");
    let to = to.to_str().unwrap();
    let kept = fixed("gpt2_stateful.mlpackage", to, &[]);
    assert_eq!(kept["fixes"]["interface"].as_array().unwrap().len(), 0);
    let why = |l: &serde_json::Value| l["why"] == "interface" && l["rule"] == "ane-state-dimension";
    assert!(kept["fixes"]["left"].as_array().unwrap().iter().any(why), "{}", kept["fixes"]);
    let padded = fixed("gpt2_stateful.mlpackage", to, &["--fix-interface"]);
    let changes = padded["fixes"]["interface"].as_array().unwrap();
    let names: Vec<&str> = changes.iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["k_cache", "v_cache"]);
    assert!(changes[0]["to"].as_str().unwrap().contains("[2, 1, 4, 32, 32]"), "{}", changes[0]);
    let checked = &padded["fixes"]["checked"][0];
    assert_eq!(checked["steps"], 3);
    assert!(checked["difference"].as_f64().unwrap() < 1e-9, "{checked}");
    let left = |f: &serde_json::Value| f["rule"] == "ane-state-dimension";
    assert!(!padded["findings"].as_array().unwrap().iter().any(left));
}

#[test]
fn nothing_is_written_where_nothing_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("fixed.mlpackage");
    let report = fixed("gpt2_stateful.mlpackage", to.to_str().unwrap(), &[]);
    assert_eq!(report["fixes"]["applied"], serde_json::json!([]));
    assert_eq!(report["fixes"]["written"], serde_json::Value::Null);
    assert!(report["file"].as_str().unwrap().ends_with("gpt2_stateful.mlpackage"), "{report}");
    let source = artefact("gpt2_stateful.mlpackage");
    let told = rigel(["check", &source, "--fix", "-o", to.to_str().unwrap(), "--deny", "none"]);
    assert!(told.out.contains("nothing was rewritten, and nothing is written"), "{}", told.out);
    let left = told.out.lines().find(|l| l.starts_with("left ane-state-dimension: ")).unwrap();
    assert!(left.contains("_cache"), "{left}");
    assert!(!to.exists());
    // Nor is something of before passed off as the result.
    std::fs::create_dir(&to).unwrap();
    let told = rigel(["check", &source, "--fix", "--force", "-o", to.to_str().unwrap()]);
    assert!(told.code != 0 && told.err.contains("is left as it was"), "{}", told.err);
    assert!(to.is_dir());
}

#[test]
fn weights_of_a_neighbour_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let source = artefact("ane_block_ios18.mlpackage");
    let fix = |to: &str| {
        let fix = ["--path", "direct", "--fix", "--force", "--deny", "none"];
        rigel([&["check", &source, "-o", to], &fix[..]].concat())
    };
    let (first, second) = (place("first.mil"), place("second.mil"));
    assert_eq!(fix(&first).code, 0);
    let weights = fs::read(dir.path().join("weights/weight.bin")).unwrap();
    let refused = fix(&second);
    assert_eq!(refused.code, 2, "{}", refused.out);
    assert!(refused.err.contains("first.mil has its weights in"), "{}", refused.err);
    assert_eq!(fs::read(dir.path().join("weights/weight.bin")).unwrap(), weights);
    // Its own it may replace.
    assert_eq!(fix(&first).code, 0);
}

#[test]
fn an_epsilon_that_is_written_out_is_the_one_that_was_meant() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (source, to) = (place("log.mil"), place("fixed.mil"));
    let ty = "tensor<fp32, [1, 4, 1, 64]>";
    let text = format!(
        "program(1.3)\n[]\n{{\n    func main<ios18>({ty} x) {{\n        {ty} y = log(x = x);\n    }} -> (y);\n}}"
    );
    fs::write(&source, text).unwrap();
    // Zero, where nothing but the epsilon counts.
    let fix = ["--path", "direct", "--fix", "--input", "x=zeros", "--deny", "none"];
    let outcome = rigel([&["check", &source, "-o", &to], &fix[..]].concat());
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    assert!(outcome.out.contains("epsilon = 1e-45"), "{}", outcome.out);
}
