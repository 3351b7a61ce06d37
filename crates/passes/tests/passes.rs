//! What every pass keeps and what each one does.
#![allow(clippy::unwrap_used, reason = "a test")]

use half::f16;
use mil::eval::Arithmetic;
use mil::{Arg, FunctionBuilder, Literal, OpKind, Opset, Payload, Program, TensorType, ValueId};
use proptest::prelude::*;
use rigel_passes::{PASSES, Pass, pass, pipelines, run, with_requirements};
use tensor::{Bytes, DType, Tensor};
use testkit::{
    Case, InterpreterBackend, Step, Tolerance, cases, compare, random_program, run_case,
};

/// The arithmetic in which results are compared after `passes`, and how far apart they may be: where every
/// pass keeps every bit, the one that rounds each operation's results to their types.
fn comparison(case: &Case, passes: &[&dyn Pass]) -> (Arithmetic, Tolerance) {
    if passes.iter().all(|p| p.exact()) {
        return (Arithmetic::Fp16, Tolerance::EXACT);
    }
    let values = case.program.functions.values().flat_map(|f| f.values.values());
    let halves = values.filter_map(|v| v.ty.as_tensor()).any(|t| t.dtype == DType::F16);
    (Arithmetic::Exact, if halves { Tolerance::F16 } else { Tolerance::F32 })
}

/// Whether one of `passes` has one of these names.
fn any(passes: &[&dyn Pass], names: &[&str]) -> bool {
    passes.iter().any(|p| names.contains(&p.name()))
}

/// The program with block-quantised constants as plain ones of single precision, their values rounded
/// to half.
fn decoded(program: &Program) -> Program {
    let mut program = program.clone();
    for function in program.functions.values_mut() {
        for op in function.ops.values_mut() {
            let Some(literal) = op.attributes.get_mut("val") else { continue };
            let Payload::Weight(id) = literal.payload else { continue };
            let tensor = &program.weights.get(id).unwrap().tensor;
            if !tensor.dtype().is_block_quantized() {
                continue;
            }
            let values = mil::eval::tensor_floats(tensor).unwrap();
            let values: Vec<f32> = values.iter().map(|&x| f16::from_f64(x).to_f32()).collect();
            let tensor = Tensor::from_slice(tensor.shape(), &values).unwrap();
            *literal = {
                let id = program.weights.insert("w", tensor);
                Literal::weight(&program.weights, id).unwrap()
            };
            function.values[op.outputs[0]].ty = literal.ty.clone();
        }
    }
    program
}

/// The program with its constants rounded to half precision, of single precision still: in exact
/// arithmetic computing in half precision then changes nothing.
fn rounded(program: &Program) -> Program {
    let mut program = program.clone();
    let half = |t: &Tensor| {
        let values = t.as_slice::<f32>().ok()?;
        let values: Vec<f32> = values.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
        Tensor::from_slice(t.shape(), &values).ok()
    };
    let weights: Vec<_> = program.weights.iter().map(|(id, w)| (id, half(&w.tensor))).collect();
    for (id, tensor) in weights {
        tensor.map(|t| program.weights.replace(id, t));
    }
    let round = |literal: &mut Literal| {
        if let Payload::Tensor(t) = &literal.payload
            && let Some(t) = half(t)
        {
            literal.payload = Payload::Tensor(t);
        }
    };
    for op in program.functions.values_mut().flat_map(|f| f.ops.values_mut()) {
        op.attributes.get_mut("val").into_iter().for_each(round);
        for arg in op.args.iter_mut().flatten() {
            if let Arg::Literal(literal) = arg {
                round(literal);
            }
        }
    }
    program
}

