//! Inputs that are compiled into programs: how weights in training reach an engine that has them as
//! constants.

use std::collections::BTreeMap;
use std::sync::Arc;

use exec::port::Port;
use exec::{Backend, Fallback, Result, Runnable, State, Tensors};
use mil::Program;
use tensor::{Bytes, Tensor, WeightId};

use crate::error::bug;
use crate::{AneBackend, AneRunnable};

/// A backend for which inputs of some names are constants of the engine's programs: whenever one of them
/// has another value than before, [`AneRunnable::set_weights`] gives it to the programs. The first run
/// compiles them.
pub struct ConstantInputs<P: Port + 'static> {
    backend: Arc<AneBackend<P>>,
    inputs: Vec<String>,
}

impl<P: Port + 'static> ConstantInputs<P> {
    /// Takes the inputs named `inputs` of every function for constants.
    pub fn new(backend: Arc<AneBackend<P>>, inputs: Vec<String>) -> Self {
        ConstantInputs { backend, inputs }
    }
}

impl<P: Port + 'static> Backend for ConstantInputs<P> {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn check(&self, program: &Program) -> Vec<Fallback> {
        self.backend.check(program)
    }

    fn prepare(&self, program: &Program) -> Result<Box<dyn Runnable>> {
        Ok(Box::new(Constants {
            backend: self.backend.clone(),
            inputs: self.inputs.clone(),
            fallbacks: self.backend.check(program),
            program: program.clone(),
            bound: None,
        }))
    }
}

struct Constants<P: Port + 'static> {
    backend: Arc<AneBackend<P>>,
    inputs: Vec<String>,
    fallbacks: Vec<Fallback>,
    /// With the inputs.
    program: Program,
    bound: Option<Bound<P>>,
}

/// A program whose inputs are constants.
struct Bound<P: Port + 'static> {
    program: Program,
    /// By the names of inputs.
    weights: BTreeMap<String, WeightId>,
    runnable: AneRunnable<P>,
}

/// The same elements in memory of their own: whoever trains writes over his in place.
fn copy_of(tensor: &Tensor) -> Result<Tensor> {
    let bytes = Bytes::copy_from(tensor.bytes());
    Tensor::new(tensor.dtype(), tensor.shape(), bytes).map_err(|e| bug(e.to_string()))
}

impl<P: Port + 'static> Constants<P> {
    /// Gives the program these values.
    fn bind(&mut self, constants: &Tensors) -> Result<()> {
        let known = |bound: &Bound<P>| constants.keys().all(|n| bound.weights.contains_key(n));
        match self.bound.take().filter(known) {
            // What fails may be half done: then nothing is bound, and the next run begins anew.
            Some(mut bound) => {
                bound.change(constants)?;
                self.bound = Some(bound);
            }
            None => self.bound = Some(self.bound_to(constants)?),
        }
        Ok(())
    }

    fn bound_to(&self, constants: &Tensors) -> Result<Bound<P>> {
        let values = constants.iter().map(|(name, t)| Ok((name.clone(), copy_of(t)?)));
        let values: BTreeMap<String, Tensor> = values.collect::<Result<_>>()?;
        let mut program = self.program.clone();
        let weights = passes::bind_inputs(&mut program, &values)?;
        let runnable = self.backend.open(&program)?;
        Ok(Bound { program, weights, runnable })
    }
}

impl<P: Port + 'static> Bound<P> {
    fn change(&mut self, constants: &Tensors) -> Result<()> {
        let mut changed = false;
        for (name, value) in constants {
            let id = self.weights.get(name).copied();
            let old = id.and_then(|id| self.program.weights.get(id));
            let (Some(id), Some(old)) = (id, old) else { continue };
            if old.tensor.bytes()[..] != value.bytes()[..] {
                self.program.weights.replace(id, copy_of(value)?);
                changed = true;
            }
        }
        if changed { self.runnable.set_weights(&self.program) } else { Ok(()) }
    }
}

impl<P: Port + 'static> Runnable for Constants<P> {
    fn new_state(&self) -> Result<State> {
        State::new(&self.program)
    }

    fn run(&mut self, function: &str, inputs: &Tensors, state: &mut State) -> Result<Tensors> {
        let signature = self.program.functions.get(function);
        let signature =
            signature.ok_or_else(|| exec::ExecError::NoFunction(function.to_owned()))?;
        exec::check_inputs(function, signature, inputs)?;
        let (constants, rest): (Tensors, Tensors) = inputs
            .iter()
            .map(|(name, t)| (name.clone(), t.clone()))
            .partition(|(name, _)| self.inputs.contains(name));
        self.bind(&constants)?;
        match &mut self.bound {
            Some(bound) => bound.runnable.run(function, &rest, state),
            None => Err(bug("constants are not bound")),
        }
    }

    /// Before the first run, those of the program that takes constants as inputs.
    fn fallbacks(&self) -> &[Fallback] {
        self.bound.as_ref().map_or(&self.fallbacks, |bound| bound.runnable.fallbacks())
    }
}
