//! What makes a program fit a device of half precision and few states.
#![allow(clippy::unwrap_used, reason = "a test")]

use exec::{Backend, Tensors};
use mil::eval::Arithmetic;
use mil::{Dim, FunctionBuilder, Literal, OpKind, Opset, Program, TensorType, Type, ValueId};
use rigel_passes::{pass, pipelines, run};
use tensor::{DType, Tensor};
use testkit::{InterpreterBackend, Tolerance, compare, seeded_tensor};

fn program(build: impl FnOnce(&mut FunctionBuilder<'_>) -> mil::Result<Vec<ValueId>>) -> Program {
    let mut program = Program::default();
    let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let outputs = build(&mut b).unwrap();
    let function = b.finish(outputs);
    program.functions.insert("main".to_owned(), function);
    program
}

fn after(program: &Program, names: &[&str]) -> Program {
    let mut program = program.clone();
    let passes: Vec<_> = names.iter().map(|name| pass(name).unwrap()).collect();
    run(&mut program, &passes).unwrap();
    program
}

fn float(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape.iter().copied())
}

/// Outputs of `main` for one call on each of `inputs`, states kept.
fn outputs(program: &Program, arithmetic: Arithmetic, inputs: &[Tensors]) -> Vec<Tensors> {
    let mut runnable = InterpreterBackend::new(arithmetic).prepare(program).unwrap();
    let mut state = runnable.new_state().unwrap();
    inputs.iter().map(|i| runnable.run("main", i, &mut state).unwrap()).collect()
}

fn one(name: &str, tensor: Tensor) -> Tensors {
    Tensors::from([(name.to_owned(), tensor)])
}

#[track_caller]
fn assert_same(a: &[Tensors], b: &[Tensors], tolerance: Tolerance) {
    assert_eq!(a.len(), b.len());
    for (step, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a.keys().eq(b.keys()));
        for (name, tensor) in a {
            compare(tensor, &b[name], tolerance).unwrap_or_else(|e| panic!("{step} {name}: {e}"));
        }
    }
}

/// The text, with weights left out.
fn text(program: &Program) -> String {
    mil::text::print(program, mil::text::Dialect::V1_3).unwrap()
}

#[test]
fn positions_stay_single_up_to_their_angles() {
    let p = program(|b| {
        let x = b.input("x", float(&[1, 4]));
        let at = b.input("at", TensorType::new(DType::I32, [1usize]));
        let at = b
            .op(OpKind::Cast)
            .arg("x", at)
            .arg("dtype", Literal::string("fp32"))
            .name("p")
            .result()?;
        let f = b.constant("f", Literal::vector(&[1f32, 0.1, 0.01, 0.001]));
        let angle = b.op(OpKind::Mul).arg("x", at).arg("y", f).name("angle").result()?;
        let cos = b.op(OpKind::Cos).arg("x", angle).name("cos").result()?;
        Ok(vec![b.op(OpKind::Mul).arg("x", x).arg("y", cos).name("y").result()?])
    });
    let half = after(&p, &["to_fp16", "dead_code"]);
    let shown = text(&half);
    for line in [
        "tensor<fp32, [4]> angle = mul(x = p, y = f)",
        "tensor<fp32, [4]> cos = cos(x = angle)",
        "tensor<fp16, [1, 4]> y_fp16 = mul(x = x_to_fp16, y = cos_to_fp16)",
        "tensor<fp32, [1, 4]> y = cast(",
    ] {
        assert!(shown.contains(line), "no {line} in {shown}");
    }
    // 3001 is no number of half precision.
    let mut inputs = one("x", Tensor::from_slice(&[1, 4], &[1f32; 4]).unwrap());
    inputs.insert("at".into(), Tensor::from_slice(&[1], &[3001i32]).unwrap());
    let exact = outputs(&p, Arithmetic::Exact, &[inputs.clone()]);
    assert_same(&outputs(&half, Arithmetic::Fp16, &[inputs]), &exact, Tolerance::F16);
}

