//! What an operation's definition sees: arguments by name, their types, their constants.

use tensor::{DType, Tensor, WeightStore};

use super::{OpKind, bytes};
use crate::{Arg, Attributes, Block, Function, Literal, OpError, Operation, TensorType, Type};

/// An operation with its surroundings, as its definition sees it: arguments by name, their types,
/// and their values where those are constants.
#[derive(Clone, Copy)]
pub struct OpView<'a> {
    /// Which operation.
    pub kind: OpKind,
    /// The function it stands in.
    pub function: &'a Function,
    /// The program's weights.
    pub weights: &'a WeightStore,
    /// Arguments in the order of the parameters.
    pub args: &'a [Option<Arg>],
    /// Attributes.
    pub attributes: &'a Attributes,
    /// Nested blocks.
    pub blocks: &'a [Block],
}

impl<'a> OpView<'a> {
    /// The view of an operation that stands in `function`.
    pub fn new(function: &'a Function, weights: &'a WeightStore, op: &'a Operation) -> Self {
        OpView {
            kind: op.kind,
            function,
            weights,
            args: &op.args,
            attributes: &op.attributes,
            blocks: &op.blocks,
        }
    }

    /// The argument `name`, if given.
    pub fn arg(&self, name: &str) -> Option<&'a Arg> {
        self.args.get(self.kind.param_index(name)?)?.as_ref()
    }

    /// The argument `name`.
    ///
    /// # Errors
    /// When it is not given.
    pub fn required(&self, name: &str) -> Result<&'a Arg, OpError> {
        self.arg(name).ok_or_else(|| OpError::invalid(format!("argument \"{name}\" is missing")))
    }

    /// The type of an argument that is not a list.
    pub fn arg_type(&self, arg: &'a Arg) -> Option<&'a Type> {
        match arg {
            Arg::Value(v) => Some(self.function.ty(*v)),
            Arg::Literal(l) => Some(&l.ty),
            Arg::List(_) => None,
        }
    }

    /// The tensor type of argument `name`.
    ///
    /// # Errors
    /// When it is missing or not a tensor.
    pub fn tensor(&self, name: &str) -> Result<&'a TensorType, OpError> {
        let arg = self.required(name)?;
        self.arg_type(arg)
            .and_then(Type::as_tensor)
            .ok_or_else(|| OpError::invalid(format!("argument \"{name}\" is not a tensor")))
    }

    /// The tensor type of argument `name`, if given.
    ///
    /// # Errors
    /// When it is given and not a tensor.
    pub fn opt_tensor(&self, name: &str) -> Result<Option<&'a TensorType>, OpError> {
        self.arg(name).map(|_| self.tensor(name)).transpose()
    }

    /// The content type of the state argument `name`.
    ///
    /// # Errors
    /// When it is missing or not a state.
    pub fn state(&self, name: &str) -> Result<&'a TensorType, OpError> {
        let arg = self.required(name)?;
        self.arg_type(arg)
            .and_then(Type::as_state)
            .ok_or_else(|| OpError::invalid(format!("argument \"{name}\" is not a state")))
    }

    /// The tensor types of the variadic argument `name`.
    ///
    /// # Errors
    /// When it is missing or an item is not a tensor.
    pub fn tensors(&self, name: &str) -> Result<Vec<&'a TensorType>, OpError> {
        let items = match self.required(name)? {
            Arg::List(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        items
            .iter()
            .map(|a| self.arg_type(a).and_then(Type::as_tensor))
            .collect::<Option<_>>()
            .ok_or_else(|| OpError::invalid(format!("an item of \"{name}\" is not a tensor")))
    }

    /// The constant given as argument `name`; `None` if it is not given or not a constant.
    pub fn literal(&self, name: &str) -> Option<&'a Literal> {
        self.function.const_arg(self.arg(name)?)
    }

    fn const_tensor(&self, name: &str) -> Result<Option<&'a Tensor>, OpError> {
        if self.arg(name).is_none() {
            return Ok(None);
        }
        let literal = self
            .literal(name)
            .ok_or_else(|| OpError::invalid(format!("argument \"{name}\" must be a constant")))?;
        let tensor = literal.resolve(self.weights);
        tensor
            .map(Some)
            .ok_or_else(|| OpError::invalid(format!("argument \"{name}\" is not a tensor")))
    }

    /// The integers of constant argument `name`, if given.
    ///
    /// # Errors
    /// When it is given but not a constant of integers.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, OpError> {
        let Some(tensor) = self.const_tensor(name)? else { return Ok(None) };
        crate::eval::tensor_ints(tensor)
            .map(Some)
            .ok_or_else(|| OpError::invalid(format!("argument \"{name}\" is not of integers")))
    }

    /// The integer of constant argument `name`, if given.
    ///
    /// # Errors
    /// When it is given but not one constant integer.
    pub fn int(&self, name: &str) -> Result<Option<i64>, OpError> {
        match self.ints(name)?.as_deref() {
            None => Ok(None),
            Some([n]) => Ok(Some(*n)),
            Some(many) => Err(OpError::invalid(format!(
                "argument \"{name}\" has {} values, not 1",
                many.len()
            ))),
        }
    }

    /// The float of constant argument `name`, if given.
    ///
    /// # Errors
    /// When it is given but not one constant float.
    pub fn float(&self, name: &str) -> Result<Option<f64>, OpError> {
        let Some(tensor) = self.const_tensor(name)? else { return Ok(None) };
        match crate::eval::tensor_floats(tensor).as_deref() {
            Some([x]) => Ok(Some(*x)),
            _ => Err(OpError::invalid(format!("argument \"{name}\" is not one float"))),
        }
    }

    /// The truth values of constant argument `name`, if given.
    ///
    /// # Errors
    /// When it is given but not a constant of truth values.
    pub fn bools(&self, name: &str) -> Result<Option<Vec<bool>>, OpError> {
        let Some(tensor) = self.const_tensor(name)? else { return Ok(None) };
        if tensor.dtype() != DType::Bool {
            return Err(OpError::invalid(format!("argument \"{name}\" is not of truth values")));
        }
        Ok(Some(tensor.bytes().iter().map(|&b| b != 0).collect()))
    }

    /// The truth value of constant argument `name`, or `default`.
    ///
    /// # Errors
    /// When it is given but not one constant truth value.
    pub fn bool_or(&self, name: &str, default: bool) -> Result<bool, OpError> {
        match self.bools(name)?.as_deref() {
            None => Ok(default),
            Some([b]) => Ok(*b),
            Some(_) => Err(OpError::invalid(format!("argument \"{name}\" is not one truth value"))),
        }
    }

    /// The string of constant argument `name`, if given.
    ///
    /// # Errors
    /// When it is given but not a constant string.
    pub fn str(&self, name: &str) -> Result<Option<&'a str>, OpError> {
        if self.arg(name).is_none() {
            return Ok(None);
        }
        let s = self.literal(name).and_then(Literal::as_str);
        s.map(Some).ok_or_else(|| {
            OpError::invalid(format!("argument \"{name}\" must be a constant string"))
        })
    }

    /// The argument `name` as it would be passed on to another operation of the same function.
    pub fn pass(&self, name: &str) -> Option<Arg> {
        self.arg(name).cloned()
    }

    /// Bytes of all arguments (unknown sizes count 1).
    pub fn arg_bytes(&self) -> f64 {
        let mut total = 0.0;
        for arg in self.args.iter().flatten() {
            let items = match arg {
                Arg::List(items) => items.as_slice(),
                single => std::slice::from_ref(single),
            };
            total += items
                .iter()
                .filter_map(|a| self.arg_type(a))
                .map(|t| bytes(std::slice::from_ref(t)))
                .sum::<f64>();
        }
        total
    }

    /// `axis` of a tensor of `rank` dimensions, negative ones counted from the end.
    ///
    /// # Errors
    /// When it is out of range.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize, OpError> {
        let resolved = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(resolved)
            .ok()
            .filter(|&a| a < rank)
            .ok_or_else(|| OpError::invalid(format!("axis {axis} is out of range for rank {rank}")))
    }
}
