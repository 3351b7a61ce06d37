//! Programs, functions, blocks and operations, with dense typed ids.

use std::collections::BTreeMap;
use std::sync::Arc;

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use tensor::{WeightId, WeightStore};

use crate::{Attributes, Literal, OpKind, Opset, TensorType, Type};

/// A value of one function: a parameter, or a result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(u32);
entity_impl!(ValueId, "v");

/// An operation of one function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(u32);
entity_impl!(OpId, "op");

/// Functions over a shared weight store: the one language between Rigel's crates.
///
/// Cloning is cheap in weights: they are shared until replaced.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Functions by name.
    pub functions: BTreeMap<String, Function>,
    /// Attributes such as `buildInfo`.
    pub attributes: Attributes,
    /// The tensors that [`Payload::Weight`](crate::Payload::Weight) refers to.
    pub weights: WeightStore,
    /// Where weights lie in blob files, for those that come from one.
    pub blobs: SecondaryMap<WeightId, Option<BlobRef>>,
}

/// A place in a weight file, as MIL text names it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BlobRef {
    /// Path as written, usually `@model_path/weights/weight.bin`.
    pub path: Arc<str>,
    /// Offset of the blob's metadata record, in bytes.
    pub offset: u64,
}

/// A function: typed inputs and one block.
#[derive(Clone, Debug)]
pub struct Function {
    /// The operation set that the body is written in.
    pub opset: Opset,
    /// Parameters in the order of the model's interface.
    pub inputs: Vec<ValueId>,
    /// Attributes such as `FlexibleShapeInformation`.
    pub attributes: Attributes,
    /// The body. Its `params` are empty: they are `inputs`.
    pub body: Block,
    /// All values, nested blocks' included.
    pub values: PrimaryMap<ValueId, ValueData>,
    /// All operations, nested blocks' included.
    pub ops: PrimaryMap<OpId, Operation>,
    /// Where operations stand in the text they were parsed from.
    pub spans: SecondaryMap<OpId, Option<Span>>,
}

/// What is known of a value.
#[derive(Clone, Debug)]
pub struct ValueData {
    /// Its name, unique among the values visible where it is.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// What makes it.
    pub def: ValueDef,
}

/// What makes a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueDef {
    /// A parameter of the function or of a nested block.
    Param,
    /// The result of that number of an operation.
    Result(OpId, u32),
}

/// A sequence of operations that are executed in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Parameters (of nested blocks; see [`Function::inputs`]).
    pub params: Vec<ValueId>,
    /// Operations in order.
    pub ops: Vec<OpId>,
    /// Values handed out at the end.
    pub outputs: Vec<ValueId>,
}

/// An operation.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Which operation of the catalogue.
    pub kind: OpKind,
    /// Arguments, one slot for each of the kind's parameters, in the catalogue's order.
    pub args: Vec<Option<Arg>>,
    /// Results.
    pub outputs: Vec<ValueId>,
    /// Nested blocks of control flow.
    pub blocks: Vec<Block>,
    /// The operation set that a text writes at this operation, for compilers' dumps do. It says no
    /// more than the function's, which is what counts; packages have no place for it.
    pub opset: Option<Opset>,
    /// Attributes: `name`, `val` of a const, parameters of iOS 16 `constexpr_*`.
    pub attributes: Attributes,
}

/// An argument of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// A value.
    Value(ValueId),
    /// A constant written in place.
    Literal(Box<Literal>),
    /// Several arguments for one variadic parameter.
    List(Vec<Arg>),
}

impl From<ValueId> for Arg {
    fn from(v: ValueId) -> Self {
        Arg::Value(v)
    }
}

impl From<Literal> for Arg {
    fn from(l: Literal) -> Self {
        Arg::Literal(Box::new(l))
    }
}

impl From<Vec<ValueId>> for Arg {
    fn from(values: Vec<ValueId>) -> Self {
        Arg::List(values.into_iter().map(Arg::Value).collect())
    }
}

impl Arg {
    /// Calls `f` on every value the argument names.
    pub fn for_each_value(&self, f: &mut dyn FnMut(ValueId)) {
        match self {
            Arg::Value(v) => f(*v),
            Arg::Literal(_) => {}
            Arg::List(items) => items.iter().for_each(|a| a.for_each_value(f)),
        }
    }

