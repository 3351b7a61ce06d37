//! What binding an operation sees: its operands with fixed shapes, constants in the form kernels take.

use std::collections::HashMap;

use mil::eval::{self, Arithmetic, States, Value};
use mil::{
    Arg, Literal, OpError, OpId, OpKind, OpView, Operation, Program, TensorType, Type, ValueDef,
};
use tensor::{DType, Tensor};

use crate::kernel::{Operand, Source};

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
    /// Decompressed weights, by operation and where its arguments lie, which are kept too.
    decompressed: HashMap<Compressed, Decompressed>,
}

/// An operation on compressed weights, by where its arguments lie.
type Compressed = (OpKind, Vec<(usize, usize)>);

/// Its arguments, and what it makes of them.
type Decompressed = (Vec<Tensor>, Vec<Option<Tensor>>);

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

/// Whether `kind` makes a weight from its compressed form.
fn decompresses(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        ConstexprBlockwiseShiftScale
            | ConstexprLutToDense
            | ConstexprSparseToDense
            | ConstexprLutToSparse
            | ConstexprSparseBlockwiseShiftScale
            | ConstexprAffineDequantize
            | ConstexprCast
    )
}

/// The type of a tensor.
fn type_of(t: &Tensor) -> Type {
    TensorType::new(t.dtype(), t.shape().iter().copied()).into()
}

/// An operation about to be bound. All sizes of its function that can be known are.
pub(crate) struct OpCx<'a> {
    /// The operation's arguments and constants.
    pub(crate) view: OpView<'a>,
    /// The operation.
    pub(crate) op: &'a Operation,
    /// Where conversions of constants are kept.
    pub(crate) constants: &'a mut Constants,
    /// The program, with its function's name.
    pub(crate) program: (&'a Program, &'a str),
}

impl<'a> OpCx<'a> {
    /// The argument `name`, if given.
    pub(crate) fn opt(&mut self, name: &str) -> Bind<Option<Operand>> {
        let arg = self.view.arg(name);
        arg.map(|arg| self.operand(arg)).transpose()
    }

    /// The argument `name`.
    pub(crate) fn get(&mut self, name: &str) -> Bind<Operand> {
        let arg = self.view.required(name)?;
        self.operand(arg)
    }

    /// The items of the variadic argument `name`.
    pub(crate) fn list(&mut self, name: &str) -> Bind<Vec<Operand>> {
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

    /// The value or constant `arg` of any float type that products read as it lies.
    pub(crate) fn floats_of(&mut self, arg: &'a Arg, name: &str) -> Bind<Operand> {
        let operand = self.operand(arg)?;
        match operand.dtype {
            DType::F32 | DType::F16 | DType::Bf16 => Ok(operand),
            other => Err(format!("{name} is of type {other}").into()),
        }
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

    /// `operand` where its elements are aligned, if it is a constant; anything else is.
    pub(crate) fn aligned(&self, operand: Operand) -> Bind<Operand> {
        match operand.as_const() {
            Some(tensor) => Ok(Operand {
                shape: operand.shape.clone(),
                ..Operand::constant(exec::aligned(tensor)?)
            }),
            None => Ok(operand),
        }
    }

    /// The operation that makes the value `arg`, and which of its results that is.
    pub(crate) fn maker(&self, arg: &Arg) -> Option<(OpId, usize)> {
        let Arg::Value(v) = arg else { return None };
        match self.view.function.values[*v].def {
            ValueDef::Result(op, result) => Some((op, result as usize)),
            ValueDef::Param => None,
        }
    }

    /// As [`OpCx::maker`], of a weight that is decompressed.
    fn decompressing(&self, arg: &Arg) -> Option<(OpId, usize)> {
        self.maker(arg).filter(|&(id, _)| decompresses(self.view.function.ops[id].kind))
    }

    /// What operation `id` makes of compressed weights, by the reference evaluation, once; `None` for
    /// what no kernel reads, such as a mask of bits.
    pub(crate) fn decompressed(&mut self, id: OpId) -> Bind<Vec<Option<Tensor>>> {
        let function = self.view.function;
        let op = &function.ops[id];
        let mut sources = Vec::new();
        self.sources(id, &mut sources)?;
        let place = |t: &Tensor| (t.bytes().as_ptr().addr(), t.bytes().len());
        let key = (op.kind, sources.iter().map(place).collect::<Vec<_>>());
        let types = || op.outputs.iter().map(|&v| function.ty(v));
        if let Some((_, made)) = self.constants.decompressed.get(&key)
            && types()
                .zip(made)
                .all(|(ty, t)| t.as_ref().is_none_or(|t| ty.compatible(&type_of(t))))
        {
            return Ok(made.clone());
        }
        let made: Vec<Option<Tensor>> = self
            .evaluated(id)?
            .iter()
            .map(|v| v.array().and_then(|a| a.to_tensor()).ok())
            .collect();
        self.constants.decompressed.insert(key, (sources, made.clone()));
        Ok(made)
    }

    /// The constants that operation `id` and those that make its arguments read.
    fn sources(&self, id: OpId, sources: &mut Vec<Tensor>) -> Bind<()> {
        for arg in self.view.function.ops[id].args.iter().flatten() {
            match (self.view.function.const_arg(arg), self.decompressing(arg)) {
                (Some(literal), _) => sources.extend(literal.resolve(self.view.weights).cloned()),
                (None, Some((inner, _))) => self.sources(inner, sources)?,
                (None, None) => return Err("an argument that is not a constant".into()),
            }
        }
        Ok(())
    }

    /// The values that operation `id` makes; one may decompress what another made.
    fn evaluated(&self, id: OpId) -> Bind<Vec<Value>> {
        let mut given = Vec::new();
        for arg in self.view.function.ops[id].args.iter().flatten() {
            if let (Arg::Value(v), Some((inner, result))) = (arg, self.decompressing(arg)) {
                given.push((*v, self.evaluated(inner)?.swap_remove(result)));
            }
        }
        let (program, name) = self.program;
        let values = eval::run_op(program, name, id, Arithmetic::Fp16, given, &mut States::new());
        values.map_err(|e| Reason(e.to_string()))
    }

    fn operand(&mut self, arg: &'a Arg) -> Bind<Operand> {
        if let Some((id, result)) = self.decompressing(arg) {
            let made = self.decompressed(id)?.swap_remove(result);
            return Ok(Operand::constant(made.ok_or("a weight of a type that no kernel reads")?));
        }
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
            return Ok(exec::aligned(tensor)?);
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
