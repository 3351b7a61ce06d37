//! Models as files: in the format of their own file with other values of some weights, and new ones
//! with first values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use import::gguf::{self, Value};
use import::{Gguf, HfDir, ModelFile};
use tensor::{AlignedBuf, Bytes, DType, Tensor, quantize_q8_0};

use super::Model;
use crate::arch::{Planned, Stored, transposed};
use crate::{Error, Result};

/// Keys of a GGUF file that is one of several, which what is written is not.
const SPLIT: &str = "split.";
const FILE_TYPE: &str = "general.file_type";
/// The file type of files of half precision.
const MOSTLY_F16: u32 = 1;

/// Writes a model with first values of its weights, drawn from `seed`, as the new directory `to`: the
/// model that the `config.json` in `dir` tells of, in the form of Hugging Face, with the tokenizer's files
/// beside it.
///
/// Matrices are normally distributed with a deviation of 0.02, those whose results are added to the
/// residual stream with 0.02 / sqrt(2 layers) (Radford et al. 2019); norms begin as 1, biases as 0.
///
/// # Errors
/// When the configuration is missing, invalid or of an architecture that Rigel does not have, when there
/// is something at `to`, or it cannot be written.
pub fn initialise(dir: impl AsRef<Path>, seed: u64, to: impl AsRef<Path>) -> Result<()> {
    let dir = HfDir::without_weights(dir)?;
    let file = ModelFile::HuggingFace(dir.clone());
    let weights = Planned::new(&file)?.initial(seed)?;
    let tensors: Vec<(&str, &Tensor)> = weights.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let side_files: Vec<&Path> = dir.side_files().iter().collect();
    Ok(HfDir::write(to, dir.config(), &tensors, &side_files)?)
}

impl Model {
    /// Writes the model to `to`, with the values `changed` of some weights of [`Model::program`], in
    /// `fp32`: as a Hugging Face directory or a GGUF file, as the model's own file is one. A changed
    /// weight is rounded to the type that its file has, or to half precision if that is quantised.
    ///
    /// # Errors
    /// `unsupported` for llama2.c files, `invalid` when a name or a shape is none of the model's or there
    /// is something at `to` that is not to be replaced, and when it cannot be written.
    pub fn write_with(&self, to: &Path, changed: &BTreeMap<String, Tensor>) -> Result<()> {
        for (name, new) in changed {
            let own = self.program.weights.find(name).and_then(|id| self.program.weights.get(id));
            let fits = own.is_some_and(|w| w.tensor.shape() == new.shape());
            // Of three that are one in the file, each has a number behind its name.
            let whole = name.rsplit_once('.').map_or(name.as_str(), |(whole, _)| whole);
            let stored = self.file.contains(name) || self.file.contains(whole);
            if !fits || !stored || new.dtype() != DType::F32 {
                let (ty, shape) = (new.dtype(), new.shape());
                let why =
                    format!("{name}, {ty} of shape {shape:?}, is no weight of the model's file");
                return Err(Error::request(why));
            }
        }
        // Of a tied output layer some files keep a copy of the embedding, which is left out.
        let copy = Planned::new(&self.file)?.tied_output();
        let entries = self.file.tensors();
        let entries = entries.iter().filter(|e| copy.as_deref() != Some(e.name));
        let mut tensors: Vec<(&str, Tensor)> = Vec::new();
        let mut narrowed = false;
        for entry in entries {
            let tensor = match self.changed(entry.name, changed)? {
                None => self.file.tensor(entry.name)?,
                Some(new) => {
                    let own = entry.dtype.filter(|d| d.is_float());
                    narrowed |= own.is_none();
                    let dtype = own.unwrap_or(DType::F16);
                    cast(&new, dtype, entry.name)?
                }
            };
            tensors.push((entry.name, tensor));
        }
        let tensors: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (*n, t)).collect();
        match &self.file {
            ModelFile::HuggingFace(dir) => {
                let side_files: Vec<&Path> = dir.side_files().iter().collect();
                Ok(HfDir::write(to, dir.config(), &tensors, &side_files)?)
            }
            ModelFile::Gguf(file) => write_gguf(file, to, &tensors, narrowed),
            ModelFile::Llama2c(file) => {
                Err(Error::unsupported(file.path(), "llama2.c files are read, not written"))
            }
        }
    }

    /// A tensor of the file as it is to be written, in `fp32`; `None` if it has not changed.
    fn changed(&self, name: &str, changed: &BTreeMap<String, Tensor>) -> Result<Option<Tensor>> {
        let parts: Vec<String> = (0..3).map(|i| format!("{name}.{i}")).collect();
        let value = match changed.get(name) {
            Some(value) => value.clone(),
            None if parts.iter().any(|part| changed.contains_key(part)) => {
                let weights = &self.program.weights;
                let own = |part: &str| weights.find(part).and_then(|id| weights.get(id));
                joined(&parts, &|part| {
                    changed.get(part).or_else(|| own(part).map(|w| &w.tensor)).cloned()
                })?
            }
            None => return Ok(None),
        };
        let bug = || Error::bug(format!("weight {name} cannot be put back into its file's form"));
        Ok(Some(match self.stored.get(name) {
            None => value,
            Some(Stored::Transposed) => transposed(&value).ok_or_else(bug)?,
            Some(Stored::Less(offset)) => {
                let values = value.as_slice::<f32>().map_err(|_| bug())?;
                let values: Vec<f32> = values.iter().map(|x| x - offset).collect();
                Tensor::from_slice(value.shape(), &values).map_err(|_| bug())?
            }
        }))
    }
}

