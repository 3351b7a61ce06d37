//! Core ML programs: what they hold, and what running them gives, against the outputs of their sources.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use half::f16;

use crate::run::{Outcome, assert_fails, json, rigel};

pub(crate) fn artefact(name: &str) -> String {
    testkit::shared_dir().join("coreml").join(name).to_str().unwrap().to_owned()
}

/// An array of floats in an archive: dimensions as numpy writes them, and elements.
pub(crate) fn floats(archive: impl AsRef<Path>, name: &str) -> (String, Vec<f32>) {
    let mut archive = zip::ZipArchive::new(File::open(archive).unwrap()).unwrap();
    let mut bytes = Vec::new();
    archive.by_name(&format!("{name}.npy")).unwrap().read_to_end(&mut bytes).unwrap();
    let (header, data) = bytes[10..].split_at(usize::from(bytes[8]) + 256 * usize::from(bytes[9]));
    let header = String::from_utf8(header.to_vec()).unwrap();
    let shape = header.split_once('(').unwrap().1.split_once(')').unwrap().0.to_owned();
    let elements = match header.split('\'').nth(3) {
        Some("<f8") => data.as_chunks().0.iter().map(|&c| f64::from_le_bytes(c) as f32).collect(),
        Some("<f4") => data.as_chunks().0.iter().map(|&c| f32::from_le_bytes(c)).collect(),
        Some("<f2") => data.as_chunks().0.iter().map(|&c| f16::from_le_bytes(c).to_f32()).collect(),
        _ => panic!("{header}"),
    };
    (shape, elements)
}

/// Writes a `.npy` file of numpy's type `descr`.
pub(crate) fn write_npy(path: &Path, descr: &str, shape: &str, bytes: &[u8]) -> String {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let len = u16::try_from(header.len()).unwrap().to_le_bytes();
    let all = [b"\x93NUMPY\x01\x00", &len[..], header.as_bytes(), bytes].concat();
    fs::write(path, all).unwrap();
    path.to_str().unwrap().to_owned()
}

#[track_caller]
fn assert_close(actual: &(String, Vec<f32>), expected: &(String, Vec<f32>), tolerance: f32) {
    assert_eq!((&actual.0, actual.1.len()), (&expected.0, expected.1.len()));
    for (i, (a, e)) in actual.1.iter().zip(&expected.1).enumerate() {
        assert!((a - e).abs() <= tolerance * e.abs().max(1.0), "element {i}: {a}, not {e}");
    }
}

/// Runs package `name` on its recorded inputs, and compares what it writes with the recorded output.
#[track_caller]
fn check_recorded(name: &str, inputs: &[&str], arithmetic: &str, tolerance: f32) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.npz");
    let (package, recorded) =
        (artefact(&format!("{name}.mlpackage")), artefact(&format!("{name}.io.npz")));
    let mut arguments = vec!["run".to_owned(), package, "--json".into(), "--output".into()];
    let how = if arithmetic == "cpu" { "--device" } else { "--arithmetic" };
    arguments.extend([out.to_str().unwrap().to_owned(), how.into(), arithmetic.into()]);
    for (i, input) in inputs.iter().enumerate() {
        arguments.extend(["--input".to_owned(), format!("{input}={recorded}:in{i}")]);
    }
    let outcome = rigel(arguments);
    let shown = json(&outcome);
    let output = shown["steps"][0][0]["name"].as_str().unwrap();
    assert_close(&floats(&out, output), &floats(&recorded, "out0"), tolerance);
    outcome
}

/// Models of all kinds with their inputs in PyTorch's order, by native kernels: as near to PyTorch in
/// single precision as half precision is.
#[test]
fn the_cpu_gives_the_outputs_of_the_source() {
    let all: [(&str, &[&str], f32); 12] = [
        ("mlp_fp32", &["x"], 1e-5),
        ("mlp_ios15", &["x"], 8e-4),
        ("mlp_ios16", &["x"], 8e-4),
        ("mlp_range", &["x"], 8e-4),
        ("pal8_pertensor_ios18", &["x"], 8e-3),
        ("int8_block64", &["x"], 8e-3),
        ("uint8_perchannel_asym_ios16", &["x"], 8e-3),
        ("llama_gqa_ios18", &["x", "cos", "sin", "mask"], 6e-3),
        ("ane_block_ios16", &["x", "mask"], 4e-3),
        ("ane_block_ios18", &["x", "mask"], 4e-3),
        ("sdpa_ios18", &["q", "k", "v", "m"], 3e-3),
        ("lstm_ios17", &["x"], 4.6e-4),
    ];
    for (name, inputs, tolerance) in all {
        let shown = json(&check_recorded(name, inputs, "cpu", tolerance));
        assert_eq!((&shown["device"], &shown["arithmetic"]), (&"cpu".into(), &"fp16".into()));
        let left: Vec<_> =
            shown["fallbacks"].as_array().unwrap().iter().map(|f| &f["operation"]).collect();
        let expected: &[&str] = if name == "lstm_ios17" { &["lstm"] } else { &[] };
        assert_eq!(left, expected, "{name}");
    }
}

