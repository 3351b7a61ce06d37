//! What is asked for and what is refused: weights as inputs, checkpoints, scaling, errors.

use mil::eval::{Array, Value};
use mil::{FunctionBuilder, Literal, OpKind, Opset, Program, TensorType, Type, ValueId};
use passes::grad::{By, LOSS_SCALE, Request, differentiate};
use passes::pipelines::OPTIMIZE;
use tensor::{DType, Tensor};

use crate::harness::{Made, compare, float_inputs, made, request, run};

/// Four layers, each with a use of its input besides, so that a checkpoint fans out.
fn deep(seed: u64) -> Made {
    made("deep", seed, |m| {
        let mut x = m.float(&[2, 3]);
        for layer in 0..4 {
            let w = m.float(&[3, 3]);
            let y = m.op(OpKind::LlmLinear, vec![("x", x.into()), ("weight", w.into())])[0];
            let y = m.op(OpKind::Tanh, vec![("x", y.into())])[0];
            let y = m.op(OpKind::Exp, vec![("x", y.into())])[0];
            x = m.op(OpKind::Add, vec![("x", x.into()), ("y", y.into())])[0];
            m.f.rename(x, &format!("layer_{layer}"));
        }
        vec![x]
    })
}

#[test]
fn recomputed_activations_give_the_same_gradients() {
    let made = deep(1);
    let names = float_inputs(&made.inputs);
    let layers: Vec<String> = (0..3).map(|i| format!("layer_{i}")).collect();
    for checkpoints in [&[][..], &layers[1..2], &layers] {
        let gradients = differentiate(&made.program, &request(&names, checkpoints)).unwrap();
        let count = |program: &Program| {
            let function = &program.functions["main_grad"];
            function.body.ops.iter().filter(|&&id| function.ops[id].kind == OpKind::Tanh).count()
        };
        // Those before the last checkpoint are computed twice, and stay so.
        let again = match checkpoints.len() {
            0 => 0,
            1 => 2,
            _ => 3,
        };
        assert_eq!(count(&gradients.program), 4 + again);
        let mut optimised = gradients.program.clone();
        passes::run(&mut optimised, OPTIMIZE).unwrap();
        assert_eq!(count(&optimised), 4 + again);
        assert!(live_bytes(&gradients.program) > 0);
        compare(&made, gradients, &names, OPTIMIZE).unwrap();
    }
}

/// The most bytes of values that are needed at once, parameters and results apart.
fn live_bytes(program: &Program) -> usize {
    let function = &program.functions["main_grad"];
    let size = |v: ValueId| {
        let ty = function.tensor_ty(v).unwrap();
        ty.dtype.byte_len(ty.fixed_shape().unwrap().iter().product()).unwrap()
    };
    let mut last = std::collections::HashMap::new();
    for (at, &id) in function.body.ops.iter().enumerate() {
        function.ops[id].for_each_arg_value(|v| {
            last.insert(v, at);
        });
    }
    let (mut live, mut most) = (0usize, 0usize);
    let mut ends: Vec<Vec<ValueId>> = vec![Vec::new(); function.body.ops.len()];
    for (at, &id) in function.body.ops.iter().enumerate() {
        if function.ops[id].kind == OpKind::Const {
            continue;
        }
        for &v in function.ops[id].outputs.iter().filter(|v| !function.body.outputs.contains(v)) {
            live += size(v);
            ends[last.get(&v).copied().unwrap_or(at)].push(v);
        }
        most = most.max(live);
        live -= ends[at].iter().map(|&v| size(v)).sum::<usize>();
    }
    most
}

