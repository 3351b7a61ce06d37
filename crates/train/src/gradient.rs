//! Gradients of several batches added up, and their norm.

use std::collections::HashMap;

use kernels::Pool;
use tensor::{Tensor, TensorError};

use crate::exchange::Buckets;
use crate::parameters::{Master, to_f32};
use crate::{Result, TrainError};

/// Gradients of one batch after another, added up as they come.
///
/// A batch's loss is the mean over its targets; with its number of targets as weight, the gradient of several
/// batches is that of one batch which holds them all.
pub(crate) struct Accumulation<'a> {
    pool: &'a Pool,
    masters: &'a [Master],
    /// Numbers of the parameters by the names of their gradients.
    numbers: HashMap<&'a str, usize>,
    sums: Vec<Option<Tensor>>,
    /// Where the sums of the last batch go, if there are other processes.
    pub(crate) buckets: Option<Buckets<'a>>,
}

impl<'a> Accumulation<'a> {
    pub(crate) fn new(pool: &'a Pool, masters: &'a [Master]) -> Self {
        let numbers = masters.iter().zip(0..).map(|(m, i)| (&*m.gradient, i)).collect();
        let sums = vec![None; masters.len()];
        Accumulation { pool, masters, numbers, sums, buckets: None }
    }

    /// Adds `weight` times a batch's gradient, an output called `name`.
    ///
    /// # Errors
    /// When it is of another type or size than its parameter, or another process is gone.
    pub(crate) fn add(&mut self, name: &str, output: &Tensor, weight: f64) -> Result<()> {
        let Some(&i) = self.numbers.get(name) else { return Ok(()) };
        let master = &self.masters[i];
        let invalid =
            |why: String| TrainError::Invalid(format!("gradient of {}: {why}", master.name));
        let broken = |e: TensorError| invalid(e.to_string());
        if output.shape() != master.value.shape() {
            return Err(invalid(format!("has shape {:?}", output.shape())));
        }
        let mut gradient = to_f32(output).ok_or_else(|| invalid("is not of floats".to_owned()))?;
        let sum = match &mut self.sums[i] {
            Some(sum) => {
                let values = gradient.as_slice::<f32>().map_err(broken)?;
                let sums = sum.make_mut::<f32>().map_err(broken)?;
                kernels::add_scaled_in_place(self.pool, sums, values, weight as f32);
                sum
            }
            none => {
                if weight != 1.0 {
                    let values = gradient.make_mut::<f32>().map_err(broken)?;
                    kernels::scale_in_place(self.pool, values, weight as f32);
                }
                none.insert(gradient)
            }
        };
        match &mut self.buckets {
            Some(buckets) => buckets.push(i, sum.as_slice().map_err(broken)?),
            None => Ok(()),
        }
    }

    /// The sums, those of all processes if there are others.
    ///
    /// # Errors
    /// When one is missing, or another process is gone.
    pub(crate) fn finish(self) -> Result<Vec<Tensor>> {
        let missing = |m: &Master| {
            let why = format!("gradient of {}: the program does not return it", m.name);
            TrainError::Invalid(why)
        };
        let sums = self.sums.into_iter().zip(self.masters);
        let sums = sums.map(|(sum, master)| sum.ok_or_else(|| missing(master)));
        let mut sums = sums.collect::<Result<Vec<_>>>()?;
        if let Some(buckets) = self.buckets {
            buckets.finish(&mut sums)?;
        }
        Ok(sums)
    }
}

/// The Euclidean norm of each of `gradients`.
///
/// # Errors
/// Never in practice: all are `fp32`.
pub(crate) fn norms(pool: &Pool, gradients: &[Tensor]) -> Result<Vec<f64>> {
    let norm = |gradient: &Tensor| {
        let values = gradient.as_slice::<f32>();
        let values = values.map_err(|e| TrainError::Invalid(e.to_string()))?;
        Ok(kernels::sum_of_squares(pool, values).sqrt())
    };
    gradients.iter().map(norm).collect()
}