#[test]
fn the_device_follows_from_what_is_asked_for() {
    let run = |name: &str, input: &str, more: &[&str]| {
        let package = artefact(&format!("{name}.mlpackage"));
        let arguments = ["run", &package, "--input", input].into_iter();
        rigel(arguments.chain(more.iter().copied()))
    };
    let device = |more: &[&str]| {
        let all = [&["--json"], more].concat();
        json(&run("mlp_ios16", "x=random", &all))["device"].as_str().unwrap().to_owned()
    };
    assert_eq!(device(&[]), "cpu");
    assert_eq!(device(&["--device=cpu", "--arithmetic=fp16"]), "cpu");
    for more in [&["--arithmetic=exact"][..], &["--arithmetic=fp16"], &["--locate-nan"]] {
        assert_eq!(device(more), "interpreter", "{more:?}");
    }
    let classifier = json(&run("convnet_image_classifier", "image=random", &["--json"]));
    assert_eq!(classifier["device"], "interpreter");
    assert_fails(
        &run("convnet_image_classifier", "image=random", &["--device=cpu"]),
        &["output classLabel is a string", "--device interpreter"],
    );
    assert_fails(
        &run("mlp_ios16", "x=random", &["--device=cpu", "--arithmetic=f32", "--locate-nan"]),
        &["--arithmetic f32 and --locate-nan", "interpreter", "--device cpu"],
    );
    let text = run("lstm_ios17", "x=random", &[]).out;
    assert!(text.contains("left to the interpreter: 1 x lstm (no native kernel)"), "{text}");
    let text = run("mlp_ios16", "x=random", &[]).out;
    assert!(text.contains("on the CPU: all operations ran natively"), "{text}");
}

#[test]
fn outputs_are_those_of_the_source() {
    for (arithmetic, tolerance) in [("exact", 6e-4), ("f32", 6e-4), ("fp16", 8e-4)] {
        let shown = json(&check_recorded("mlp_ios16", &["x"], arithmetic, tolerance));
        assert_eq!(
            (&shown["function"], &shown["arithmetic"]),
            (&"main".into(), &arithmetic.into())
        );
        let output = &shown["steps"][0][0];
        assert_eq!((&output["type"], &output["nan"]), (&"tensor<fp16, [4, 32]>".into(), &0.into()));
        assert!(output["min"].as_f64() < output["mean"].as_f64());
        assert!(output.get("argmax").is_none());
    }
    check_recorded("sdpa_ios18", &["q", "k", "v", "m"], "f32", 6e-4);
    check_recorded("sdpa_ios18", &["q", "k", "v", "m"], "fp16", 3e-3);
}

