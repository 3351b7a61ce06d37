//! The catalogue of operations: one struct an op, one line each in `OPS`.

use std::collections::BTreeMap;

use tensor::{DType, Tensor, WeightStore};

use crate::eval::{EvalCx, Value};
use crate::{
    Arg, Block, Dim, Function, FunctionBuilder, Literal, OpError, Operation, Opset, TensorType,
    Type, ValueId,
};

mod constant;
mod elementwise;
mod llm;

/// Builds [`OpKind`] and the catalogue from one list, so that a kind without a definition does not
/// compile.
macro_rules! ops {
    ($($module:ident: $($kind:ident),* $(,)?;)*) => {
        /// Which operation; the closed catalogue that everything matches exhaustively.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[expect(missing_docs, reason = "the definition's own doc says it")]
        pub enum OpKind { $($($kind,)*)* }

        /// Every operation.
        pub const OPS: &[OpKind] = &[$($(OpKind::$kind,)*)*];

        impl OpKind {
            /// The definition.
            pub fn def(self) -> &'static dyn OpDef {
                match self { $($(OpKind::$kind => &$module::$kind,)*)* }
            }
        }
    };
}

ops! {
    constant: Const;
    elementwise: Add;
    llm: LlmRmsNorm;
}

impl OpKind {
    /// The name in MIL text.
    pub fn name(self) -> &'static str {
        self.def().name()
    }

    /// The operation called `name`.
    pub fn from_name(name: &str) -> Option<OpKind> {
        OPS.iter().copied().find(|k| k.name() == name)
    }

    /// The slot of parameter `name` in [`Operation::args`].
    pub fn param_index(self, name: &str) -> Option<usize> {
        self.def().params().iter().position(|p| p.name == name)
    }
}

/// What an operation does besides computing its results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing: equal arguments give equal results, unused ones can go.
    Pure,
    /// It reads a state.
    ReadsState,
    /// It changes a state.
    WritesState,
    /// It draws random numbers.
    Random,
}

/// A named input of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Name in MIL text.
    pub name: &'static str,
    /// Whether it must be given.
    pub required: bool,
    /// Whether it must be known at compile time.
    pub constant: bool,
    /// Whether it takes a list of values.
    pub variadic: bool,
    /// What is accepted.
    pub domain: Domain,
}

/// What types a parameter accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    /// Anything.
    Any,
    /// Tensors of floats.
    Float,
    /// Tensors of integers.
    Int,
    /// Tensors of floats or integers.
    Number,
    /// Tensors of truth values.
    Bool,
    /// Strings.
    Str,
    /// States.
    State,
    /// Weights in any storage format, block-quantised ones included.
    Weight,
}

impl Domain {
    /// Whether `ty` is accepted.
    pub fn accepts(self, ty: &Type) -> bool {
        let dtype = match ty {
            Type::Tensor(t) => t.dtype,
            Type::State(_) => return matches!(self, Domain::State | Domain::Any),
            _ => return self == Domain::Any,
        };
        match self {
            Domain::Any => true,
            Domain::Float => dtype.is_float(),
            Domain::Int => dtype.is_int(),
            Domain::Number => dtype.is_float() || dtype.is_int(),
            Domain::Bool => dtype == DType::Bool,
            Domain::Str => dtype == DType::Str,
            Domain::State => false,
            Domain::Weight => dtype.is_float() || dtype.is_block_quantized(),
        }
    }
}

impl Param {
    /// A required parameter.
    pub const fn new(name: &'static str, domain: Domain) -> Self {
        Param { name, required: true, constant: false, variadic: false, domain }
    }

    /// It may be left out.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.required = false;
        self
    }

    /// It must be known at compile time.
    #[must_use]
    pub const fn constant(mut self) -> Self {
        self.constant = true;
        self
    }

    /// It takes a list.
    #[must_use]
    pub const fn variadic(mut self) -> Self {
        self.variadic = true;
        self
    }
}

/// Work that one execution does.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Cost {
    /// Floating-point operations; a multiply-add is two.
    pub flops: f64,
    /// Bytes read and written once each.
    pub bytes: f64,
}

/// The definition of an operation: its struct's doc comment says what it means.
pub trait OpDef: Sync {
    /// The name in MIL text.
    fn name(&self) -> &'static str;

    /// The first operation set that has it.
    fn opset(&self) -> Opset {
        Opset::Ios15
    }

    /// Its inputs.
    fn params(&self) -> &'static [Param];

    /// What it does besides computing.
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    /// Types of the results.
    ///
    /// # Errors
    /// When the arguments do not fit.
    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError>;

    /// The reference evaluation: correct and slow on purpose.
    ///
    /// # Errors
    /// When values (not types) make it impossible, such as an index out of range.
    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError>;

    /// Work of one execution. The default: one flop an output element, and all bytes once.
    fn cost(&self, op: &OpView<'_>, results: &[Type]) -> Cost {
        let _ = op;
        Cost { flops: elements(results), bytes: op.arg_bytes() + bytes(results) }
    }

    /// Whether [`OpDef::decompose`] has something to say.
    fn is_composite(&self) -> bool {
        false
    }

    /// The same meaning in simpler operations, for composite ones: emits them and returns the
    /// values that take the place of the results.
    ///
    /// # Errors
    /// When this use of the operation has no simpler form.
    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let _ = (op, b);
        Err(OpError::unsupported(format!("{} has no decomposition", self.name())))
    }
}

/// Elements of all tensors among `types` (unknown sizes count 1).
pub fn elements(types: &[Type]) -> f64 {
    types.iter().filter_map(Type::as_tensor).map(count).sum()
}

/// Bytes of all tensors among `types` (unknown sizes count 1).
pub fn bytes(types: &[Type]) -> f64 {
    types.iter().filter_map(Type::as_tensor).map(|t| count(t) * t.dtype.bits() / 8.0).sum()
}

fn count(t: &TensorType) -> f64 {
    t.shape.iter().map(|d| d.fixed().unwrap_or(1) as f64).product()
}

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
    pub attributes: &'a BTreeMap<String, Literal>,
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

/// The shape two shapes broadcast to, by the numpy rule.
///
/// # Errors
/// When they do not broadcast.
pub fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, OpError> {
    let rank = a.len().max(b.len());
    let at = |s: &[Dim], i: usize| {
        (i + s.len()).checked_sub(rank).map_or(Dim::Fixed(1), |j| s[j].clone())
    };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (Dim::Fixed(1), d) | (d, Dim::Fixed(1)) => Ok(d),
            (Dim::Fixed(x), Dim::Fixed(y)) => Err(OpError::invalid(format!(
                "shapes do not broadcast: {x} against {y} at axis {i}"
            ))),
            // A fixed size other than 1 decides over an unknown one, which must be equal or 1.
            (Dim::Fixed(n), _) | (_, Dim::Fixed(n)) => Ok(Dim::Fixed(n)),
            _ => Ok(Dim::Unknown),
        })
        .collect()
}
