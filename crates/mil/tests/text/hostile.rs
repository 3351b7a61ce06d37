//! Texts made to do harm: deep, huge, cut, repetitive. Each is refused with its place, in little time
//! and memory.

use std::fs;

use mil::text::{NoBlobs, parse, print};
use mil::{ErrorKind, OpKind};

use crate::common::weights_of;

fn with_body(body: &str) -> String {
    format!("program(1.3)\n[]\n{{\n    func main<ios18>(fp32 x) {{\n{body}\n        }} -> (x);\n}}")
}

fn refusal(text: &str) -> (ErrorKind, String) {
    let error = parse(text, &NoBlobs).unwrap_err();
    assert!(error.position.is_some(), "{error}");
    (error.kind, error.message)
}

#[test]
fn every_kind_of_nesting_has_a_limit() {
    let deep = "nested deeper than 64 levels";
    for depth in [70, 100_000] {
        let open = |s: &str| s.repeat(depth);
        for body in [
            format!("fp32 y = const()[val = {}", open("list<")),
            format!("fp32 y = const()[val = {}", open("tuple<")),
            format!("fp32 y = const()[val = {}", open("dict<")),
            open("list<"),
            format!("fp32 y = add(x = {}", open("(")),
            format!("fp32 y = cond(pred = x){}", open("\n() { fp32 z = cond(pred = x)")),
        ] {
            assert_eq!(
                refusal(&with_body(&body)),
                (ErrorKind::Limit, deep.into()),
                "{}",
                &body[..40]
            );
        }
        // Brackets that the type does not ask for are no nesting.
        let brackets = format!("fp32 y = const()[val = tensor<fp32, [1]>({}", open("["));
        assert_eq!(refusal(&with_body(&brackets)).0, ErrorKind::Invalid);
        // A type of so many axes could ask for them.
        let rank = format!("tensor<fp32, [{}]>", vec!["1"; depth].join(", "));
        let axes = format!("{rank} y = const()[val = {rank}({}", open("["));
        assert_eq!(refusal(&with_body(&axes)), (ErrorKind::Limit, deep.into()));
    }
}

#[test]
fn texts_cut_anywhere_are_refused() {
    for name in ["mlp_ios18", "mlp_range", "zoo/while_loop.fp16"] {
        let path = testkit::shared_dir().join("coreml").join(format!("{name}.mil"));
        let text = fs::read_to_string(&path).unwrap();
        let weights = weights_of(&path);
        for end in (0..text.len()).filter(|&n| text.is_char_boundary(n)) {
            let error = parse(&text[..end], &weights).unwrap_err();
            assert!(error.position.is_some(), "{name} cut at {end}: {error}");
        }
    }
}

#[test]
fn names_are_given_once() {
    for (body, message) in [
        (
            "fp32 y = abs(x = x)[name = string(\"a\"), name = string(\"b\")];",
            "attribute name is given twice",
        ),
        ("fp32 y, fp32 y = split(x = x);", "y is defined twice"),
        ("fp32 x = abs(x = x);", "x is defined twice"),
    ] {
        assert_eq!(refusal(&with_body(body)), (ErrorKind::Invalid, message.into()));
    }
    let inputs = "program(1.3)[]{func main<ios18>(fp32 x, fp32 x) {} -> ();}";
    assert_eq!(refusal(inputs), (ErrorKind::Invalid, "x is defined twice".into()));
    // What a block defined can be defined again behind it, but not inside.
    let block = "() { fp32 z = abs(x = x); } -> (z)";
    let text = with_body(&format!("fp32 y = cond(pred = x)\n{block}\n{block};"));
    parse(&text, &NoBlobs).unwrap();
    let text = with_body(&format!("fp32 z = abs(x = x);\nfp32 y = cond(pred = x)\n{block};"));
    assert_eq!(refusal(&text).1, "z is defined twice");
}

#[test]
fn many_attributes_of_one_operation_are_a_limit() {
    let attributes = |n: usize| -> String {
        let names: Vec<String> = (0..n).rev().map(|i| format!("a{i:06} = bool(true)")).collect();
        with_body(&format!("fp32 y = abs(x = x)[{}];", names.join(", ")))
    };
    let parsed = parse(&attributes(256), &NoBlobs).unwrap();
    let printed = print(&parsed.program, parsed.dialect).unwrap();
    assert!(printed.contains("[a000000 = bool(true), a000001"));
    let (kind, message) = refusal(&attributes(100_000));
    assert_eq!((kind, message.as_str()), (ErrorKind::Limit, "more than 256 attributes"));
}

