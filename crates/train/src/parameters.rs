//! What is trained: fp32 masters, and the inputs that the program sees.

use std::collections::{BTreeSet, HashSet};

use exec::Tensors;
use half::{bf16, f16};
use kernels::Pool;
use mil::{OpKind, Payload};
use passes::grad::Gradients;
use tensor::{DType, Tensor};

use crate::{Result, TrainError};

/// One trained tensor.
#[derive(Clone, Debug)]
pub(crate) struct Master {
    /// Its name in checkpoints and messages.
    pub(crate) name: String,
    /// The program's input that it is handed in as.
    pub(crate) input: String,
    /// The program's output that holds its gradient.
    pub(crate) gradient: String,
    /// Whether rows of it are looked up by token or position.
    pub(crate) embedding: bool,
    /// Elements in `fp32`.
    pub(crate) value: Tensor,
    /// The input's type.
    pub(crate) dtype: DType,
}

/// The trained tensors of `gradients`, in order, with the values that its program's weights have, or `first` for
/// what is no weight, by the input's name.
///
/// # Errors
/// When there is none, two have one name, a value is missing, not of floats or of another shape.
pub(crate) fn masters(gradients: &Gradients, first: &Tensors) -> Result<Vec<Master>> {
    let tables = tables(gradients);
    let mut names = HashSet::new();
    let master = |p: &passes::grad::Parameter| {
        let invalid = |why: &str| TrainError::Invalid(format!("parameter {}: {why}", p.name));
        let value = match p.weight {
            Some(id) => gradients.program.weights.get(id).map(|w| &w.tensor),
            None => first.get(&p.input),
        };
        let value = value.ok_or_else(|| invalid("has no first value"))?;
        if p.ty.fixed_shape().as_deref() != Some(value.shape()) {
            return Err(invalid("has a first value of another shape"));
        }
        if !names.insert(p.name.clone()) {
            return Err(invalid("is the name of two weights"));
        }
        Ok(Master {
            name: p.name.clone(),
            input: p.input.clone(),
            gradient: p.gradient.clone(),
            embedding: tables.contains(&*p.input),
            value: to_f32(value).ok_or_else(|| invalid("is not of 16 or 32-bit floats"))?,
            dtype: p.ty.dtype,
        })
    };
    let masters = gradients.parameters.iter().map(master).collect::<Result<Vec<_>>>()?;
    if masters.is_empty() {
        return Err(TrainError::Invalid("nothing is trained".to_owned()));
    }
    Ok(masters)
}

/// Drops the first values of what is trained from the program, which takes them as inputs: they would stay in
/// memory beside the masters.
pub(crate) fn drop_first_values(gradients: &mut Gradients) {
    let mut constants = HashSet::new();
    gradients.program.for_each_literal(&mut |literal| {
        if let Payload::Weight(id) = &literal.payload {
            constants.insert(*id);
        }
    });
    let Ok(nothing) = Tensor::zeros(DType::F32, &[0]) else { return };
    let ids = gradients.parameters.iter().filter_map(|p| p.weight);
    for id in ids.filter(|id| !constants.contains(id)) {
        gradients.program.weights.replace(id, nothing.clone());
    }
}

/// Inputs that operations look rows up in.
fn tables(gradients: &Gradients) -> BTreeSet<&str> {
    let Some(function) = gradients.program.functions.get(&gradients.function) else {
        return BTreeSet::new();
    };
    let lookups = function.ops.values().filter_map(|op| {
        let table = match op.kind {
            OpKind::LlmEmbedding => "weight",
            OpKind::Gather | OpKind::GatherAlongAxis | OpKind::GatherNd => "x",
            _ => return None,
        };
        let params = op.kind.def().params().iter().zip(&op.args);
        params.filter(|(p, _)| p.name == table).find_map(|(_, arg)| arg.as_ref())
    });
    let mut found = BTreeSet::new();
    for arg in lookups {
        arg.for_each_value(&mut |v| {
            found.insert(&*function.values[v].name);
        });
    }
    found
}

/// The elements in `fp32`; `None` for other types than 16 and 32-bit floats.
pub(crate) fn to_f32(tensor: &Tensor) -> Option<Tensor> {
    let values: Vec<f32> = match tensor.dtype() {
        DType::F32 => return Some(tensor.clone()),
        DType::F16 => tensor.as_slice::<f16>().ok()?.iter().map(|v| v.to_f32()).collect(),
        DType::Bf16 => tensor.as_slice::<bf16>().ok()?.iter().map(|v| v.to_f32()).collect(),
        _ => return None,
    };
    Tensor::from_slice(tensor.shape(), &values).ok()
}

impl Master {
    /// Puts the value among the inputs, rounded to the input's type.
    ///
    /// # Errors
    /// When that type is none that masters are rounded to.
    pub(crate) fn hand_in(&self, pool: &Pool, inputs: &mut Tensors) -> Result<()> {
        let error =
            |e: tensor::TensorError| TrainError::Invalid(format!("parameter {}: {e}", self.name));
        let shape = self.value.shape();
        let values = || self.value.as_slice::<f32>().map_err(error);
        let tensor = match self.dtype {
            DType::F32 => self.value.clone(),
            DType::F16 => {
                let mut tensor = match inputs.remove(&self.input) {
                    Some(tensor) => tensor,
                    None => Tensor::zeros(DType::F16, shape).map_err(error)?,
                };
                kernels::narrow(pool, values()?, tensor.make_mut::<f16>().map_err(error)?);
                tensor
            }
            DType::Bf16 => {
                let rounded: Vec<bf16> = values()?.iter().map(|&v| bf16::from_f32(v)).collect();
                Tensor::from_slice(shape, &rounded).map_err(error)?
            }
            other => {
                let why = format!("parameter {}: is handed in as {other}", self.name);
                return Err(TrainError::Invalid(why));
            }
        };
        inputs.insert(self.input.clone(), tensor);
        Ok(())
    }
}
