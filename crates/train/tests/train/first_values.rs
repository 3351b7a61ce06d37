//! What is trained and no weight of the program, such as an adapter's factors.

use exec::Tensors;
use mil::eval::Arithmetic;
use passes::grad::{By, Gradients, Request, differentiate};
use rigel_train::Trainer;
use tensor::{DType, Tensor};
use testkit::InterpreterBackend;

use crate::common::{ADAMW, Cycle, config, linear, slope};

/// The gradients of [`linear`] by its weight as an input that it was from the beginning, and that weight.
fn by_inputs() -> (Gradients, Tensor) {
    let Gradients { program, parameters, .. } = linear(DType::F32, false);
    let weight = program.weights.get(parameters[0].weight.unwrap()).unwrap().tensor.clone();
    let mut program = program;
    program.functions.retain(|name, _| name == "main");
    let by = By::Inputs(&[&parameters[0].input]);
    let loss = llm::interface::LOSS;
    let request = Request { function: "main", loss, by, checkpoints: &[], scaled: false };
    (differentiate(&program, &request).unwrap(), weight)
}

#[test]
fn inputs_are_trained_as_weights_are() {
    let backend = InterpreterBackend::new(Arithmetic::F32);
    let config = config(ADAMW, 0.1, 0.1, 3);
    let (gradients, weight) = by_inputs();
    let first = |t: Tensor| Tensors::from([(gradients.parameters[0].input.clone(), t)]);
    let by_weights = linear(DType::F32, false);
    let mut plain = Trainer::new(&backend, by_weights, config.clone(), 1).unwrap();
    let own = first(weight.clone());
    let mut given =
        Trainer::with_first(&backend, gradients.clone(), &own, config.clone(), 1).unwrap();
    let values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
    for _ in 0..3 {
        let steps = [&mut plain, &mut given]
            .map(|t| t.step(&mut Cycle::new(vec![slope(&values)])).unwrap().loss);
        assert_eq!(steps[0], steps[1]);
    }
    let [a, b] = [&plain, &given].map(|t| t.parameters().next().unwrap().1.to_owned());
    assert_eq!(a.as_slice::<f32>().unwrap(), b.as_slice::<f32>().unwrap());
    assert_ne!(a.as_slice::<f32>().unwrap(), weight.as_slice::<f32>().unwrap());

    let refused = |first: Tensors| {
        let made = Trainer::with_first(&backend, gradients.clone(), &first, config.clone(), 1);
        made.err().unwrap().to_string()
    };
    assert!(refused(Tensors::new()).contains("has no first value"));
    let other = first(Tensor::from_slice(&[1000], &values).unwrap());
    assert!(refused(other).contains("of another shape"));
}