/// The rows of `parts` one after another; in `fp32`, unless all are of one type.
pub(super) fn joined(parts: &[String], part: &dyn Fn(&str) -> Option<Tensor>) -> Result<Tensor> {
    let missing = |name: &String| Error::bug(format!("there is no weight {name}"));
    let tensors: Vec<Tensor> =
        parts.iter().map(|name| part(name).ok_or_else(|| missing(name))).collect::<Result<_>>()?;
    let first = tensors.first().ok_or_else(|| Error::bug("nothing is joined"))?;
    let rows: usize = tensors.iter().filter_map(|t| t.shape().first()).sum();
    let shape = [&[rows], first.shape().get(1..).unwrap_or_default()].concat();
    let joined = if tensors.iter().all(|t| t.dtype() == first.dtype()) {
        let bytes: Vec<u8> = tensors.iter().flat_map(|t| t.bytes().iter().copied()).collect();
        Tensor::new(first.dtype(), &shape, Bytes::copy_from(&bytes))
    } else {
        let values = tensors.iter().map(floats).collect::<Result<Vec<_>>>()?;
        Tensor::from_slice(&shape, &values.concat())
    };
    joined.map_err(|e| Error::bug(e.to_string()))
}

fn write_gguf(file: &Gguf, to: &Path, tensors: &[(&str, &Tensor)], narrowed: bool) -> Result<()> {
    let value = |key: &str, own: &Value| match key {
        FILE_TYPE if narrowed => Value::U32(MOSTLY_F16),
        _ => own.clone(),
    };
    let kept = file.metadata().iter().filter(|(key, _)| !key.starts_with(SPLIT));
    let metadata: Vec<(&str, Value)> = kept.map(|(key, own)| (key, value(key, own))).collect();
    Ok(gguf::write(to, &metadata, tensors)?)
}

pub(super) fn floats(tensor: &Tensor) -> Result<Cow<'_, [f32]>> {
    if let Ok(values) = tensor.as_slice::<f32>() {
        return Ok(values.into());
    }
    let values = mil::eval::tensor_floats(tensor)
        .ok_or_else(|| Error::bug(format!("{} weights where floats are", tensor.dtype())))?;
    Ok(values.into_iter().map(|x| x as f32).collect())
}

/// Weight `name` rounded to a type of floats or to `q8_0`, of which rows are whole blocks.
///
/// # Errors
/// When a number of it is not finite, or is not in that type.
pub(super) fn cast(tensor: &Tensor, dtype: DType, name: &str) -> Result<Tensor> {
    let values = floats(tensor)?;
    let finite = |values: &[f32]| values.iter().all(|x| x.is_finite());
    if !finite(&values) {
        return Err(Error::request(format!("weight {name} has numbers that are not finite")));
    }
    let shape = tensor.shape();
    let made = match dtype {
        DType::F32 => {
            return Tensor::from_slice(shape, &values).map_err(|e| Error::bug(e.to_string()));
        }
        DType::F16 => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(&values);
            Tensor::from_slice(shape, &halves)
        }
        DType::Bf16 => {
            let mut halves = vec![bf16::ZERO; values.len()];
            halves.convert_from_f32_slice(&values);
            Tensor::from_slice(shape, &halves)
        }
        DType::Q8_0 => {
            let mut bytes = AlignedBuf::zeroed(DType::Q8_0.byte_len(values.len()).unwrap_or(0));
            if !quantize_q8_0(&values, &mut bytes) {
                return Err(Error::request(format!("shape {shape:?} cuts a block of {dtype}")));
            }
            Tensor::new(dtype, shape, Bytes::from_buf(bytes))
        }
        other => return Err(Error::request(format!("weights cannot be written as {other}"))),
    };
    let made = made.map_err(|e| Error::bug(e.to_string()))?;
    if !finite(&floats(&made)?) {
        return Err(Error::request(format!(
            "weight {name} has numbers that {dtype} does not hold"
        )));
    }
    Ok(made)
}
