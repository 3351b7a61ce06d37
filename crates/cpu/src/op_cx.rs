//! What binding an operation sees: its operands with fixed shapes, constants in the form kernels take.

use std::collections::HashMap;

use mil::{Arg, Literal, OpError, OpView, Operation, Type};
use tensor::{DType, Tensor};

use crate::kernel::{Operand, Source};
use crate::sizes::aligned;

/// Why an operation is not run natively.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Reason(pub(crate) String);

impl From<OpError> for Reason {
    fn from(e: OpError) -> Self {
        Reason(e.message)
    }
}

impl From<&str> for Reason {
    fn from(s: &str) -> Self {
        Reason(s.to_owned())
    }
}

impl From<String> for Reason {
    fn from(s: String) -> Self {
        Reason(s)
    }
}

/// Result of binding.
pub(crate) type Bind<T> = Result<T, Reason>;

/// Constants converted to the form that kernels take, each once, by the memory and type they were made from.
#[derive(Default)]
pub(crate) struct Constants {
    /// The original is kept, so that its address stays its own.
    converted: HashMap<(usize, usize, DType), (Tensor, Tensor)>,
}

impl Constants {
    /// `tensor` as aligned `fp32`.
    fn single(&mut self, tensor: &Tensor) -> Bind<Tensor> {
        if tensor.as_slice::<f32>().is_ok() {
            return Ok(tensor.clone());
        }
        let key = (tensor.bytes().as_ptr() as usize, tensor.bytes().len(), tensor.dtype());
        if let Some((_, done)) = self.converted.get(&key) {
            return Ok(done.reshaped(tensor.shape()).map_err(|e| e.to_string())?);
        }
        let mut values = vec![0f32; tensor.len()];
        if !tensor::dequantize(tensor.dtype(), tensor.bytes(), &mut values) {
            return Err(format!("constants of {}", tensor.dtype()).into());
        }
        let done = Tensor::from_slice(tensor.shape(), &values).map_err(|e| e.to_string())?;
        self.converted.insert(key, (tensor.clone(), done.clone()));
        Ok(done)
    }
}

/// An operation about to be bound. All sizes of its function that can be known are.
pub(crate) struct OpCx<'a> {
    /// The operation's arguments and constants.
    pub(crate) view: OpView<'a>,
    /// The operation.
    pub(crate) op: &'a Operation,
    /// Where conversions of constants are kept.
    pub(crate) constants: &'a mut Constants,
}

impl<'a> OpCx<'a> {
    /// The argument `name`, if given.
    pub(crate) fn opt(&self, name: &str) -> Bind<Option<Operand>> {
        self.view.arg(name).map(|arg| self.operand(arg)).transpose()
    }

    /// The argument `name`.
    pub(crate) fn get(&self, name: &str) -> Bind<Operand> {
        self.operand(self.view.required(name)?)
    }

    /// The items of the variadic argument `name`.
    pub(crate) fn list(&self, name: &str) -> Bind<Vec<Operand>> {
        match self.view.required(name)? {
            Arg::List(items) => items.iter().map(|a| self.operand(a)).collect(),
            single => Ok(vec![self.operand(single)?]),
        }
    }

    /// The argument `name` as input of a kernel that computes in `fp32`.
    pub(crate) fn float(&mut self, name: &str) -> Bind<Operand> {
        let operand = self.get(name)?;
        self.as_float(operand, name)
    }

    /// The argument `name`, if given, as input of a kernel that computes in `fp32`.
    pub(crate) fn opt_float(&mut self, name: &str) -> Bind<Option<Operand>> {
        let operand = self.opt(name)?;
        operand.map(|o| self.as_float(o, name)).transpose()
    }

    /// `operand` for a kernel that computes in `fp32`: constants are converted now, values when running.
    pub(crate) fn as_float(&mut self, operand: Operand, name: &str) -> Bind<Operand> {
        if let Some(tensor) = operand.as_const()
            && matches!(operand.dtype, DType::F32 | DType::F16 | DType::Bf16)
        {
            return Ok(Operand::constant(self.constants.single(tensor)?));
        }
        match (operand.dtype, &operand.source) {
            (DType::F32, _) => Ok(operand),
            (DType::F16, &Source::Value(v)) => {
                Ok(Operand { source: Source::Widened(v), dtype: DType::F32, shape: operand.shape })
            }
            (other, _) => Err(format!("{name} is of type {other}").into()),
        }
    }

    /// The argument `name` as `fp32` constant.
    pub(crate) fn const_float(&mut self, name: &str) -> Bind<Tensor> {
        let operand = self.get(name)?;
        let tensor = operand.as_const().ok_or_else(|| format!("{name} is not a constant"))?;
        self.constants.single(tensor)
    }

    /// The content type of result `index`, with fixed shape.
    pub(crate) fn result(&self, index: usize) -> Bind<(DType, Vec<usize>)> {
        fixed(self.view.function.ty(self.op.outputs[index]))
    }

    fn operand(&self, arg: &'a Arg) -> Bind<Operand> {
        if let Some(literal) = self.view.function.const_arg(arg) {
            return Ok(Operand::constant(self.resolve(literal)?));
        }
        let Arg::Value(v) = arg else { return Err("a list where a tensor is needed".into()) };
        let (dtype, shape) = fixed(self.view.function.ty(*v))?;
        Ok(Operand { source: Source::Value(*v), dtype, shape })
    }

    fn resolve(&self, literal: &Literal) -> Bind<Tensor> {
        let tensor = literal.resolve(self.view.weights);
        let tensor = tensor.ok_or("a constant that is not a tensor")?;
        if tensor.dtype() == DType::I32 {
            return Ok(aligned(tensor)?);
        }
        // Weights are read where they lie, however that is aligned.
        Ok(tensor.clone())
    }
}

/// Element type and dimensions of a tensor whose size is known and whose elements take whole bytes.
pub(crate) fn fixed(ty: &Type) -> Bind<(DType, Vec<usize>)> {
    let tensor = ty.as_tensor().ok_or_else(|| format!("a value of type {ty}"))?;
    let shape =
        tensor.fixed_shape().ok_or_else(|| format!("the size of {ty} is only known later"))?;
    let bytes = tensor::element_count(&shape).and_then(|n| tensor.dtype.byte_len(n));
    if bytes.is_none() || tensor.dtype.block_len() != 1 {
        return Err(format!("a value of type {ty}").into());
    }
    Ok((tensor.dtype, shape))
}
