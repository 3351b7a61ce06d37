//! Converting Core ML programs from one form to another, and language models to packages.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::run::{Outcome, assert_fails, json, model, rigel};

fn artefact(name: &str) -> String {
    testkit::shared_dir().join("coreml").join(name).to_str().unwrap().to_owned()
}

fn convert(source: impl AsRef<Path>, to: impl AsRef<Path>, more: &[&str]) -> Outcome {
    let (source, to) = (source.as_ref().to_str().unwrap(), to.as_ref().to_str().unwrap());
    rigel(["convert", source, "-o", to].iter().chain(more))
}

#[track_caller]
fn assert_converts(source: impl AsRef<Path>, to: impl AsRef<Path>) {
    let outcome = convert(source, to, &[]);
    assert_eq!((outcome.code, outcome.out.as_str()), (0, ""), "{}", outcome.err);
}

/// What running a program with seeded inputs gives.
fn outputs(path: &Path) -> Value {
    json(&rigel(["run", path.to_str().unwrap(), "--input=x=random", "--json"]))["steps"].clone()
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|n| n.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_program_stays_the_same_through_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // Weights of 4 bits with scales; and constants too small for a weight file.
    for name in ["int4_block32", "mlp_ios16"] {
        let source = artefact(&format!("{name}.mlpackage"));
        let expected = outputs(Path::new(&source));
        fs::create_dir(path(name)).unwrap();
        let text = path(name).join("a.mil");
        assert_converts(&source, &text);
        assert_eq!(names(&path(name)), ["a.mil", "weights"]);
        assert_eq!(outputs(&text), expected);
        // A compiled model is such a text, called `model.mil`, in a folder.
        let compiled = path(&format!("{name}.mlmodelc"));
        fs::create_dir(&compiled).unwrap();
        fs::rename(&text, compiled.join("model.mil")).unwrap();
        fs::rename(path(name).join("weights"), compiled.join("weights")).unwrap();
        let package = path(&format!("{name}.mlpackage"));
        assert_converts(&compiled, &package);
        assert_eq!(outputs(&package), expected);
    }
}

#[test]
fn nothing_is_overwritten_by_accident() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (mlp, other) = (artefact("mlp_ios16.mlpackage"), artefact("base_big.mlpackage"));
    let (package, text) = (path("a.mlpackage"), path("a.mil"));
    assert_converts(&mlp, &package);
    assert_converts(&mlp, &text);
    for destination in [&package, &text] {
        assert_fails(&convert(&other, destination, &[]), &["is there already", "--force"]);
        assert_eq!(convert(&other, destination, &["--force"]).code, 0);
    }
    // The weights of another text.
    assert_fails(&convert(&mlp, path("b.mil"), &[]), &["weight.bin", "is there already"]);
    // What is read is never written over, under whatever name.
    for (source, destination) in
        [(&package, path("./a.mlpackage")), (&text, text.clone()), (&text, path("b.mil"))]
    {
        let outcome = convert(source, destination, &["--force"]);
        assert_fails(&outcome, &["belongs to the source"]);
    }
    // A folder that is no package stays.
    fs::create_dir(path("folder.mlpackage")).unwrap();
    let outcome = convert(&mlp, path("folder.mlpackage"), &["--force"]);
    assert_fails(&outcome, &["folder.mlpackage", "no package"]);
    assert_eq!(
        names(dir.path()),
        ["a.mil", "a.mlpackage", "folder.mlpackage", "weights"],
        "parts of files are left"
    );
}

