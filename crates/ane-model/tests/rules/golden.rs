//! What the rules and the segmenter say of every shared artefact, as recorded.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path as File, PathBuf};

use mil::Program;
use mil::package::blob::BlobFile;
use mil::text::parse;
use rigel_ane_model::placement::placement;
use rigel_ane_model::{CheckOptions, Path, check};
use tensor::Bytes;

use crate::common::chip;

fn artefacts() -> Vec<PathBuf> {
    let dir = testkit::shared_dir().join("coreml");
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "mil"));
    files.sort();
    files
}

fn read(path: &File) -> Program {
    let weights = path.with_extension("mlpackage").join("Data/com.apple.CoreML/weights/weight.bin");
    let bytes = fs::read(weights).unwrap_or_else(|_| [&[0, 0, 0, 0, 2][..], &[0; 59]].concat());
    let blobs = BlobFile::new(Bytes::copy_from(&bytes)).unwrap();
    parse(&fs::read_to_string(path).unwrap(), &blobs).unwrap().program
}

/// One line a chip and path: how often each rule speaks, with its first letter of severity.
fn report(program: &Program) -> String {
    let mut text = String::new();
    for name in ["m1", "m4"] {
        for path in [Path::Direct, Path::CoreMl] {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            for d in check(program, &CheckOptions { chip: chip(name), path, os: None }) {
                let letter = format!("{:?}", d.severity).remove(0);
                *counts.entry(format!("{letter} {}", d.rule.id)).or_default() += 1;
            }
            let counts: Vec<String> = counts.iter().map(|(k, n)| format!("{k} {n}")).collect();
            writeln!(text, "  {name} {path:?}: {}", counts.join(", ")).unwrap();
        }
    }
    for function in program.functions.keys() {
        let placed = placement(program, function, chip("m4"), None).unwrap();
        let (on, all) = (placed.on_ane(), placed.ops.len());
        let off = placed.ops.iter().filter(|op| !op.why_not.is_empty()).count();
        writeln!(
            text,
            "  {function}: {all} operations, {off} not supported, {on} placed on the engine"
        )
        .unwrap();
    }
    text
}

#[test]
fn shared_artefacts() {
    let mut text = String::new();
    for path in artefacts() {
        let name = path.file_stem().unwrap().to_string_lossy();
        writeln!(text, "{name}\n{}", report(&read(&path))).unwrap();
    }
    insta::assert_snapshot!(text);
}
