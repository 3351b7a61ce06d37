//! Takes weights out of a model file by their place in the model: name and shape are checked, and
//! what nobody took is an error, for a weight that is left out is a wrong result.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use import::{ModelFile, TensorEntry};
use tensor::{AlignedBuf, Bytes, DType, Tensor, WeightId, WeightStore};

use super::initial::{First, Initial};
use super::{HfNames, Part};
use crate::parts::{Linear, Norm};
use crate::{Error, Result};

/// Llama 3 in GGUF: its scaling, worked out by the converter, as divisors of the frequencies.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// A matrix of a linear layer and which part it is.
#[derive(Clone, Copy)]
pub(crate) struct LinearShape {
    /// Which.
    pub(crate) part: Part,
    /// Rows.
    pub(crate) output: usize,
    /// Columns.
    pub(crate) input: usize,
}

/// How a file holds a tensor that the store holds in another way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Stored {
    /// `[in, out]`, the store `[out, in]`.
    Transposed,
    /// Less by this much.
    Less(f32),
}

/// Weights of one model on their way from its file into a store.
pub(crate) struct Weights<'f> {
    file: &'f ModelFile,
    names: &'static HfNames,
    prefix: &'static str,
    entries: BTreeMap<&'f str, TensorEntry<'f>>,
    taken: HashSet<String>,
    store: WeightStore,
    stored: BTreeMap<String, Stored>,
    /// Makes tensors where the file has none yet.
    initial: Option<&'f mut Initial>,
}

impl<'f> Weights<'f> {
    /// The weights of `file`, which in Hugging Face checkpoints have `names`.
    pub(crate) fn new(file: &'f ModelFile, names: &'static HfNames) -> Self {
        let entries: BTreeMap<_, _> = file.tensors().into_iter().map(|e| (e.name, e)).collect();
        let uses = |prefix: &&&str| entries.keys().any(|name| name.starts_with(**prefix));
        let prefix = match file {
            ModelFile::Gguf(_) => "",
            _ => names.prefixes.iter().find(uses).copied().unwrap_or(""),
        };
        let (taken, store) = (HashSet::new(), WeightStore::new());
        Weights {
            file,
            names,
            prefix,
            entries,
            taken,
            store,
            stored: BTreeMap::new(),
            initial: None,
        }
    }

    /// The weights of a model that has none yet: `initial` makes them.
    pub(crate) fn fresh(
        file: &'f ModelFile,
        names: &'static HfNames,
        initial: &'f mut Initial,
    ) -> Self {
        let prefix = names.prefixes.first().copied().unwrap_or("");
        Weights { prefix, initial: Some(initial), ..Weights::new(file, names) }
    }

    /// Trained numbers in the file; a `tied` output layer counts once.
    pub(crate) fn parameters(&self, tied: bool) -> u64 {
        let copy = tied.then(|| self.name(Part::Output, None, "weight"));
        let counted = self
            .entries
            .values()
            .filter(|e| !self.is_buffer(e.name) && Some(e.name) != copy.as_deref());
        counted.map(|e| e.shape.iter().map(|&n| n as u64).product::<u64>()).sum()
    }

    /// A matrix `[rows, columns]` as the file holds it.
    ///
    /// # Errors
    /// When it is missing, of another shape, or not of floats or of a block format.
    pub(crate) fn matrix(
        &mut self,
        part: Part,
        layer: Option<usize>,
        shape: [usize; 2],
    ) -> Result<WeightId> {
        let name = self.name(part, layer, "weight");
        let tensor = self.take(&name, &shape, First::of_matrix(part))?;
        Ok(self.store.insert(name, tensor))
    }

    /// A linear layer, with a bias if the file has one.
    ///
    /// # Errors
    /// As [`Weights::matrix`]; also when a bias is `required` and missing.
    pub(crate) fn linear(
        &mut self,
        shape: LinearShape,
        layer: Option<usize>,
        required: bool,
    ) -> Result<Linear> {
        let LinearShape { part, output, input } = shape;
        let weight = self.matrix(part, layer, [output, input])?;
        let bias = self.name(part, layer, "bias");
        let bias = match required || self.entries.contains_key(bias.as_str()) {
            true => Some(self.vector(part, layer, "bias", output)?),
            false => None,
        };
        Ok(Linear { weight, bias })
    }

