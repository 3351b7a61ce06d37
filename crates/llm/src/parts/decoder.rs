//! The whole decoder, and the three functions that make it a program; the one to train is in `loss`.

use std::collections::BTreeMap;

use mil::{
    Dim, Function, FunctionBuilder, Literal, OpKind, Opset, Program, Result, TensorType, Type,
    ValueId,
};
use tensor::{DType, WeightStore};

use super::attention::{Cache, Place};
use super::{Block, Embedding, Head};
use crate::interface;

/// A decoder-only language model.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    /// Before the first block.
    pub(crate) embedding: Embedding,
    /// In order.
    pub(crate) blocks: Vec<Block>,
    /// After the last block.
    pub(crate) head: Head,
}

/// What distinguishes a program's functions.
struct Shape {
    name: &'static str,
    /// Sequences of one call.
    sequences: usize,
    /// Tokens of each in one call.
    tokens: Dim,
    /// Whether keys and values are kept for later calls.
    cached: bool,
    /// Whether only the last token's logits are wanted.
    last_only: bool,
}

impl Decoder {
    /// The verified program over `weights` for `sequences` at once, its cache of element type `cache`; see
    /// [`crate::interface`].
    pub(crate) fn program(
        &self,
        mut weights: WeightStore,
        sequences: usize,
        cache: DType,
    ) -> Result<Program> {
        let seq = Dim::symbol(interface::SEQ);
        let shape = |name, tokens: &Dim, cached, last_only| {
            let tokens = tokens.clone();
            Shape { name, sequences, tokens, cached, last_only }
        };
        let shapes = [
            shape(interface::PREFILL, &seq, true, true),
            shape(interface::DECODE, &Dim::Fixed(1), true, false),
            shape(interface::SCORE, &seq, false, false),
        ];
        let mut functions = BTreeMap::new();
        for shape in shapes {
            functions.insert(shape.name.to_owned(), self.function(&shape, &mut weights, cache)?);
        }
        let program = Program { functions, weights, ..Program::default() };
        mil::verify(&program)?;
        Ok(program)
    }

    fn function(&self, shape: &Shape, weights: &mut WeightStore, cache: DType) -> Result<Function> {
        let mut builder = FunctionBuilder::new(shape.name, Opset::Ios18, weights);
        let b = &mut builder;
        let tokens = &shape.tokens;
        let ids = TensorType::new(DType::I32, [Dim::Fixed(shape.sequences), tokens.clone()]);
        let ids = b.input(interface::IDS, ids);
        let positions =
            b.input(interface::POSITIONS, TensorType::new(DType::I32, [tokens.clone()]));
        let caches: Vec<Option<Cache>> = self
            .blocks
            .iter()
            .enumerate()
            .map(|(layer, block)| {
                let sizes = (shape.sequences, block.attention.kv_heads, block.attention.head_dim);
                shape.cached.then(|| cache_inputs(b, layer, sizes, cache))
            })
            .collect();
        let mut x = self.embedding.apply(b, ids, positions)?;
        for (layer, (block, cache)) in self.blocks.iter().zip(caches).enumerate() {
            let place = Place { positions, segments: None, cache };
            x = block.apply(b, x, place, &interface::layer(layer))?;
        }
        if shape.last_only {
            x = last_token(b, x)?;
        }
        let logits = self.head.apply(b, x)?;
        Ok(builder.finish(vec![logits]))
    }
}

/// The states of a layer as parameters of the function.
fn cache_inputs(
    b: &mut FunctionBuilder<'_>,
    layer: usize,
    (sequences, heads, dim): (usize, usize, usize),
    dtype: DType,
) -> Cache {
    let context = Dim::symbol(interface::CONTEXT);
    let shape = [Dim::Fixed(sequences), Dim::Fixed(heads), context, Dim::Fixed(dim)];
    let ty = TensorType::new(dtype, shape);
    Cache {
        key: b.input(&interface::key_cache(layer), Type::State(ty.clone())),
        value: b.input(&interface::value_cache(layer), Type::State(ty)),
    }
}

/// The last row of each sequence of `x` `[B, T, d]`: `[B, 1, d]`.
fn last_token(b: &mut FunctionBuilder<'_>, x: ValueId) -> Result<ValueId> {
    b.op(OpKind::SliceByIndex)
        .arg("x", x)
        .arg("begin", Literal::vector(&[0i32, -1, 0]))
        .arg("end", Literal::vector(&[0i32, 0, 0]))
        .arg("begin_mask", Literal::bool_vector(&[true, false, true]))
        .arg("end_mask", Literal::bool_vector(&[true, true, true]))
        .name("last_token")
        .result()
}