#[test]
fn sizes_beyond_memory_are_only_numbers() {
    // A value's type may say anything; nothing is allocated for it.
    for size in ["2147483648", "4294967296", "18446744073709551615"] {
        let ty = format!("tensor<fp32, [{size}, {size}, {size}]>");
        let text = with_body(&format!("{ty} y = abs(x = x);"));
        let parsed = parse(&text, &NoBlobs).unwrap();
        assert_eq!(print(&parsed.program, parsed.dialect).unwrap().matches(size).count(), 3);
        assert!(mil::verify(&parsed.program).is_err());
        // A constant of that type needs its elements, and a weight its bytes.
        for value in ["[]", "[[[0x1p+0]]]", "0x1p+0"] {
            let text = with_body(&format!("{ty} y = const()[val = {ty}({value})];"));
            assert_eq!(refusal(&text).0, ErrorKind::Invalid);
        }
        let blob =
            "BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64))";
        let path = testkit::shared_dir().join("coreml/mlp_ios18.mil");
        let text = with_body(&format!("{ty} y = const()[val = {ty}({blob})];"));
        let error = parse(&text, &weights_of(&path)).unwrap_err();
        assert!(error.position.is_some() && error.kind == ErrorKind::Invalid, "{error}");
    }
    let (kind, message) =
        refusal(&with_body("tensor<fp32, [18446744073709551616]> y = abs(x = x);"));
    assert_eq!(kind, ErrorKind::Invalid);
    assert_eq!(message, "18446744073709551616 is not a size");
    let text = with_body(
        "list<fp32, 18446744073709551615> y = const()[val = list<fp32, 18446744073709551615>([])];",
    );
    assert_eq!(refusal(&text).0, ErrorKind::Invalid);
    // Running what asks for so much is refused too, before there is memory for it.
    let text = "program(1.3)[]{func main<ios18>() {\n\
        tensor<int32, [3]> s = const()[val = tensor<int32, [3]>([2147483647, 2147483647, 2147483647])];\n\
        fp32 v = const()[val = fp32(0x1p+0)];\n\
        tensor<fp32, [?, ?, ?]> y = fill(shape = s, value = v);\n} -> (y);}";
    let parsed = parse(text, &NoBlobs).unwrap();
    assert_eq!(parsed.program.functions["main"].ops.values().last().unwrap().kind, OpKind::Fill);
    let ran = mil::eval::run(
        &parsed.program,
        "main",
        mil::eval::Arithmetic::F32,
        &Default::default(),
        &mut Default::default(),
    );
    assert_eq!(ran.unwrap_err().kind, ErrorKind::Limit);
}

#[test]
fn long_tokens_and_long_lists_are_read_in_their_length() {
    let n = 1_000_000;
    let long = "y".repeat(n);
    let error = parse(&with_body(&format!("fp32 y = abs(x = {long});")), &NoBlobs).unwrap_err();
    assert!(error.to_string().len() > n && error.position == Some((5, 18)), "the name, once");
    let (kind, message) = refusal(&with_body(&format!("fp32 y = \"{long}\"")));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(message.len() < 120, "{message}");
    let zeros = vec!["0"; n].join(", ");
    let ty = format!("tensor<int32, [{n}]>");
    parse(&with_body(&format!("{ty} y = const()[val = {ty}([{zeros}])];")), &NoBlobs).unwrap();
    let digits = "9".repeat(n);
    let (kind, message) =
        refusal(&with_body(&format!("int32 y = const()[val = int32({digits})];")));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(message.len() < 120, "{message}");
    let hex = format!("0x1.{digits}p-1");
    parse(&with_body(&format!("fp32 y = const()[val = fp32({hex})];")), &NoBlobs).unwrap();
}

#[test]
fn the_operation_set_at_an_operation_is_kept() {
    let text = "program(1.3)\n[]\n{\n    func main<ios18>(fp32 x) {\n            \
                fp32 y = abs<ios17>(x = x)[name = string(\"y\")];\n            \
                fp32 z = abs(x = y);\n        } -> (z);\n}";
    let parsed = parse(text, &NoBlobs).unwrap();
    assert_eq!(print(&parsed.program, parsed.dialect).unwrap(), text);
    let opsets: Vec<_> = parsed.program.functions["main"].ops.values().map(|op| op.opset).collect();
    assert_eq!(opsets, [Some(mil::Opset::Ios17), None]);
    let wrong = text.replace("ios17", "ios14");
    assert_eq!(refusal(&wrong).0, ErrorKind::Unsupported);
}
