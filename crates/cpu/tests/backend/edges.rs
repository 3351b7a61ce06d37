//! Values, places and sizes at the edge of what kernels take.

use exec::{Backend, Tensors};
use mil::{Dim, FunctionBuilder, Literal, OpKind, Opset, Program, TensorType};
use rigel_cpu::CpuBackend;
use tensor::{Bytes, DType, Tensor};
use testkit::{Case, case, check_case};

fn check(case: &Case) {
    assert_eq!(check_case(&CpuBackend::new(1), case), Ok(()));
}

/// `tensor` where its elements are not aligned.
fn misaligned(tensor: &Tensor) -> Tensor {
    let shifted = Bytes::copy_from(&[&[0], &tensor.bytes()[..]].concat());
    let bytes = shifted.slice(1..shifted.len()).unwrap();
    Tensor::new(tensor.dtype(), tensor.shape(), bytes).unwrap()
}

#[test]
fn not_a_number_and_zero() {
    let given = Tensor::from_slice(&[4], &[f32::NAN, -2.0, 0.0, 2.0]).unwrap();
    check(&case("clip", |c| {
        let x = c.given("x", given);
        let op = c.f.op(OpKind::Clip).arg("x", x).arg("alpha", Literal::scalar(-1f32));
        Ok(vec![op.arg("beta", Literal::scalar(1f32)).result()?])
    }));
    for kind in [OpKind::Log, OpKind::Inverse, OpKind::Rsqrt] {
        check(&case("beside zero", |c| {
            let x = c.given("x", Tensor::from_slice(&[2], &[0f32, 3.0]).unwrap());
            Ok(vec![c.f.op(kind).arg("x", x).result()?])
        }));
    }
}

#[test]
fn elements_need_no_alignment() {
    let half = Tensor::new(DType::F16, &[2], Bytes::copy_from(&[0, 0x3c, 0, 0xc0])).unwrap();
    let single = Tensor::from_slice(&[2], &[1f32, -2.0]).unwrap();
    for tensor in [half, single].map(|t| misaligned(&t)) {
        check(&case("input", |c| {
            let x = c.given("x", tensor.clone());
            Ok(vec![c.f.op(OpKind::Abs).arg("x", x).result()?])
        }));
        check(&case("view of a weight", |c| {
            let x = c.f.new_weight("x", tensor.clone())?;
            let op = c.f.op(OpKind::Split).arg("x", x).arg("axis", Literal::scalar(0i32));
            let parts = op.arg("num_splits", Literal::scalar(2i32)).results()?;
            Ok(vec![c.f.op(OpKind::Abs).arg("x", parts[1]).result()?])
        }));
    }
}

#[test]
fn negative_indices_are_of_old_operation_sets() {
    for (opset, fails) in [(Opset::Ios16, false), (Opset::Ios18, true)] {
        let mut program = Program::default();
        let mut f = FunctionBuilder::new("main", opset, &mut program.weights);
        let x = f.input("x", TensorType::new(DType::F32, [3usize]));
        let i = f.input("i", TensorType::new(DType::I32, [1usize]));
        let op = f.op(OpKind::Gather).arg("x", x).arg("indices", i);
        let y = op.arg("axis", Literal::scalar(0i32)).name("y").result().unwrap();
        let function = f.finish(vec![y]);
        program.functions.insert("main".to_owned(), function);
        let mut cpu = CpuBackend::new(1).prepare(&program).unwrap();
        assert_eq!(cpu.fallbacks(), []);
        let inputs = Tensors::from([
            ("x".to_owned(), Tensor::from_slice(&[3], &[1f32, 2.0, 3.0]).unwrap()),
            ("i".to_owned(), Tensor::from_slice(&[1], &[-1i32]).unwrap()),
        ]);
        let mut state = cpu.new_state().unwrap();
        match cpu.run("main", &inputs, &mut state) {
            Ok(outputs) => assert!(!fails && outputs["y"].as_slice::<f32>().unwrap() == [3.0]),
            Err(e) => assert!(fails && e.to_string().contains("index -1"), "{e}"),
        }
    }
}

#[test]
fn a_fallback_that_a_size_leads_to_is_reported() {
    let mut program = Program::default();
    let mut f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let x = f.input("x", TensorType::new(DType::F32, [Dim::Fixed(2), Dim::symbol("n")]));
    let op = f.op(OpKind::Softmax).arg("x", x).arg("axis", Literal::scalar(-1i32));
    let y = op.name("y").result().unwrap();
    let function = f.finish(vec![y]);
    program.functions.insert("main".to_owned(), function);
    let mut cpu = CpuBackend::new(1).prepare(&program).unwrap();
    assert_eq!(cpu.fallbacks(), []);
    let mut state = cpu.new_state().unwrap();
    for n in [3, 0, 0] {
        let x = Tensor::zeros(DType::F32, &[2, n]).unwrap();
        cpu.run("main", &Tensors::from([("x".to_owned(), x)]), &mut state).unwrap();
    }
    let found: Vec<_> = cpu.fallbacks().iter().map(|f| (&*f.operation, &*f.reason)).collect();
    assert_eq!(found, [("y", "rows without elements")]);
}

#[test]
fn sizes_without_a_name_come_from_the_inputs() {
    let mut program = Program::default();
    let mut f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let x = f.input("x", TensorType::new(DType::F32, [Dim::Unknown, Dim::Fixed(2)]));
    let y = f.op(OpKind::Relu).arg("x", x).name("y").result().unwrap();
    let function = f.finish(vec![y]);
    program.functions.insert("main".to_owned(), function);
    let mut cpu = CpuBackend::new(1).prepare(&program).unwrap();
    let mut state = cpu.new_state().unwrap();
    for rows in [3, 1] {
        let values: Vec<f32> = (0..2 * rows).map(|v| v as f32 - 1.0).collect();
        let x = Tensor::from_slice(&[rows, 2], &values).unwrap();
        let out = cpu.run("main", &Tensors::from([("x".to_owned(), x)]), &mut state).unwrap();
        let expected: Vec<f32> = values.iter().map(|v| v.max(0.0)).collect();
        assert_eq!(out["y"].shape(), [rows, 2]);
        assert_eq!(out["y"].as_slice::<f32>().unwrap(), expected);
    }
    assert_eq!(cpu.fallbacks(), []);
}
