//! Adding plain operations while decomposing.

use tensor::{DType, Tensor};

use crate::eval::{Array, Data};
use crate::{Arg, FunctionBuilder, Literal, OpError, OpKind, OpView, Payload, TensorType, ValueId};

/// A builder whose values are arguments, so that operations nest without ceremony.
pub(super) struct Emit<'b, 'w> {
    b: &'b mut FunctionBuilder<'w>,
}

/// The results of a decomposition that makes one value.
pub(super) fn value(arg: Arg) -> Vec<ValueId> {
    match arg {
        Arg::Value(v) => vec![v],
        // Every method of `Emit` that adds an operation returns its result.
        Arg::Literal(_) | Arg::List(_) => Vec::new(),
    }
}

impl<'b, 'w> Emit<'b, 'w> {
    pub(super) fn new(b: &'b mut FunctionBuilder<'w>) -> Self {
        Emit { b }
    }

    /// The tensor type of an argument.
    pub(super) fn ty(&self, arg: &Arg) -> Result<TensorType, OpError> {
        let ty = match arg {
            Arg::Value(v) => self.b.ty(*v),
            Arg::Literal(l) => &l.ty,
            Arg::List(_) => return Err(OpError::invalid("a list where a tensor is needed")),
        };
        ty.as_tensor().cloned().ok_or_else(|| OpError::invalid(format!("{ty} is no tensor")))
    }

    /// The result of an operation that has one.
    pub(super) fn op(
        &mut self,
        kind: OpKind,
        args: impl IntoIterator<Item = (&'static str, Arg)>,
    ) -> Result<Arg, OpError> {
        let mut op = self.b.op(kind);
        for (name, arg) in args {
            op = op.arg(name, arg);
        }
        Ok(op.result()?.into())
    }

    /// An operation without result.
    pub(super) fn effect(
        &mut self,
        kind: OpKind,
        args: impl IntoIterator<Item = (&'static str, Arg)>,
    ) -> Result<(), OpError> {
        let mut op = self.b.op(kind);
        for (name, arg) in args {
            op = op.arg(name, arg);
        }
        op.results()?;
        Ok(())
    }

    /// An elementwise operation of `x` and `y`.
    pub(super) fn binary(&mut self, kind: OpKind, x: &Arg, y: &Arg) -> Result<Arg, OpError> {
        self.op(kind, [("x", x.clone()), ("y", y.clone())])
    }

    /// `x * y`.
    pub(super) fn mul(&mut self, x: &Arg, y: &Arg) -> Result<Arg, OpError> {
        self.binary(OpKind::Mul, x, y)
    }

    fn constant(&mut self, name: &str, literal: Literal) -> Arg {
        self.b.constant(name, literal).into()
    }

    /// An `int32` scalar.
    pub(super) fn int(&mut self, value: i32) -> Arg {
        self.constant("int", Literal::scalar(value))
    }

    /// An `int32` vector.
    pub(super) fn ints(&mut self, values: &[i32]) -> Arg {
        self.constant("ints", Literal::vector(values))
    }

    /// A scalar truth value.
    pub(super) fn bool(&mut self, value: bool) -> Arg {
        self.constant("bool", Literal::bool(value))
    }

    /// A vector of truth values.
    pub(super) fn bools(&mut self, values: &[bool]) -> Arg {
        self.constant("bools", Literal::bool_vector(values))
    }

    /// A string.
    pub(super) fn str(&mut self, value: &str) -> Arg {
        self.constant("str", Literal::string(value))
    }

    /// A float scalar of type `dtype`, rounded to it.
    pub(super) fn scalar(&mut self, dtype: DType, value: f64) -> Result<Arg, OpError> {
        let scalar = Array { dtype, shape: Vec::new(), data: Data::Float(vec![value]) };
        Ok(self.constant("scalar", Literal::tensor(scalar.to_tensor()?)))
    }

    /// `x` as `dtype`; `x` itself if it is.
    pub(super) fn cast(&mut self, x: Arg, dtype: DType) -> Result<Arg, OpError> {
        if self.ty(&x)?.dtype == dtype {
            return Ok(x);
        }
        let dtype = self.str(dtype.name());
        self.op(OpKind::Cast, [("x", x), ("dtype", dtype)])
    }

    /// `x` with axis `perm[i]` at place `i`.
    pub(super) fn transpose(&mut self, x: &Arg, perm: &[i32]) -> Result<Arg, OpError> {
        let perm = self.ints(perm);
        self.op(OpKind::Transpose, [("x", x.clone()), ("perm", perm)])
    }

    /// `x[..., begin:end:step]`.
    pub(super) fn last_axis(
        &mut self,
        x: &Arg,
        begin: usize,
        end: usize,
        step: i32,
    ) -> Result<Arg, OpError> {
        let rank = self.ty(x)?.rank();
        let at_end = |value: i32, other: i32| {
            let mut v = vec![other; rank];
            v[rank - 1] = value;
            v
        };
        let mut whole = vec![true; rank];
        whole[rank - 1] = false;
        let (begin, end) = (self.ints(&at_end(begin as i32, 0)), self.ints(&at_end(end as i32, 0)));
        let (stride, mask) = (self.ints(&at_end(step, 1)), self.bools(&whole));
        self.op(
            OpKind::SliceByIndex,
            [
                ("x", x.clone()),
                ("begin", begin),
                ("end", end),
                ("stride", stride),
                ("begin_mask", mask.clone()),
                ("end_mask", mask),
            ],
        )
    }

    /// The weight argument `name` of `op` as plain floats of type `dtype`: a constant is converted
    /// here and now (a block-quantised one dequantised), anything else by a cast.
    ///
    /// # Errors
    /// When a block-quantised weight is no constant: plain MIL has no such type.
    pub(super) fn plain_weight(
        &mut self,
        op: &OpView<'_>,
        name: &str,
        dtype: DType,
    ) -> Result<Arg, OpError> {
        let (arg, ty) = (op.required(name)?, op.tensor(name)?);
        if ty.dtype == dtype {
            return Ok(arg.clone());
        }
        match op.literal(name).and_then(|l| Some((l, l.resolve(op.weights)?))) {
            Some((literal, tensor)) => {
                let name = match &literal.payload {
                    Payload::Weight(id) => op.weights.get(*id).map_or(name, |w| &w.name),
                    _ => name,
                };
                Ok(self.b.new_weight(name, convert(tensor, dtype)?)?.into())
            }
            None if ty.dtype.is_block_quantized() => Err(OpError::unsupported(format!(
                "\"{name}\" {ty} is block-quantised and no constant"
            ))),
            None => self.cast(arg.clone(), dtype),
        }
    }
}

/// The values of a float or block-quantised tensor, rounded to `dtype`.
fn convert(tensor: &Tensor, dtype: DType) -> Result<Tensor, OpError> {
    let mut array = Array::from_tensor(tensor)?;
    array.dtype = dtype;
    array.to_tensor()
}
