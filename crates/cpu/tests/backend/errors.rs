//! What a run refuses, and how.

use exec::{Backend, ExecError, Tensors};
use mil::ErrorKind;
use rigel_cpu::CpuBackend;
use tensor::Tensor;

use crate::tiny;

/// The error of one run on a fresh state.
fn error(function: &str, inputs: &Tensors) -> ExecError {
    let mut cpu = CpuBackend::new(1).prepare(&tiny::program()).unwrap();
    let mut state = cpu.new_state().unwrap();
    cpu.run(function, inputs, &mut state).unwrap_err()
}

#[test]
fn an_unknown_function() {
    assert_eq!(error("train", &Tensors::new()).to_string(), "no function train");
}

#[test]
fn inputs_that_do_not_fit() {
    let good = || tiny::inputs(&[1, 2, 3], 0);
    type Change<'a> = &'a dyn Fn(&mut Tensors);
    let cases: [(&str, Change<'_>, &str); 4] = [
        ("missing", &|i| drop(i.remove("ids")), "input ids: is missing"),
        (
            "superfluous",
            &|i| drop(i.insert("mask".into(), Tensor::from_slice(&[1], &[0f32]).unwrap())),
            "input mask: the function has no such input",
        ),
        (
            "type",
            &|i| drop(i.insert("ids".into(), Tensor::from_slice(&[1, 3], &[0f32; 3]).unwrap())),
            "input ids: is fp32 [1, 3], not tensor<int32, [1, seq]>",
        ),
        (
            "shape",
            &|i| drop(i.insert("positions".into(), Tensor::from_slice(&[2], &[0, 1]).unwrap())),
            "seq is 3 in another place",
        ),
    ];
    for (name, change, message) in cases {
        let mut inputs = good();
        change(&mut inputs);
        let e = error("prefill", &inputs);
        assert!(e.to_string().contains(message), "{name}: {e}");
        assert_eq!(e.kind(), ErrorKind::Invalid, "{name}");
    }
    let e = error("decode", &good());
    assert!(e.to_string().contains("is int32 [1, 3], not tensor<int32, [1, 1]>"), "{e}");
}

#[test]
fn positions_outside_the_cache() {
    let e = error("decode", &tiny::inputs(&[1], tiny::CAPACITY as i32));
    assert_eq!(e.kind(), ErrorKind::Limit);
    assert!(e.to_string().contains("position 24 is not in the cache, whose capacity is 24"), "{e}");
    let e = error("decode", &tiny::inputs(&[1], -1));
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
}

#[test]
fn tokens_outside_the_vocabulary() {
    let e = error("score", &tiny::inputs(&[1, tiny::VOCAB as i32], 0));
    assert!(e.to_string().contains("llm.embedding") && e.to_string().contains("50"), "{e}");
}

#[test]
fn a_state_of_another_program() {
    let mut cpu = CpuBackend::new(1).prepare(&tiny::program()).unwrap();
    let mut state = exec::State::new(&mil::Program::default()).unwrap();
    let e = cpu.run("decode", &tiny::inputs(&[1], 0), &mut state).unwrap_err();
    assert!(matches!(&e, ExecError::State { .. }), "{e}");
    // A function without states needs none.
    cpu.run("score", &tiny::inputs(&[1], 0), &mut state).unwrap();
}
