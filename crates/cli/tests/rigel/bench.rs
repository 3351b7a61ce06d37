//! `rigel bench` from the command line.

use crate::run::{assert_fails, json, rigel};

fn bench(more: &[&str]) -> crate::run::Outcome {
    let model = testkit::shared_dir().join("models/stories260K.bin");
    let model = model.to_str().unwrap().to_owned();
    rigel([&["bench", "training", "-m", &model, "--tokens", "32", "--steps", "1"], more].concat())
}

/// What each way does at a step: nothing, compile, reload; with the same losses.
#[test]
fn ways_of_changing_weights() {
    let report = json(&bench(&["--json"]));
    let rows = report["rows"].as_array().unwrap();
    let number = |way: &str, key: &str| {
        rows.iter().find(|r| r["way"] == way).unwrap()[key].as_f64().unwrap()
    };
    for way in ["inputs", "recompile", "reload"] {
        assert!(number(way, "compute_ms") > 0.0 && number(way, "start_ms") > 0.0, "{report}");
        assert_eq!(number(way, "compilations") > 0.0, way == "recompile", "{report}");
        assert_eq!(number(way, "reloads") > 0.0, way == "reload", "{report}");
        let apart = number(way, "last_loss") / number("inputs", "last_loss") - 1.0;
        assert!(apart.abs() < 0.01, "{report}");
    }
    assert_eq!(number("inputs", "update_ms"), 0.0);
    let [compiled, reloaded] = ["recompile", "reload"].map(|way| number(way, "update_ms"));
    let wanted = number("reload", "start_ms") / (compiled - reloaded);
    assert!((report["break_even_steps"].as_f64().unwrap() - wanted).abs() < 1e-9);
    let table = bench(&[]);
    assert_eq!((table.code, table.out.lines().count()), (0, 5), "{}", table.out);
    // Nobody published how long an M1 compiles.
    let report = json(&bench(&["--json", "--chip", "m1"]));
    assert!(report["rows"][1]["update_ms"].is_null() && report["break_even_steps"].is_null());
}

/// The default model is quantised: floats of it are trained.
#[test]
fn the_model_that_is_part_of_the_program_can_be_trained() {
    let report = json(&rigel(["bench", "training", "--tokens", "16", "--steps", "1", "--json"]));
    let losses: Vec<f64> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["last_loss"].as_f64().unwrap())
        .collect();
    assert!(losses.iter().all(|l| (1.0..20.0).contains(l)), "{report}");
    assert!(losses.iter().all(|l| (l / losses[0] - 1.0).abs() < 0.01), "{report}");
}

#[test]
fn what_cannot_be_trained_is_named() {
    assert_fails(&bench(&["--chip", "m9"]), &["m9", "m4-max"]);
    assert_fails(&bench(&["--batch", "0"]), &["0 sequences"]);
}
