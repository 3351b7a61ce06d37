//! Programs from protobuf.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use half::{bf16, f16};
use tensor::{Bytes, DType, Tensor};

use super::proto::{self, DimensionKind, Elements, ImmediateKind, Kept, TypeKind};
use super::types::{dtype_of_number, opset_of_key};
use super::weights::WeightTable;
use crate::error::missing_operations;
use crate::text::{BlobSource, KINDS, MAX_DEPTH};
use crate::{
    Arg, Attributes, BlobRef, Block, Dim, Error, ErrorKind, Function, Literal, OpError, OpKind,
    Operation, Payload, Program, Result, TensorType, Type, ValueData, ValueDef, ValueId,
};

/// The program that `proto` describes; constants in weight files come from `blobs`.
///
/// The program is not verified: see [`verify`](crate::verify()).
///
/// # Errors
/// One that lists all operations which are missing in the catalogue, before anything else; then
/// what contradicts the language, by function and operation.
pub(super) fn program(proto: &proto::Program, blobs: &dyn BlobSource) -> Result<Program> {
    if proto.version > 1 {
        let message = format!("an ML program of version {}", proto.version);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    refuse_missing(proto)?;
    let mut decoder = Decoder { blobs, table: WeightTable::default() };
    let plain = |e: OpError| Error::new(e.kind, e.message);
    let attributes = decoder.literals(&proto.attributes, "").map_err(plain)?;
    let mut functions = BTreeMap::new();
    for (name, f) in &proto.functions {
        functions.insert(name.clone(), decoder.function(name, f)?);
    }
    let WeightTable { weights, refs: blobs, .. } = decoder.table;
    Ok(Program { functions, attributes, weights, blobs })
}

/// Refuses operations that are not in the catalogue, all at once.
fn refuse_missing(proto: &proto::Program) -> Result<()> {
    fn walk<'p>(block: &'p proto::Block, missing: &mut BTreeSet<&'p str>) {
        for op in &block.operations {
            if !KINDS.contains_key(op.r#type.as_str()) {
                missing.insert(&op.r#type);
            }
            op.blocks.iter().for_each(|b| walk(b, missing));
        }
    }
    let mut missing = BTreeSet::new();
    for f in proto.functions.values() {
        f.block_specializations.values().for_each(|b| walk(b, &mut missing));
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, missing_operations(&missing)))
}

/// Whether `proto` holds the tensor or strings `payload` of type `ty`.
pub(super) fn is_immediate(proto: &proto::ImmediateValue, ty: &Type, payload: &Payload) -> bool {
    match (&proto.value, ty) {
        (Some(ImmediateKind::Tensor(t)), Type::Tensor(ty)) => {
            tensor(t, ty).is_ok_and(|found| found == *payload)
        }
        _ => false,
    }
}

struct Decoder<'b> {
    blobs: &'b dyn BlobSource,
    table: WeightTable,
}

/// A function under construction.
struct Scope<'p> {
    name: &'p str,
    function: Function,
    /// Values that can be used at this place.
    visible: HashMap<&'p str, ValueId>,
    depth: usize,
}

impl<'p> Scope<'p> {
    fn error(&self, e: OpError) -> Error {
        Error::new(e.kind, e.message).in_function(self.name)
    }

    fn lookup(&self, name: &str) -> Result<ValueId, OpError> {
        let found = self.visible.get(name).copied();
        found.ok_or_else(|| OpError::invalid(format!("{name} is not defined here")))
    }

