//! The program of a run on its device: batches in, losses and gradients out.

use exec::{Backend, Runnable, State, Tensors};
use kernels::Pool;
use passes::grad::{Gradients, LOSS_SCALE};
use tensor::Tensor;

use crate::parameters::{Master, to_f32};
use crate::{Batch, Result, TrainError};

/// A differentiated program on a device, with the parameters as it takes them.
pub(crate) struct Prepared {
    pub(crate) runnable: Box<dyn Runnable>,
    state: State,
    /// The function that computes gradients too.
    function: String,
    /// The function that computes the loss alone, and the name of its output.
    forward: String,
    loss: String,
    /// The masters as inputs.
    pub(crate) inputs: Tensors,
}

impl Prepared {
    /// `gradients` on `backend`, with the values of `masters`.
    ///
    /// # Errors
    /// When there is no loss or no function that computes it alone, or the backend cannot run the program.
    pub(crate) fn new(
        backend: &dyn Backend,
        gradients: &Gradients,
        masters: &[Master],
        pool: &Pool,
    ) -> Result<Self> {
        let (forward, loss) = loss_of(gradients)?;
        let runnable = backend.prepare(&gradients.program)?;
        let state = runnable.new_state()?;
        let function = gradients.function.clone();
        let mut inputs = Tensors::new();
        masters.iter().try_for_each(|m| m.hand_in(pool, &mut inputs))?;
        Ok(Prepared { runnable, state, function, forward, loss, inputs })
    }

    /// The loss of a batch.
    ///
    /// # Errors
    /// When the batch does not fit, or the run fails.
    pub(crate) fn loss(&mut self, batch: &Batch) -> Result<f64> {
        let forward = self.forward.clone();
        self.run(&forward, batch, None, &mut |_, _| Ok(()))
    }

    /// The loss of a batch. Gradients of the loss, times `scale` if it is given, go to `take` by the names of their
    /// outputs, as soon as the device has them.
    ///
    /// # Errors
    /// As for [`Prepared::loss`], and those of `take`.
    pub(crate) fn differentiate(
        &mut self,
        batch: &Batch,
        scale: Option<f32>,
        take: &mut dyn FnMut(&str, &Tensor) -> Result<()>,
    ) -> Result<f64> {
        let function = self.function.clone();
        self.run(&function, batch, scale, take)
    }

    fn run(
        &mut self,
        function: &str,
        batch: &Batch,
        scale: Option<f32>,
        take: &mut dyn FnMut(&str, &Tensor) -> Result<()>,
    ) -> Result<f64> {
        let mut given = batch.inputs.clone();
        if let Some(scale) = scale {
            let scale = Tensor::from_slice(&[], &[scale]);
            let scale = scale.map_err(|e| TrainError::Invalid(e.to_string()))?;
            given.insert(LOSS_SCALE.to_owned(), scale);
        }
        let names: Vec<String> = given.keys().cloned().collect();
        if let Some(name) = names.iter().find(|n| self.inputs.contains_key(*n)) {
            let why = format!("a batch gives input {name}, which is a parameter");
            return Err(TrainError::Invalid(why));
        }
        self.inputs.append(&mut given);
        let Prepared { runnable, state, inputs, loss: loss_name, .. } = self;
        let (mut loss, mut taken) = (None, Ok(()));
        let run = runnable.run_giving(function, inputs, state, &mut |name, tensor| {
            if name == *loss_name {
                loss = to_f32(&tensor).and_then(|t| t.as_slice::<f32>().ok()?.first().copied());
            } else if taken.is_ok() {
                taken = take(&name, &tensor);
            }
        });
        names.iter().for_each(|name| drop(self.inputs.remove(name)));
        run?;
        taken?;
        let missing = || TrainError::Invalid(format!("output {} is no float", self.loss));
        loss.map(f64::from).ok_or_else(missing)
    }
}

/// The function that computes the loss alone and the name of the loss.
fn loss_of(gradients: &Gradients) -> Result<(String, String)> {
    let functions = &gradients.program.functions;
    let invalid = |why: &str| TrainError::Invalid(why.to_owned());
    let outputs = |name: &str| {
        let function = functions.get(name)?;
        let outputs = function.body.outputs.iter();
        Some(outputs.map(|&v| function.values[v].name.clone()).collect::<Vec<_>>())
    };
    let all = outputs(&gradients.function).ok_or_else(|| invalid("there are no gradients"))?;
    let loss = all.into_iter().find(|o| !gradients.parameters.iter().any(|p| p.gradient == *o));
    let loss = loss.ok_or_else(|| invalid("the gradients come without the loss"))?;
    let mut others = functions.keys().filter(|name| **name != gradients.function);
    let forward = others.find(|name| outputs(name).is_some_and(|o| o.contains(&loss)));
    let forward = forward.ok_or_else(|| invalid("no function computes the loss alone"))?;
    Ok((forward.clone(), loss))
}
