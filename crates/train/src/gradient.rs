//! Gradients of several batches added up, and their norm.

use exec::Tensors;
use kernels::Pool;
use tensor::Tensor;

use crate::parameters::{Master, to_f32};
use crate::{Result, TrainError};

/// The sum of the gradients of some batches, each times its number of targets.
///
/// A batch's loss is the mean over its targets; weighted so, the gradient of several batches is that of one
/// batch which holds them all. A single batch is left as it is.
#[derive(Default)]
pub(crate) struct Gradients {
    /// One a parameter.
    pub(crate) sums: Vec<Tensor>,
    /// What they are to be divided by.
    pub(crate) divisor: f64,
}

impl Gradients {
    /// Takes the gradients of a batch with `targets` targets out of a run's outputs. `alone` says that there
    /// is no other batch.
    ///
    /// # Errors
    /// When one is missing, or of another type or size than the one before.
    pub(crate) fn add(
        &mut self,
        pool: &Pool,
        masters: &[Master],
        outputs: &mut Tensors,
        targets: usize,
        alone: bool,
    ) -> Result<()> {
        let weight = if alone { 1.0 } else { targets as f64 };
        let first = self.sums.is_empty();
        for (i, master) in masters.iter().enumerate() {
            let invalid =
                |why: String| TrainError::Invalid(format!("gradient of {}: {why}", master.name));
            let broken = |e: tensor::TensorError| invalid(e.to_string());
            let output = outputs.remove(&master.gradient);
            let output = output.ok_or_else(|| invalid("the program does not return it".into()))?;
            if output.shape() != master.value.shape() {
                return Err(invalid(format!("has shape {:?}", output.shape())));
            }
            let mut gradient =
                to_f32(&output).ok_or_else(|| invalid("is not of floats".to_owned()))?;
            drop(output);
            if first {
                if !alone {
                    let values = gradient.make_mut::<f32>().map_err(broken)?;
                    kernels::scale_in_place(pool, values, weight as f32);
                }
                self.sums.push(gradient);
                continue;
            }
            let sum = self.sums[i].make_mut::<f32>().map_err(broken)?;
            let values = gradient.as_slice::<f32>().map_err(broken)?;
            kernels::add_scaled_in_place(pool, sum, values, weight as f32);
        }
        self.divisor += weight;
        Ok(())
    }

    /// The Euclidean norm of each sum.
    ///
    /// # Errors
    /// Never in practice: all sums are `fp32`.
    pub(crate) fn norms(&self, pool: &Pool) -> Result<Vec<f64>> {
        let norm = |sum: &Tensor| {
            let values = sum.as_slice::<f32>().map_err(|e| TrainError::Invalid(e.to_string()))?;
            Ok(kernels::sum_of_squares(pool, values).sqrt())
        };
        self.sums.iter().map(norm).collect()
    }
}
