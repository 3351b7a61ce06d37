//! The slow reference interpreter: the definition of what a program computes.
//!
//! Floats are held as `f64` whatever their type, and each op's results are rounded once as the
//! [`Arithmetic`] says: nothing inside an op is, be it a sum's terms, the scores of attention or the
//! states of a recurrent layer between its steps. What is exact where is held by `tests/ops/half`.

use std::collections::BTreeMap;
use std::rc::Rc;

use tensor::{DType, WeightStore};

mod array;
mod decompress;
pub(crate) mod exact;
pub(crate) mod functions;
mod index;
mod linalg;

pub(crate) use array::wrap;
pub use array::{Array, Data, tensor_floats, tensor_ints};
pub use decompress::decompress;
pub(crate) use index::{Strided, bounded, broadcast_shape, strides};
pub(crate) use linalg::matmul_nt;

use crate::{
    Arg, Block, Dim, Error, Function, Literal, OpError, OpId, OpKind, OpView, Payload, Program,
    Result, TensorType, ValueId,
};

/// How results are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arithmetic {
    /// Not at all: `f64` throughout.
    Exact,
    /// Every float to `f32`, 16-bit types included.
    F32,
    /// Each to its own type: `fp16` values to half precision, `fp32` to single.
    Fp16,
}

impl Arithmetic {
    /// `x` as a result of type `dtype` is held.
    pub fn round(self, dtype: DType, x: f64) -> f64 {
        match (self, dtype) {
            (Arithmetic::Exact, _) | (_, DType::F64) => x,
            (Arithmetic::Fp16, DType::F16) => functions::half_value(x),
            (Arithmetic::Fp16, DType::Bf16) => functions::brain(x).to_f64(),
            _ => f64::from(x as f32),
        }
    }

    /// Each of `values` as [`Arithmetic::round`] has it.
    pub fn round_all(self, dtype: DType, values: &mut [f64]) {
        // One loop a case, which the compiler makes vectors of.
        match (self, dtype) {
            (Arithmetic::Exact, _) | (_, DType::F64) => {}
            (Arithmetic::Fp16, DType::F16) => {
                values.iter_mut().for_each(|x| *x = functions::half_value(*x));
            }
            _ => values.iter_mut().for_each(|x| *x = self.round(dtype, *x)),
        }
    }
}

/// A value while running.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A tensor.
    Array(Rc<Array>),
    /// A list or tuple.
    List(Vec<Value>),
    /// A dictionary.
    Dict(Vec<(Value, Value)>),
    /// The state of that name.
    State(String),
}

impl From<Array> for Value {
    fn from(a: Array) -> Self {
        Value::Array(Rc::new(a))
    }
}

/// Memory that outlives a call, by the name of the function input that stands for it.
pub type States = BTreeMap<String, Array>;

impl Value {
    /// The value of a literal.
    ///
    /// # Errors
    /// When the interpreter does not hold its type.
    pub fn from_literal(literal: &Literal, weights: &WeightStore) -> Result<Self, OpError> {
        Self::from_payload(&literal.ty, &literal.payload, weights)
    }

    fn from_payload(
        ty: &crate::Type,
        payload: &Payload,
        weights: &WeightStore,
    ) -> Result<Self, OpError> {
        use crate::Type;
        Ok(match (payload, ty) {
            (Payload::Tensor(t), _) => Array::from_tensor(t)?.into(),
            (Payload::Weight(id), _) => {
                let weight = weights
                    .get(*id)
                    .ok_or_else(|| OpError::invalid(format!("no {id} in the store")))?;
                Array::from_tensor(&weight.tensor)?.into()
            }
            (Payload::Strings(s), Type::Tensor(t)) => {
                let shape = t.fixed_shape().unwrap_or_else(|| vec![s.len()]);
                Array { dtype: DType::Str, shape, data: Data::Str(s.clone()) }.into()
            }
            (Payload::Items(items), Type::List(item, _)) => Value::List(
                items
                    .iter()
                    .map(|p| Self::from_payload(item, p, weights))
                    .collect::<Result<_, _>>()?,
            ),
            (Payload::Items(items), Type::Tuple(types)) => Value::List(
                items
                    .iter()
                    .zip(types)
                    .map(|(p, t)| Self::from_payload(t, p, weights))
                    .collect::<Result<_, _>>()?,
            ),
            (Payload::Entries(entries), Type::Dict(k, v)) => Value::Dict(
                entries
                    .iter()
                    .map(|(a, b)| {
                        Ok((Self::from_payload(k, a, weights)?, Self::from_payload(v, b, weights)?))
                    })
                    .collect::<Result<_, OpError>>()?,
            ),
            _ => {
                return Err(OpError::invalid(format!(
                    "a literal's value does not have its type {ty}"
                )));
            }
        })
    }