#[test]
fn what_cannot_be_converted_is_said_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let mlp = artefact("mlp_ios16.mlpackage");
    assert_fails(&convert(&mlp, path("a.onnx"), &[]), &["a.onnx", ".mlpackage, .mil or .gguf"]);
    assert_fails(&convert(&mlp, path("a.mlmodelc"), &[]), &["a.mlmodelc", "Apple's compiler"]);
    fs::write(path("cut.mil"), "program(1.0)\n[]\n{\n    func main<ios16>(").unwrap();
    for file in ["cut.mil/a.mlpackage", "cut.mil/a.mil"] {
        assert_fails(&convert(&mlp, path(file), &[]), &[file, "cannot write"]);
    }
    assert_fails(&convert(path("cut.mil"), path("a.mlpackage"), &[]), &["cut.mil", "line 4"]);
    assert_eq!(names(dir.path()), ["cut.mil"], "parts of files are left");
}

#[test]
fn a_language_model_becomes_a_package() {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("stories.mlpackage");
    let stories = model("stories260K.bin");
    let sizes = ["--prefill-length", "4", "--context", "32"];
    let outcome = convert(&stories, &package, &sizes);
    // Heads of eight elements are too small for the Neural Engine.
    assert!(outcome.code == 0 && outcome.err.starts_with("note: "), "{}", outcome.err);
    assert!(outcome.err.contains("k_cache") && outcome.err.contains("multiples of 32 (8)"));
    let listing = json(&rigel(["inspect", package.to_str().unwrap(), "--json"]));
    assert_eq!(listing["minimum_os"], "iOS 18, macOS 15");
    assert_eq!(listing["metadata"]["rigel.source"], "stories260K.bin");
    for (function, tokens) in [("prefill", 4), ("decode", 1)] {
        let f = &listing["functions"][function];
        assert_eq!(f["inputs"][0]["type"], format!("tensor<int32, [1, {tokens}]>"));
        assert_eq!(f["inputs"][1]["type"], "tensor<int32, [1]>");
        assert_eq!(f["states"][1]["type"], "state<tensor<fp16, [5, 4, 32, 8]>>");
        assert_eq!(f["outputs"][0]["type"], "tensor<fp32, [1, 1, 512]>");
    }
    // As text, and for an older system.
    let text = dir.path().join("score.mil");
    let score = ["--function", "score", "--target", "ios16", "--prefill-length", "4"];
    assert_eq!(convert(&stories, &text, &score).code, 0);
    assert!(fs::read_to_string(&text).unwrap().contains("func main<ios16>("));
    let again = ["run", text.to_str().unwrap(), "--input=ids=random", "--input=position=zeros"];
    assert_eq!(rigel(again).code, 0);
}

#[test]
fn what_does_not_fit_a_language_model_is_said_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("a.mlpackage");
    let stories = model("stories260K.bin");
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--target", "ios17"], &["ios17", "states", "ios18", "score"]),
        (&["--context", "1000"], &["context of 1000 tokens", "1 to 512"]),
        (&["--context", "32", "--prefill-length", "33"], &["33", "context of 32"]),
        (&["--function", "score", "--prefill-length", "0"], &["length of 0"]),
    ];
    for (arguments, parts) in cases {
        assert_fails(&convert(&stories, &to, arguments), parts);
    }
    let mlp = artefact("mlp_ios16.mlpackage");
    assert_fails(&convert(mlp, &to, &["--target", "ios18"]), &["--target", "as it is"]);
    assert_eq!(names(dir.path()), [""; 0]);
    assert_eq!(convert(&stories, &to, &["--target", "ios3"]).code, 2);
}

/// GGUF is made of a language model in Hugging Face's form, and of nothing else.
#[test]
fn what_has_no_form_in_gguf() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model.gguf");
    let stories = testkit::shared_dir().join("models/stories260K.bin");
    assert_fails(&convert(&stories, &to, &[]), &["no tokenizer"]);
    assert_fails(
        &convert(artefact("ane_block_ios16.mlpackage"), &to, &[]),
        &["Core ML program", "GGUF"],
    );
    assert_fails(&convert(&stories, &to, &["--context", "8"]), &["--context", "packages"]);
    assert_eq!(names(dir.path()), Vec::<String>::new());
}