    /// The output layer over `vocab` tokens: the embedding `tokens` where the two are `tied`.
    ///
    /// # Errors
    /// As [`Weights::linear`].
    pub(crate) fn output(
        &mut self,
        tokens: WeightId,
        tied: bool,
        (vocab, width): (usize, usize),
    ) -> Result<Linear> {
        if tied {
            return Ok(Linear { weight: tokens, bias: None });
        }
        let shape = LinearShape { part: Part::Output, output: vocab, input: width };
        self.linear(shape, None, false)
    }

    /// A linear layer that Hugging Face stores as a `Conv1D`, `[in, out]`: that is transposed into
    /// new memory, because every kernel reads rows of outputs. GGUF files store `[out, in]`.
    ///
    /// # Errors
    /// As [`Weights::linear`] with a required bias.
    pub(crate) fn conv1d(&mut self, shape: LinearShape, layer: Option<usize>) -> Result<Linear> {
        let LinearShape { part, output, .. } = shape;
        let (name, tensor) = self.take_conv1d(shape, layer)?;
        let weight = self.store.insert(name, tensor);
        Ok(Linear { weight, bias: Some(self.vector(part, layer, "bias", output)?) })
    }

    /// A `conv1d` that is three linear layers of equal shape in one, cut without copying again.
    ///
    /// # Errors
    /// As [`Weights::conv1d`].
    pub(crate) fn fused_conv1d(
        &mut self,
        shape: LinearShape,
        layer: Option<usize>,
    ) -> Result<[Linear; 3]> {
        let LinearShape { part, output, .. } = shape;
        let (name, weight) = self.take_conv1d(shape, layer)?;
        let bias_name = self.name(part, layer, "bias");
        let bias = self.take_vector(&bias_name, output, 0.0)?;
        let each = output / 3;
        let mut cut = |i: usize| -> Result<Linear> {
            let range = i * each..(i + 1) * each;
            let both = rows(&weight, range.clone()).zip(rows(&bias, range));
            let (weight, bias) = both.ok_or_else(|| Error::bug("rows cut outside a tensor"))?;
            let weight = self.store.insert(format!("{name}.{i}"), weight);
            let bias = Some(self.store.insert(format!("{bias_name}.{i}"), bias));
            Ok(Linear { weight, bias })
        };
        Ok([cut(0)?, cut(1)?, cut(2)?])
    }