    /// The array, if this is one.
    ///
    /// # Errors
    /// When it is not.
    pub fn array(&self) -> Result<&Rc<Array>, OpError> {
        match self {
            Value::Array(a) => Ok(a),
            _ => Err(OpError::invalid("a list, dictionary or state where a tensor is needed")),
        }
    }
}

/// What an operation's definition sees when it is evaluated.
pub struct EvalCx<'a, 'e> {
    /// The operation with its types and constants.
    pub op: OpView<'a>,
    env: &'e mut Env<'a>,
}

/// Values of a run.
struct Env<'a> {
    program: &'a Program,
    name: &'a str,
    function: &'a Function,
    arithmetic: Arithmetic,
    values: cranelift_entity::SecondaryMap<ValueId, Option<Value>>,
    states: &'a mut States,
    observer: &'a mut dyn FnMut(ValueId, &Value),
}

impl<'a> EvalCx<'a, '_> {
    fn value_of(&self, arg: &Arg) -> Result<Value, OpError> {
        match arg {
            Arg::Value(v) => self.env.value(*v),
            Arg::Literal(l) => Value::from_literal(l, self.op.weights),
            Arg::List(items) => {
                Ok(Value::List(items.iter().map(|a| self.value_of(a)).collect::<Result<_, _>>()?))
            }
        }
    }

    /// The value of argument `name`, if given.
    ///
    /// # Errors
    /// When it has no value.
    pub fn opt_value(&self, name: &str) -> Result<Option<Value>, OpError> {
        self.op.arg(name).map(|a| self.value_of(a)).transpose()
    }

    /// The value of argument `name`.
    ///
    /// # Errors
    /// When it is missing.
    pub fn value(&self, name: &str) -> Result<Value, OpError> {
        self.value_of(self.op.required(name)?)
    }

    /// The tensor argument `name`.
    ///
    /// # Errors
    /// When it is missing or not a tensor.
    pub fn array(&self, name: &str) -> Result<Rc<Array>, OpError> {
        Ok(self.value(name)?.array()?.clone())
    }

    /// The tensor argument `name`, if given.
    ///
    /// # Errors
    /// When it is given and not a tensor.
    pub fn opt_array(&self, name: &str) -> Result<Option<Rc<Array>>, OpError> {
        self.op.arg(name).map(|_| self.array(name)).transpose()
    }

    /// The tensors of the variadic argument `name`.
    ///
    /// # Errors
    /// When it is missing or an item is not a tensor.
    pub fn arrays(&self, name: &str) -> Result<Vec<Rc<Array>>, OpError> {
        match self.value(name)? {
            Value::List(items) => items.iter().map(|v| v.array().cloned()).collect(),
            single => Ok(vec![single.array()?.clone()]),
        }
    }

    fn state_name(&self, name: &str) -> Result<String, OpError> {
        match self.value(name)? {
            Value::State(state) => Ok(state),
            _ => Err(OpError::invalid(format!("argument \"{name}\" is not a state"))),
        }
    }

    /// The content of the state argument `name`.
    ///
    /// # Errors
    /// When it is missing, not a state, or has no memory.
    pub fn state(&self, name: &str) -> Result<&Array, OpError> {
        let state = self.state_name(name)?;
        let missing = || OpError::invalid(format!("state {state} has no memory"));
        self.env.states.get(&state).ok_or_else(missing)
    }

    /// The content of the state argument `name`, to change.
    ///
    /// # Errors
    /// As [`EvalCx::state`].
    pub fn state_mut(&mut self, name: &str) -> Result<&mut Array, OpError> {
        let state = self.state_name(name)?;
        let missing = || OpError::invalid(format!("state {state} has no memory"));
        self.env.states.get_mut(&state).ok_or_else(missing)
    }

    /// Rows `indices` of the float matrix that is argument `name`: their length and, one after
    /// another, their elements. Of a constant only those rows are decoded, for tables are large.
    ///
    /// # Errors
    /// When it is not a float matrix or an index is out of range.
    pub fn rows(&self, name: &str, indices: &[i64]) -> Result<(usize, Vec<f64>), OpError> {
        let constant = self.op.literal(name).and_then(|l| l.resolve(self.op.weights));
        let array = if constant.is_none() { Some(self.array(name)?) } else { None };
        let shape = match (constant, &array) {
            (Some(t), _) => t.shape(),
            (None, Some(a)) => &a.shape,
            (None, None) => &[],
        };
        let &[count, width] = shape else {
            return Err(OpError::invalid(format!("\"{name}\" of shape {shape:?} is no matrix")));
        };
        let mut values = Vec::with_capacity(indices.len() * width);
        for &index in indices {
            let row = usize::try_from(index).ok().filter(|&i| i < count).ok_or_else(|| {
                OpError::invalid(format!("index {index} is not in the {count} rows of \"{name}\""))
            })?;
            match (constant, &array) {
                (Some(t), _) => values.extend(array::tensor_row(t, row)?),
                (None, Some(a)) => values.extend_from_slice(&a.floats()?[row * width..][..width]),
                (None, None) => {}
            }
        }
        Ok((width, values))
    }

    /// Rounds `x` as a result of type `dtype` would be; for ops that round inside, such as writes
    /// to a state.
    pub fn round(&self, dtype: DType, x: f64) -> f64 {
        self.env.arithmetic.round(dtype, x)
    }

    /// Runs nested block `index` with the given parameters.
    ///
    /// # Errors
    /// Those of its operations.
    pub fn run_block(&mut self, index: usize, params: Vec<Value>) -> Result<Vec<Value>, OpError> {
        let block = self
            .op
            .blocks
            .get(index)
            .ok_or_else(|| OpError::invalid(format!("nested block {index} is missing")))?;
        if params.len() != block.params.len() {
            return Err(OpError::invalid(format!(
                "nested block {index} takes {} values, not {}",
                block.params.len(),
                params.len()
            )));
        }
        for (&v, value) in block.params.iter().zip(params) {
            self.env.values[v] = Some(value);
        }
        self.env.run(block).map_err(|e| OpError { kind: e.kind, message: e.to_string() })
    }
}

