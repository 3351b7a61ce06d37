//! Adds plain operations whose constant arguments are named constants, as the engine's compiler wants them.

use mil::eval::{Array, Data};
use mil::{
    Arg, FunctionBuilder, Literal, OpBuilder, OpError, OpKind, OpView, Payload, Result, ValueId,
};
use tensor::{Bytes, DType, Tensor};

use crate::rebuild::Site;

/// A builder that names what it adds after what it stands for.
pub(super) struct Emit<'b, 'w> {
    pub(super) b: &'b mut FunctionBuilder<'w>,
    name: String,
}

impl<'b, 'w> Emit<'b, 'w> {
    /// Names begin with `name`.
    pub(super) fn new(b: &'b mut FunctionBuilder<'w>, name: &str) -> Self {
        Emit { b, name: name.to_owned() }
    }

    /// For what stands in the place of an operation of one result.
    pub(super) fn at<'s: 'b>(site: &'s mut Site<'_, 'w>) -> Self {
        let op = &site.function.ops[site.id];
        let name = op.outputs.first().map_or("v", |&v| &site.function.values[v].name);
        Emit { name: name.to_owned(), b: &mut *site.b }
    }

    pub(super) fn named(&self, suffix: &str) -> String {
        format!("{}_{suffix}", self.name)
    }

    pub(super) fn constant(&mut self, suffix: &str, literal: Literal) -> ValueId {
        self.b.constant(&format!("{}_{suffix}", self.name), literal)
    }

    pub(super) fn ints(&mut self, suffix: &str, values: &[usize]) -> ValueId {
        let values: Vec<i32> = values.iter().map(|&n| n as i32).collect();
        self.constant(suffix, Literal::vector(&values))
    }

    /// A number of type `dtype`, rounded to it.
    pub(super) fn scalar(
        &mut self,
        suffix: &str,
        dtype: DType,
        value: f64,
    ) -> Result<ValueId, OpError> {
        Ok(self.constant(suffix, Literal::tensor(scalar(dtype, value)?)))
    }

    pub(super) fn unary(&mut self, kind: OpKind, x: Arg, suffix: &str) -> Result<ValueId> {
        let name = self.named(suffix);
        self.b.op(kind).arg("x", x).name(name).result()
    }

    pub(super) fn binary(
        &mut self,
        kind: OpKind,
        x: impl Into<Arg>,
        y: impl Into<Arg>,
        suffix: &str,
    ) -> Result<ValueId> {
        let name = self.named(suffix);
        self.b.op(kind).arg("x", x).arg("y", y).name(name).result()
    }

    /// `x` from `begin` up to `end` along each axis.
    pub(super) fn slice(
        &mut self,
        x: impl Into<Arg>,
        begin: &[usize],
        end: &[usize],
        suffix: &str,
    ) -> Result<ValueId> {
        let begin = self.ints(&format!("{suffix}_begin"), begin);
        let end = self.ints(&format!("{suffix}_end"), end);
        let op = self.b.op(OpKind::SliceByIndex).arg("x", x).arg("begin", begin).arg("end", end);
        op.name(format!("{}_{suffix}", self.name)).result()
    }

    /// `x`, of type `dtype`, with so many zeros added at the end of each axis.
    pub(super) fn pad(
        &mut self,
        x: Arg,
        dtype: DType,
        added: &[usize],
        suffix: &str,
    ) -> Result<ValueId, OpError> {
        let amounts: Vec<usize> = added.iter().flat_map(|&n| [0, n]).collect();
        let amounts = self.ints(&format!("{suffix}_amounts"), &amounts);
        let mode = self.constant(&format!("{suffix}_mode"), Literal::string("constant"));
        let zero = self.scalar(&format!("{suffix}_zero"), dtype, 0.0)?;
        let op = self.b.op(OpKind::Pad).arg("x", x).arg("pad", amounts).arg("mode", mode);
        Ok(op.arg("constant_val", zero).name(format!("{}_{suffix}", self.name)).result()?)
    }

    pub(super) fn reshape(
        &mut self,
        x: impl Into<Arg>,
        shape: &[usize],
        suffix: &str,
    ) -> Result<ValueId> {
        let shape = self.ints(&format!("{suffix}_shape"), shape);
        let op = self.b.op(OpKind::Reshape).arg("x", x).arg("shape", shape);
        op.name(format!("{}_{suffix}", self.name)).result()
    }

    /// A constant of `tensor`: a weight if `like` is one, else in the text.
    pub(super) fn tensor(
        &mut self,
        suffix: &str,
        tensor: Tensor,
        like: &Literal,
    ) -> Result<ValueId> {
        let name = self.named(suffix);
        match like.payload {
            Payload::Weight(_) => self.b.new_weight(&name, tensor),
            _ => Ok(self.b.constant(&name, Literal::tensor(tensor))),
        }
    }
}

/// A tensor of one number and no axis, rounded to `dtype`.
pub(super) fn scalar(dtype: DType, value: f64) -> Result<Tensor, OpError> {
    let data =
        if dtype.is_float() { Data::Float(vec![value]) } else { Data::Int(vec![value as i64]) };
    Array { dtype, shape: Vec::new(), data }.to_tensor()
}

/// The same operation again, without the arguments `without`, under the name of the first one and `suffix`.
pub(super) fn again<'b, 'w>(
    site: &'b mut Site<'_, 'w>,
    without: &[&str],
    suffix: &str,
) -> OpBuilder<'b, 'w> {
    let op = &site.function.ops[site.id];
    let name = op.outputs.first().map_or("v", |&v| &site.function.values[v].name);
    let mut builder = site.b.op(op.kind).name(format!("{name}_{suffix}"));
    for (param, arg) in op.kind.def().params().iter().zip(&op.args) {
        if !without.contains(&param.name) {
            builder = builder.opt_arg(param.name, arg.clone());
        }
    }
    builder
}

/// The sizes of argument `name` if all are known.
pub(super) fn sizes(view: &OpView<'_>, name: &str) -> Option<Vec<usize>> {
    view.opt_tensor(name).ok()??.fixed_shape()
}

/// The part of `tensor` from `begin` up to `end` along `axis`; `None` for types whose elements are no whole bytes.
pub(super) fn part(tensor: &Tensor, axis: usize, begin: usize, end: usize) -> Option<Tensor> {
    let (shape, element) = (tensor.shape(), element_bytes(tensor.dtype())?);
    let inner = shape.get(axis + 1..)?.iter().product::<usize>() * element;
    let row = shape[axis] * inner;
    let mut bytes = Vec::new();
    if row > 0 {
        for row in tensor.bytes().chunks_exact(row) {
            bytes.extend_from_slice(row.get(begin * inner..end * inner)?);
        }
    }
    let mut shape = shape.to_vec();
    shape[axis] = end - begin;
    Tensor::new(tensor.dtype(), &shape, Bytes::copy_from(&bytes)).ok()
}

/// Bytes of an element, if it has whole ones.
pub(super) fn element_bytes(dtype: DType) -> Option<usize> {
    dtype
        .byte_len(1)
        .filter(|&bytes| dtype.block_len() == 1 && dtype.byte_len(8) == Some(8 * bytes))
}