#[test]
fn masks_are_clamped_and_weights_beyond_the_range_refused() {
    let masked = program(|b| {
        let x = b.input("x", float(&[2]));
        let mask = b.constant("mask", Literal::vector(&[0f32, f32::NEG_INFINITY]));
        let x = b.op(OpKind::Add).arg("x", x).arg("y", mask).result()?;
        let y = b
            .op(OpKind::Softmax)
            .arg("x", x)
            .arg("axis", Literal::scalar(-1i32))
            .name("y")
            .result()?;
        Ok(vec![y])
    });
    let half = after(&masked, &["to_fp16", "dead_code"]);
    assert!(text(&half).contains("[0x0p+0, -0x1.ffcp+15]"), "{}", text(&half));
    let x = [one("x", Tensor::from_slice(&[2], &[1f32, 2.0]).unwrap())];
    let exact = outputs(&masked, Arithmetic::Exact, &x);
    assert_same(&outputs(&half, Arithmetic::Fp16, &x), &exact, Tolerance::F16);
    let mut large = program(|b| {
        let x = b.input("x", float(&[2]));
        let w = b.constant("w", Literal::vector(&[1f32, 7e4]));
        Ok(vec![b.op(OpKind::Mul).arg("x", x).arg("y", w).name("y").result()?])
    });
    let error = run(&mut large, &[pass("to_fp16").unwrap()]).unwrap_err().to_string();
    for part in ["op mul \"y\"", "limit", "7e4", "65504"] {
        assert!(error.contains(part), "no {part} in {error}");
    }
}

/// Rows whose squares overflow half precision, whose squares vanish in it, and zeros.
#[test]
fn norms_hold_in_half_precision() {
    let p = program(|b| {
        let x = b.input("x", float(&[4, 64]));
        let w = b.new_weight("w", seeded_tensor(DType::F32, "w", &[64]))?;
        let y = b.op(OpKind::LlmRmsNorm).arg("x", x).arg("weight", w);
        Ok(vec![y.arg("epsilon", Literal::scalar(1e-5f32)).name("y").result()?])
    });
    let seeded = seeded_tensor(DType::F32, "x", &[4, 64]);
    let scales = [6e4f32, 1.0, 1e-3, 0.0];
    let rows = seeded.as_slice::<f32>().unwrap().chunks(64).zip(scales);
    let values: Vec<f32> = rows.flat_map(|(row, s)| row.iter().map(move |x| 2.0 * x * s)).collect();
    let x = [one("x", Tensor::from_slice(&[4, 64], &values).unwrap())];
    let exact = outputs(&p, Arithmetic::Exact, &x);
    let half = after(&p, &["to_fp16", "decompose"]);
    // 64 squares are added up, and a few steps round.
    let tolerance = Tolerance { abs: 2e-3, rel: 4e-3 };
    assert_same(&outputs(&half, Arithmetic::Fp16, &x), &exact, tolerance);
    // In exact arithmetic only the constants are rounded.
    assert_same(&outputs(&half, Arithmetic::Exact, &x), &exact, Tolerance { abs: 1e-6, rel: 1e-3 });
}