    /// An RMS norm over `len` elements; `offset` is added to the stored weight.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub(crate) fn rms_norm(
        &mut self,
        part: Part,
        layer: Option<usize>,
        len: usize,
        (epsilon, offset): (f32, f32),
    ) -> Result<Norm> {
        let name = self.name(part, layer, "weight");
        let mut tensor = self.take_vector(&name, len, 1.0 - offset)?;
        if offset != 0.0 {
            self.stored.insert(name.clone(), Stored::Less(offset));
            let values = self.floats(&name, &tensor)?;
            let values: Vec<f32> = values.iter().map(|w| w + offset).collect();
            tensor = self.owned(&name, &values)?;
        }
        Ok(Norm::Rms { weight: self.store.insert(name, tensor), epsilon })
    }

    /// A layer norm over `len` elements.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub(crate) fn layer_norm(
        &mut self,
        part: Part,
        layer: Option<usize>,
        len: usize,
        epsilon: f32,
    ) -> Result<Norm> {
        let weight = self.vector(part, layer, "weight", len)?;
        let bias = self.vector(part, layer, "bias", len)?;
        Ok(Norm::Layer { weight, bias, epsilon })
    }

    /// A file's own divisors of the rotary frequencies, for `pairs` of elements.
    ///
    /// # Errors
    /// When there are some and they are of another number or not of floats.
    pub(crate) fn rope_factors(&mut self, pairs: usize) -> Result<Option<Vec<f32>>> {
        if !self.entries.contains_key(ROPE_FACTORS) {
            return Ok(None);
        }
        let tensor = self.take_vector(ROPE_FACTORS, pairs, 1.0)?;
        Ok(Some(self.floats(ROPE_FACTORS, &tensor)?.to_vec()))
    }

    /// Stores values that no file holds.
    ///
    /// # Errors
    /// Never for values that fit in memory.
    pub(crate) fn computed(&mut self, name: &str, values: &[f32]) -> Result<WeightId> {
        let tensor = self.owned(name, values)?;
        Ok(self.store.insert(name, tensor))
    }

    /// Ends the taking.
    ///
    /// # Errors
    /// When the file holds weights that nobody took; `arch` is who.
    pub(crate) fn finish(
        mut self,
        arch: &str,
        tied: bool,
    ) -> Result<(WeightStore, BTreeMap<String, Stored>)> {
        if tied {
            // A copy of the embedding that some files keep; the configuration says that it is one.
            self.taken.insert(self.name(Part::Output, None, "weight"));
        }
        let mut left = self
            .entries
            .keys()
            .filter(|name| !self.is_buffer(name) && !self.taken.contains(**name));
        let Some(first) = left.next() else { return Ok((self.store, self.stored)) };
        let more = match left.count() {
            0 => String::new(),
            n => format!(" (nor have {n} others)"),
        };
        let why = format!("tensor {first:?} has no place in architecture {arch}{more}");
        Err(Error::unsupported(self.file.path(), why))
    }

    /// Whether a tensor is none of the model's trained numbers.
    fn is_buffer(&self, name: &str) -> bool {
        match self.file {
            ModelFile::Gguf(_) => name == ROPE_FACTORS,
            _ => self.names.buffers.iter().any(|end| name.ends_with(end)),
        }
    }

    /// The file's name of a part's tensor; `suffix` is `weight` or `bias`.
    pub(super) fn name(&self, part: Part, layer: Option<usize>, suffix: &str) -> String {
        let (prefix, name) = match self.file {
            ModelFile::Gguf(_) => ("", part.gguf_name()),
            _ => (self.prefix, self.names.get(part).unwrap_or_default()),
        };
        let prefix = if part == Part::Output { "" } else { prefix };
        let name = match layer {
            Some(n) => name.replace('#', &n.to_string()),
            None => name.to_owned(),
        };
        format!("{prefix}{name}.{suffix}")
    }

    fn vector(
        &mut self,
        part: Part,
        layer: Option<usize>,
        suffix: &str,
        len: usize,
    ) -> Result<WeightId> {
        let name = self.name(part, layer, suffix);
        let first = if suffix == "bias" { 0.0 } else { 1.0 };
        let tensor = self.take_vector(&name, len, first)?;
        Ok(self.store.insert(name, tensor))
    }

    /// A vector as fp32: the few of other types are converted, so that norms and biases meet
    /// activations of their own type everywhere.
    fn take_vector(&mut self, name: &str, len: usize, first: f32) -> Result<Tensor> {
        let tensor = self.take(name, &[len], First::Constant(first))?;
        if tensor.dtype() == DType::F32 {
            return Ok(tensor);
        }
        let values = mil::eval::tensor_floats(&tensor)
            .ok_or_else(|| self.error(name, format!("is {}, not of floats", tensor.dtype())))?;
        let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
        self.owned(name, &values)
    }

    /// A linear layer's matrix `[out, in]` from a file that may hold it transposed.
    fn take_conv1d(
        &mut self,
        shape: LinearShape,
        layer: Option<usize>,
    ) -> Result<(String, Tensor)> {
        let LinearShape { part, output, input } = shape;
        let name = self.name(part, layer, "weight");
        if matches!(self.file, ModelFile::Gguf(_)) {
            let tensor = self.take(&name, &[output, input], First::of_matrix(part))?;
            return Ok((name, tensor));
        }
        let tensor = self.take(&name, &[input, output], First::of_matrix(part))?;
        self.stored.insert(name.clone(), Stored::Transposed);
        let transposed = transposed(&tensor)
            .ok_or_else(|| self.error(&name, format!("{} cannot be transposed", tensor.dtype())))?;
        Ok((name, transposed))
    }

    fn take(&mut self, name: &str, shape: &[usize], first: First) -> Result<Tensor> {
        if let Some(initial) = &mut self.initial {
            return initial.make(name, shape, first).map_err(|why| self.error(name, why));
        }
        let Some(entry) = self.entries.get(name) else {
            let why = format!("tensor {name:?} is missing, of shape {shape:?}");
            return Err(Error::invalid(self.file.path(), why));
        };
        if entry.shape != shape {
            let why = format!("has shape {:?}, expected {shape:?}", entry.shape);
            return Err(self.error(name, why));
        }
        let tensor = self.file.tensor(name)?;
        if !(tensor.dtype().is_float() || tensor.dtype().is_block_quantized()) {
            return Err(self.error(name, format!("is {}, not of floats", tensor.dtype())));
        }
        self.taken.insert(name.to_owned());
        Ok(tensor)
    }

    fn floats<'t>(&self, name: &str, tensor: &'t Tensor) -> Result<&'t [f32]> {
        tensor.as_slice().map_err(|e| self.error(name, e.to_string()))
    }

    fn owned(&self, name: &str, values: &[f32]) -> Result<Tensor> {
        Tensor::from_slice(&[values.len()], values).map_err(|e| self.error(name, e.to_string()))
    }

    fn error(&self, name: &str, why: String) -> Error {
        let file = self.entries.get(name).map_or(self.file.path(), |e| e.file);
        Error::invalid(file, format!("tensor {name:?} {why}"))
    }
}

