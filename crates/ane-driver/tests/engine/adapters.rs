//! Adapters as inputs: equal to merged weights, changed without compiling.

use std::collections::BTreeMap;

use ane_emu::Arithmetic;
use cpu::CpuBackend;
use mil::Program;
use passes::ane::AdapterSlot;
use tensor::{Tensor, WeightId};

use crate::common::{CONTEXT, PROMPT, Setup, largest_difference, prepared, stories};

const RANK: usize = 4;

type Factors = BTreeMap<String, (Tensor, Tensor)>;

fn floats(t: &Tensor) -> Vec<f64> {
    mil::eval::tensor_floats(t).unwrap()
}

/// The attention's query and value weights with their shapes.
fn targets(program: &Program) -> Vec<(WeightId, String, [usize; 2])> {
    let wanted = |name: &str| name.contains("q_proj") || name.contains("v_proj");
    let found = program.weights.iter().filter(|(_, w)| wanted(&w.name));
    let found: Vec<_> = found
        .map(|(id, w)| (id, w.name.clone(), [w.tensor.shape()[0], w.tensor.shape()[1]]))
        .collect();
    assert!(
        found.len() >= 2,
        "{:?}",
        program.weights.iter().map(|(_, w)| &w.name).collect::<Vec<_>>()
    );
    found
}

fn random(seed: u64, program: &Program) -> Factors {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut tensor = |shape: [usize; 2], scale: f32| {
        let values: Vec<f32> =
            (0..shape[0] * shape[1]).map(|_| (rng.f32() - 0.5) * scale).collect();
        Tensor::from_slice(&shape, &values).unwrap()
    };
    let factors = targets(program).into_iter().map(|(_, name, [out, inner])| {
        (name, (tensor([RANK, inner], 0.4), tensor([out, RANK], 0.4)))
    });
    factors.collect()
}

/// The program with `B A` added to each weight.
fn merged(program: &Program, factors: &Factors) -> Program {
    let mut merged = program.clone();
    for (id, name, [out, inner]) in targets(program) {
        let (a, b) = &factors[&name];
        let rank = a.shape()[0];
        let (a, b) = (floats(a), floats(b));
        let old = floats(&program.weights.get(id).unwrap().tensor);
        let values: Vec<f32> = (0..out * inner)
            .map(|i| {
                let (row, column) = (i / inner, i % inner);
                let change: f64 =
                    (0..rank).map(|r| b[row * rank + r] * a[r * inner + column]).sum();
                (old[i] + change) as f32
            })
            .collect();
        merged.weights.replace(id, Tensor::from_slice(&[out, inner], &values).unwrap());
    }
    merged
}

#[test]
fn adapters_equal_merged_weights_and_swap_without_compiling() {
    let model = stories();
    let (program, vocab) = (model.specialize(CONTEXT).unwrap(), model.config().vocab);
    let mut setup = Setup::new("m4", Arithmetic::Fp16);
    setup.variable.adapters = targets(&program)
        .into_iter()
        .map(|(_, weight, _)| AdapterSlot { weight, rank: 8 })
        .collect();
    let rig = setup.rig();
    let logits = |program: &Program| {
        prepared(&CpuBackend::new(1), program, vocab).logits_after(&PROMPT).unwrap()
    };
    let base = logits(&program);
    let scale = base.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let mut session = prepared(&rig.backend, &program, vocab);
    let mut on_engine = || {
        session.reset();
        session.logits_after(&PROMPT).unwrap()
    };
    assert!(largest_difference(&on_engine(), &base) / scale < 1e-2);
    let compiled = rig.backend.stats().compilations;
    let (one, two) = (random(1, &program), random(2, &program));
    for factors in [&one, &two, &one] {
        rig.backend.use_adapter(Some(factors.clone())).unwrap();
        let wanted = logits(&merged(&program, factors));
        let found = on_engine();
        assert!(largest_difference(&found, &wanted) / scale < 1e-2);
        // The adapter is no small change that the tolerance would hide.
        assert!(largest_difference(&found, &base) / scale > 5e-2);
    }
    // Planted: factors laid out column by column where rows are meant.
    let turned: Factors = one
        .iter()
        .map(|(name, (a, b))| {
            let (rank, inner) = (a.shape()[0], a.shape()[1]);
            let values = a.as_slice::<f32>().unwrap();
            let wrong: Vec<f32> =
                (0..values.len()).map(|i| values[i % rank * inner + i / rank]).collect();
            (name.clone(), (Tensor::from_slice(&[rank, inner], &wrong).unwrap(), b.clone()))
        })
        .collect();
    rig.backend.use_adapter(Some(turned)).unwrap();
    assert!(largest_difference(&on_engine(), &logits(&merged(&program, &one))) / scale > 1e-2);
    // A and B exchanged do not fit.
    let exchanged: Factors =
        one.iter().map(|(name, (a, b))| (name.clone(), (b.clone(), a.clone()))).collect();
    let refused = rig.backend.use_adapter(Some(exchanged)).unwrap_err();
    assert_eq!(refused.kind(), mil::ErrorKind::Invalid);
    let mut large = one.clone();
    let (a, _) = large.values_mut().next().unwrap();
    *a = Tensor::from_slice(a.shape(), &vec![1e5f32; a.len()]).unwrap();
    let refused = rig.backend.use_adapter(Some(large)).unwrap_err().to_string();
    assert!(refused.contains("a factor is beyond fp16"), "{refused}");
    rig.backend.use_adapter(None).unwrap();
    assert!(largest_difference(&on_engine(), &base) / scale < 1e-2);
    assert_eq!(rig.backend.stats().compilations, compiled);
}