#[test]
fn checkpoints_save_memory() {
    // Many activations a layer, few values between layers.
    let made = made("wide", 2, |m| {
        let mut x = m.float(&[8, 8]);
        for layer in 0..8 {
            let mut y = x;
            for _ in 0..6 {
                y = m.op(OpKind::Tanh, vec![("x", y.into())])[0];
            }
            x = m.op(OpKind::Add, vec![("x", x.into()), ("y", y.into())])[0];
            m.f.rename(x, &format!("layer_{layer}"));
        }
        vec![x]
    });
    let names = float_inputs(&made.inputs);
    let layers: Vec<String> = (0..8).map(|i| format!("layer_{i}")).collect();
    let bytes = |checkpoints: &[String]| {
        let gradients = differentiate(&made.program, &request(&names, checkpoints)).unwrap();
        live_bytes(&gradients.program)
    };
    let (kept, again) = (bytes(&[]), bytes(&layers));
    assert!(again * 2 < kept, "{again} bytes with checkpoints and {kept} without");
}

/// `y = rms_norm(embedding) W^T`, the loss of its rows; two weights in half precision.
fn weighted() -> Program {
    let mut program = Program::default();
    let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let ids = b.input("ids", TensorType::new(DType::I32, [1, 3]));
    let targets = b.input("targets", TensorType::new(DType::I32, [1, 3]));
    let half = |name: &str, shape: &[usize]| testkit::seeded_tensor(DType::F16, name, shape);
    let table = b.new_weight("model.embed.weight", half("table", &[5, 4])).unwrap();
    let norm = testkit::seeded_tensor(DType::F32, "norm", &[4]);
    let norm = b.new_weight("model.norm.weight", norm).unwrap();
    let unused = b.new_weight("unused", half("unused", &[4])).unwrap();
    b.op(OpKind::Cast).arg("x", unused).arg("dtype", Literal::string("fp32")).result().unwrap();
    let x = b.op(OpKind::LlmEmbedding).arg("ids", ids).arg("weight", table).result().unwrap();
    let x = b.op(OpKind::LlmRmsNorm).arg("x", x).arg("weight", norm);
    let x = x.arg("epsilon", Literal::scalar(1e-5f32)).result().unwrap();
    let loss = b.op(OpKind::LlmHeadLoss).arg("x", x).arg("weight", table).arg("targets", targets);
    let loss = loss.name("loss").result().unwrap();
    let function = b.finish(vec![loss]);
    program.functions.insert("main".into(), function);
    program
}

fn ids(values: &[i32]) -> Value {
    Array::from_tensor(&Tensor::from_slice(&[1, values.len()], values).unwrap()).unwrap().into()
}

#[test]
fn weights_become_inputs() {
    let program = weighted();
    let all = |_: &str| true;
    let request = Request {
        function: "main",
        loss: "loss",
        by: By::Weights(&all),
        checkpoints: &[],
        scaled: true,
    };
    let gradients = differentiate(&program, &request).unwrap();
    let names: Vec<&str> = gradients.parameters.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["model.embed.weight", "model.norm.weight"]);
    let table = &gradients.parameters[0];
    assert_eq!(table.input, "model_embed_weight");
    assert_eq!(table.gradient, "grad_model_embed_weight");
    // Stored in half precision, trained in single.
    assert_eq!(table.ty, TensorType::new(DType::F32, [5, 4]));
    assert_eq!(gradients.function, "main_grad");
    let function = &gradients.program.functions["main_grad"];
    // The loss comes with the gradient of the output layer.
    let kinds: Vec<OpKind> = function.body.ops.iter().map(|&id| function.ops[id].kind).collect();
    assert!(!kinds.contains(&OpKind::LlmHeadLoss) && kinds.contains(&OpKind::LlmHeadLossGrad));

    let mut inputs: std::collections::BTreeMap<String, Value> =
        [("ids".into(), ids(&[1, 4, 1])), ("targets".into(), ids(&[4, -1, 0]))].into();
    for parameter in &gradients.parameters {
        let weight = program.weights.get(parameter.weight.unwrap()).unwrap();
        let mut array = Array::from_tensor(&weight.tensor).unwrap();
        array.dtype = DType::F32;
        inputs.insert(parameter.input.clone(), array.into());
    }
    let made = Made::new("weighted", gradients.program.clone(), inputs.clone());
    inputs.insert(LOSS_SCALE.into(), scalar(1.0));
    let single = run(&gradients.program, "main_grad", &inputs);
    inputs.insert(LOSS_SCALE.into(), scalar(64.0));
    let scaled = run(&gradients.program, "main_grad", &inputs);
    assert_eq!(single[0], scaled[0]);
    for (a, b) in single[1..].iter().flatten().zip(scaled[1..].iter().flatten()) {
        assert!((a * 64.0 - b).abs() < 1e-12, "{a} {b}");
    }
    // The function without gradients takes the weights too; its loss says whether they are right.
    let names: Vec<&str> = gradients.parameters.iter().map(|p| p.input.as_str()).collect();
    let by_inputs = differentiate(&made.program, &crate::harness::request(&names, &[])).unwrap();
    compare(&made, by_inputs, &names, OPTIMIZE).unwrap();
}

