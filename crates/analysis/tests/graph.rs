//! Drawings of programs: everything is there, and names stay names.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::PathBuf;

use mil::package::Package;
use rigel_analysis::graph;

fn artefact(name: &str) -> Package {
    let path: PathBuf = testkit::shared_dir().join("coreml").join(format!("{name}.mlpackage"));
    Package::open(path).unwrap()
}

/// Checks that the tags of `markup` nest, and returns how many there are of each name.
fn tags(markup: &str) -> std::collections::BTreeMap<String, usize> {
    let (mut open, mut counts) = (Vec::new(), std::collections::BTreeMap::new());
    for part in markup.split('<').skip(1) {
        let (tag, _) = part.split_once('>').unwrap();
        let name: String = tag.chars().take_while(|c| c.is_alphanumeric() || *c == '/').collect();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
        } else if !tag.starts_with('?') {
            *counts.entry(name.clone()).or_default() += 1;
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    counts
}

#[test]
fn every_operation_is_drawn_with_its_types() {
    let svg = graph::svg(&artefact("mlp_fp32")).unwrap();
    let counts = tags(&svg);
    // One input, three operations, one output.
    assert_eq!(svg.matches("class=\"node ").count(), 5);
    assert_eq!(counts["path"], 4);
    for text in
        ["linear", "gelu", "weight fp32 128×64", "fp32 4×64", "var_11", "mode = &quot;EXACT&quot;"]
    {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn functions_stand_side_by_side_and_blocks_inside() {
    let package = artefact("llama_multifunction");
    let svg = graph::svg(&package).unwrap();
    tags(&svg);
    assert_eq!(svg.matches("class=\"section\"").count(), package.program.functions.len());
    let loops = graph::svg(&artefact("zoo/while_loop.fp32")).unwrap();
    tags(&loops);
    assert!(loops.contains("block 0") && loops.contains("block 1"), "{loops}");
}

#[test]
fn names_stay_names() {
    let mut package = artefact("mlp_fp32");
    let hostile = "</title><script>alert(1)</script>\u{1}";
    for function in package.program.functions.values_mut() {
        for data in function.values.values_mut() {
            data.name = hostile.to_owned();
        }
    }
    let svg = graph::svg(&package).unwrap();
    assert!(!tags(&svg).contains_key("script") && !svg.contains('\u{1}'));
    let page = graph::html(&package, hostile).unwrap();
    assert_eq!(page.matches("<script").count(), 1);
    assert!(!page.contains("alert(1)</script>"));
}

#[test]
fn pages_load_nothing() {
    let page = graph::html(&artefact("gpt2_stateful"), "gpt2").unwrap();
    for outside in ["http://", "https://", "src=", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn what_is_too_large_is_refused() {
    use mil::{FunctionBuilder, OpKind, Opset, Program, TensorType};
    let chain = |n: usize| {
        let mut program = Program::default();
        let mut b = FunctionBuilder::new("main", Opset::Ios15, &mut program.weights);
        let mut x = b.input("x", TensorType::new(tensor::DType::F32, [1usize]));
        for i in 0..n {
            x = b.op(OpKind::Relu).arg("x", x).name(format!("relu_{i}")).result().unwrap();
        }
        let f = b.finish(vec![x]);
        program.functions.insert("main".into(), f);
        Package::from_program(program)
    };
    assert_eq!(graph::svg(&chain(4000)).unwrap().matches("class=\"node ").count(), 4002);
    let error = graph::svg(&chain(20_001)).unwrap_err().to_string();
    assert!(error.starts_with("limit: a drawing takes up to 20000"), "{error}");
}