/// The case after `passes` gives what it gave before, and the passes find nothing more to do.
fn check(case: &Case, passes: &[&dyn Pass]) -> Result<(), String> {
    let mut program = case.program.clone();
    if any(passes, &["to_fp16"]) {
        program = rounded(&program);
    }
    let mut after = Case { program: program.clone(), ..case.clone() };
    if any(passes, &["dequantize"]) {
        program = decoded(&program);
    }
    let case = &Case { program, ..case.clone() };
    let names: Vec<&str> = passes.iter().map(|p| p.name()).collect();
    let place = |e: &dyn std::fmt::Display| format!("{} after {}: {e}", case.name, names.join(" "));
    run(&mut after.program, passes).map_err(|e| place(&e))?;
    let (arithmetic, tolerance) = comparison(case, passes);
    let oracle = InterpreterBackend::new(arithmetic);
    let expected = run_case(&oracle, case).map_err(|e| place(&e))?;
    let actual = run_case(&oracle, &after).map_err(|e| place(&e))?;
    let pairs = actual.outputs.iter().zip(&expected.outputs);
    for (a, e) in pairs.chain([(&actual.states, &expected.states)]) {
        if !a.keys().eq(e.keys()) {
            return Err(place(&format!("{:?} instead of {:?}", a.keys(), e.keys())));
        }
        for (name, tensor) in a {
            compare(tensor, &e[name], tolerance).map_err(|m| place(&format!("{name}: {m}")))?;
        }
    }
    let again = run(&mut after.program, passes).map_err(|e| place(&e))?;
    match again.iter().find(|s| s.changes > 0) {
        Some(stats) => Err(place(&format!("{} is not idempotent", stats.pass))),
        None => Ok(()),
    }
}

#[test]
fn passes_keep_the_meaning_of_the_cases() {
    let mut failures = Vec::new();
    for case in cases() {
        for &chosen in PASSES {
            failures.extend(check(&case, &with_requirements(&[chosen])).err());
        }
        failures.extend(check(&case, pipelines::OPTIMIZE).err());
        failures.extend(check(&case, pipelines::PLAIN).err());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn passes_keep_the_meaning_of_random_programs(random in random_program(10)) {
        let case = random.case();
        for &chosen in PASSES {
            prop_assert_eq!(check(&case, &with_requirements(&[chosen])), Ok(()));
        }
        prop_assert_eq!(check(&case, pipelines::OPTIMIZE), Ok(()));
        prop_assert_eq!(check(&case, pipelines::PLAIN), Ok(()));
    }
}

/// A program of one function over `x: fp32 [2, 3]`.
fn program(
    build: impl FnOnce(&mut FunctionBuilder<'_>, ValueId) -> mil::Result<Vec<ValueId>>,
) -> Program {
    let mut program = Program::default();
    let mut f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let x = f.input("x", TensorType::new(DType::F32, [2usize, 3]));
    let outputs = build(&mut f, x).unwrap();
    let function = f.finish(outputs);
    program.functions.insert("main".to_owned(), function);
    program
}

fn binary(f: &mut FunctionBuilder<'_>, kind: OpKind, x: ValueId, y: ValueId) -> ValueId {
    f.op(kind).arg("x", x).arg("y", y).result().unwrap()
}

/// Kinds of the body's operations after the pass called `name`.
fn kinds_after(name: &str, mut program: Program) -> Vec<OpKind> {
    run(&mut program, &with_requirements(&[pass(name).unwrap()])).unwrap();
    let function = &program.functions["main"];
    function.body.ops.iter().map(|&id| function.ops[id].kind).collect()
}

#[test]
fn dead_code_goes_with_what_only_it_used() {
    let p = program(|f, x| {
        let unused = binary(f, OpKind::Add, x, x);
        binary(f, OpKind::Sub, unused, x);
        Ok(vec![binary(f, OpKind::Mul, x, x)])
    });
    assert_eq!(kinds_after("dead_code", p), [OpKind::Mul]);
}

#[test]
fn constants_fold_through() {
    let p = program(|f, x| {
        let one = f.constant("one", Literal::scalar(1f32));
        let two = binary(f, OpKind::Add, one, one);
        let four = binary(f, OpKind::Mul, two, two);
        Ok(vec![binary(f, OpKind::Mul, x, four)])
    });
    let kinds = kinds_after("fold", p);
    assert_eq!(kinds, [OpKind::Const, OpKind::Const, OpKind::Const, OpKind::Mul]);
}

#[test]
fn equal_constants_are_one() {
    let p = program(|f, x| {
        let a = f.constant("a", Literal::scalar(2f32));
        let y = binary(f, OpKind::Mul, x, a);
        let b = f.constant("b", Literal::scalar(2f32));
        Ok(vec![binary(f, OpKind::Add, y, b)])
    });
    assert_eq!(kinds_after("const_dedup", p), [OpKind::Const, OpKind::Mul, OpKind::Add]);
}

#[test]
fn constants_of_one_name_leave_their_blocks() {
    // Two constants called `k`, which no place sees together, one of which equals another constant.
    let text = "program(1.3)\n[]\n{\n    func main<ios18>(bool p, tensor<fp32, [2]> x) {
        fp32 one = const()[val = fp32(0x1p+0)];
        tensor<fp32, [2]> y = cond(pred = p)
            () {
                fp32 k = const()[val = fp32(0x1p+0)];
                tensor<fp32, [2]> a = add(x = x, y = k);
            } -> (a)
            () {
                fp32 k = const()[val = fp32(0x1p+1)];
                tensor<fp32, [2]> a = add(x = x, y = k);
            } -> (a);
        fp32 k = const()[val = fp32(0x1p+2)];
        tensor<fp32, [2]> z = mul(x = y, y = k);
        tensor<fp32, [2]> w = sub(x = z, y = one);
    } -> (w);\n}";
    let program = mil::text::parse(text, &mil::text::NoBlobs).unwrap().program;
    let steps = [true, false].map(|p| Step {
        function: "main".into(),
        inputs: std::collections::BTreeMap::from([
            ("p".into(), Tensor::new(DType::Bool, &[], Bytes::copy_from(&[p.into()])).unwrap()),
            ("x".into(), Tensor::from_slice(&[2], &[1f32, 3.0]).unwrap()),
        ]),
    });
    let (name, tolerance) = ("nested constants".into(), Tolerance::EXACT);
    let case = Case { name, program, steps: steps.into(), tolerance };
    assert_eq!(check(&case, pipelines::OPTIMIZE), Ok(()));
    assert_eq!(check(&case, pipelines::PLAIN), Ok(()));
}

