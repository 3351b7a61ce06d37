//! Rewriting Core ML programs by passes, on every shared package that is no single operation.

use std::fs;
use std::path::{Path, PathBuf};

use mil::package::Package;
use serde_json::Value;

use crate::run::{assert_fails, json, rigel};

/// The shared packages of whole models.
fn packages() -> Vec<PathBuf> {
    let folder = testkit::shared_dir().join("coreml");
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|p| p.extension().is_some_and(|e| e == "mlpackage")).collect();
    found.sort();
    assert!(found.len() >= 40);
    found
}

fn opt(from: &Path, to: &Path, more: &[&str]) -> Value {
    let mut arguments =
        vec!["opt", from.to_str().unwrap(), "-o", to.to_str().unwrap(), "--json", "--force"];
    arguments.extend(more);
    json(&rigel(arguments))
}

/// What callers see of a package: functions with their inputs' and outputs' names and types, and description.
fn interface(path: &Path) -> Vec<String> {
    let package = Package::open(path).unwrap();
    mil::verify(&package.program).unwrap();
    let mut all = vec![format!("{:?}", package.description), package.spec_version.to_string()];
    for (name, f) in &package.program.functions {
        let shown = |v: &mil::ValueId| format!("{} {}", f.values[*v].name, f.ty(*v));
        let inputs: Vec<String> = f.inputs.iter().map(shown).collect();
        let outputs: Vec<String> = f.body.outputs.iter().map(shown).collect();
        all.push(format!("{name} {} {:?} {inputs:?} {outputs:?}", f.opset, f.attributes));
    }
    all
}

fn weight_bytes(package: &Path) -> u64 {
    let file = package.join("Data/com.apple.CoreML/weights/weight.bin");
    std::fs::metadata(file).map_or(0, |m| m.len())
}

#[test]
fn every_package_stays_what_it_is_and_a_second_time_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for path in packages() {
        let (once, twice) = (dir.path().join("a.mlpackage"), dir.path().join("b.mlpackage"));
        let shown = opt(&path, &once, &[]);
        let checked = shown["checked"].as_array().unwrap();
        assert!(!checked.is_empty(), "{}", path.display());
        assert_eq!(interface(&once), interface(&path), "{}", path.display());
        // Compressed weights stay compressed.
        let (before, after) = (weight_bytes(&path), weight_bytes(&once));
        assert!(after <= before, "{}: weights of {before} bytes take {after}", path.display());
        let again = opt(&once, &twice, &["--no-check"]);
        for pass in again["passes"].as_array().unwrap() {
            assert_eq!(pass["changes"], 0, "{} {pass}", path.display());
        }
    }
}

#[test]
fn what_flexible_shapes_states_and_functions_need_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, to) = (testkit::shared_dir().join("coreml"), dir.path().join("o.mlpackage"));
    let shown = opt(&folder.join("mlp_range.mlpackage"), &to, &[]);
    assert_eq!(shown["checked"][0]["shapes"], 2);
    let shown = opt(&folder.join("gpt2_stateful.mlpackage"), &to, &[]);
    assert_eq!(shown["checked"][0]["steps"], 3);
    let exact = opt(&folder.join("mlp_ios16.mlpackage"), &to, &["--pass", "cse"]);
    let names: Vec<&str> =
        exact["passes"].as_array().unwrap().iter().filter_map(|p| p["pass"].as_str()).collect();
    assert_eq!(names, ["const_dedup", "cse"]);
    assert_eq!(
        (&exact["closeness"], &exact["checked"][0]["difference"]),
        (&"bits".into(), &0.0.into())
    );
}

#[test]
fn text_goes_to_text_and_passes_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let from = testkit::shared_dir().join("coreml/mlp_ios18.mlpackage");
    let (text, back) = (dir.path().join("o.mil"), dir.path().join("o.mlpackage"));
    opt(&from, &text, &[]);
    assert!(dir.path().join("weights/weight.bin").is_file());
    opt(&text, &back, &[]);
    assert!(back.join("Manifest.json").is_file());
    let list = rigel(["opt", "--list"]);
    assert!(
        list.code == 0 && list.out.contains("transpose_sinking") && list.out.contains("before:")
    );
    let list = json(&rigel(["opt", "--list", "--json"]));
    assert_eq!(list["pipelines"]["plain"][0], "dead_code");
}

#[test]
fn nothing_is_written_where_something_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let from = testkit::shared_dir().join("coreml/mlp_ios18.mlpackage");
    let from = from.to_str().unwrap();
    let to = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert_fails(&rigel(["opt", from, "-o", &to("o.onnx")]), &["is named .mlpackage or .mil"]);
    let missing = rigel(["opt", &to("none.mlpackage"), "-o", &to("o.mlpackage")]);
    assert_fails(&missing, &["none.mlpackage"]);
    let input = rigel(["opt", from, "-o", &to("o.mlpackage"), "--input", "q=zeros"]);
    assert_fails(&input, &["no function has an input q"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    opt(Path::new(from), Path::new(&to("o.mlpackage")), &[]);
    let again = rigel(["opt", from, "-o", &to("o.mlpackage")]);
    assert_fails(&again, &["o.mlpackage", "--force"]);
    let inside = to("o.mlpackage/Data/x.mil");
    assert_fails(&rigel(["opt", &to("o.mlpackage"), "-o", &inside]), &["belongs to the source"]);
    // A way through the destination itself does not lose it.
    let round = to("o.mlpackage/../o.mlpackage");
    opt(Path::new(from), Path::new(&round), &[]);
    assert!(Package::open(to("o.mlpackage")).is_ok());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(rigel(["opt", from, "-o", &to("o.mlpackage"), "--pass", "magic"]).code, 2);
    assert_eq!(rigel(["opt", from]).code, 2);
}
