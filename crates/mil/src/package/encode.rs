//! Protobuf from programs.
//!
//! Where a program was read from messages with parts that it does not hold (fields that are not
//! modelled, comments on constants), those are put back: a function keeps them by its name, an
//! operation by its kind and first result, an argument by its parameter, an attribute or a value by its
//! name, nested blocks and items by their place. Types and constants keep them while they are as they
//! were. What is gone takes its parts with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use tensor::{DType, Tensor, WeightId, WeightStore};

use super::blob::{Layout, WEIGHTS_PATH, storage_type};
use super::decode;
use super::flexible;
use super::proto::{
    self, Binding, BindingKind, Dimension, DimensionKind, Elements, ImmediateKind, ImmediateValue,
    Kept, TypeKind, ValueKind,
};
use super::types::{FIRST_OF_1_3, key_of_opset, number_of_dtype};
use crate::{
    Arg, Attributes, Block, Dim, Error, ErrorKind, Function, OpError, OpId, Payload, Program,
    Result, TensorType, Type, ValueId,
};

/// A program as protobuf, and the weight file that belongs to it.
pub(super) struct Encoded {
    pub(super) program: Kept<proto::Program>,
    /// The program's weights, and the constants that move to the file.
    pub(super) weights: WeightStore,
    pub(super) layout: Layout,
}

/// Encodes a program for a version of the specification; `old` is what it was read from, if that has
/// parts to be put back.
///
/// # Errors
/// One that lists all operations that Core ML does not have, before anything else; a type that MIL
/// does not have, by function and operation.
pub(super) fn program(
    program: &Program,
    version: i32,
    old: Option<&Kept<proto::Program>>,
) -> Result<Encoded> {
    refuse_dialect(program)?;
    let mut encoder = Encoder {
        version,
        weights: program.weights.clone(),
        layout: Layout::default(),
        offsets: HashMap::new(),
    };
    let plain = |e: OpError| Error::new(e.kind, e.message);
    let mut functions = BTreeMap::new();
    for (name, f) in &program.functions {
        let old = old.and_then(|o| o.functions.get(name));
        functions.insert(name.clone(), encoder.function(name, f, old)?);
    }
    let attributes = encoder
        .attributes(&program.attributes, false, old.map(|o| &o.attributes))
        .map_err(plain)?;
    let proto = proto::Program { version: 1, functions, doc_string: String::new(), attributes };
    Ok(Encoded {
        program: with_unknown(proto, old),
        weights: encoder.weights,
        layout: encoder.layout,
    })
}

