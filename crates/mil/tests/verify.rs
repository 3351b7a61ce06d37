//! Every invariant of the verifier, broken alone.
#![allow(clippy::unwrap_used, reason = "a test")]

use cranelift_entity::EntityRef;
use rigel_mil::{
    Arg, Block, Dim, Function, FunctionBuilder, Literal, OpId, OpKind, Opset, Payload, Program,
    TensorType, Type, ValueDef, ValueId, verify,
};
use tensor::{DType, Tensor, WeightId};

/// `sum = x + w; y = tanh(sum)`, with a cache that is not used.
fn program() -> Program {
    let mut program = Program::default();
    let mut b = FunctionBuilder::new("main", Opset::Ios17, &mut program.weights);
    let x = b.input("x", TensorType::new(DType::F32, [Dim::symbol("seq"), 2.into()]));
    b.input("cache", Type::State(TensorType::new(DType::F16, [4usize])));
    let w = b.new_weight("w", Tensor::from_slice(&[2], &[1f32, 2.0]).unwrap()).unwrap();
    let sum = b.op(OpKind::Add).arg("x", x).arg("y", w).name("sum").result().unwrap();
    let y = b.op(OpKind::Tanh).arg("x", sum).name("y").result().unwrap();
    let function = b.finish(vec![y]);
    program.functions.insert("main".into(), function);
    program
}

/// The value called `name`.
fn value(f: &Function, name: &str) -> ValueId {
    f.values.iter().find(|(_, d)| d.name == name).unwrap().0
}

/// The operation that makes the value called `name`.
fn op(f: &Function, name: &str) -> OpId {
    match f.values[value(f, name)].def {
        ValueDef::Result(op, _) => op,
        ValueDef::Param => panic!("{name} is a parameter"),
    }
}

/// The error after `break_it` has changed the function.
#[track_caller]
fn assert_broken(break_it: impl FnOnce(&mut Function), message: &str) {
    let mut program = program();
    verify(&program).unwrap();
    break_it(program.functions.get_mut("main").unwrap());
    assert_eq!(verify(&program).unwrap_err().to_string(), message);
}

fn replace_arg(f: &mut Function, result: &str, slot: usize, arg: impl Into<Arg>) {
    let op = op(f, result);
    f.ops[op].args[slot] = Some(arg.into());
}

#[test]
fn invariant_1_ids_exist() {
    assert_broken(
        |f| replace_arg(f, "y", 0, ValueId::new(99)),
        "function main: op tanh \"y\": there is no value v99",
    );
    assert_broken(|f| f.body.ops.push(OpId::new(99)), "function main: there is no operation op99");
    assert_broken(
        |f| f.body.outputs.push(ValueId::new(99)),
        "function main: there is no value v99",
    );
}

#[test]
fn invariant_2_one_definition() {
    assert_broken(
        |f| f.inputs.push(f.inputs[0]),
        "function main: value x is defined in two places",
    );
    assert_broken(
        |f| f.body.ops.push(f.body.ops[0]),
        "function main: op const \"w\": it stands in two places",
    );
    assert_broken(
        |f| {
            let y = value(f, "y");
            f.values[y].def = ValueDef::Result(op(f, "sum"), 0);
        },
        "function main: value y is not result 0 of op1",
    );
    assert_broken(
        |f| f.inputs.push(value(f, "y")),
        "function main: value y is defined in two places",
    );
}

#[test]
fn invariant_3_use_behind_definition() {
    assert_broken(
        |f| f.body.ops.reverse(),
        "function main: op tanh \"y\": value sum is used where it is not defined",
    );
    // A value of a nested block, used behind it.
    assert_broken(
        |f| {
            let (sum, y) = (op(f, "sum"), op(f, "y"));
            f.body.ops.retain(|&id| id != sum);
            let block = Block { ops: vec![sum], ..Block::default() };
            f.ops[y].blocks.push(block);
        },
        "function main: op tanh \"y\": value sum is used where it is not defined",
    );
    // The same inside is allowed to see what is outside, but not to hand out what is not.
    assert_broken(
        |f| {
            let (sum, y) = (value(f, "sum"), value(f, "y"));
            let id = op(f, "y");
            f.ops[id].blocks.push(Block { outputs: vec![sum, y], ..Block::default() });
        },
        "function main: op tanh \"y\": value y is used where it is not defined",
    );
}

#[test]
fn invariant_4_names() {
    let rename = |name: &'static str| {
        move |f: &mut Function| {
            let y = value(f, "y");
            f.values[y].name = name.into();
        }
    };
    assert_broken(rename("x"), "function main: op tanh \"y\": two values are called x");
    assert_broken(rename("a.b"), "function main: op tanh \"y\": \"a.b\" is not an identifier");
    assert_broken(rename(""), "function main: op tanh \"y\": \"\" is not an identifier");
}

