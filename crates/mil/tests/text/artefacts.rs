//! Every text beside the shared Core ML packages: printed again it is the same to the byte.

use std::collections::BTreeSet;
use std::fs;

use mil::text::{Dialect, parse, print, print_with_weights};
use mil::{ErrorKind, OpKind};
use tensor::Bytes;

use crate::common::{artefacts, same_program, weights_of};

/// Texts whose operations must all be in the catalogue; to be raised as it grows.
const AT_LEAST: usize = 296;

/// The operations of a text, found without the parser.
fn operations(text: &str) -> BTreeSet<&str> {
    let of_line = |line: &'_ str| -> Option<std::ops::Range<usize>> {
        let indent = line.len() - line.trim_start().len();
        if indent < 12 || line[indent..].starts_with(['(', '}']) {
            return None;
        }
        // Types, which precede the first assignment, contain none; without results there is none
        // before the first bracket.
        let call = line.find('(').unwrap();
        let start = match line.find(" = ") {
            Some(at) if at < call || line[..call].contains('<') => at + 3,
            _ => indent,
        };
        let len = line[start..].find(['(', '<']).unwrap();
        Some(start..start + len)
    };
    text.lines().filter_map(|line| of_line(line).map(|range| &line[range])).collect()
}

/// The text with the build information spelled as its dialect does.
fn normalised(text: &str) -> String {
    if !text.starts_with("program(1.0)") {
        return text.to_owned();
    }
    let scalar = "tensor<string, []>";
    text.replacen(
        "[buildInfo = dict<string, string>",
        &format!("[buildInfo = dict<{scalar}, {scalar}>"),
        1,
    )
}

#[test]
fn printed_again_they_are_the_same() {
    let (mut same, mut failures) = (0, Vec::new());
    let files = artefacts();
    for path in &files {
        let text = fs::read_to_string(path).unwrap();
        let name = path.file_stem().unwrap().display();
        let missing: Vec<&str> =
            operations(&text).into_iter().filter(|n| OpKind::from_name(n).is_none()).collect();
        match parse(&text, &weights_of(path)) {
            Err(e) if !missing.is_empty() => {
                let message =
                    format!("operations that Rigel does not have: {}", missing.join(", "));
                assert_eq!((e.kind, e.message), (ErrorKind::Unsupported, message), "{name}");
                assert!(e.position.is_some());
            }
            Err(e) => failures.push(format!("{name}: {e}")),
            Ok(_) if !missing.is_empty() => failures.push(format!("{name}: lacks {missing:?}")),
            Ok(parsed) => {
                let printed = print(&parsed.program, parsed.dialect).unwrap();
                let expected = normalised(&text);
                match printed.lines().zip(expected.lines()).find(|(a, b)| a != b) {
                    None if printed == expected => same += 1,
                    difference => failures.push(format!("{name}: {difference:?}")),
                }
            }
        }
    }
    println!("{same} of {} texts", files.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(same >= AT_LEAST, "only {same} texts have no operation that is missing");
}

#[test]
fn their_weights_survive_a_new_weight_file() {
    for path in artefacts() {
        let text = fs::read_to_string(&path).unwrap();
        let Ok(parsed) = parse(&text, &weights_of(&path)) else { continue };
        for dialect in [Dialect::V1_0, Dialect::V1_3] {
            let mut file = Vec::new();
            let text = print_with_weights(&parsed.program, dialect, &mut file).unwrap();
            let file = mil::package::blob::BlobFile::new(Bytes::copy_from(&file)).unwrap();
            let again = parse(&text, &file).unwrap();
            assert_eq!(again.dialect, dialect);
            same_program(&parsed.program, &again.program)
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
    }
}

#[test]
fn they_fulfil_the_invariants() {
    let mut failures = Vec::new();
    for path in artefacts() {
        let text = fs::read_to_string(&path).unwrap();
        let Ok(parsed) = parse(&text, &weights_of(&path)) else { continue };
        if let Err(e) = mil::verify(&parsed.program) {
            failures.push(format!("{}: {e}", path.file_stem().unwrap().display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
