//! First values of the weights of a model that is yet to be trained.

use fastrand::Rng;
use tensor::Tensor;

use super::Part;

/// Standard deviation of matrices (Radford et al. 2019).
const DEVIATION: f64 = 0.02;

/// What a weight begins as.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum First {
    /// Normally distributed.
    Normal,
    /// The same, narrower by the root of the number of layers whose results are added up.
    Residual,
    /// One number.
    Constant(f32),
}

impl First {
    pub(crate) fn of_matrix(part: Part) -> Self {
        match part {
            Part::AttentionOutput | Part::Down => First::Residual,
            _ => First::Normal,
        }
    }
}

/// Makes weights in the order in which they are asked for, from a seed.
pub(crate) struct Initial {
    rng: Rng,
    residual: f64,
    /// Names in the file to be, and values.
    pub(crate) made: Vec<(String, Tensor)>,
}

impl Initial {
    /// For a model of `layers` blocks, each of which adds two results.
    pub(crate) fn new(seed: u64, layers: usize) -> Self {
        let residual = DEVIATION / (2.0 * layers.max(1) as f64).sqrt();
        Initial { rng: Rng::with_seed(seed), residual, made: Vec::new() }
    }

    /// # Errors
    /// When it does not fit into memory.
    pub(super) fn make(
        &mut self,
        name: &str,
        shape: &[usize],
        first: First,
    ) -> Result<Tensor, String> {
        let count = tensor::element_count(shape).ok_or("has too many elements")?;
        let mut values = Vec::new();
        values.try_reserve_exact(count).map_err(|e| e.to_string())?;
        let mut draw = |deviation: f64| {
            values.extend((0..count).map(|_| (normal(&mut self.rng) * deviation) as f32));
        };
        match first {
            First::Normal => draw(DEVIATION),
            First::Residual => draw(self.residual),
            First::Constant(x) => values.resize(count, x),
        }
        let tensor = Tensor::from_slice(shape, &values).map_err(|e| e.to_string())?;
        self.made.push((name.to_owned(), tensor.clone()));
        Ok(tensor)
    }
}

/// A normally distributed number (Box and Muller 1958).
fn normal(rng: &mut Rng) -> f64 {
    // 1 - [0, 1) has a logarithm.
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}