impl<'a> Env<'a> {
    /// A value, decoded anew each time if it is a constant: weights are large.
    fn value(&self, v: ValueId) -> Result<Value, OpError> {
        if let Some(value) = &self.values[v] {
            return Ok(value.clone());
        }
        match self.function.const_of(v) {
            Some(literal) => Value::from_literal(literal, &self.program.weights),
            None => {
                let name = &self.function.values[v].name;
                Err(OpError::invalid(format!("value {name} is used before it is made")))
            }
        }
    }

    fn run(&mut self, block: &'a Block) -> Result<Vec<Value>> {
        for &id in &block.ops {
            if self.function.ops[id].kind == OpKind::Const {
                continue;
            }
            for (&v, value) in self.function.ops[id].outputs.iter().zip(self.eval(id)?) {
                (self.observer)(v, &value);
                self.values[v] = Some(value);
            }
        }
        let outputs = block.outputs.iter().map(|&v| self.value(v)).collect::<Result<_, _>>();
        outputs.map_err(|e| Error::new(e.kind, e.message).in_function(self.name))
    }

    /// The rounded results of one operation.
    fn eval(&mut self, id: OpId) -> Result<Vec<Value>> {
        let (name, function) = (self.name, self.function);
        let place = |e| Error::at_op(e, name, function.describe(id));
        let operation = &function.ops[id];
        let op = OpView::new(function, &self.program.weights, operation);
        let results = operation.kind.def().eval(&mut EvalCx { op, env: self }).map_err(place)?;
        if results.len() != operation.outputs.len() {
            return Err(place(OpError {
                kind: crate::ErrorKind::Bug,
                message: "wrong number of results".into(),
            }));
        }
        Ok(results.into_iter().map(|v| self.rounded(v)).collect())
    }

    fn rounded(&self, value: Value) -> Value {
        match value {
            Value::Array(mut a)
                if self.arithmetic != Arithmetic::Exact && matches!(a.data, Data::Float(_)) =>
            {
                let array = Rc::make_mut(&mut a);
                let dtype = array.dtype;
                if let Data::Float(values) = &mut array.data {
                    self.arithmetic.round_all(dtype, values);
                }
                Value::Array(a)
            }
            Value::List(items) => Value::List(items.into_iter().map(|v| self.rounded(v)).collect()),
            other => other,
        }
    }
}

/// Runs function `name` of `program`; states are changed in place. `inputs` are by parameter name.
///
/// # Errors
/// When the function or an input is missing, an input does not have its type, or an operation fails.
pub fn run(
    program: &Program,
    name: &str,
    arithmetic: Arithmetic,
    inputs: &BTreeMap<String, Value>,
    states: &mut States,
) -> Result<Vec<Value>> {
    run_observed(program, name, arithmetic, inputs, states, &mut |_, _| {})
}

