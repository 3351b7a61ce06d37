//! The seam between programs and what runs them; contains no backend.

mod error;
mod inputs;
pub mod port;
mod state;

use std::collections::BTreeMap;

use mil::{OpKind, Program};
use tensor::Tensor;

pub use error::{ExecError, Result};
pub use inputs::{aligned, check_inputs};
pub use state::{State, StateBuffer};

/// Something that runs programs: the CPU, an emulated or a real Neural Engine.
pub trait Backend: Send + Sync {
    /// A short name, as used for `--device`.
    fn name(&self) -> &str;

    /// What the backend would not run natively, without preparing anything.
    fn check(&self, program: &Program) -> Vec<Fallback>;

    /// Makes a program ready to run. Weights are shared, not copied, where the backend can use
    /// them as they are. Symbolic sizes are allowed if the backend can resolve them when running.
    ///
    /// # Errors
    /// When the program is invalid or has an operation that the backend cannot run at all.
    fn prepare(&self, program: &Program) -> Result<Box<dyn Runnable>>;
}

/// A program made ready by a [`Backend`].
pub trait Runnable: Send {
    /// Fresh, zeroed memory for the states of all functions. A symbol in a state's size must have
    /// been fixed by specialising the program.
    ///
    /// # Errors
    /// When a state's size is unknown or two functions disagree about it.
    fn new_state(&self) -> Result<State>;

    /// Runs `function` once and returns its outputs by name. `state` is changed in place.
    ///
    /// # Errors
    /// When inputs are missing, superfluous or of the wrong type or shape, or an operation fails;
    /// `state` is then unspecified.
    fn run(&mut self, function: &str, inputs: &Tensors, state: &mut State) -> Result<Tensors>;

    /// As [`Runnable::run`], but gives each output, with its name, to `take`: as soon as nothing else in the run
    /// writes or reads it where the backend can, after the run where it cannot. Their order is the same in every
    /// run at the same sizes.
    ///
    /// # Errors
    /// As [`Runnable::run`]; outputs may have been given already.
    fn run_giving(
        &mut self,
        function: &str,
        inputs: &Tensors,
        state: &mut State,
        take: &mut dyn FnMut(String, Tensor),
    ) -> Result<()> {
        let outputs = self.run(function, inputs, state)?;
        outputs.into_iter().for_each(|(name, tensor)| take(name, tensor));
        Ok(())
    }

    /// Operations that run through the reference interpreter, and why: those known from the program,
    /// and those that the sizes of a run led to.
    fn fallbacks(&self) -> &[Fallback];
}

/// Tensors by name: inputs or outputs of a run.
pub type Tensors = BTreeMap<String, Tensor>;

/// An operation that a backend does not run natively.
#[derive(Clone, PartialEq, Debug)]
pub struct Fallback {
    /// Function it stands in.
    pub function: String,
    /// Which operation.
    pub kind: OpKind,
    /// Its name.
    pub operation: String,
    /// Why.
    pub reason: String,
}
