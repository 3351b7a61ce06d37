//! Cases: small programs with inputs, and running one on a backend against the interpreter.

use exec::{Backend, Result, Tensors};
use mil::eval::Arithmetic;
use mil::{FunctionBuilder, Opset, Program, TensorType, ValueId};
use tensor::{DType, Tensor};

use crate::weights::seeded_tensor;
use crate::{InterpreterBackend, Tolerance, compare, seeded};

/// A small program and the calls that exercise it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name, for messages.
    pub name: String,
    /// What is run. Symbols in states are fixed, those in inputs need not be.
    pub program: Program,
    /// Calls in order, over one state that is zero before the first.
    pub steps: Vec<Step>,
    /// How far an engine that computes in `fp32` may be from the exact result.
    pub tolerance: Tolerance,
}

/// One call of a [`Case`].
#[derive(Clone, Debug)]
pub struct Step {
    /// Function to run.
    pub function: String,
    /// Its inputs.
    pub inputs: Tensors,
}

/// What a case gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Outputs of each step.
    pub outputs: Vec<Tensors>,
    /// States after the last step.
    pub states: Tensors,
}

/// Runs a case on `backend`.
///
/// # Errors
/// When it cannot be prepared or a step fails.
pub fn run_case(backend: &dyn Backend, case: &Case) -> Result<Outcome> {
    let mut runnable = backend.prepare(&case.program)?;
    let mut state = runnable.new_state()?;
    let outputs = case
        .steps
        .iter()
        .map(|step| runnable.run(&step.function, &step.inputs, &mut state))
        .collect::<Result<_>>()?;
    let states = state
        .iter()
        .map(|(name, buffer)| {
            let bytes = tensor::Bytes::copy_from(&buffer.data);
            let tensor = Tensor::new(buffer.dtype, &buffer.shape, bytes);
            (name.to_owned(), tensor.expect("a state has the size of its type"))
        })
        .collect();
    Ok(Outcome { outputs, states })
}

/// Runs a case on `backend` and on the exact interpreter, and compares all outputs and states.
///
/// # Errors
/// What failed or differs, with the names of the case, step and tensor.
pub fn check_case(backend: &dyn Backend, case: &Case) -> std::result::Result<(), String> {
    let oracle = InterpreterBackend::new(Arithmetic::Exact);
    let run = |backend: &dyn Backend| {
        run_case(backend, case).map_err(|e| format!("{} on {}: {e}", case.name, backend.name()))
    };
    let (expected, actual) = (run(&oracle)?, run(backend)?);
    let same = |place: &str, actual: &Tensors, expected: &Tensors| {
        let error =
            |what: String| Err(format!("{} on {}, {place}: {what}", case.name, backend.name()));
        if !actual.keys().eq(expected.keys()) {
            return error(format!("{:?} instead of {:?}", actual.keys(), expected.keys()));
        }
        for (name, tensor) in actual {
            if let Err(mismatch) = compare(tensor, &expected[name], case.tolerance) {
                return error(format!("{name}: {mismatch}"));
            }
        }
        Ok(())
    };
    for (i, (a, e)) in actual.outputs.iter().zip(&expected.outputs).enumerate() {
        same(&format!("step {i}"), a, e)?;
    }
    same("state", &actual.states, &expected.states)
}

/// Makes a [`Case`] of one function `main` that is called once, with seeded inputs.
pub struct CaseBuilder<'w> {
    /// Builds the function.
    pub f: FunctionBuilder<'w>,
    inputs: Tensors,
    tolerance: Tolerance,
}

impl CaseBuilder<'_> {
    /// An `fp32` input and its values, seeded by the name, in [-2, 2).
    pub fn float(&mut self, name: &str, shape: &[usize]) -> ValueId {
        self.float_in(name, shape, -2.0, 2.0)
    }

    /// An `fp32` input with seeded values in [low, high).
    pub fn float_in(&mut self, name: &str, shape: &[usize], low: f32, high: f32) -> ValueId {
        let values: Vec<f32> = seeded::tensor(1, name, shape.iter().product(), 1.0)
            .into_iter()
            .map(|u| low + (u + 1.0) / 2.0 * (high - low))
            .collect();
        self.given(name, Tensor::from_slice(shape, &values).expect("as many values"))
    }

    /// An `int32` input with these values.
    pub fn ints(&mut self, name: &str, shape: &[usize], values: &[i32]) -> ValueId {
        self.given(name, Tensor::from_slice(shape, values).expect("as many values"))
    }

    /// An input with the value `tensor`.
    pub fn given(&mut self, name: &str, tensor: Tensor) -> ValueId {
        let ty = TensorType::new(tensor.dtype(), tensor.shape().iter().copied());
        self.inputs.insert(name.to_owned(), tensor);
        self.f.input(name, ty)
    }

    /// A weight in `dtype` with seeded values; blocks are made of seeded bytes with small scales.
    ///
    /// # Errors
    /// As [`FunctionBuilder::weight`].
    pub fn weight(&mut self, name: &str, dtype: DType, shape: &[usize]) -> mil::Result<ValueId> {
        self.f.new_weight(name, seeded_tensor(dtype, name, shape))
    }

    /// Sets how far engines may be from the exact result; [`Tolerance::F32`] otherwise.
    pub fn tolerance(&mut self, tolerance: Tolerance) {
        self.tolerance = tolerance;
    }
}

/// Builds the case `name`: `build` adds inputs and operations and returns the outputs.
///
/// # Panics
/// When `build` fails: a case is right by construction.
pub fn case(
    name: &str,
    build: impl FnOnce(&mut CaseBuilder<'_>) -> mil::Result<Vec<ValueId>>,
) -> Case {
    let mut program = Program::default();
    let f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let mut builder = CaseBuilder { f, inputs: Tensors::new(), tolerance: Tolerance::F32 };
    let outputs = build(&mut builder).unwrap_or_else(|e| panic!("case {name}: {e}"));
    let CaseBuilder { f, inputs, tolerance } = builder;
    let function = f.finish(outputs);
    program.functions.insert("main".to_owned(), function);
    let steps = vec![Step { function: "main".to_owned(), inputs }];
    Case { name: name.to_owned(), program, steps, tolerance }
}
