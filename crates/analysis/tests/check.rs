//! Reports on every shared artefact, as recorded, and on the programs that people ask about first.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ane_model::{Chip, Path as Route};
use mil::text::BlobSource;
use mil::{OpError, TensorType};
use rigel_analysis::check::{Baseline, Options, Policy, Report, Subject, TextOptions, check};
use serde_json::Value;
use tensor::Tensor;

/// Weight files of zeros, of any size.
struct Zeros;

impl BlobSource for Zeros {
    fn tensor(&self, _: &str, _: u64, ty: &TensorType) -> Result<Tensor, OpError> {
        let shape = ty.fixed_shape().ok_or_else(|| OpError::invalid("an open shape"))?;
        Tensor::zeros(ty.dtype, &shape).map_err(|e| OpError::invalid(e.to_string()))
    }
}

fn options(chip: &str, route: Route) -> Options<'static> {
    Options { chip: Chip::find(chip).unwrap(), route, os: None, function: None }
}

fn policy(deny: &[&str], allow: &[&str]) -> Policy {
    Policy::new(deny, allow).unwrap()
}

/// A function `main` of iOS 18 in MIL text, a file called `seed.mil`.
fn seed(inputs: &str, body: &str, output: &str) -> Subject {
    let text = format!(
        "program(1.3)\n[buildInfo = dict<string, string>({{{{\"emitter\", \"a test\"}}}})]\n{{\n    func \
         main<ios18>({inputs}) {{\n{body}    }} -> ({output});\n}}\n"
    );
    Subject::of_text("seed.mil", &text, &Zeros).unwrap()
}

/// A weight in the weight file.
fn weight(name: &str, shape: &str) -> String {
    format!(
        "        tensor<fp16, [{shape}]> {name} = const()[val = tensor<fp16, [{shape}]>(BLOBFILE(path = \
         string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];\n"
    )
}

/// A convolution of one tap over 16 positions.
fn conv(inputs: u32, outputs: u32) -> Subject {
    let body = weight("w", &format!("{outputs}, {inputs}, 1, 1"))
        + &format!(
            "        tensor<fp16, [1, {outputs}, 1, 16]> y = conv(x = x, weight = w)[name = string(\"head\")];\n"
        );
    seed(&format!("tensor<fp16, [1, {inputs}, 1, 16]> x"), &body, "y")
}

fn history() -> Subject {
    seed(
        "tensor<fp16, [1, 4, 65536, 64]> past, tensor<fp16, [1, 4, 64, 64]> block",
        "        tensor<fp16, [1, 4, 65600, 64]> y = concat(values = (past, block), axis = int32(2), interleave = \
         bool(false))[name = string(\"history\")];\n",
        "y",
    )
}

fn attention() -> Subject {
    seed(
        "tensor<fp16, [1, 8, 2048, 64]> q, tensor<fp16, [1, 8, 2048, 64]> k, tensor<fp16, [1, 8, 2048, 64]> v",
        "        tensor<fp16, [1, 8, 2048, 64]> y = scaled_dot_product_attention(query = q, key = k, value = v)[name = \
         string(\"attention\")];\n",
        "y",
    )
}

fn unequal_inputs() -> Subject {
    seed(
        "tensor<fp16, [1, 768, 1, 32]> x, tensor<fp16, [1, 768, 1, 16]> lora_a",
        "        tensor<fp16, [1, 768, 1, 32]> y = relu(x = x)[name = string(\"y\")];\n",
        "y",
    )
}

fn text(report: &Report<'_>) -> String {
    report.text(TextOptions::default())
}

fn whole(subject: &Subject, chip: &str, route: Route) -> String {
    text(&check(subject, &options(chip, route), &policy(&[], &[]), None).unwrap())
}

#[test]
fn a_convolution_of_32k_channels() {
    insta::assert_snapshot!(whole(&conv(33_000, 16), "m4-max", Route::Direct));
}

#[test]
fn a_history_of_65536_with_a_block_of_64_rows() {
    insta::assert_snapshot!(whole(&history(), "m6", Route::CoreMl));
}

#[test]
fn attention_over_2048_positions() {
    insta::assert_snapshot!(whole(&attention(), "m4", Route::CoreMl));
}

#[test]
fn the_73_megabyte_head_of_gpt2() {
    insta::assert_snapshot!(whole(&conv(768, 50_257), "m4-max", Route::Direct));
}

#[test]
fn inputs_of_unequal_sizes_in_surfaces_of_one_size() {
    insta::assert_snapshot!(whole(&unequal_inputs(), "m4-max", Route::Direct));
}

fn packages() -> Vec<PathBuf> {
    let folder = testkit::shared_dir().join("coreml");
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|p| p.extension().is_some_and(|e| e == "mlpackage")).collect();
    found.sort();
    assert!(found.len() >= 40);
    found
}

/// Everything found, a line each without the path, and what was placed.
fn compact(subject: &Subject, route: Route) -> String {
    let report = check(subject, &options("m4", route), &policy(&[], &[]), None).unwrap().json();
    let mut out = format!("  {route:?}\n");
    for f in report["findings"].as_array().unwrap() {
        let word = |key: &str| f[key].as_str().unwrap_or("-").to_owned();
        let (rule, severity, op, message) =
            (word("rule"), word("severity"), word("op"), word("message"));
        writeln!(out, "    {}:{}: {severity} {rule}: {op}: {message}", f["line"], f["column"])
            .unwrap();
    }
    for p in report["placements"].as_array().unwrap() {
        let number = |key: &str| p[key].as_u64().unwrap();
        let [all, on, segments] = ["operations", "on_ane", "ane_segments"].map(number);
        writeln!(out, "    {}: {on} of {all} on the engine in {segments} segments", p["function"])
            .unwrap();
    }
    out
}