/// GPT-2 with its keys and values in states, five tokens in five steps.
#[test]
fn states_are_kept_over_steps() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let recorded = artefact("gpt2_stateful.steps.npz");
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let slots = |yes: f32, no: f32, to: fn(usize, usize) -> bool| {
        let at = |i: usize| if to(i % 32, i / 32) { yes } else { no };
        bytes(&(0..160).map(at).collect::<Vec<_>>())
    };
    let tokens = {
        let mut archive = zip::ZipArchive::new(File::open(&recorded).unwrap()).unwrap();
        let mut bytes = Vec::new();
        archive.by_name("tokens.npy").unwrap().read_to_end(&mut bytes).unwrap();
        bytes.split_off(bytes.len() - 40)
    };
    let steps: Vec<u8> = (0..5i32).flat_map(i32::to_le_bytes).collect();
    let ids = write_npy(&path("ids.npy"), "<i8", "5, 1, 1", &tokens);
    let pos = write_npy(&path("pos.npy"), "<i4", "5, 1", &steps);
    let onehot = slots(1.0, 0.0, |slot, step| slot == step);
    let onehot = write_npy(&path("onehot.npy"), "<f4", "5, 1, 1, 32, 1", &onehot);
    let mask = slots(0.0, -1e4, |slot, step| slot <= step);
    let mask = write_npy(&path("mask.npy"), "<f4", "5, 1, 1, 1, 32", &mask);
    let inputs = [("ids", ids), ("pos", pos), ("onehot", onehot), ("mask", mask)]
        .map(|(name, file)| format!("--input={name}={file}"));
    let out = path("out.npz");
    let package = artefact("gpt2_stateful.mlpackage");
    let output = format!("--output={}", out.display());
    for (device, tolerance) in [("interpreter", 1.2e-3), ("cpu", 2.5e-3)] {
        let arguments = ["run", &package, "--steps=5", "--json", "--argmax", &output];
        let arguments = arguments.into_iter().chain(["--device", device]);
        let shown = json(&rigel(arguments.chain(inputs.iter().map(String::as_str))));
        let expected = floats(&recorded, "logits");
        let name = shown["steps"][0][0]["name"].as_str().unwrap();
        assert_close(&floats(&out, name), &expected, tolerance);
        for (step, row) in expected.1.chunks(256).enumerate() {
            let best = (0..256).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            assert_eq!(shown["steps"][step][0]["argmax"][0]["index"], best, "step {step}");
        }
    }
}

#[test]
fn open_sizes_come_from_inputs_or_are_the_default() {
    let run = |source: &str| {
        rigel(["run", &artefact("mlp_range.mlpackage"), "--json", "--input", source])
    };
    for (source, rows) in [("x=zeros", 4), ("x=random:7x64", 7)] {
        let ty = format!("tensor<fp16, [{rows}, 32]>");
        assert_eq!(json(&run(source))["steps"][0][0]["type"], ty.as_str(), "{source}");
    }
    assert_fails(&run("x=zeros:33x64"), &["input x", "[33, 64]", "[1..32, 64]"]);
}

#[test]
fn random_inputs_follow_the_seed() {
    let run = |seed: &str| {
        let package = artefact("mlp_ios16.mlpackage");
        json(&rigel(["run", &package, "--json", "--input", "x=random", "--seed", seed]))
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1")["steps"], run("2")["steps"]);
}

#[test]
fn the_origin_of_infinities_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let large: Vec<u8> = [1e6f32; 256].iter().flat_map(|v| v.to_le_bytes()).collect();
    let x = write_npy(&dir.path().join("x.npy"), "<f4", "4, 64", &large);
    let dump = dir.path().join("ops.npz");
    let run = |arithmetic: &str| {
        let input = format!("x={x}");
        let package = artefact("mlp_ios16.mlpackage");
        let dump = dump.to_str().unwrap();
        let rest = ["--arithmetic", arithmetic, "--dump-ops", dump, "--locate-nan", "--json"];
        json(&rigel(["run", &package, "--input", &input].into_iter().chain(rest)))
    };
    let origin = &run("fp16")["origin"];
    assert_eq!(origin["operation"], "cast \"cast_1\"");
    assert_eq!((&origin["result"], &origin["infinite"]), (&"x_to_fp16".into(), &256.into()));
    assert!(run("f32")["origin"].is_null());
    assert_eq!(floats(&dump, "x_to_fp16").1, [1e6; 256]);
}

#[test]
fn what_is_wrong_with_inputs_is_said_in_one_line() {
    let sdpa = artefact("sdpa_ios18.mlpackage");
    let missing = rigel(["run", &sdpa, "--input", "q=zeros", "--input", "m=zeros"]);
    assert_fails(&missing, &["missing inputs: k (tensor<fp32, [1, 4, 24, 32]>), v (tensor<"]);
    assert!(!missing.err.contains("q (") && !missing.err.contains("m ("), "{}", missing.err);
    let mlp = artefact("mlp_ios16.mlpackage");
    let run = |input: &str| rigel(["run", &mlp, "--input", input]);
    let recorded = artefact("sdpa_ios18.io.npz");
    assert_fails(&run(&format!("x={recorded}:in0")), &["input x", "[1, 4, 16, 32]", "[4, 64]"]);
    assert_fails(&run(&format!("x={recorded}")), &["input x", "several arrays", "in0"]);
    assert_fails(&run(&format!("x={recorded}:in9")), &["no array \"in9\""]);
    assert_fails(&run("y=zeros"), &["no input \"y\" (there is x)"]);
    assert_fails(&run("x=none.npy"), &["input x", "none.npy"]);
    let twice = rigel(["run", &mlp, "--input", "x=zeros", "--input", "x=random"]);
    assert_fails(&twice, &["input x is given twice"]);
    let other = rigel(["run", &mlp, "--input", "x=zeros", "--function", "other"]);
    assert_fails(&other, &["no function \"other\" (there is main)"]);
    for wrong in [["--input", "x"], ["--steps", "0"]] {
        assert_eq!(rigel(["run", &mlp].iter().chain(&wrong)).code, 2, "{wrong:?}");
    }
}