/// Refuses the operations of Rigel's own dialect, all at once.
fn refuse_dialect(program: &Program) -> Result<()> {
    let kinds = program.functions.values().flat_map(|f| f.ops.values()).map(|op| op.kind);
    let own: BTreeSet<&str> = kinds.filter(|k| !k.is_core_ml()).map(|k| k.name()).collect();
    if own.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = own.into_iter().collect();
    let message = format!(
        "operations that Core ML does not have, to be decomposed first: {}",
        names.join(", ")
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// Whether a constant belongs in the weight file: from 10 elements on, of a type that Core ML reads
/// from there in this version of the specification; integers of 16 and 32 bits since iOS 18.
fn in_weight_file(tensor: &Tensor, version: i32) -> bool {
    use DType::*;
    let accepted = match tensor.dtype() {
        Bool | Str | F64 | I64 | U64 => false,
        I16 | U16 | I32 | U32 => version >= FIRST_OF_1_3,
        _ => true,
    };
    accepted && tensor.len() >= 10
}

struct Encoder {
    version: i32,
    weights: WeightStore,
    layout: Layout,
    offsets: HashMap<WeightId, u64>,
}

impl Encoder {
    fn function(
        &mut self,
        name: &str,
        f: &Function,
        old: Option<&Kept<proto::Function>>,
    ) -> Result<Kept<proto::Function>> {
        let plain = |e: OpError| Error::new(e.kind, e.message).in_function(name);
        let inputs = typed(f, &f.inputs, old.map(|o| &o.inputs)).map_err(plain)?;
        let mut attributes = f.attributes.clone();
        // The description says it.
        attributes.remove(flexible::ATTRIBUTE);
        let attributes =
            self.attributes(&attributes, false, old.map(|o| &o.attributes)).map_err(plain)?;
        let opset = key_of_opset(f.opset).to_owned();
        let old_body = old.and_then(|o| o.block_specializations.values().next());
        let body = self.block(name, f, &f.body, old_body)?;
        let block_specializations = [(opset.clone(), body)].into();
        let proto = proto::Function { inputs, opset, block_specializations, attributes };
        Ok(with_unknown(proto, old))
    }

    fn block(
        &mut self,
        function: &str,
        f: &Function,
        block: &Block,
        old: Option<&Kept<proto::Block>>,
    ) -> Result<Kept<proto::Block>> {
        let plain = |e: OpError| Error::new(e.kind, e.message).in_function(function);
        let mut old_operations: HashMap<_, VecDeque<_>> = HashMap::new();
        for op in old.iter().flat_map(|o| &o.operations) {
            old_operations.entry(identity(op)).or_default().push_back(op);
        }
        let mut operations = Vec::with_capacity(block.ops.len());
        for &op in &block.ops {
            let name = f.ops[op].outputs.first().map_or("", |&v| &f.values[v].name);
            let same = old_operations.get_mut(&(f.ops[op].kind.name(), name));
            operations.push(self.operation(function, f, op, same.and_then(VecDeque::pop_front))?);
        }
        let proto = proto::Block {
            inputs: typed(f, &block.params, old.map(|o| &o.inputs)).map_err(plain)?,
            outputs: block.outputs.iter().map(|&v| f.values[v].name.clone()).collect(),
            operations,
            attributes: BTreeMap::new(),
        };
        Ok(with_unknown(proto, old))
    }

    fn operation(
        &mut self,
        function: &str,
        f: &Function,
        op: OpId,
        old: Option<&Kept<proto::Operation>>,
    ) -> Result<Kept<proto::Operation>> {
        let place = |e: OpError| Error::at_op(e, function, f.describe(op));
        let operation = &f.ops[op];
        let mut inputs = BTreeMap::new();
        for (param, arg) in operation.kind.def().params().iter().zip(&operation.args) {
            let Some(arg) = arg else { continue };
            let old = old.and_then(|o| o.inputs.get(param.name));
            let mut arguments = Vec::new();
            self.bindings(f, arg, old, &mut arguments).map_err(place)?;
            inputs.insert(param.name.to_owned(), with_unknown(proto::Argument { arguments }, old));
        }
        let attributes = self
            .attributes(&operation.attributes, true, old.map(|o| &o.attributes))
            .map_err(place)?;
        let outputs = typed(f, &operation.outputs, old.map(|o| &o.outputs)).map_err(place)?;
        let mut blocks = Vec::new();
        for (i, block) in operation.blocks.iter().enumerate() {
            let old = old.and_then(|o| o.blocks.get(i));
            blocks.push(self.block(function, f, block, old)?);
        }
        let r#type = operation.kind.name().to_owned();
        let proto = proto::Operation { r#type, inputs, outputs, blocks, attributes };
        Ok(with_unknown(proto, old))
    }

    fn bindings(
        &mut self,
        f: &Function,
        arg: &Arg,
        old: Option<&Kept<proto::Argument>>,
        out: &mut Vec<Kept<Binding>>,
    ) -> Result<(), OpError> {
        let old_binding = old.and_then(|o| o.arguments.get(out.len()));
        let old_kind = old_binding.and_then(|b| b.binding.as_ref());
        let (kind, same) = match arg {
            Arg::Value(v) => {
                let name = &f.values[*v].name;
                let same = matches!(old_kind, Some(BindingKind::Name(old)) if old == name);
                (BindingKind::Name(name.clone()), same)
            }
            Arg::Literal(l) => {
                let old = match old_kind {
                    Some(BindingKind::Value(value)) => Some(&**value),
                    _ => None,
                };
                let value = self.value(&l.ty, &l.payload, true, old)?;
                (BindingKind::Value(Box::new(value)), old.is_some())
            }
            Arg::List(items) => {
                return items.iter().try_for_each(|item| self.bindings(f, item, old, out));
            }
        };
        out.push(with_unknown(Binding { binding: Some(kind) }, old_binding.filter(|_| same)));
        Ok(())
    }

    /// Attributes; large ones go to the weight file if `file`.
    fn attributes(
        &mut self,
        literals: &Attributes,
        file: bool,
        old: Option<&BTreeMap<String, Kept<proto::Value>>>,
    ) -> Result<BTreeMap<String, Kept<proto::Value>>, OpError> {
        let mut values = BTreeMap::new();
        for (name, l) in literals {
            let old = old.and_then(|o| o.get(name));
            values.insert(name.to_owned(), self.value(&l.ty, &l.payload, file, old)?);
        }
        Ok(values)
    }

    fn value(
        &mut self,
        ty: &Type,
        payload: &Payload,
        file: bool,
        old: Option<&Kept<proto::Value>>,
    ) -> Result<Kept<proto::Value>, OpError> {
        let value = match (old.and_then(|o| o.value.as_ref()), payload) {
            (Some(ValueKind::Immediate(old)), Payload::Tensor(_) | Payload::Strings(_))
                if decode::is_immediate(old, ty, payload) =>
            {
                ValueKind::Immediate(old.clone())
            }
            (Some(ValueKind::Immediate(old)), _) => {
                self.new_value(ty, payload, file, Some(old), None)?
            }
            (Some(ValueKind::BlobFile(old)), _) => {
                self.new_value(ty, payload, file, None, Some(old))?
            }
            (None, _) => self.new_value(ty, payload, file, None, None)?,
        };
        let r#type = Some(value_type(ty, old.and_then(|o| o.r#type.as_ref()))?);
        let doc_string = old.map(|o| o.doc_string.clone()).unwrap_or_default();
        Ok(with_unknown(proto::Value { doc_string, r#type, value: Some(value) }, old))
    }

    /// A constant in place, or in the weight file if `file` and it belongs there; `old` and `old_blob`
    /// are the message that it was read from.
    fn new_value(
        &mut self,
        ty: &Type,
        payload: &Payload,
        file: bool,
        old: Option<&Kept<ImmediateValue>>,
        old_blob: Option<&Kept<proto::BlobFileValue>>,
    ) -> Result<ValueKind, OpError> {
        Ok(match payload {
            Payload::Weight(id) => {
                let weight = self.weights.get(*id).cloned();
                let weight =
                    weight.ok_or_else(|| OpError::invalid(format!("no {id} in the store")))?;
                let tensor_value = &weight.tensor;
                // What came with parts of its own stays where they are.
                let stays = old_blob.is_some() && storage_type(tensor_value.dtype()).is_some();
                if file && (stays || in_weight_file(tensor_value, self.version)) {
                    self.blob(*id, old_blob)?
                } else {
                    immediate(ImmediateKind::Tensor(tensor(tensor_value)), None)
                }
            }
            Payload::Tensor(t) if file && in_weight_file(t, self.version) => {
                let id = self.weights.insert("", t.clone());
                self.blob(id, old_blob)?
            }
            Payload::Tensor(t) => immediate(ImmediateKind::Tensor(tensor(t)), old),
            Payload::Strings(strings) => {
                let strings = Elements::Strings(proto::Strings { values: strings.clone() }.into());
                let tensor = proto::TensorValue { value: Some(strings) };
                immediate(ImmediateKind::Tensor(tensor.into()), old)
            }
            Payload::Items(items) => self.items(ty, items, old)?,
            Payload::Entries(entries) => self.entries(ty, entries, old)?,
        })
    }

    fn items(
        &mut self,
        ty: &Type,
        items: &[Payload],
        old: Option<&Kept<ImmediateValue>>,
    ) -> Result<ValueKind, OpError> {
        let types: Vec<&Type> = match ty {
            Type::List(item, _) => vec![item; items.len()],
            Type::Tuple(types) if types.len() == items.len() => types.iter().collect(),
            _ => return Err(mismatch(ty)),
        };
        let old_values = match old.and_then(|o| o.value.as_ref()) {
            Some(ImmediateKind::List(values) | ImmediateKind::Tuple(values)) => Some(values),
            _ => None,
        };
        let mut values = Vec::with_capacity(items.len());
        for (i, (item, ty)) in items.iter().zip(types).enumerate() {
            let old = old_values.and_then(|o| o.values.get(i));
            values.push(self.value(ty, item, false, old)?);
        }
        let values = with_unknown(proto::Values { values }, old_values);
        let kind = match ty {
            Type::List(..) => ImmediateKind::List(values),
            _ => ImmediateKind::Tuple(values),
        };
        Ok(immediate(kind, old))
    }

    fn entries(
        &mut self,
        ty: &Type,
        entries: &[(Payload, Payload)],
        old: Option<&Kept<ImmediateValue>>,
    ) -> Result<ValueKind, OpError> {
        let Type::Dict(key, value) = ty else { return Err(mismatch(ty)) };
        let old_entries = match old.and_then(|o| o.value.as_ref()) {
            Some(ImmediateKind::Dictionary(dict)) => Some(dict),
            _ => None,
        };
        let mut values = Vec::with_capacity(entries.len());
        for (i, (k, v)) in entries.iter().enumerate() {
            let old = old_entries.and_then(|o| o.values.get(i));
            let key = Some(self.value(key, k, false, old.and_then(|o| o.key.as_ref()))?);
            let value = Some(self.value(value, v, false, old.and_then(|o| o.value.as_ref()))?);
            values.push(with_unknown(proto::KeyValuePair { key, value }, old));
        }
        let dict = with_unknown(proto::DictionaryValue { values }, old_entries);
        Ok(immediate(ImmediateKind::Dictionary(dict), old))
    }

    /// The place of a weight in the file; a new one when it is met first.
    fn blob(
        &mut self,
        id: WeightId,
        old: Option<&Kept<proto::BlobFileValue>>,
    ) -> Result<ValueKind, OpError> {
        let offset = match self.offsets.get(&id) {
            Some(&offset) => offset,
            None => self.layout.push(&self.weights, id)?,
        };
        self.offsets.insert(id, offset);
        let proto = proto::BlobFileValue { file_name: WEIGHTS_PATH.into(), offset };
        Ok(ValueKind::BlobFile(with_unknown(proto, old)))
    }
}

fn mismatch(ty: &Type) -> OpError {
    OpError::invalid(format!("a constant's value does not have its type {ty}"))
}

fn immediate(kind: ImmediateKind, old: Option<&Kept<ImmediateValue>>) -> ValueKind {
    ValueKind::Immediate(with_unknown(ImmediateValue { value: Some(kind) }, old))
}

/// `message` with the fields that are not modelled of the one it takes the place of.
fn with_unknown<M>(message: M, old: Option<&Kept<M>>) -> Kept<M> {
    Kept { message, unknown: old.map(|o| o.unknown.clone()).unwrap_or_default() }
}

/// What an operation is known by: kind and first result.
fn identity(op: &proto::Operation) -> (&str, &str) {
    (&op.r#type, op.outputs.first().map_or("", |o| &o.name))
}

fn typed(
    f: &Function,
    values: &[ValueId],
    old: Option<&Vec<Kept<proto::NamedValueType>>>,
) -> Result<Vec<Kept<proto::NamedValueType>>, OpError> {
    let named = |&v: &ValueId| {
        let name = f.values[v].name.clone();
        let old = old.and_then(|o| o.iter().find(|o| o.name == name));
        let r#type = Some(value_type(f.ty(v), old.and_then(|o| o.r#type.as_ref()))?);
        Ok(with_unknown(proto::NamedValueType { name, r#type }, old))
    };
    values.iter().map(named).collect()
}

/// The message of a type; the old one if it says the same.
fn value_type(
    ty: &Type,
    old: Option<&Kept<proto::ValueType>>,
) -> Result<Kept<proto::ValueType>, OpError> {
    if let Some(old) = old
        && decode::ty(Some(old), 0).is_ok_and(|t| t == *ty)
    {
        return Ok(old.clone());
    }
    let boxed = |ty: &Type| value_type(ty, None).map(|t| Some(Box::new(t)));
    let kind = match ty {
        Type::Tensor(t) => TypeKind::Tensor(tensor_type(t)?),
        Type::State(t) => {
            let wrapped_type = boxed(&Type::Tensor(t.clone()))?;
            TypeKind::State(Box::new(proto::StateType { wrapped_type }.into()))
        }
        Type::List(item, len) => {
            let length = Some(dimension(len.map(Dim::Fixed).as_ref().unwrap_or(&Dim::Unknown)));
            TypeKind::List(Box::new(proto::ListType { r#type: boxed(item)?, length }.into()))
        }
        Type::Tuple(types) => {
            let types = types.iter().map(|t| value_type(t, None)).collect::<Result<_, _>>()?;
            TypeKind::Tuple(proto::TupleType { types }.into())
        }
        Type::Dict(key, value) => {
            let (key_type, value_type) = (boxed(key)?, boxed(value)?);
            TypeKind::Dictionary(Box::new(proto::DictionaryType { key_type, value_type }.into()))
        }
    };
    Ok(proto::ValueType { kind: Some(kind) }.into())
}

fn tensor_type(ty: &TensorType) -> Result<Kept<proto::TensorType>, OpError> {
    let data_type = number_of_dtype(ty.dtype)
        .ok_or_else(|| OpError::unsupported(format!("{} in a Core ML program", ty.dtype)))?;
    Ok(proto::TensorType {
        data_type,
        rank: ty.rank() as i64,
        dimensions: ty.shape.iter().map(dimension).collect(),
        attributes: BTreeMap::new(),
    }
    .into())
}

fn dimension(dim: &Dim) -> Kept<Dimension> {
    let dimension = Some(match dim {
        Dim::Fixed(n) => {
            DimensionKind::Constant(proto::ConstantDimension { size: *n as u64 }.into())
        }
        _ => DimensionKind::Unknown(proto::UnknownDimension { variadic: false }.into()),
    });
    Dimension { dimension }.into()
}

/// Elements in the field that Core ML reads them from.
fn tensor(t: &Tensor) -> Kept<proto::TensorValue> {
    fn chunks<T, const N: usize>(t: &Tensor, f: impl Fn([u8; N]) -> T) -> Vec<T> {
        t.bytes().as_chunks::<N>().0.iter().map(|&b| f(b)).collect()
    }
    let value = Some(match t.dtype() {
        DType::Bool => Elements::Bools(proto::Bools { values: chunks(t, |[b]| b != 0) }.into()),
        DType::F32 => {
            Elements::Floats(proto::Floats { values: chunks(t, f32::from_le_bytes) }.into())
        }
        DType::F64 => {
            Elements::Doubles(proto::Doubles { values: chunks(t, f64::from_le_bytes) }.into())
        }
        DType::I64 | DType::U64 => {
            Elements::LongInts(proto::LongInts { values: chunks(t, i64::from_le_bytes) }.into())
        }
        DType::I32 => Elements::Ints(proto::Ints { values: chunks(t, i32::from_le_bytes) }.into()),
        DType::I16 => Elements::Ints(
            proto::Ints { values: chunks(t, |b| i16::from_le_bytes(b).into()) }.into(),
        ),
        DType::U16 => Elements::Ints(
            proto::Ints { values: chunks(t, |b| u16::from_le_bytes(b).into()) }.into(),
        ),
        _ => Elements::Bytes(proto::RawBytes { values: t.bytes().to_vec() }.into()),
    });
    proto::TensorValue { value }.into()
}
