//! The function that a model is trained with: the loss of whole sequences, without caches.

use std::collections::BTreeMap;

use mil::{FunctionBuilder, Literal, OpKind, Opset, Program, Result, TensorType, ValueId};
use tensor::{DType, WeightStore};

use super::Decoder;
use super::attention::Place;
use crate::interface;

/// The sizes and the form of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Sequences.
    pub sequences: usize,
    /// Tokens of each.
    pub tokens: usize,
    /// Whether a sequence may hold several documents, each of which sees itself alone; the function
    /// then has the input [`interface::SEGMENTS`].
    pub documents: bool,
}

impl Decoder {
    /// The verified program over `weights` whose one function is [`interface::LOSS`].
    pub(crate) fn loss_program(&self, mut weights: WeightStore, batch: Batch) -> Result<Program> {
        let mut builder = FunctionBuilder::new(interface::LOSS, Opset::Ios18, &mut weights);
        let b = &mut builder;
        let rows = || TensorType::new(DType::I32, [batch.sequences, batch.tokens]);
        let ids = b.input(interface::IDS, rows());
        let targets = b.input(interface::TARGETS, rows());
        let positions = b.input(interface::POSITIONS, TensorType::new(DType::I32, [batch.tokens]));
        let segments = batch.documents.then(|| b.input(interface::SEGMENTS, rows()));
        // Rotations tell distances, which are the same in a document; learned positions begin anew.
        let placed = match segments.filter(|_| self.embedding.positions.is_some()) {
            Some(segments) => positions_in_documents(b, positions, segments)?,
            None => positions,
        };
        let mut x = self.embedding.apply(b, ids, placed)?;
        let place = Place { positions, segments, cache: None };
        for (layer, block) in self.blocks.iter().enumerate() {
            x = block.apply(b, x, place, &interface::layer(layer))?;
        }
        let loss = self.head.loss(b, x, targets)?;
        let function = builder.finish(vec![loss]);
        let functions = BTreeMap::from([(interface::LOSS.to_owned(), function)]);
        let program = Program { functions, weights, ..Program::default() };
        mil::verify(&program)?;
        Ok(program)
    }
}

/// How many rows of the same segment have a smaller position: `[B, T]` of `positions` `[T]` and `segments`
/// `[B, T]`.
fn positions_in_documents(
    b: &mut FunctionBuilder<'_>,
    positions: ValueId,
    segments: ValueId,
) -> Result<ValueId> {
    let expand = |b: &mut FunctionBuilder<'_>, x: ValueId, axis: i32| {
        b.op(OpKind::ExpandDims).arg("x", x).arg("axes", Literal::vector(&[axis])).result()
    };
    let (own, other) = (expand(b, segments, 2)?, expand(b, segments, 1)?);
    let same = b.op(OpKind::Equal).arg("x", own).arg("y", other).result()?;
    let (own, other) = (expand(b, positions, 1)?, expand(b, positions, 0)?);
    let before = b.op(OpKind::Less).arg("x", other).arg("y", own).result()?;
    let both = b.op(OpKind::LogicalAnd).arg("x", same).arg("y", before).result()?;
    let ones = b.op(OpKind::Cast).arg("x", both).arg("dtype", Literal::string("int32")).result()?;
    b.op(OpKind::ReduceSum)
        .arg("x", ones)
        .arg("axes", Literal::vector(&[-1i32]))
        .name("positions_in_documents")
        .result()
}