#[test]
fn equal_operations_are_one_through_chains() {
    let p = program(|f, x| {
        let (a, b) = (binary(f, OpKind::Add, x, x), binary(f, OpKind::Add, x, x));
        let (c, d) = (binary(f, OpKind::Mul, a, x), binary(f, OpKind::Mul, b, x));
        Ok(vec![binary(f, OpKind::Sub, c, d)])
    });
    assert_eq!(kinds_after("cse", p), [OpKind::Add, OpKind::Mul, OpKind::Sub]);
}

#[test]
fn what_changes_nothing_goes_unless_it_names_an_output() {
    let p = program(|f, x| {
        let y = f.op(OpKind::Identity).arg("x", x).result()?;
        let y =
            f.op(OpKind::Reshape).arg("x", y).arg("shape", Literal::vector(&[2, 3])).result()?;
        let y =
            f.op(OpKind::Transpose).arg("x", y).arg("perm", Literal::vector(&[0, 1])).result()?;
        Ok(vec![f.op(OpKind::Identity).arg("x", y).name("out").result()?])
    });
    assert_eq!(kinds_after("identity", p), [OpKind::Identity]);
}

#[test]
fn decomposition_leaves_plain_operations_and_names() {
    let mut p = program(|f, x| {
        let w = f.constant("w", Literal::vector(&[1f32, 2.0, 3.0]));
        let op = f.op(OpKind::LlmRmsNorm).arg("x", x).arg("weight", w);
        Ok(vec![op.arg("epsilon", Literal::scalar(1e-5f32)).name("normed").result()?])
    });
    run(&mut p, pipelines::PLAIN).unwrap();
    let function = &p.functions["main"];
    assert!(function.ops.values().all(|op| !op.kind.name().starts_with("llm.")));
    assert_eq!(function.values[function.body.outputs[0]].name, "normed");
}

#[test]
fn a_pass_without_what_it_needs_is_refused() {
    let mut p = program(|f, x| Ok(vec![binary(f, OpKind::Add, x, x)]));
    let e = run(&mut p, &[pass("cse").unwrap()]).unwrap_err();
    assert!(e.to_string().contains("cse needs UniqueConstants"), "{e}");
}

#[test]
fn names_are_unique_and_statistics_count() {
    for (i, p) in PASSES.iter().enumerate() {
        assert!(PASSES[..i].iter().all(|q| q.name() != p.name()));
        assert!(p.doc().contains("before:") && p.doc().contains("after:"), "{}", p.name());
    }
    let mut p = program(|f, x| {
        binary(f, OpKind::Sub, x, x);
        Ok(vec![binary(f, OpKind::Add, x, x)])
    });
    let stats = run(&mut p, &[pass("dead_code").unwrap()]).unwrap();
    assert_eq!((stats[0].ops_before, stats[0].ops_after, stats[0].changes), (2, 1, 1));
}
