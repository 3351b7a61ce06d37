//! A small transformer: against the interpreter, by itself in other ways, its memory.

use exec::{Backend, Runnable, State};
use mil::eval::Arithmetic;
use rigel_cpu::CpuBackend;
use tensor::Tensor;
use testkit::{InterpreterBackend, Tolerance, assert_close, assert_close_f32};

use crate::tiny;

const IDS: [i32; 12] = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32];

fn logits(r: &mut dyn Runnable, function: &str, ids: &[i32], at: i32, state: &mut State) -> Tensor {
    let mut outputs = r.run(function, &tiny::inputs(ids, at), state).unwrap();
    outputs.remove("logits").unwrap()
}

#[test]
fn every_function_agrees_with_the_interpreter() {
    let program = tiny::program();
    let mut oracle = InterpreterBackend::new(Arithmetic::Exact).prepare(&program).unwrap();
    let mut cpu = CpuBackend::new(2).prepare(&program).unwrap();
    assert_eq!(cpu.fallbacks(), []);
    let runs = [("score", &IDS[..], 0), ("prefill", &IDS[..7], 0), ("decode", &IDS[7..8], 7)];
    let (mut a, mut b) = (oracle.new_state().unwrap(), cpu.new_state().unwrap());
    for (function, ids, at) in runs {
        let expected = logits(&mut *oracle, function, ids, at, &mut a);
        let actual = logits(&mut *cpu, function, ids, at, &mut b);
        // The exact interpreter's cache is not rounded to half precision.
        let tolerance = Tolerance { abs: 5e-3, rel: 5e-3 };
        assert_close(&actual, &expected, tolerance);
    }
}

#[test]
fn prefill_and_decode_are_score() {
    let mut cpu = CpuBackend::new(1).prepare(&tiny::program()).unwrap();
    let mut state = cpu.new_state().unwrap();
    let whole = logits(&mut *cpu, "score", &IDS, 0, &mut state);
    let mut parts: Vec<f32> = Vec::new();
    for (function, range) in [("prefill", 0..5), ("prefill", 5..8), ("decode", 8..9)] {
        let at = range.start as i32;
        let part = logits(&mut *cpu, function, &IDS[range], at, &mut state);
        parts.extend(part.as_slice::<f32>().unwrap());
    }
    let whole = whole.as_slice::<f32>().unwrap();
    let tolerance = Tolerance { abs: 5e-3, rel: 5e-3 };
    assert_close_f32(&parts, &whole[..parts.len()], tolerance);
}

#[test]
fn threads_do_not_change_a_bit() {
    let outputs = [1, 2, 3].map(|threads| {
        let mut cpu = CpuBackend::new(threads).prepare(&tiny::program()).unwrap();
        let mut state = cpu.new_state().unwrap();
        let logits = logits(&mut *cpu, "prefill", &IDS, 0, &mut state);
        (logits.bytes().to_vec(), state.get("v_cache_1").unwrap().data.to_vec())
    });
    assert!(outputs[0] == outputs[1] && outputs[0] == outputs[2]);
}

#[test]
fn values_share_memory() {
    let mut cpu = CpuBackend::new(1).prepare_plans(&tiny::program()).unwrap();
    let mut state = cpu.new_state().unwrap();
    for seq in 1..=20 {
        logits(&mut cpu, "prefill", &vec![1; seq], 0, &mut state);
    }
    let plans: Vec<_> = cpu.plans().collect();
    assert_eq!(plans.len(), 16);
    assert!(plans.iter().any(|p| p.function == "decode"));
    for plan in plans {
        assert!(plan.arena_bytes * 3 < plan.unshared_bytes, "{plan:?}");
    }
}
