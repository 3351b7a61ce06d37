//! Which tensors follow the header of a llama2.c checkpoint, in which order and how long.

use std::path::Path;

use indexmap::IndexMap;

use super::header::Header;
use super::{Config, TensorInfo};
use crate::{ImportError, Result};

impl Header {
    /// The tensors in the order of the file, which has to be exactly as long as they need.
    pub(super) fn place(
        &self,
        path: &Path,
        file_len: usize,
    ) -> Result<IndexMap<String, TensorInfo>> {
        let mut tensors = IndexMap::new();
        let mut end = self.len;
        for section in sections(self.version, &self.config) {
            for layer in 0..section.count {
                let name = section.name.replace('#', &layer.to_string());
                let offset = end;
                let stored = self.stored_len(&section);
                let (next, byte_len) = stored
                    .and_then(|n| Some((offset.checked_add(n)?, n)))
                    .filter(|&(next, _)| next <= file_len)
                    .ok_or_else(|| self.misfit(path, &section, &name, offset, file_len))?;
                end = next;
                if section.kind != Kind::Skipped {
                    let shape = section.shape.clone();
                    let quantized = self.group_size.is_some() && section.kind == Kind::Matrix;
                    tensors.insert(name, TensorInfo { shape, offset, byte_len, quantized });
                }
            }
        }
        if end != file_len {
            let why = format!("{} bytes after the last tensor belong to none", file_len - end);
            return Err(ImportError::invalid(path, why).at(end));
        }
        Ok(tensors)
    }

    /// Bytes of one tensor of `section`; `None` if it cuts a group or does not fit in memory.
    fn stored_len(&self, section: &Section) -> Option<usize> {
        let elements = tensor::element_count(&section.shape)?;
        match self.group_size.filter(|_| section.kind == Kind::Matrix) {
            Some(group) if elements.is_multiple_of(group) => {
                elements.checked_add((elements / group).checked_mul(4)?)
            }
            Some(_) => None,
            None => elements.checked_mul(4),
        }
    }

    fn misfit(
        &self,
        path: &Path,
        section: &Section,
        name: &str,
        offset: usize,
        file_len: usize,
    ) -> ImportError {
        let shape = &section.shape;
        let why = match (self.stored_len(section), self.group_size) {
            (Some(need), _) => {
                let left = file_len - offset;
                format!("file ends inside shape {shape:?}: {need} bytes needed, {left} left")
            }
            (None, Some(group)) => format!("shape {shape:?} cannot be cut in groups of {group}"),
            (None, None) => format!("shape {shape:?} is too large"),
        };
        ImportError::invalid(path, why).at(offset).tensor(name)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Always f32.
    Vector,
    /// Quantised in version 2.
    Matrix,
    /// Nothing the model needs.
    Skipped,
}

/// `count` tensors of one shape, one after the other; `#` in the name is the layer.
struct Section {
    name: &'static str,
    kind: Kind,
    count: usize,
    shape: Vec<usize>,
}

/// What follows the header, in order.
fn sections(version: u32, c: &Config) -> Vec<Section> {
    let section =
        |name, kind, count, shape: &[usize]| Section { name, kind, count, shape: shape.to_vec() };
    let layers = c.n_layers;
    let matrix = |name, out, into| section(name, Kind::Matrix, layers, &[out, into]);
    let attention_norm =
        section("model.layers.#.input_layernorm.weight", Kind::Vector, layers, &[c.dim]);
    let ffn_norm =
        section("model.layers.#.post_attention_layernorm.weight", Kind::Vector, layers, &[c.dim]);
    let norm = section("model.norm.weight", Kind::Vector, 1, &[c.dim]);
    let embedding = section("model.embed_tokens.weight", Kind::Matrix, 1, &[c.vocab_size, c.dim]);
    let attention = [
        matrix("model.layers.#.self_attn.q_proj.weight", c.dim, c.dim),
        matrix("model.layers.#.self_attn.k_proj.weight", c.kv_dim(), c.dim),
        matrix("model.layers.#.self_attn.v_proj.weight", c.kv_dim(), c.dim),
        matrix("model.layers.#.self_attn.o_proj.weight", c.dim, c.dim),
    ];
    let ffn = [
        matrix("model.layers.#.mlp.gate_proj.weight", c.hidden_dim, c.dim),
        matrix("model.layers.#.mlp.down_proj.weight", c.dim, c.hidden_dim),
        matrix("model.layers.#.mlp.up_proj.weight", c.hidden_dim, c.dim),
    ];
    let mut all = Vec::new();
    if version == 0 {
        all.extend([embedding, attention_norm]);
        all.extend(attention);
        all.push(ffn_norm);
        all.extend(ffn);
        let rotary = [c.seq_len, c.head_dim() / 2];
        all.extend([norm, section("rotary table #", Kind::Skipped, 2, &rotary)]);
    } else {
        all.extend([attention_norm, ffn_norm, norm, embedding]);
        all.extend(attention);
        all.extend(ffn);
    }
    if !c.shared_classifier {
        all.push(section("lm_head.weight", Kind::Matrix, 1, &[c.vocab_size, c.dim]));
    }
    all
}
