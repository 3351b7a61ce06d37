//! AdamW and SGD over all parameters, with masters and moments in `fp32`.

use kernels::Pool;
use serde::{Deserialize, Serialize};
use tensor::{DType, Tensor, TensorError};

use crate::parameters::Master;
use crate::{Result, TrainError};

/// How parameters follow their gradients.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// Which rule.
    pub rule: Rule,
    /// Weight decay of matrices. Norms, biases and whatever else has one axis do not decay.
    pub weight_decay: f64,
    /// Whether tables that rows are looked up in decay too.
    pub decay_embeddings: bool,
    /// The greatest global norm of the gradients; beyond it all are scaled down.
    pub clip: Option<f64>,
}

/// A rule of updating.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "name")]
pub enum Rule {
    /// Adam with decoupled weight decay.
    Adamw {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
    },
    /// Stochastic gradient descent; weight decay is added to the gradient.
    Sgd {
        /// What the velocity keeps; without any there is no velocity.
        momentum: f64,
        /// Whether the step looks ahead along the velocity.
        nesterov: bool,
    },
}

impl Default for OptimizerConfig {
    /// AdamW as language models are usually trained with it.
    fn default() -> Self {
        OptimizerConfig {
            rule: Rule::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8 },
            weight_decay: 0.1,
            decay_embeddings: true,
            clip: Some(1.0),
        }
    }
}

impl OptimizerConfig {
    /// # Errors
    /// When a number is out of its range.
    pub(crate) fn check(&self) -> Result<()> {
        let part = |x: f64| (0.0..1.0).contains(&x);
        let fits = match self.rule {
            Rule::Adamw { beta1, beta2, epsilon } => {
                part(beta1) && part(beta2) && epsilon > 0.0 && epsilon.is_finite()
            }
            Rule::Sgd { momentum, .. } => part(momentum),
        };
        let clips = self.clip.is_none_or(|c| c > 0.0);
        if fits && clips && self.weight_decay >= 0.0 && self.weight_decay.is_finite() {
            return Ok(());
        }
        Err(TrainError::Invalid(format!("a number of the optimiser is out of range: {self:?}")))
    }

    /// Whether the weight decay is meant for a parameter of this shape.
    pub fn decays(&self, shape: &[usize], embedding: bool) -> bool {
        shape.len() > 1 && (self.decay_embeddings || !embedding)
    }

    /// What is kept of each parameter, by name.
    pub fn moments(&self) -> &'static [&'static str] {
        match self.rule {
            Rule::Adamw { .. } => &["first_moment", "second_moment"],
            Rule::Sgd { momentum, .. } if momentum > 0.0 => &["velocity"],
            Rule::Sgd { .. } => &[],
        }
    }
}

/// The state of the optimiser.
pub(crate) struct Optimizer {
    pub(crate) config: OptimizerConfig,
    /// Updates so far.
    pub(crate) updates: u64,
    /// For each kind of moment, one tensor a parameter.
    pub(crate) moments: Vec<Vec<Tensor>>,
}

impl Optimizer {
    /// # Errors
    /// When there is no memory.
    pub(crate) fn new(config: OptimizerConfig, masters: &[Master]) -> Result<Self> {
        let zeros = |_: &&str| {
            let zeros = |m: &Master| Tensor::zeros(DType::F32, m.value.shape()).map_err(broken);
            masters.iter().map(zeros).collect::<Result<Vec<_>>>()
        };
        let moments = config.moments().iter().map(zeros).collect::<Result<_>>()?;
        Ok(Optimizer { config, updates: 0, moments })
    }

    /// Moves `masters` by `gradients`, which are multiplied by `scale` first.
    ///
    /// # Errors
    /// When a gradient is of another type or size than its parameter.
    pub(crate) fn update(
        &mut self,
        pool: &Pool,
        masters: &mut [Master],
        gradients: &[Tensor],
        learning_rate: f64,
        scale: f64,
    ) -> Result<()> {
        self.updates += 1;
        for (i, (master, gradient)) in masters.iter_mut().zip(gradients).enumerate() {
            let decays = self.config.decays(master.value.shape(), master.embedding);
            let decay = if decays { self.config.weight_decay } else { 0.0 };
            let g = gradient.as_slice::<f32>().map_err(broken)?;
            let w = master.value.make_mut::<f32>().map_err(broken)?;
            let mut moments = self.moments.iter_mut().map(|m| m[i].make_mut::<f32>());
            let mut moment = || moments.next().transpose().map_err(broken);
            match self.config.rule {
                Rule::Adamw { beta1, beta2, epsilon } => {
                    let (Some(m), Some(v)) = (moment()?, moment()?) else { continue };
                    let left = |beta: f64| 1.0 - beta.powf(self.updates as f64);
                    let step = kernels::Adamw {
                        gradient_scale: scale as f32,
                        keep: (1.0 - learning_rate * decay) as f32,
                        beta1: beta1 as f32,
                        beta2: beta2 as f32,
                        step_size: (learning_rate / left(beta1)) as f32,
                        correction: left(beta2).sqrt() as f32,
                        epsilon: epsilon as f32,
                    };
                    kernels::adamw(pool, step, w, g, m, v);
                }
                Rule::Sgd { momentum, nesterov } => {
                    let step = kernels::Sgd {
                        gradient_scale: scale as f32,
                        weight_decay: decay as f32,
                        momentum: momentum as f32,
                        nesterov,
                        learning_rate: learning_rate as f32,
                    };
                    kernels::sgd(pool, step, w, g, moment()?);
                }
            }
        }
        Ok(())
    }
}

fn broken(e: TensorError) -> TrainError {
    TrainError::Invalid(format!("optimiser: {e}"))
}