#[test]
fn invariant_5_arguments() {
    let add = |what: &str| format!("function main: op add \"sum\": {what}");
    assert_broken(
        |f| {
            let id = op(f, "sum");
            f.ops[id].args.pop();
        },
        &add("1 argument slots for 2 parameters"),
    );
    assert_broken(
        |f| {
            let id = op(f, "sum");
            f.ops[id].args[1] = None;
        },
        &add("argument \"y\" is missing"),
    );
    assert_broken(
        |f| replace_arg(f, "sum", 1, Literal::string("text")),
        &add("argument \"y\" may not be string"),
    );
    assert_broken(
        |f| replace_arg(f, "sum", 1, vec![value(f, "w")]),
        &add("argument \"y\" may not be a list"),
    );
    assert_broken(
        |f| {
            let id = op(f, "y");
            f.ops[id].kind = OpKind::LlmRmsNorm;
            let (sum, w) = (value(f, "sum"), value(f, "w"));
            f.ops[id].args = [sum, w, sum].map(|v| Some(Arg::Value(v))).into();
        },
        "function main: op llm.rms_norm \"y\": argument \"epsilon\" must be a constant",
    );
}

#[test]
fn invariant_6_operation_set() {
    assert_broken(
        |f| {
            let id = op(f, "y");
            f.ops[id].kind = OpKind::ReadState;
            f.ops[id].args = vec![Some(Arg::Value(value(f, "cache")))];
        },
        "function main: op read_state \"y\": it belongs to ios18, the function to ios17",
    );
}

#[test]
fn invariant_7_results() {
    let retype = |shape: Vec<Dim>| {
        move |f: &mut Function| {
            let y = value(f, "y");
            f.values[y].ty = TensorType { dtype: DType::F32, shape }.into();
        }
    };
    let message = |own: &str| {
        format!(
            "function main: op tanh \"y\": result y is tensor<fp32, [{own}]>, \
             must be tensor<fp32, [seq, 2]>"
        )
    };
    assert_broken(retype(vec![4.into(), 2.into()]), &message("4, 2"));
    assert_broken(retype(vec![Dim::symbol("other"), 2.into()]), &message("other, 2"));
    assert_broken(retype(vec![Dim::symbol("seq")]), &message("seq"));
    assert_broken(
        |f| {
            let id = op(f, "y");
            f.body.outputs.clear();
            f.ops[id].outputs.clear();
            let y = value(f, "y");
            f.values[y].def = ValueDef::Param;
        },
        "function main: op tanh \"y\": 0 results where there must be 1",
    );
    // An unknown size contradicts nothing.
    let mut program = program();
    retype(vec![Dim::Unknown, 2.into()])(program.functions.get_mut("main").unwrap());
    verify(&program).unwrap();
}

#[test]
fn invariant_8_states() {
    assert_broken(
        |f| f.body.outputs.push(value(f, "cache")),
        "function main: output cache is a state",
    );
    assert_broken(
        |f| replace_arg(f, "sum", 1, value(f, "cache")),
        "function main: op add \"sum\": argument \"y\" may not be state<tensor<fp16, [4]>>",
    );
    // A parameter that accepts anything does not accept a state.
    assert_broken(
        |f| {
            let id = op(f, "y");
            f.ops[id].kind = OpKind::Identity;
            f.ops[id].args = vec![Some(Arg::Value(value(f, "cache")))];
        },
        "function main: op identity \"y\": argument \"x\" may not be state<tensor<fp16, [4]>>",
    );
}

#[test]
fn invariant_9_literals() {
    let set = |payload: Payload| {
        move |f: &mut Function| {
            let id = op(f, "w");
            f.ops[id].attributes.get_mut("val").unwrap().payload = payload;
        }
    };
    let message = |what: &str| {
        format!("function main: op const \"w\": a constant of type tensor<fp32, [2]> holds {what}")
    };
    assert_broken(
        set(Payload::Weight(WeightId::new(7))),
        &message("weight7, which is not in the store"),
    );
    let wrong = Tensor::from_slice(&[3], &[0f32; 3]).unwrap();
    assert_broken(set(Payload::Tensor(wrong)), &message("tensor<fp32, [3]>"));
    assert_broken(set(Payload::Strings(vec![])), &message("strings"));
    assert_broken(set(Payload::Items(vec![])), &message("0 items"));
    // A weight that was replaced by one of another shape.
    let mut program = program();
    program.weights.replace(WeightId::new(0), Tensor::from_slice(&[1], &[0f32]).unwrap());
    assert_eq!(verify(&program).unwrap_err().to_string(), message("tensor<fp32, [1]>"));
}

#[test]
fn invariant_10_body_and_outputs() {
    assert_broken(
        |f| f.body.params.push(f.inputs[0]),
        "function main: the body has parameters of its own",
    );
    assert_broken(
        |f| f.body.outputs.push(f.body.outputs[0]),
        "function main: output y is given twice",
    );
}