    /// Calls `f` on every literal in the argument.
    pub fn for_each_literal<'a>(&'a self, f: &mut dyn FnMut(&'a Literal)) {
        match self {
            Arg::Value(_) => {}
            Arg::Literal(l) => f(l),
            Arg::List(items) => items.iter().for_each(|a| a.for_each_literal(f)),
        }
    }

    /// Calls `f` on every value the argument names, to replace it.
    pub fn for_each_value_mut(&mut self, f: &mut dyn FnMut(&mut ValueId)) {
        match self {
            Arg::Value(v) => f(v),
            Arg::Literal(_) => {}
            Arg::List(items) => items.iter_mut().for_each(|a| a.for_each_value_mut(f)),
        }
    }
}

/// A place in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Byte offset of the start.
    pub start: u32,
    /// Byte offset one past the end.
    pub end: u32,
}

impl Program {
    /// Calls `f` on every literal: attributes, constants and arguments, functions by name and
    /// operations in order of their ids.
    pub fn for_each_literal<'a>(&'a self, f: &mut dyn FnMut(&'a Literal)) {
        self.attributes.values().for_each(&mut *f);
        for function in self.functions.values() {
            function.attributes.values().for_each(&mut *f);
            for operation in function.ops.values() {
                operation.attributes.values().for_each(&mut *f);
                for arg in operation.args.iter().flatten() {
                    arg.for_each_literal(f);
                }
            }
        }
    }
}

impl Operation {
    /// The argument of parameter `name`, if the kind has it and it is given.
    pub fn arg(&self, name: &str) -> Option<&Arg> {
        let index = self.kind.param_index(name)?;
        self.args[index].as_ref()
    }

    /// The `val` of a const.
    pub fn const_value(&self) -> Option<&Literal> {
        (self.kind == OpKind::Const).then(|| self.attributes.get("val")).flatten()
    }

    /// Calls `f` on every value among the arguments (not those that nested blocks use).
    pub fn for_each_arg_value(&self, mut f: impl FnMut(ValueId)) {
        for arg in self.args.iter().flatten() {
            arg.for_each_value(&mut f);
        }
    }
}

impl Function {
    /// A function without inputs, operations or outputs.
    pub fn new(opset: Opset) -> Self {
        Function {
            opset,
            inputs: Vec::new(),
            attributes: Attributes::new(),
            body: Block::default(),
            values: PrimaryMap::new(),
            ops: PrimaryMap::new(),
            spans: SecondaryMap::new(),
        }
    }

    /// The type of a value.
    pub fn ty(&self, v: ValueId) -> &Type {
        &self.values[v].ty
    }

    /// The tensor type of a value, if it is a tensor.
    pub fn tensor_ty(&self, v: ValueId) -> Option<&TensorType> {
        self.values[v].ty.as_tensor()
    }

    /// The input called `name`.
    pub fn input(&self, name: &str) -> Option<ValueId> {
        self.inputs.iter().copied().find(|&v| self.values[v].name == name)
    }

    /// The constant behind a value, if a const makes it.
    pub fn const_of(&self, v: ValueId) -> Option<&Literal> {
        match self.values[v].def {
            ValueDef::Result(op, 0) => self.ops[op].const_value(),
            _ => None,
        }
    }

    /// The constant behind an argument, written in place or made by a const.
    pub fn const_arg<'a>(&'a self, arg: &'a Arg) -> Option<&'a Literal> {
        match arg {
            Arg::Literal(l) => Some(l),
            Arg::Value(v) => self.const_of(*v),
            Arg::List(_) => None,
        }
    }

    /// Calls `f` on every value that `op` uses: its arguments, and what its nested blocks use
    /// (values made inside of them included).
    pub fn for_each_use(&self, op: OpId, f: &mut dyn FnMut(ValueId)) {
        let operation = &self.ops[op];
        operation.for_each_arg_value(&mut *f);
        for block in &operation.blocks {
            block.ops.iter().for_each(|&inner| self.for_each_use(inner, f));
            block.outputs.iter().for_each(|&v| f(v));
        }
    }

    /// How an error names an operation: kind, and name attribute or first result.
    pub fn describe(&self, op: OpId) -> String {
        let operation = &self.ops[op];
        let name = operation.attributes.get("name").and_then(Literal::as_str);
        let first = operation.outputs.first().and_then(|&v| self.values.get(v));
        let name = name.or_else(|| first.map(|data| &*data.name));
        format!("{} \"{}\"", operation.kind.name(), name.unwrap_or(""))
    }
}