/// Two layers of attention over caches of six slots; rows at `positions` of `count`.
fn layers(
    count: usize,
    positions: impl Fn(&mut FunctionBuilder<'_>) -> mil::Result<ValueId>,
) -> Program {
    program(|b| {
        let x = b.input("x", float(&[1, count, 2, 4]));
        let cache = || Type::State(TensorType::new(DType::F16, [1usize, 2, 6, 4]));
        let caches =
            [0, 1].map(|i| ["k", "v"].map(|s| b.input(&format!("{s}_cache_{i}"), cache())));
        let positions = positions(b)?;
        let mut y = x;
        for [k, v] in caches {
            let mix = b.op(OpKind::LlmAttention).arg("query", y).arg("key", y).arg("value", x);
            let mix = mix.arg("positions", positions).arg("scale", Literal::scalar(0.5f32));
            y = mix.arg("key_cache", k).arg("value_cache", v).result()?;
        }
        b.rename(y, "y");
        Ok(vec![y])
    })
}

fn steps(count: usize, starts: &[i32], positions: impl Fn(i32) -> Vec<i32>) -> Vec<Tensors> {
    let step = |&start: &i32| {
        let x = seeded_tensor(DType::F32, &format!("x{start}"), &[1, count, 2, 4]);
        let positions = positions(start);
        let at = Tensor::from_slice(&[positions.len()], &positions).unwrap();
        Tensors::from([("x".to_owned(), x), ("at".to_owned(), at)])
    };
    starts.iter().map(step).collect()
}

fn states(program: &Program) -> Vec<String> {
    let f = &program.functions["main"];
    let states = f.inputs.iter().filter(|&&v| f.ty(v).as_state().is_some());
    states.map(|&v| format!("{} {}", f.values[v].name, f.ty(v))).collect()
}

#[test]
fn states_of_layers_become_two() {
    let ints = |n: usize| TensorType::new(DType::I32, [n]);
    // Rows anywhere: each layer's part is written whole.
    let anywhere = layers(2, |b| Ok(b.input("at", ints(2))));
    let anywhere_steps = steps(2, &[0, 2, 1], |start| vec![start + 2, start]);
    // Rows one after another, and one row: they are written in place.
    let run_of_three = layers(3, |b| {
        let at = b.input("at", ints(1));
        b.op(OpKind::Add).arg("x", at).arg("y", Literal::vector(&[0i32, 1, 2])).result()
    });
    let single = layers(1, |b| Ok(b.input("at", ints(1))));
    let cases = [
        (anywhere, anywhere_steps, 4),
        (run_of_three, steps(3, &[0, 3, 1], |start| vec![start]), 0),
        (single, steps(1, &[0, 1, 2, 5], |start| vec![start]), 0),
    ];
    for (p, steps, scatters) in cases {
        let merged = after(&p, &["decompose", "merge_states", "dead_code"]);
        assert_eq!(
            states(&merged),
            [
                "k_cache state<tensor<fp16, [2, 2, 6, 4]>>",
                "v_cache state<tensor<fp16, [2, 2, 6, 4]>>"
            ]
        );
        assert_eq!(text(&merged).matches("= scatter(").count(), scatters);
        assert_eq!(text(&merged).matches("write_state(").count(), 4);
        let (expected, actual) =
            (outputs(&p, Arithmetic::Exact, &steps), outputs(&merged, Arithmetic::Exact, &steps));
        assert_same(&actual, &expected, Tolerance::F32);
        assert_eq!(text(&after(&merged, &["merge_states"])), text(&merged));
    }
}

#[test]
fn states_that_do_not_agree_stay() {
    let build = |types: [TensorType; 2]| {
        program(|b| {
            let states = [0, 1].map(|i| b.input(&format!("s_{i}"), Type::State(types[i].clone())));
            let read =
                |b: &mut FunctionBuilder<'_>, s| b.op(OpKind::ReadState).arg("input", s).result();
            states.into_iter().map(|s| read(b, s)).collect()
        })
    };
    let (small, large) =
        (TensorType::new(DType::F16, [1usize, 8]), TensorType::new(DType::F16, [1usize, 9]));
    let unequal = build([small.clone(), large.clone()]);
    assert_eq!(states(&after(&unequal, &["merge_states"])), states(&unequal));
    // Another function has one of them only.
    let mut two = build([small.clone(), small.clone()]);
    let mut b = FunctionBuilder::new("other", Opset::Ios18, &mut two.weights);
    b.input("s_0", Type::State(small.clone()));
    let function = b.finish(Vec::new());
    two.functions.insert("other".to_owned(), function);
    assert_eq!(states(&after(&two, &["merge_states"])), states(&two));
    two.functions.remove("other");
    assert_eq!(states(&after(&two, &["merge_states"])), ["s state<tensor<fp16, [2, 8]>>"]);
    // An open size may differ.
    let open = TensorType::new(DType::F16, [Dim::Unknown, Dim::Fixed(8)]);
    let open = build([open.clone(), open]);
    assert_eq!(states(&after(&open, &["merge_states"])), states(&open));
}

#[test]
fn decoded_weights_stay_shared() {
    let mut p = Program::default();
    let id = p.weights.insert("w", seeded_tensor(DType::Q4_1, "w", &[8, 32]));
    for name in ["main", "other"] {
        let mut b = FunctionBuilder::new(name, Opset::Ios18, &mut p.weights);
        let x = b.input("x", float(&[2, 32]));
        let w = b.weight(id).unwrap();
        let y = b.op(OpKind::LlmLinear).arg("x", x).arg("weight", w).name("y").result().unwrap();
        let function = b.finish(vec![y]);
        p.functions.insert(name.to_owned(), function);
    }
    let x = [one("x", seeded_tensor(DType::F32, "x", &[2, 32]))];
    let expected = outputs(&p, Arithmetic::Exact, &x);
    run(&mut p, pipelines::DEPLOY).unwrap();
    assert_eq!((p.weights.iter().len(), p.weights.byte_len()), (1, 2 * 8 * 32));
    assert_same(&outputs(&p, Arithmetic::Exact, &x), &expected, Tolerance::F16);
}
