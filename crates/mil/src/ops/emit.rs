//! Adding plain operations while decomposing or differentiating.

use tensor::{DType, Tensor};

use crate::eval::{Array, Data};
use crate::{Arg, FunctionBuilder, Literal, OpError, OpKind, OpView, Payload, TensorType, ValueId};

/// A builder whose values are arguments, so that operations nest without ceremony.
///
/// Every method returns the errors of the operation that it adds.
pub struct Emit<'b, 'w> {
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
    /// Emits into `b`.
    pub fn new(b: &'b mut FunctionBuilder<'w>) -> Self {
        Emit { b }
    }

    /// The tensor type of an argument.
    pub fn ty(&self, arg: &Arg) -> Result<TensorType, OpError> {
        let ty = match arg {
            Arg::Value(v) => self.b.ty(*v),
            Arg::Literal(l) => &l.ty,
            Arg::List(_) => return Err(OpError::invalid("a list where a tensor is needed")),
        };
        ty.as_tensor().cloned().ok_or_else(|| OpError::invalid(format!("{ty} is no tensor")))
    }

    /// The result of an operation that has one.
    pub fn op(
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

    /// The results of an operation.
    pub fn results(
        &mut self,
        kind: OpKind,
        args: impl IntoIterator<Item = (&'static str, Arg)>,
    ) -> Result<Vec<Arg>, OpError> {
        let mut op = self.b.op(kind);
        for (name, arg) in args {
            op = op.arg(name, arg);
        }
        Ok(op.results()?.into_iter().map(Arg::from).collect())
    }

    /// An operation without result.
    pub fn effect(
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
    pub fn binary(&mut self, kind: OpKind, x: &Arg, y: &Arg) -> Result<Arg, OpError> {
        self.op(kind, [("x", x.clone()), ("y", y.clone())])
    }

    /// `x + y`.
    pub fn add(&mut self, x: &Arg, y: &Arg) -> Result<Arg, OpError> {
        self.binary(OpKind::Add, x, y)
    }

    /// `x - y`.
    pub fn sub(&mut self, x: &Arg, y: &Arg) -> Result<Arg, OpError> {
        self.binary(OpKind::Sub, x, y)
    }

    /// An operation whose one argument is `x`.
    pub fn unary(&mut self, kind: OpKind, x: &Arg) -> Result<Arg, OpError> {
        self.op(kind, [("x", x.clone())])
    }

    /// `x * y`.
    pub fn mul(&mut self, x: &Arg, y: &Arg) -> Result<Arg, OpError> {
        self.binary(OpKind::Mul, x, y)
    }

    fn constant(&mut self, name: &str, literal: Literal) -> Arg {
        self.b.constant(name, literal).into()
    }

    /// An `int32` scalar.
    pub fn int(&mut self, value: i32) -> Arg {
        self.constant("int", Literal::scalar(value))
    }

    /// An `int32` vector.
    pub fn ints(&mut self, values: &[i32]) -> Arg {
        self.constant("ints", Literal::vector(values))
    }

    /// A scalar truth value.
    pub fn bool(&mut self, value: bool) -> Arg {
        self.constant("bool", Literal::bool(value))
    }

    /// A vector of truth values.
    pub fn bools(&mut self, values: &[bool]) -> Arg {
        self.constant("bools", Literal::bool_vector(values))
    }

    /// A string.
    pub fn str(&mut self, value: &str) -> Arg {
        self.constant("str", Literal::string(value))
    }

    /// A float scalar of type `dtype`, rounded to it.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Result<Arg, OpError> {
        let scalar = Array { dtype, shape: Vec::new(), data: Data::Float(vec![value]) };
        Ok(self.constant("scalar", Literal::tensor(scalar.to_tensor()?)))
    }

    /// `x` times a constant.
    pub fn times(&mut self, x: &Arg, factor: f64) -> Result<Arg, OpError> {
        let factor = self.scalar(self.ty(x)?.dtype, factor)?;
        self.mul(x, &factor)
    }

    /// `x` plus a constant.
    pub fn plus(&mut self, x: &Arg, summand: f64) -> Result<Arg, OpError> {
        let summand = self.scalar(self.ty(x)?.dtype, summand)?;
        self.add(x, &summand)
    }

    /// A tensor of floats that all are `value`.
    pub fn full(&mut self, dtype: DType, shape: &[usize], value: f64) -> Result<Arg, OpError> {
        let (value, shape) = (self.scalar(dtype, value)?, self.sizes(shape)?);
        self.op(OpKind::Fill, [("shape", shape), ("value", value)])
    }

    /// The elements of `x` under another shape.
    pub fn reshape(&mut self, x: &Arg, shape: &[usize]) -> Result<Arg, OpError> {
        let shape = self.sizes(shape)?;
        self.op(OpKind::Reshape, [("x", x.clone()), ("shape", shape)])
    }

    /// A reduction over `axes`, which stay with size 1 if `keep`.
    pub fn reduce(
        &mut self,
        kind: OpKind,
        x: &Arg,
        axes: &[usize],
        keep: bool,
    ) -> Result<Arg, OpError> {
        let (axes, keep) = (self.sizes(axes)?, self.bool(keep));
        self.op(kind, [("x", x.clone()), ("axes", axes), ("keep_dims", keep)])
    }

    /// The product of the last two axes, of `x` and `y` swapped first as `transpose` says.
    pub fn matmul(&mut self, x: &Arg, y: &Arg, transpose: [bool; 2]) -> Result<Arg, OpError> {
        let transpose = transpose.map(|t| self.bool(t));
        let [transpose_x, transpose_y] = transpose;
        self.op(
            OpKind::Matmul,
            [
                ("x", x.clone()),
                ("y", y.clone()),
                ("transpose_x", transpose_x),
                ("transpose_y", transpose_y),
            ],
        )
    }

    /// An `int32` vector of sizes or axes.
    pub fn sizes(&mut self, sizes: &[usize]) -> Result<Arg, OpError> {
        let sizes: Option<Vec<i32>> = sizes.iter().map(|&n| i32::try_from(n).ok()).collect();
        let sizes = sizes.ok_or_else(|| OpError::limit("a size beyond the range of int32"))?;
        Ok(self.ints(&sizes))
    }

    /// Rows `begin..end` of `x`, by its first axis.
    pub fn rows(&mut self, x: &Arg, begin: usize, end: usize) -> Result<Arg, OpError> {
        let rank = self.ty(x)?.rank();
        let mut first = vec![0; rank];
        let mut last = vec![0; rank];
        let mut whole = vec![true; rank];
        if rank > 0 {
            (first[0], last[0], whole[0]) = (begin, end, false);
        }
        let (first, last) = (self.sizes(&first)?, self.sizes(&last)?);
        let whole = self.bools(&whole);
        self.op(
            OpKind::SliceByIndex,
            [
                ("x", x.clone()),
                ("begin", first),
                ("end", last),
                ("begin_mask", whole.clone()),
                ("end_mask", whole),
            ],
        )
    }

    /// `x` as `dtype`; `x` itself if it is.
    pub fn cast(&mut self, x: Arg, dtype: DType) -> Result<Arg, OpError> {
        if self.ty(&x)?.dtype == dtype {
            return Ok(x);
        }
        let dtype = self.str(dtype.name());
        self.op(OpKind::Cast, [("x", x), ("dtype", dtype)])
    }

    /// `x` with axis `perm[i]` at place `i`.
    pub fn transpose(&mut self, x: &Arg, perm: &[i32]) -> Result<Arg, OpError> {
        let perm = self.ints(perm);
        self.op(OpKind::Transpose, [("x", x.clone()), ("perm", perm)])
    }

    /// `x[..., begin:end:step]`.
    pub fn last_axis(
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
    pub fn plain_weight(
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