    fn define(
        &mut self,
        named: &'p proto::NamedValueType,
        def: ValueDef,
    ) -> Result<ValueId, OpError> {
        let ty = ty(named.r#type.as_ref(), 0)?;
        let data = ValueData { name: named.name.clone(), ty, def };
        let v = self.function.values.push(data);
        match self.visible.insert(&named.name, v) {
            None => Ok(v),
            Some(_) => Err(OpError::invalid(format!("{} is defined twice", named.name))),
        }
    }

    fn params(
        &mut self,
        params: &'p [Kept<proto::NamedValueType>],
    ) -> Result<Vec<ValueId>, OpError> {
        params.iter().map(|p| self.define(p, ValueDef::Param)).collect()
    }
}

impl Decoder<'_> {
    fn function(&mut self, name: &str, proto: &Kept<proto::Function>) -> Result<Function> {
        let plain = |e: OpError| Error::new(e.kind, e.message).in_function(name);
        let opset = opset_of_key(&proto.opset).ok_or_else(|| {
            plain(OpError::unsupported(format!("operation set \"{}\"", proto.opset)))
        })?;
        let bodies = &proto.block_specializations;
        let body = bodies.get(&proto.opset).filter(|_| bodies.len() == 1).ok_or_else(|| {
            let keys: Vec<&str> = bodies.keys().map(String::as_str).collect();
            let message = format!("bodies for [{}], not one for {}", keys.join(", "), proto.opset);
            plain(OpError::unsupported(message))
        })?;
        let function = Function::new(opset);
        let mut scope = Scope { name, function, visible: HashMap::new(), depth: 0 };
        scope.function.attributes = self.literals(&proto.attributes, name).map_err(plain)?;
        scope.function.inputs = scope.params(&proto.inputs).map_err(plain)?;
        if !body.inputs.is_empty() {
            return Err(plain(OpError::invalid("the body has parameters of its own")));
        }
        scope.function.body = self.block(&mut scope, body)?;
        Ok(scope.function)
    }

