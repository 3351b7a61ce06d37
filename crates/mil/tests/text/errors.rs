//! Wrong texts: one clear error each, with its place; never a panic.

use std::fs;
use std::sync::LazyLock;

use mil::ErrorKind;
use mil::text::{NoBlobs, parse, print};
use proptest::prelude::*;

use crate::common::{artefacts, weights_of};

/// A program of one function with this body.
fn with_body(body: &str) -> String {
    format!("program(1.3)\n[]\n{{\n    func main<ios18>(fp32 x) {{\n{body}\n        }} -> (x);\n}}")
}

#[track_caller]
fn assert_error(text: &str, kind: ErrorKind, message: &str) {
    let error = parse(text, &NoBlobs).unwrap_err();
    assert_eq!((error.kind, error.to_string().as_str()), (kind, message));
}

#[test]
fn each_mistake_has_its_message() {
    use ErrorKind::{Invalid, Limit, Unsupported};
    let deep =
        format!("fp32 y = const()[val = {}fp32{}(0)];", "list<".repeat(99), ", 1>".repeat(99));
    for (body, kind, message) in [
        ("y", Invalid, r#"line 6, column 9: "(" is needed, not "}""#),
        ("fp32 y = add(x = x, y = z);", Invalid, "line 5, column 25: z is not defined here"),
        ("fp32 x = add(x = x, y = x);", Invalid, "line 5, column 6: x is defined twice"),
        ("fp32 y = add(x = x, x = x);", Invalid, "line 5, column 21: argument x is given twice"),
        (
            "fp32 y = add(x = x, zz = x);",
            Invalid,
            r#"line 5, column 21: add has no parameter "zz""#,
        ),
        (
            "fp32 y = const()[val = fp16(0x1p+99)];",
            Invalid,
            r#"line 5, column 29: "0x1p+99" does not fit fp16"#,
        ),
        ("int4 y = const()[val = int4(8)];", Invalid, "line 5, column 29: 8 does not fit int4"),
        (
            "int4 y = const()[val = int4(true)];",
            Invalid,
            r#"line 5, column 29: an integer is needed, not "true""#,
        ),
        (
            "int4 y = const()[val = tensor<int4, [2]>([1])];",
            Invalid,
            "line 5, column 42: 1 elements along axis 0 of tensor<int4, [2]>",
        ),
        (
            "fp32 y = const()[val = list<fp32, 2>([0])];",
            Invalid,
            "line 5, column 38: 1 items where list<fp32, 2> is needed",
        ),
        (
            r#"string y = const()[val = string("\q")];"#,
            Unsupported,
            r"line 5, column 33: unsupported: unknown escape \q",
        ),
        (
            r#"fp32 y = const()[val = fp32(BLOBFILE(path = string("w"), offset = uint64(64)))];"#,
            Invalid,
            "line 5, column 29: there is no weight file w",
        ),
        (
            r#"fp32 y = const()[val = fp32(BLOBFILE(path = string("w"), offset = int32(64)))];"#,
            Invalid,
            "line 5, column 29: BLOBFILE needs a string as path and a uint64 as offset",
        ),
        ("fp31 y = add(x = x, y = x);", Invalid, r#"line 5, column 6: "(" is needed, not "y""#),
        (
            "state<list<fp32, 1>> y = read();",
            Invalid,
            "line 5, column 7: a state can only hold a tensor",
        ),
        (&deep, Limit, "line 5, column 348: limit: nested deeper than 64 levels"),
        (
            "fp32 y = nonesuch(x = x);\nfp32 z = other(x = y)[a = bool(true)];\nnonesuch(x = z);",
            Unsupported,
            "line 5, column 10: unsupported: operations that Rigel does not have: nonesuch, other",
        ),
    ] {
        assert_error(&with_body(body), kind, message);
    }
}

#[test]
fn beside_an_empty_axis_sizes_are_harmless() {
    let huge = "tensor<fp32, [0, 4294967296, 4294967296]>";
    let body = format!("{huge} y = const()[val = {huge}([])];");
    let parsed = parse(&with_body(&body), &NoBlobs).unwrap();
    mil::verify(&parsed.program).unwrap();
    let printed = print(&parsed.program, parsed.dialect).unwrap();
    assert!(printed.contains(&format!("{huge}([])")));
}

#[test]
fn the_frame_is_checked_too() {
    use ErrorKind::{Invalid, Unsupported};
    assert_error("", Invalid, "line 1, column 1: program is needed, not the end of the text");
    assert_error(
        "program(2.0)",
        Unsupported,
        "line 1, column 9: unsupported: version \"2.0\" of the language",
    );
    assert_error(
        "program(1.0)[]{func f<ios99>",
        Unsupported,
        "line 1, column 23: unsupported: operation set \"ios99\"",
    );
    let f = "func f<ios17>() {} -> ();";
    assert_error(
        &format!("program(1.0)[]{{{f}{f}}}"),
        Invalid,
        "line 1, column 41: function f is defined twice",
    );
    assert_error(
        "program(1.0)[]{} x",
        Invalid,
        "line 1, column 18: \"x\" after the end of the program",
    );
}

static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let small = artefacts().into_iter().map(|p| fs::read_to_string(p).unwrap());
    small.filter(|t| t.len() < 6000).collect()
});

/// Pieces that mean something to the grammar.
const PIECES: &[&str] = &[
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    ",",
    ";",
    "=",
    "->",
    "\"",
    "\\",
    "?",
    "-",
    ".",
    "@",
    "tensor<fp32, [",
    "list<",
    "tuple<",
    "state<",
    "BLOBFILE(path = ",
    "0x1p",
    "inf",
    "nan",
    "é",
    "99999999999999999999",
    "-1",
    "const()[",
    "func main<ios18>(",
    "{{",
    "uint3",
    "string(\"",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn damaged_texts_never_panic(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), 0..30usize, prop::sample::select(PIECES)), 1..4),
    ) {
        let mut text = TEXTS[which.index(TEXTS.len())].clone();
        for (at, cut, piece) in edits {
            let floor = |mut n: usize| {
                while !text.is_char_boundary(n) {
                    n -= 1;
                }
                n
            };
            let start = floor(at.index(text.len() + 1));
            let end = floor((start + cut).min(text.len()));
            text.replace_range(start..end, piece);
        }
        if let Ok(parsed) = parse(&text, &NoBlobs) {
            // What is read can be checked and printed; either may be refused.
            let _ = mil::verify(&parsed.program);
            let _ = print(&parsed.program, parsed.dialect);
        }
    }

    #[test]
    fn damaged_texts_with_weights_never_panic(
        which in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let paths = artefacts();
        let path = &paths[which.index(paths.len())];
        let text = fs::read_to_string(path).unwrap();
        let mut end = cut.index(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        prop_assert!(parse(&text[..end], &weights_of(path)).is_err());
    }
}
