//! Protobuf from programs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tensor::{DType, Tensor, WeightId, WeightStore};

use super::blob::{Layout, WEIGHTS_PATH};
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
    pub(super) program: proto::Program,
    /// The program's weights, and the constants that move to the file.
    pub(super) weights: WeightStore,
    pub(super) layout: Layout,
}

/// Encodes a program for a version of the specification.
///
/// # Errors
/// One that lists all operations that Core ML does not have, before anything else; a type that MIL
/// does not have, by function and operation.
pub(super) fn program(program: &Program, version: i32) -> Result<Encoded> {
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
        functions.insert(name.clone(), encoder.function(name, f)?.into());
    }
    let attributes = encoder.attributes(&program.attributes, false).map_err(plain)?;
    let proto = proto::Program { version: 1, functions, doc_string: String::new(), attributes };
    Ok(Encoded { program: proto, weights: encoder.weights, layout: encoder.layout })
}

/// Refuses the operations of Rigel's own dialect, all at once.
fn refuse_dialect(program: &Program) -> Result<()> {
    let kinds = program.functions.values().flat_map(|f| f.ops.values()).map(|op| op.kind.name());
    let own: BTreeSet<&str> = kinds.filter(|name| name.contains('.')).collect();
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
    fn function(&mut self, name: &str, f: &Function) -> Result<proto::Function> {
        let plain = |e: OpError| Error::new(e.kind, e.message).in_function(name);
        let inputs = typed(f, &f.inputs).map_err(plain)?;
        let mut attributes = f.attributes.clone();
        // The description says it.
        attributes.remove(flexible::ATTRIBUTE);
        let attributes = self.attributes(&attributes, false).map_err(plain)?;
        let opset = key_of_opset(f.opset).to_owned();
        let body = self.block(name, f, &f.body)?;
        let block_specializations = [(opset.clone(), body.into())].into();
        Ok(proto::Function { inputs, opset, block_specializations, attributes })
    }

    fn block(&mut self, function: &str, f: &Function, block: &Block) -> Result<proto::Block> {
        let plain = |e: OpError| Error::new(e.kind, e.message).in_function(function);
        let mut operations = Vec::with_capacity(block.ops.len());
        for &op in &block.ops {
            operations.push(self.operation(function, f, op)?.into());
        }
        Ok(proto::Block {
            inputs: typed(f, &block.params).map_err(plain)?,
            outputs: block.outputs.iter().map(|&v| f.values[v].name.clone()).collect(),
            operations,
            attributes: BTreeMap::new(),
        })
    }

    fn operation(&mut self, function: &str, f: &Function, op: OpId) -> Result<proto::Operation> {
        let place = |e: OpError| Error::at_op(e, function, f.describe(op));
        let operation = &f.ops[op];
        let mut inputs = BTreeMap::new();
        for (param, arg) in operation.kind.def().params().iter().zip(&operation.args) {
            let Some(arg) = arg else { continue };
            let mut arguments = Vec::new();
            self.bindings(f, arg, &mut arguments).map_err(place)?;
            inputs.insert(param.name.to_owned(), proto::Argument { arguments });
        }
        let attributes = self.attributes(&operation.attributes, true).map_err(place)?;
        let outputs = typed(f, &operation.outputs).map_err(place)?;
        let mut blocks = Vec::new();
        for block in &operation.blocks {
            blocks.push(self.block(function, f, block)?.into());
        }
        let r#type = operation.kind.name().to_owned();
        Ok(proto::Operation { r#type, inputs, outputs, blocks, attributes })
    }

    fn bindings(&mut self, f: &Function, arg: &Arg, out: &mut Vec<Binding>) -> Result<(), OpError> {
        let kind = match arg {
            Arg::Value(v) => BindingKind::Name(f.values[*v].name.clone()),
            Arg::Literal(l) => BindingKind::Value(self.value(&l.ty, &l.payload, true)?),
            Arg::List(items) => {
                return items.iter().try_for_each(|item| self.bindings(f, item, out));
            }
        };
        out.push(Binding { binding: Some(kind) });
        Ok(())
    }

    /// Attributes; large ones go to the weight file if `file`.
    fn attributes(
        &mut self,
        literals: &Attributes,
        file: bool,
    ) -> Result<BTreeMap<String, Kept<proto::Value>>, OpError> {
        literals
            .iter()
            .map(|(name, l)| Ok((name.to_owned(), self.value(&l.ty, &l.payload, file)?)))
            .collect()
    }

    fn value(
        &mut self,
        ty: &Type,
        payload: &Payload,
        file: bool,
    ) -> Result<Kept<proto::Value>, OpError> {
        let value = match payload {
            Payload::Weight(id) => {
                let weight = self.weights.get(*id).cloned();
                let weight =
                    weight.ok_or_else(|| OpError::invalid(format!("no {id} in the store")))?;
                if file && in_weight_file(&weight.tensor, self.version) {
                    self.blob(*id)?
                } else {
                    immediate(ImmediateKind::Tensor(tensor(&weight.tensor)))
                }
            }
            Payload::Tensor(t) if file && in_weight_file(t, self.version) => {
                let id = self.weights.insert("", t.clone());
                self.blob(id)?
            }
            Payload::Tensor(t) => immediate(ImmediateKind::Tensor(tensor(t))),
            Payload::Strings(strings) => {
                let strings = Elements::Strings(proto::Strings { values: strings.clone() });
                let tensor = proto::TensorValue { value: Some(strings) };
                immediate(ImmediateKind::Tensor(tensor))
            }
            Payload::Items(items) => {
                let types: Vec<&Type> = match ty {
                    Type::List(item, _) => vec![item; items.len()],
                    Type::Tuple(types) if types.len() == items.len() => types.iter().collect(),
                    _ => return Err(mismatch(ty)),
                };
                let values = items.iter().zip(types).map(|(p, ty)| self.value(ty, p, false));
                let values = proto::Values { values: values.collect::<Result<_, _>>()? };
                immediate(match ty {
                    Type::List(..) => ImmediateKind::List(values),
                    _ => ImmediateKind::Tuple(values),
                })
            }
            Payload::Entries(entries) => {
                let Type::Dict(key, value) = ty else { return Err(mismatch(ty)) };
                let mut values = Vec::with_capacity(entries.len());
                for (k, v) in entries {
                    let key = Some(self.value(key, k, false)?);
                    let value = Some(self.value(value, v, false)?);
                    values.push(proto::KeyValuePair { key, value });
                }
                immediate(ImmediateKind::Dictionary(proto::DictionaryValue { values }))
            }
        };
        let r#type = Some(value_type(ty)?);
        Ok(proto::Value { doc_string: String::new(), r#type, value: Some(value) }.into())
    }

    /// The place of a weight in the file; a new one when it is met first.
    fn blob(&mut self, id: WeightId) -> Result<ValueKind, OpError> {
        let offset = match self.offsets.get(&id) {
            Some(&offset) => offset,
            None => self.layout.push(&self.weights, id)?,
        };
        self.offsets.insert(id, offset);
        Ok(ValueKind::BlobFile(proto::BlobFileValue { file_name: WEIGHTS_PATH.into(), offset }))
    }
}

fn mismatch(ty: &Type) -> OpError {
    OpError::invalid(format!("a constant's value does not have its type {ty}"))
}

fn immediate(kind: ImmediateKind) -> ValueKind {
    ValueKind::Immediate(ImmediateValue { value: Some(kind) })
}

fn typed(f: &Function, values: &[ValueId]) -> Result<Vec<proto::NamedValueType>, OpError> {
    let named = |&v: &ValueId| {
        let r#type = Some(value_type(f.ty(v))?);
        Ok(proto::NamedValueType { name: f.values[v].name.clone(), r#type })
    };
    values.iter().map(named).collect()
}

fn value_type(ty: &Type) -> Result<proto::ValueType, OpError> {
    let boxed = |ty: &Type| value_type(ty).map(|t| Some(Box::new(t)));
    let kind = match ty {
        Type::Tensor(t) => TypeKind::Tensor(tensor_type(t)?),
        Type::State(t) => {
            let wrapped_type = boxed(&Type::Tensor(t.clone()))?;
            TypeKind::State(Box::new(proto::StateType { wrapped_type }))
        }
        Type::List(item, len) => {
            let length = Some(dimension(len.map(Dim::Fixed).as_ref().unwrap_or(&Dim::Unknown)));
            TypeKind::List(Box::new(proto::ListType { r#type: boxed(item)?, length }))
        }
        Type::Tuple(types) => {
            let types = types.iter().map(value_type).collect::<Result<_, _>>()?;
            TypeKind::Tuple(proto::TupleType { types })
        }
        Type::Dict(key, value) => {
            let (key_type, value_type) = (boxed(key)?, boxed(value)?);
            TypeKind::Dictionary(Box::new(proto::DictionaryType { key_type, value_type }))
        }
    };
    Ok(proto::ValueType { kind: Some(kind) })
}

fn tensor_type(ty: &TensorType) -> Result<proto::TensorType, OpError> {
    let data_type = number_of_dtype(ty.dtype)
        .ok_or_else(|| OpError::unsupported(format!("{} in a Core ML program", ty.dtype)))?;
    Ok(proto::TensorType {
        data_type,
        rank: ty.rank() as i64,
        dimensions: ty.shape.iter().map(dimension).collect(),
        attributes: BTreeMap::new(),
    })
}

fn dimension(dim: &Dim) -> Dimension {
    let dimension = Some(match dim {
        Dim::Fixed(n) => DimensionKind::Constant(proto::ConstantDimension { size: *n as u64 }),
        _ => DimensionKind::Unknown(proto::UnknownDimension { variadic: false }),
    });
    Dimension { dimension }
}

/// Elements in the field that Core ML reads them from.
fn tensor(t: &Tensor) -> proto::TensorValue {
    fn chunks<T, const N: usize>(t: &Tensor, f: impl Fn([u8; N]) -> T) -> Vec<T> {
        t.bytes().as_chunks::<N>().0.iter().map(|&b| f(b)).collect()
    }
    let value = Some(match t.dtype() {
        DType::Bool => Elements::Bools(proto::Bools { values: chunks(t, |[b]| b != 0) }),
        DType::F32 => Elements::Floats(proto::Floats { values: chunks(t, f32::from_le_bytes) }),
        DType::F64 => Elements::Doubles(proto::Doubles { values: chunks(t, f64::from_le_bytes) }),
        DType::I64 | DType::U64 => {
            Elements::LongInts(proto::LongInts { values: chunks(t, i64::from_le_bytes) })
        }
        DType::I32 => Elements::Ints(proto::Ints { values: chunks(t, i32::from_le_bytes) }),
        DType::I16 => {
            Elements::Ints(proto::Ints { values: chunks(t, |b| i16::from_le_bytes(b).into()) })
        }
        DType::U16 => {
            Elements::Ints(proto::Ints { values: chunks(t, |b| u16::from_le_bytes(b).into()) })
        }
        _ => Elements::Bytes(proto::RawBytes { values: t.bytes().to_vec() }),
    });
    proto::TensorValue { value }
}