/// Checks an input against its type; `sizes` collects what symbols stand for.
fn check_input<'a>(
    ty: &'a TensorType,
    array: &Array,
    sizes: &mut BTreeMap<&'a str, usize>,
) -> Result<(), String> {
    // Block-quantised tensors are held as the numbers they stand for.
    let dtype = if ty.dtype.is_block_quantized() { DType::F32 } else { ty.dtype };
    let fits = array.dtype == dtype
        && array.shape.len() == ty.rank()
        && array.shape.iter().zip(&ty.shape).all(|(&n, dim)| match dim {
            Dim::Fixed(size) => n == *size,
            Dim::Symbol(name) => *sizes.entry(name).or_insert(n) == n,
            Dim::Unknown => true,
        });
    if fits { Ok(()) } else { Err(format!("{} {:?} is not {ty}", array.dtype, array.shape)) }
}

/// As [`run`], calling `observer` with every value as it is made, constants excepted.
///
/// # Errors
/// As [`run`].
pub fn run_observed<'a>(
    program: &'a Program,
    name: &'a str,
    arithmetic: Arithmetic,
    inputs: &BTreeMap<String, Value>,
    states: &'a mut States,
    observer: &'a mut dyn FnMut(ValueId, &Value),
) -> Result<Vec<Value>> {
    let invalid = |m: String| Error::new(crate::ErrorKind::Invalid, m);
    let function =
        program.functions.get(name).ok_or_else(|| invalid(format!("no function {name}")))?;
    let mut values = cranelift_entity::SecondaryMap::new();
    let mut sizes = BTreeMap::new();
    for &v in &function.inputs {
        let data = &function.values[v];
        let place = |m: String| invalid(format!("input {}: {m}", data.name)).in_function(name);
        let value = match &data.ty {
            crate::Type::State(_) => Value::State(data.name.clone()),
            _ => inputs.get(&data.name).cloned().ok_or_else(|| place("not given".into()))?,
        };
        if let (Some(ty), Value::Array(array)) = (data.ty.as_tensor(), &value) {
            check_input(ty, array, &mut sizes).map_err(place)?;
        }
        values[v] = Some(value);
    }
    let mut env = Env { program, name, function, arithmetic, values, states, observer };
    env.run(&function.body)
}

/// Evaluates the single operation `op` of function `name`, given the values it uses. Constants and
/// states need not be given, nor values that its nested blocks make themselves.
///
/// # Errors
/// When the function or a value is missing, or the operation fails.
pub fn run_op(
    program: &Program,
    name: &str,
    op: OpId,
    arithmetic: Arithmetic,
    given: impl IntoIterator<Item = (ValueId, Value)>,
    states: &mut States,
) -> Result<Vec<Value>> {
    let missing = || Error::new(crate::ErrorKind::Invalid, format!("no function {name}"));
    let function = program.functions.get(name).ok_or_else(missing)?;
    let mut values = cranelift_entity::SecondaryMap::new();
    for &v in &function.inputs {
        if matches!(function.ty(v), crate::Type::State(_)) {
            values[v] = Some(Value::State(function.values[v].name.clone()));
        }
    }
    for (v, value) in given {
        values[v] = Some(value);
    }
    let observer = &mut |_, _: &Value| {};
    Env { program, name, function, arithmetic, values, states, observer }.eval(op)
}

/// Zeroed memory for the states of function `name`.
///
/// # Errors
/// When the function is missing, or a state's size is not fixed or too large.
pub fn new_states(program: &Program, name: &str) -> Result<States> {
    let invalid = |m: String| Error::new(crate::ErrorKind::Invalid, m);
    let function =
        program.functions.get(name).ok_or_else(|| invalid(format!("no function {name}")))?;
    let mut states = States::new();
    for &v in &function.inputs {
        let data = &function.values[v];
        let Some(ty) = data.ty.as_state() else { continue };
        let shape = ty.fixed_shape().ok_or_else(|| {
            invalid(format!("state {} has no fixed size: {ty}", data.name)).in_function(name)
        })?;
        let place = |e: OpError| {
            Error::new(e.kind, format!("state {}: {}", data.name, e.message)).in_function(name)
        };
        let zeros = Array::zeros(ty.dtype, &shape).map_err(place)?;
        states.insert(data.name.clone(), zeros);
    }
    Ok(states)
}