#[test]
fn shared_artefacts() {
    let mut out = String::new();
    for path in packages() {
        let subject = Subject::open(&path).unwrap();
        writeln!(out, "{}", path.file_stem().unwrap().to_string_lossy()).unwrap();
        out += &compact(&subject, Route::Direct);
        out += &compact(&subject, Route::CoreMl);
    }
    insta::assert_snapshot!(out);
}

/// Apple's own text and the printed text of the package have the same findings in the same operations.
#[test]
fn a_text_and_its_package_agree() {
    let folder = testkit::shared_dir().join("coreml");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.mil");
    for name in ["gpt2_stateful", "llama_multifunction", "ane_block_ios16"] {
        let package = folder.join(format!("{name}.mlpackage"));
        let weights = dir.path().join("weights");
        fs::create_dir_all(&weights).unwrap();
        let from = package.join("Data/com.apple.CoreML/weights/weight.bin");
        fs::write(weights.join("weight.bin"), fs::read(from).unwrap()).unwrap();
        fs::write(&file, fs::read(folder.join(format!("{name}.mil"))).unwrap()).unwrap();
        let told = |path: &Path| {
            let subject = Subject::open(path).unwrap();
            let options = options("m1", Route::Direct);
            let report = check(&subject, &options, &policy(&[], &[]), None).unwrap();
            assert!(report.findings.iter().all(|f| f.place.is_some()), "{name}");
            let mut prints: Vec<String> =
                report.findings.iter().map(|f| f.fingerprint.clone()).collect();
            prints.sort();
            prints
        };
        assert_eq!(told(&file), told(&package), "{name}");
    }
}

#[test]
fn every_pointer_points_at_the_operation() {
    let subject = Subject::open(&packages()[0]).unwrap();
    let options = options("m1", Route::Direct);
    let report = check(&subject, &options, &policy(&[], &[]), None).unwrap();
    assert!(report.findings.len() > 3);
    let shown = report.text(TextOptions { all: true, colour: false });
    for finding in &report.findings {
        let place = finding.place.as_ref().unwrap();
        let pointer = format!("{}:{}:{}", subject.name(), place.line, place.column);
        assert!(shown.contains(&pointer), "no {pointer} in {shown}");
    }
}

#[test]
fn a_baseline_hides_what_is_known_and_tells_what_has_gone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("known.json");
    let (options, all) = (options("m4-max", Route::Direct), policy(&["info"], &[]));
    let wide = conv(33_000, 16);
    let before = check(&wide, &options, &all, None).unwrap();
    assert!(before.denied() > 0 && before.denied() == before.findings.len());
    Baseline::of(&before).write(&file).unwrap();
    let baseline = Baseline::read(&file).unwrap();
    let again = check(&wide, &options, &all, Some(&baseline)).unwrap();
    assert_eq!((again.denied(), again.known), (0, Some(before.findings.len())));
    // Other numbers are the same finding.
    let wider = conv(34_000, 16);
    assert_eq!(check(&wider, &options, &all, Some(&baseline)).unwrap().denied(), 0);
    let narrow = conv(512, 16);
    let mended = check(&narrow, &options, &all, Some(&baseline)).unwrap();
    assert!(mended.vanished.iter().any(|k| k.rule == "ane-conv-input-channels"));
    assert!(text(&mended).contains("no more of the baseline: ane-conv-input-channels main"));
    let other = Options { route: Route::CoreMl, ..options };
    let error = check(&wide, &other, &all, Some(&baseline)).unwrap_err();
    assert!(error.to_string().contains("a baseline is needed for each"), "{error}");
    fs::write(&file, "{}").unwrap();
    assert!(Baseline::read(&file).unwrap_err().to_string().contains("no baseline"));
}

#[test]
fn what_is_allowed_is_counted_and_not_told() {
    let subject = conv(33_000, 16);
    let options = options("m4-max", Route::Direct);
    let report =
        check(&subject, &options, &policy(&[], &["ane-conv-input-channels"]), None).unwrap();
    assert_eq!(report.allowed, 1);
    assert!(!text(&report).contains("[ane-conv-input-channels]"));
    let none = Options { function: Some("other"), ..options };
    let error = check(&subject, &none, &policy(&[], &[]), None).unwrap_err();
    assert!(error.to_string().contains("no function other; there are: main"), "{error}");
}

/// `tests/golden/sarif.py` holds what is recorded here against the schema.
#[test]
fn sarif() {
    let subject = conv(33_000, 16);
    let report =
        check(&subject, &options("m4-max", Route::Direct), &policy(&[], &[]), None).unwrap();
    let sarif = report.sarif();
    let run = &sarif["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    for result in run["results"].as_array().unwrap() {
        let rule = &rules[result["ruleIndex"].as_u64().unwrap() as usize];
        assert_eq!(rule["id"], result["ruleId"]);
        assert!(result["locations"][0]["physicalLocation"]["region"]["startLine"].is_u64());
    }
    insta::assert_snapshot!(serde_json::to_string_pretty(&sarif).unwrap());
    let package =
        Subject::open(&testkit::shared_dir().join("coreml/gpt2_stateful.mlpackage")).unwrap();
    let known = check(&package, &options("m4", Route::CoreMl), &policy(&[], &[]), None).unwrap();
    let baseline = Baseline::of(&known);
    let both = check(&package, &options("m4", Route::CoreMl), &policy(&[], &[]), Some(&baseline));
    assert_eq!(both.unwrap().sarif()["runs"][0]["results"], Value::Array(Vec::new()));
}