#[test]
fn broken_packages_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("broken.mlpackage");
    let broken = package.to_str().unwrap();
    fs::create_dir(&package).unwrap();
    for command in ["run", "inspect"] {
        assert_fails(&rigel([command, broken]), &["broken.mlpackage", "Manifest.json"]);
    }
    fs::write(package.join("Manifest.json"), "{").unwrap();
    for command in ["run", "inspect"] {
        assert_fails(&rigel([command, broken]), &["Manifest.json"]);
    }
    let text = dir.path().join("cut.mil");
    fs::write(&text, "program(1.0)\n[]\n{\n    func main<ios16>(").unwrap();
    for command in ["run", "inspect"] {
        assert_fails(&rigel([command, text.to_str().unwrap()]), &["cut.mil", "line 4"]);
    }
}

#[test]
fn packages_are_listed() {
    let inspect = |name: &str| json(&rigel(["inspect", &artefact(name), "--json"]));
    let mlp = inspect("mlp_ios16.mlpackage");
    assert_eq!((&mlp["spec_version"], &mlp["minimum_os"]), (&7.into(), &"iOS 16, macOS 13".into()));
    let main = &mlp["functions"]["main"];
    assert_eq!((&main["opset"], &main["operations"]["linear"]), (&"ios16".into(), &2.into()));
    // Two layers, 64 to 128 to 32, with biases.
    assert_eq!(main["parameters"], 64 * 128 + 128 + 128 * 32 + 32);
    assert_eq!(mlp["weights"]["fp16"]["bytes"], 2 * main["parameters"].as_u64().unwrap());
    let file = "mlp_ios16.mlpackage/Data/com.apple.CoreML/weights/weight.bin";
    assert_eq!(mlp["weight_file_bytes"], fs::metadata(artefact(file)).unwrap().len());
    // Compressed weights count as what they stand for.
    let int4 = inspect("int4_block32.mlpackage");
    assert!(int4["weights"]["int4"]["bytes"].as_u64() > Some(0));
    let plain = inspect("base_big.mlpackage");
    assert_eq!(int4["functions"]["main"]["parameters"], plain["functions"]["main"]["parameters"]);
    let gpt2 = inspect("gpt2_stateful.mlpackage");
    let states = gpt2["functions"]["main"]["states"].as_array().unwrap();
    assert_eq!(states.len(), 2);
    assert_eq!(states[0]["type"], "state<tensor<fp16, [2, 1, 4, 32, 16]>>");
    let several = rigel(["inspect", &artefact("llama_multifunction.mlpackage")]);
    assert_eq!(several.code, 0, "{}", several.err);
    for part in ["function decode (ios18", "function prefill (ios18", "run by default", "linear"] {
        assert!(several.out.contains(part), "no {part} in {}", several.out);
    }
    let range = rigel(["inspect", &artefact("mlp_range.mlpackage")]);
    assert!(range.out.contains("tensor<fp16, [?, 64]>  [1..32, 64]"), "{}", range.out);
}

/// The same program on an emulated engine, which says what it did and what it left.
#[test]
fn a_package_runs_on_an_emulated_engine() {
    let package = artefact("llama_gqa_ios18.mlpackage");
    let run = |device: &[&str]| {
        let mut arguments = vec!["run", &package, "--input", "random", "--json"];
        arguments.extend(device);
        json(&rigel(&arguments))
    };
    let cpu = run(&[]);
    for chip in ["m1", "m4"] {
        let engine = run(&["--device", "emulator", "--chip", chip, "--engine-arithmetic", "fp16"]);
        assert!(engine["engine"]["dispatches"].as_u64().unwrap() >= 1, "{engine}");
        assert!(engine["fallbacks"].as_array().unwrap().iter().all(|f| f["operation"] != "linear"));
        let mean = |out: &serde_json::Value| out["steps"][0][0]["max"].as_f64().unwrap();
        assert!((mean(&cpu) - mean(&engine)).abs() < 5e-3);
    }
}