fn scalar(x: f32) -> Value {
    Array::from_tensor(&Tensor::from_slice(&[], &[x]).unwrap()).unwrap().into()
}

/// The message of a refusal.
fn refusal(program: &Program, loss: &str, by: By<'_>) -> String {
    let request = Request { function: "main", loss, by, checkpoints: &[], scaled: false };
    differentiate(program, &request).unwrap_err().to_string()
}

#[test]
fn refusals_name_what_they_are_about() {
    let program = weighted();
    let text = refusal(&program, "lost", By::Weights(&|_| true));
    assert!(text.contains("no output lost; there are loss"), "{text}");
    let text = refusal(&program, "loss", By::Inputs(&["ids"]));
    assert!(text.contains("ids is no input of floats"), "{text}");

    // A block-quantised weight.
    let made = made("quantised", 1, |m| {
        let x = m.float(&[1, 2, 256]);
        let w = m.f.new_weight("w", testkit::seeded_tensor(DType::Q4_0, "w", &[3, 256])).unwrap();
        m.op(OpKind::LlmLinear, vec![("x", x.into()), ("weight", w.into())])
    });
    let text = refusal(&made.program, "loss", By::Weights(&|_| true));
    assert!(text.contains("weight w is") && text.contains("cannot be trained"), "{text}");

    // An operation without a gradient, where the loss depends on it and where it does not.
    let pooled = crate::harness::made("pooled", 1, |m| {
        let (x, y) = (m.float(&[1, 1, 2, 2]), m.float(&[1, 1, 2, 2]));
        let sizes = |n: i32| Literal::vector(&[n, n]);
        let args = vec![("x", x.into()), ("kernel_sizes", sizes(2).into())];
        let rest =
            vec![("strides", sizes(1).into()), ("pad_type", Literal::string("valid").into())];
        let pooled = m.op(OpKind::MaxPool, [args, rest].concat());
        vec![pooled[0], y]
    });
    let text = refusal(&pooled.program, "loss", By::Inputs(&["x0"]));
    assert!(text.contains("unsupported") && text.contains("max_pool"), "{text}");
    differentiate(&pooled.program, &request(&["x1"], &[])).unwrap();
    let text = {
        let checkpoints = ["nowhere".to_owned()];
        differentiate(&pooled.program, &request(&["x1"], &checkpoints)).unwrap_err().to_string()
    };
    assert!(text.contains("nowhere"), "{text}");
}

#[test]
fn states_end_gradients_with_an_error() {
    let mut program = Program::default();
    let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let ty = TensorType::new(DType::F32, [2]);
    let x = b.input("x", ty.clone());
    let state = b.input("state", Type::State(ty));
    b.op(OpKind::WriteState).arg("input", state).arg("data", x).results().unwrap();
    let read = b.op(OpKind::ReadState).arg("input", state).result().unwrap();
    let loss = b.op(OpKind::ReduceSum).arg("x", read).name("loss").result().unwrap();
    let function = b.finish(vec![loss]);
    program.functions.insert("main".into(), function);
    let text = refusal(&program, "loss", By::Inputs(&["x"]));
    assert!(text.contains("write_state") || text.contains("through a state"), "{text}");
}
