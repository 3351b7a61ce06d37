//! A model of Hugging Face's form as a GGUF file, as llama.cpp's converter writes it.

use std::path::Path;

use import::ModelFile;
use import::gguf::{self, Value};
use tensor::{DType, Tensor};

use super::Model;
use super::save::{cast, joined};
use crate::adapter::row_of_halves;
use crate::arch::{Dims, GgufForm, Part, Planned};
use crate::{Error, Result, Tokenizer, template};

/// `general.file_type` by the type of matrices.
const FILE_TYPES: &[(DType, u32)] =
    &[(DType::F32, 0), (DType::F16, 1), (DType::Q8_0, 7), (DType::Bf16, 32)];
/// The version of the block formats that quantised files name.
const QUANTIZATION_VERSION: u32 = 2;

impl Model {
    /// Writes the model, which is of Hugging Face's form, as the GGUF file `to` with its tokenizer inside.
    /// Matrices become `matrices`, a type of floats or `q8_0`, or keep their type; vectors and a table of positions
    /// become `fp32`.
    ///
    /// # Errors
    /// `unsupported` for a model in another form, a family or a setting that is not written (Gemma, scaled
    /// rotary embeddings), or a tokenizer that is no byte-level BPE; `invalid` for a type that
    /// matrices cannot have, or whose blocks rows would cut; and when the file cannot be written.
    pub fn write_gguf(
        &self,
        tokenizer: &Tokenizer,
        matrices: Option<DType>,
        to: &Path,
    ) -> Result<()> {
        if !matches!(self.file, ModelFile::HuggingFace(_)) {
            let why = "is not of Hugging Face's form, of which GGUF files are made";
            return Err(Error::unsupported(self.file.path(), why));
        }
        let planned = Planned::new(&self.file)?;
        let Some((name, form)) = planned.gguf_form() else {
            let why = format!("{} models are not written as GGUF", self.config.arch);
            return Err(Error::unsupported(self.file.path(), why));
        };
        if !form.refused.is_empty() {
            let why = format!("{} has no form in GGUF", form.refused.join(" and "));
            return Err(Error::unsupported(self.file.path(), why));
        }
        let tensors = self.gguf_tensors(&planned, form, matrices)?;
        let matrix = tensors.iter().find(|(_, t)| t.shape().len() == 2).map(|(_, t)| t.dtype());
        let file_type = FILE_TYPES.iter().find(|(dtype, _)| Some(*dtype) == matrix);
        let mut metadata = vec![
            ("general.architecture".to_owned(), Value::from(name)),
            ("general.file_type".to_owned(), Value::U32(file_type.map_or(0, |(_, n)| *n))),
        ];
        if matrices.is_some_and(|dtype| !dtype.is_float()) {
            let version = Value::U32(QUANTIZATION_VERSION);
            metadata.push(("general.quantization_version".to_owned(), version));
        }
        if let Some(name) = &self.config.name {
            metadata.push(("general.name".to_owned(), Value::from(name.as_str())));
        }
        let settings = self.gguf_settings(planned.dims(), form);
        metadata.extend(settings.into_iter().map(|(key, v)| (format!("{name}.{key}"), v)));
        let vocab = tokenizer.gguf_metadata(self.config.vocab)?;
        metadata.extend(vocab.into_iter().map(|(key, value)| (key.to_owned(), value)));
        if let Some((_, text)) = template::source_in(&self.file)? {
            metadata.push((template::GGUF_KEY.to_owned(), Value::from(text.as_str())));
        }
        let metadata: Vec<(&str, Value)> =
            metadata.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
        let tensors: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
        Ok(gguf::write(to, &metadata, &tensors)?)
    }

    /// The dimensions, under keys below the architecture's name.
    fn gguf_settings(&self, dims: &Dims, form: &GgufForm) -> Vec<(&'static str, Value)> {
        let number = |n: usize| Value::U32(n as u32);
        let mut settings = vec![
            ("block_count", number(dims.layers)),
            ("context_length", number(dims.max_context)),
            ("embedding_length", number(dims.width)),
            ("feed_forward_length", number(dims.feed_forward)),
            ("attention.head_count", number(dims.heads)),
            ("attention.head_count_kv", number(dims.kv_heads)),
            (form.epsilon, Value::F32(dims.norm_epsilon)),
            ("vocab_size", number(dims.vocab)),
        ];
        if let Some(base) = form.rope_base {
            settings.extend([
                ("attention.key_length", number(dims.head_dim)),
                ("attention.value_length", number(dims.head_dim)),
                ("rope.dimension_count", number(dims.head_dim)),
                ("rope.freq_base", Value::F32(base as f32)),
            ]);
        }
        if let Some(window) = self.config.window {
            settings.push(("attention.sliding_window", number(window)));
        }
        settings
    }

    /// All tensors under GGUF's names, in its order of rows.
    fn gguf_tensors(
        &self,
        planned: &Planned<'_>,
        form: &GgufForm,
        matrices: Option<DType>,
    ) -> Result<Vec<(String, Tensor)>> {
        let mut tensors = Vec::new();
        for (part, layer, name) in planned.weight_names() {
            let parts: Vec<String> = (0..3).map(|i| format!("{name}.{i}")).collect();
            let own = |name: &str| {
                let weights = &self.program.weights;
                weights.find(name).and_then(|id| weights.get(id)).map(|w| w.tensor.clone())
            };
            let Some(mut tensor) = (match part {
                Part::QueryKeyValue if own(&parts[0]).is_some() => Some(joined(&parts, &own)?),
                _ => own(&name),
            }) else {
                continue;
            };
            if form.interleaved && matches!(part, Part::Query | Part::Key) {
                tensor = turned(&tensor, planned.dims().head_dim)?;
            }
            if tensor.shape().len() == 1 || part == Part::Positions {
                tensor = cast(&tensor, DType::F32, &name)?;
            } else if let Some(dtype) = matrices {
                let whole = tensor.shape()[1].is_multiple_of(dtype.block_len().max(1));
                if !whole {
                    let why =
                        format!("{name} of shape {:?}: rows cut blocks of {dtype}", tensor.shape());
                    return Err(Error::request(why));
                }
                tensor = cast(&tensor, dtype, &name)?;
            }
            let suffix = name.rsplit('.').next().unwrap_or_default();
            let mut to = format!("{}.{suffix}", part.gguf_name());
            if let Some(layer) = layer {
                to = to.replace('#', &layer.to_string());
            }
            tensors.push((to, tensor));
        }
        Ok(tensors)
    }
}

/// Rows, or elements of a bias, in the order for a rotation of neighbours.
fn turned(tensor: &Tensor, head: usize) -> Result<Tensor> {
    let rows = tensor.shape()[0];
    let row = tensor.bytes().len() / rows.max(1);
    let mut bytes = Vec::with_capacity(tensor.bytes().len());
    for i in 0..rows {
        bytes.extend_from_slice(&tensor.bytes()[row_of_halves(i, head) * row..][..row]);
    }
    Tensor::new(tensor.dtype(), tensor.shape(), tensor::Bytes::copy_from(&bytes))
        .map_err(|e| Error::bug(e.to_string()))
}
