//! Weights as the engine takes them: fp16, converted once for all programs that use them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use half::f16;
use mil::{Error, ErrorKind, Result};
use tensor::{DType, Tensor, WeightId, WeightStore, dequantize};

/// Weights of one program converted to fp16.
#[derive(Debug, Default)]
pub struct HalfWeights(HashMap<WeightId, Tensor>);

impl HalfWeights {
    /// Converts weight `id` again when it is next asked for.
    pub fn forget(&mut self, id: WeightId) {
        self.0.remove(&id);
    }

    /// Weight `id` in `shape`, as many elements as it has.
    ///
    /// # Errors
    /// When it is no float or exceeds fp16.
    pub(super) fn get(
        &mut self,
        store: &WeightStore,
        id: WeightId,
        shape: &[usize],
    ) -> Result<Tensor> {
        let half = match self.0.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let weight = store.get(id).ok_or_else(|| {
                    Error::new(ErrorKind::Invalid, format!("{id} is not in the store"))
                })?;
                place.insert(halves(&weight.tensor, &weight.name)?)
            }
        };
        let misshapen = |e: tensor::TensorError| Error::new(ErrorKind::Bug, e.to_string());
        half.reshaped(shape).map_err(misshapen)
    }
}

/// A float tensor of any storage type in fp16.
///
/// # Errors
/// When it is no float, damaged, or exceeds fp16.
pub fn halves(tensor: &Tensor, name: &str) -> Result<Tensor> {
    let dtype = tensor.dtype();
    if dtype == DType::F16 {
        return Ok(tensor.clone());
    }
    let floats: Vec<f32> = if dtype.is_block_quantized() {
        let mut out = vec![0.0; tensor.len()];
        if !dequantize(dtype, tensor.bytes(), &mut out) {
            return Err(Error::new(ErrorKind::Invalid, format!("weight {name} is damaged")));
        }
        out
    } else {
        let values = mil::eval::tensor_floats(tensor).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("weight {name} is {dtype}, no float"))
        })?;
        values.into_iter().map(|x| x as f32).collect()
    };
    let halves: Vec<f16> = floats.iter().map(|&x| f16::from_f32(x)).collect();
    if let Some(i) = (0..floats.len()).find(|&i| floats[i].is_finite() && halves[i].is_infinite()) {
        let message = format!("weight {name} holds {}, which fp16 does not reach", floats[i]);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let shaped = Tensor::from_slice(tensor.shape(), &halves);
    shaped.map_err(|e| Error::new(ErrorKind::Bug, e.to_string()))
}