    /// The block, its definitions left visible.
    fn block<'p>(&mut self, scope: &mut Scope<'p>, proto: &'p Kept<proto::Block>) -> Result<Block> {
        if !proto.attributes.is_empty() {
            return Err(scope.error(OpError::unsupported("a block with attributes")));
        }
        if scope.depth == MAX_DEPTH {
            let message = format!("blocks nested deeper than {MAX_DEPTH} levels");
            return Err(scope.error(OpError::limit(message)));
        }
        scope.depth += 1;
        let params = scope.params(&proto.inputs).map_err(|e| scope.error(e))?;
        let mut ops = Vec::with_capacity(proto.operations.len());
        for op in &proto.operations {
            ops.push(self.operation(scope, op)?);
        }
        let outputs = proto.outputs.iter().map(|name| scope.lookup(name)).collect::<Result<_, _>>();
        let outputs = outputs.map_err(|e| scope.error(e))?;
        scope.depth -= 1;
        Ok(Block { params, ops, outputs })
    }

    fn operation<'p>(
        &mut self,
        scope: &mut Scope<'p>,
        proto: &'p Kept<proto::Operation>,
    ) -> Result<crate::OpId> {
        let place = |e: OpError, scope: &Scope<'_>| Error::at_op(e, scope.name, describe(proto));
        let mut head = || -> Result<_, OpError> {
            let kind = KINDS.get(proto.r#type.as_str()).copied();
            let kind = kind.ok_or_else(|| OpError::unsupported("an operation that Rigel lacks"))?;
            let args = self.args(scope, kind, proto)?;
            let owner = proto.outputs.first().map_or("", |o| &o.name);
            Ok((kind, args, self.literals(&proto.attributes, owner)?))
        };
        let (kind, args, attributes) = head().map_err(|e| place(e, scope))?;
        let mut blocks = Vec::new();
        for block in &proto.blocks {
            let block = self.block(scope, block)?;
            // What the block defines is not visible behind it.
            let inner = block.params.iter().copied();
            let of_ops = block.ops.iter().flat_map(|&op| &scope.function.ops[op].outputs);
            for v in inner.chain(of_ops.copied()) {
                scope.visible.remove(scope.function.values[v].name.as_str());
            }
            blocks.push(block);
        }
        let id = scope.function.ops.next_key();
        let mut outputs = Vec::with_capacity(proto.outputs.len());
        for (i, output) in proto.outputs.iter().enumerate() {
            let defined = scope.define(output, ValueDef::Result(id, i as u32));
            outputs.push(defined.map_err(|e| place(e, scope))?);
        }
        Ok(scope.function.ops.push(Operation {
            kind,
            args,
            outputs,
            blocks,
            opset: None,
            attributes,
        }))
    }

    fn args(
        &mut self,
        scope: &Scope<'_>,
        kind: OpKind,
        proto: &proto::Operation,
    ) -> Result<Vec<Option<Arg>>, OpError> {
        let mut args = vec![None; kind.def().params().len()];
        for (name, argument) in &proto.inputs {
            let index = kind.param_index(name).ok_or_else(|| {
                OpError::invalid(format!("{} has no parameter \"{name}\"", kind.name()))
            })?;
            let mut items = Vec::with_capacity(argument.arguments.len());
            for binding in &argument.arguments {
                items.push(match &binding.binding {
                    Some(proto::BindingKind::Name(name)) => Arg::Value(scope.lookup(name)?),
                    Some(proto::BindingKind::Value(value)) => self.literal(value, name, 0)?.into(),
                    None => return Err(OpError::invalid(format!("argument \"{name}\" is empty"))),
                });
            }
            // As texts have it, the only value of a variadic parameter is no list.
            args[index] = Some(match <[Arg; 1]>::try_from(items) {
                Ok([only]) => only,
                Err(items) => Arg::List(items),
            });
        }
        Ok(args)
    }

    /// Literals by name; weights in them are called after `owner`.
    fn literals(
        &mut self,
        proto: &BTreeMap<String, Kept<proto::Value>>,
        owner: &str,
    ) -> Result<Attributes, OpError> {
        let mut literals = Attributes::with_capacity(proto.len());
        for (name, value) in proto {
            let weight = if name == "val" { owner.to_owned() } else { format!("{owner}_{name}") };
            let literal = self.literal(value, &weight, 0).map_err(|e| OpError {
                kind: e.kind,
                message: format!("attribute \"{name}\": {}", e.message),
            })?;
            literals.insert(name.clone(), literal);
        }
        Ok(literals)
    }

    fn literal(
        &mut self,
        proto: &Kept<proto::Value>,
        name: &str,
        depth: usize,
    ) -> Result<Literal, OpError> {
        let ty = ty(proto.r#type.as_ref(), 0)?;
        let payload = self.payload(proto, &ty, name, depth)?;
        Ok(Literal { ty, payload })
    }

    /// The value of a constant of type `ty`; an inner one may leave its own type out.
    fn payload(
        &mut self,
        proto: &Kept<proto::Value>,
        ty: &Type,
        name: &str,
        depth: usize,
    ) -> Result<Payload, OpError> {
        if depth == MAX_DEPTH {
            return Err(OpError::limit(format!("values nested deeper than {MAX_DEPTH} levels")));
        }
        let value = match &proto.value {
            None => return Err(OpError::invalid(format!("a constant of type {ty} has no value"))),
            Some(proto::ValueKind::BlobFile(blob)) => {
                let Type::Tensor(ty) = ty else {
                    return Err(OpError::invalid(format!("{ty} cannot lie in a weight file")));
                };
                let place = BlobRef { path: self.table.path(&blob.file_name), offset: blob.offset };
                let id = self.table.weight(self.blobs, place, ty, name)?;
                return Ok(Payload::Weight(id));
            }
            Some(proto::ValueKind::Immediate(value)) => value.value.as_ref(),
        };
        let mut inner = |p: &Kept<proto::Value>, ty: &Type| self.payload(p, ty, name, depth + 1);
        match (value, ty) {
            (Some(ImmediateKind::Tensor(t)), Type::Tensor(ty)) => tensor(t, ty),
            (Some(ImmediateKind::List(list)), Type::List(item, _)) => {
                let items = list.values.iter().map(|v| inner(v, item)).collect::<Result<_, _>>()?;
                Ok(Payload::Items(items))
            }
            (Some(ImmediateKind::Tuple(tuple)), Type::Tuple(types))
                if tuple.values.len() == types.len() =>
            {
                let items = tuple.values.iter().zip(types).map(|(v, ty)| inner(v, ty));
                Ok(Payload::Items(items.collect::<Result<_, _>>()?))
            }
            (Some(ImmediateKind::Dictionary(dict)), Type::Dict(key, value)) => {
                let missing = || OpError::invalid("a dictionary's entry is not complete");
                let entry = |e: &Kept<proto::KeyValuePair>| {
                    let k = inner(e.key.as_ref().ok_or_else(missing)?, key)?;
                    Ok((k, inner(e.value.as_ref().ok_or_else(missing)?, value)?))
                };
                Ok(Payload::Entries(dict.values.iter().map(entry).collect::<Result<_, OpError>>()?))
            }
            _ => Err(OpError::invalid(format!("a constant's value does not have its type {ty}"))),
        }
    }
}

/// How an error names an operation, as [`Function::describe`] does.
fn describe(op: &proto::Operation) -> String {
    let attribute = op.attributes.get("name").and_then(|v| match &v.value {
        Some(proto::ValueKind::Immediate(i)) => match &i.value {
            Some(ImmediateKind::Tensor(t)) => match &t.value {
                Some(Elements::Strings(s)) => s.values.first(),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    let name = attribute.or_else(|| op.outputs.first().map(|o| &o.name));
    format!("{} \"{}\"", op.r#type, name.map_or("", |n| n.as_str()))
}

/// The type that a message states, which stands `depth` levels deep in another.
pub(super) fn ty(proto: Option<&Kept<proto::ValueType>>, depth: usize) -> Result<Type, OpError> {
    if depth == MAX_DEPTH {
        return Err(OpError::limit(format!("types nested deeper than {MAX_DEPTH} levels")));
    }
    let inner = |t: Option<&Kept<proto::ValueType>>| ty(t, depth + 1).map(Box::new);
    let kind = proto.and_then(|t| t.kind.as_ref());
    Ok(match kind.ok_or_else(|| OpError::invalid("a type is missing"))? {
        TypeKind::Tensor(t) => tensor_ty(t)?.into(),
        TypeKind::List(list) => {
            let len = match list.length.as_ref().map(|d| dim(d)).transpose()? {
                Some(Dim::Fixed(n)) => Some(n),
                _ => None,
            };
            Type::List(inner(list.r#type.as_deref())?, len)
        }
        TypeKind::Tuple(tuple) => {
            let items = tuple.types.iter().map(|t| ty(Some(t), depth + 1));
            Type::Tuple(items.collect::<Result<_, _>>()?)
        }
        TypeKind::Dictionary(dict) => {
            Type::Dict(inner(dict.key_type.as_deref())?, inner(dict.value_type.as_deref())?)
        }
        TypeKind::State(state) => match *inner(state.wrapped_type.as_deref())? {
            Type::Tensor(t) => Type::State(t),
            other => {
                return Err(OpError::invalid(format!(
                    "a state can only hold a tensor, not {other}"
                )));
            }
        },
    })
}

fn tensor_ty(proto: &proto::TensorType) -> Result<TensorType, OpError> {
    let dtype = dtype_of_number(proto.data_type)
        .ok_or_else(|| OpError::unsupported(format!("element type {}", proto.data_type)))?;
    if usize::try_from(proto.rank) != Ok(proto.dimensions.len()) {
        return Err(OpError::unsupported(format!(
            "a tensor type of rank {} with {} dimensions",
            proto.rank,
            proto.dimensions.len()
        )));
    }
    if !proto.attributes.is_empty() {
        return Err(OpError::unsupported("a tensor type with attributes"));
    }
    let shape = proto.dimensions.iter().map(|d| dim(d)).collect::<Result<_, _>>()?;
    Ok(TensorType { dtype, shape })
}

fn dim(proto: &proto::Dimension) -> Result<Dim, OpError> {
    match &proto.dimension {
        Some(DimensionKind::Constant(c)) => usize::try_from(c.size)
            .map(Dim::Fixed)
            .map_err(|_| OpError::limit(format!("a size of {}", c.size))),
        Some(DimensionKind::Unknown(u)) if u.variadic => {
            Err(OpError::unsupported("a dimension that stands for any number of dimensions"))
        }
        Some(DimensionKind::Unknown(_)) => Ok(Dim::Unknown),
        None => Err(OpError::invalid("a dimension is neither known nor unknown")),
    }
}

/// The elements of a constant of type `ty`.
fn tensor(proto: &proto::TensorValue, ty: &TensorType) -> Result<Payload, OpError> {
    let elements = proto
        .value
        .as_ref()
        .ok_or_else(|| OpError::invalid(format!("no elements where {ty} is needed")))?;
    if let (Elements::Strings(s), DType::Str) = (elements, ty.dtype) {
        let shape = shape(ty, s.values.len())?;
        return if tensor::element_count(&shape) == Some(s.values.len()) {
            Ok(Payload::Strings(s.values.clone()))
        } else {
            Err(OpError::invalid(format!("{} strings where {ty} is needed", s.values.len())))
        };
    }
    let bytes = bytes(elements, ty.dtype)?;
    let size = ty.dtype.block_bytes().max(1);
    let count = bytes.len() / size * ty.dtype.block_len();
    Tensor::new(ty.dtype, &shape(ty, count)?, Bytes::copy_from(&bytes))
        .map(Payload::Tensor)
        .map_err(|e| OpError::invalid(e.to_string()))
}

/// The sizes of a constant's type, of which one may be unknown, given its number of elements.
fn shape(ty: &TensorType, count: usize) -> Result<Vec<usize>, OpError> {
    let known: Vec<usize> = ty.shape.iter().filter_map(Dim::fixed).collect();
    if ty.rank() > known.len() + 1 {
        return Err(OpError::invalid(format!("a constant of type {ty}: its size is not known")));
    }
    let rest = tensor::element_count(&known).and_then(|n| count.checked_div(n)).unwrap_or(0);
    Ok(ty.shape.iter().map(|d| d.fixed().unwrap_or(rest)).collect())
}

/// Elements of `dtype` as they lie in memory.
fn bytes(elements: &Elements, dtype: DType) -> Result<Vec<u8>, OpError> {
    fn flat<T: Copy, const N: usize>(v: &[T], f: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        v.iter().flat_map(|&x| f(x)).collect()
    }
    Ok(match (elements, dtype) {
        (Elements::Bools(v), DType::Bool) => flat(&v.values, |b| [b.into()]),
        (Elements::Bytes(v), d) if d != DType::Str && d != DType::Bool => v.values.clone(),
        (Elements::Floats(v), DType::F32) => flat(&v.values, f32::to_le_bytes),
        (Elements::Floats(v), DType::F16) => flat(&v.values, |x| f16::from_f32(x).to_le_bytes()),
        (Elements::Floats(v), DType::Bf16) => flat(&v.values, |x| bf16::from_f32(x).to_le_bytes()),
        (Elements::Doubles(v), DType::F64) => flat(&v.values, f64::to_le_bytes),
        (Elements::LongInts(v), DType::I64 | DType::U64) => flat(&v.values, i64::to_le_bytes),
        (Elements::Ints(v), DType::I32 | DType::U32) => flat(&v.values, i32::to_le_bytes),
        (Elements::Ints(v), d) if d.is_int() && d.block_len() == 1 && d.block_bytes() < 4 => {
            let range = d.int_range().unwrap_or_default();
            let mut out = Vec::with_capacity(v.values.len() * d.block_bytes());
            for &x in &v.values {
                if !(range.0..=range.1).contains(&x.into()) {
                    return Err(OpError::invalid(format!("{x} does not fit {d}")));
                }
                out.extend_from_slice(&x.to_le_bytes()[..d.block_bytes()]);
            }
            out
        }
        (elements, dtype) => {
            let field = match elements {
                Elements::Floats(_) => "floats",
                Elements::Ints(_) => "ints",
                Elements::Bools(_) => "bools",
                Elements::Strings(_) => "strings",
                Elements::LongInts(_) => "longInts",
                Elements::Doubles(_) => "doubles",
                Elements::Bytes(_) => "bytes",
            };
            return Err(OpError::invalid(format!("elements of {dtype} in the field {field}")));
        }
    })
}