/// Rows `range` of a tensor, without copying; `None` if they are not there.
fn rows(tensor: &Tensor, range: Range<usize>) -> Option<Tensor> {
    let (&count, rest) = tensor.shape().split_first()?;
    let row = tensor.bytes().len().checked_div(count)?;
    let bytes = tensor.bytes().slice(range.start * row..range.end * row)?;
    let shape: Vec<usize> = std::iter::once(range.len()).chain(rest.iter().copied()).collect();
    Tensor::new(tensor.dtype(), &shape, bytes).ok()
}

/// The transpose of a matrix; `None` for formats whose elements do not stand alone.
pub(crate) fn transposed(tensor: &Tensor) -> Option<Tensor> {
    let (&[height, width], dtype) = (tensor.shape(), tensor.dtype()) else { return None };
    if dtype.block_len() != 1 {
        return None;
    }
    let (size, from) = (dtype.block_bytes(), tensor.bytes());
    let mut to = AlignedBuf::zeroed(from.len());
    // Tiles keep both sides of the copy within the cache.
    const TILE: usize = 32;
    for (top, left) in
        (0..height).step_by(TILE).flat_map(|t| (0..width).step_by(TILE).map(move |l| (t, l)))
    {
        for y in top..height.min(top + TILE) {
            for x in left..width.min(left + TILE) {
                let (source, target) = ((y * width + x) * size, (x * height + y) * size);
                to[target..target + size].copy_from_slice(&from[source..source + size]);
            }
        }
    }
    Tensor::new(dtype, &[width, height], Bytes::from_buf(to)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposition_and_rows() {
        let t = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let t = transposed(&t).unwrap();
        assert_eq!(
            (t.shape(), t.as_slice::<f32>().unwrap()),
            (&[3, 2][..], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0][..])
        );
        let last = rows(&t, 2..3).unwrap();
        assert_eq!((last.shape(), last.as_slice::<f32>().unwrap()), (&[1, 2][..], &[3.0, 6.0][..]));
        assert!(rows(&t, 2..4).is_none());
        let blocks = Tensor::zeros(DType::Q8_0, &[6, 64]).unwrap();
        assert_eq!(rows(&blocks, 2..4).unwrap().shape(), [2, 64]);
        assert!(transposed(&blocks).is_none());
    }
}
