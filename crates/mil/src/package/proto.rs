//! The part of Core ML's protobuf schema that ML programs use, and what becomes of the rest.
//!
//! Field numbers are those of the public schema (`Model.proto`, `FeatureTypes.proto`, `MIL.proto`).
//! Messages wrapped in [`Kept`] keep the fields that are not modelled here, byte for byte: those of
//! the model, its description and its features survive reading and writing. In the levels of the
//! program they cannot be honoured, and reading refuses them. Leaf messages of the program, which
//! are not wrapped, drop what they do not know.

use std::collections::BTreeMap;

use prost::Message;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{
    DecodeContext, WireType, decode_varint, encode_key, encode_varint, skip_field,
};
use prost::{DecodeError, Oneof};

/// A message that knows which fields it models.
pub trait Fields: Message + Default {
    /// Name in the schema.
    const NAME: &'static str;
    /// Numbers of the fields that are modelled.
    const KNOWN: &'static [u32];
}

/// A message together with the fields of its encoding that it does not model.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Kept<M> {
    /// The modelled fields.
    pub message: M,
    /// The other fields with their keys, in order of appearance; written behind the modelled ones.
    pub unknown: Vec<u8>,
}

impl<M> From<M> for Kept<M> {
    fn from(message: M) -> Self {
        Kept { message, unknown: Vec::new() }
    }
}

impl<M> std::ops::Deref for Kept<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.message
    }
}

impl<M> std::ops::DerefMut for Kept<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.message
    }
}

impl<M: Fields> Message for Kept<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.message.encode_raw(buf);
        buf.put_slice(&self.unknown);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if M::KNOWN.contains(&tag) {
            return self.message.merge_field(tag, wire_type, buf, ctx);
        }
        let out = &mut self.unknown;
        let fixed = match wire_type {
            WireType::Varint => {
                let value = decode_varint(buf)?;
                encode_key(tag, wire_type, out);
                encode_varint(value, out);
                return Ok(());
            }
            // The schema has no groups.
            WireType::StartGroup | WireType::EndGroup => {
                return skip_field(wire_type, tag, buf, ctx);
            }
            WireType::LengthDelimited => decode_varint(buf)?,
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
        };
        let len = usize::try_from(fixed).ok().filter(|&n| n <= buf.remaining());
        let Some(len) = len else {
            // prost's own error for a field that reaches beyond its message.
            return skip_field(WireType::SixtyFourBit, tag, &mut &[][..], ctx);
        };
        encode_key(tag, wire_type, out);
        if wire_type == WireType::LengthDelimited {
            encode_varint(fixed, out);
        }
        out.put(buf.take(len));
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.message.encoded_len() + self.unknown.len()
    }

    fn clear(&mut self) {
        self.message.clear();
        self.unknown.clear();
    }
}

macro_rules! fields {
    ($($message:ident $name:literal [$($tag:literal),*];)*) => {
        $(impl Fields for $message {
            const NAME: &'static str = $name;
            const KNOWN: &'static [u32] = &[$($tag),*];
        })*
    };
}

fields! {
    Model "Model" [1, 2, 202, 502];
    Pipeline "Pipeline" [1, 2];
    ModelDescription "ModelDescription" [1, 10, 11, 12, 13, 20, 21, 100];
    FunctionDescription "FunctionDescription" [1, 2, 3, 4, 5, 6];
    FeatureDescription "FeatureDescription" [1, 2, 3];
    Metadata "Metadata" [1, 2, 3, 4, 100];
    FeatureType "FeatureType" [1, 2, 3, 4, 5, 6, 7, 8, 1000];
    ImageFeatureType "ImageFeatureType" [1, 2, 3, 21, 31];
    ArrayFeatureType "ArrayFeatureType" [1, 2, 21, 31];
    Program "Program" [1, 2, 3, 4];
    Function "Function" [1, 2, 3, 4];
    Block "Block" [1, 2, 3, 4];
    Operation "Operation" [1, 2, 3, 4, 5];
    Value "Value" [1, 2, 3, 5];
}

/// The whole of `model.mlmodel`.
#[derive(Clone, PartialEq, Message)]
pub struct Model {
    /// Version of the specification: 6 for iOS 15 up to 10 for iOS 26.
    #[prost(int32, tag = "1")]
    pub specification_version: i32,
    /// The interface.
    #[prost(message, optional, tag = "2")]
    pub description: Option<Kept<ModelDescription>>,
    /// A sequence of models, if this is one.
    #[prost(message, optional, tag = "202")]
    pub pipeline: Option<Kept<Pipeline>>,
    /// The program, if the model is one.
    #[prost(message, optional, tag = "502")]
    pub ml_program: Option<Kept<Program>>,
}

/// Models that run one after the other.
#[derive(Clone, PartialEq, Message)]
pub struct Pipeline {
    /// The models.
    #[prost(message, repeated, tag = "1")]
    pub models: Vec<Kept<Model>>,
    /// Their names.
    #[prost(string, repeated, tag = "2")]
    pub names: Vec<String>,
}

/// What a model takes and gives.
#[derive(Clone, PartialEq, Message)]
pub struct ModelDescription {
    /// Inputs of the only function.
    #[prost(message, repeated, tag = "1")]
    pub input: Vec<Kept<FeatureDescription>>,
    /// Outputs of the only function.
    #[prost(message, repeated, tag = "10")]
    pub output: Vec<Kept<FeatureDescription>>,
    /// Output that holds a classifier's label.
    #[prost(string, tag = "11")]
    pub predicted_feature_name: String,
    /// Output that holds a classifier's probabilities.
    #[prost(string, tag = "12")]
    pub predicted_probabilities_name: String,
    /// States of the only function.
    #[prost(message, repeated, tag = "13")]
    pub state: Vec<Kept<FeatureDescription>>,
    /// One description a function, if there are several.
    #[prost(message, repeated, tag = "20")]
    pub functions: Vec<Kept<FunctionDescription>>,
    /// The function that runs when none is named.
    #[prost(string, tag = "21")]
    pub default_function_name: String,
    /// Author, licence and the like.
    #[prost(message, optional, tag = "100")]
    pub metadata: Option<Kept<Metadata>>,
}

/// What one of several functions takes and gives.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionDescription {
    /// Name of the function.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Inputs.
    #[prost(message, repeated, tag = "2")]
    pub input: Vec<Kept<FeatureDescription>>,
    /// Outputs.
    #[prost(message, repeated, tag = "3")]
    pub output: Vec<Kept<FeatureDescription>>,
    /// As in [`ModelDescription`].
    #[prost(string, tag = "4")]
    pub predicted_feature_name: String,
    /// As in [`ModelDescription`].
    #[prost(string, tag = "5")]
    pub predicted_probabilities_name: String,
    /// States.
    #[prost(message, repeated, tag = "6")]
    pub state: Vec<Kept<FeatureDescription>>,
}

/// A named input, output or state.
#[derive(Clone, PartialEq, Message)]
pub struct FeatureDescription {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What it means, for people.
    #[prost(string, tag = "2")]
    pub short_description: String,
    /// Type.
    #[prost(message, optional, tag = "3")]
    pub r#type: Option<Kept<FeatureType>>,
}

/// Who made the model, and what else they say about it.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// One sentence.
    #[prost(string, tag = "1")]
    pub short_description: String,
    /// Version of the model.
    #[prost(string, tag = "2")]
    pub version_string: String,
    /// Author.
    #[prost(string, tag = "3")]
    pub author: String,
    /// Licence.
    #[prost(string, tag = "4")]
    pub license: String,
    /// Anything else.
    #[prost(btree_map = "string, string", tag = "100")]
    pub user_defined: BTreeMap<String, String>,
}

/// A message without fields.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// The type of a feature.
#[derive(Clone, PartialEq, Message)]
pub struct FeatureType {
    /// Which type; none if it is one that the schema got later.
    #[prost(oneof = "FeatureKind", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub kind: Option<FeatureKind>,
    /// Whether it may be left out.
    #[prost(bool, tag = "1000")]
    pub is_optional: bool,
}

/// The types of features.
#[derive(Clone, PartialEq, Oneof)]
pub enum FeatureKind {
    /// A 64-bit integer.
    #[prost(message, tag = "1")]
    Int64(Empty),
    /// A double.
    #[prost(message, tag = "2")]
    Double(Empty),
    /// A string.
    #[prost(message, tag = "3")]
    String(Empty),
    /// An image.
    #[prost(message, tag = "4")]
    Image(Kept<ImageFeatureType>),
    /// An array.
    #[prost(message, tag = "5")]
    MultiArray(Kept<ArrayFeatureType>),
    /// A number for each of some keys.
    #[prost(message, tag = "6")]
    Dictionary(DictionaryFeatureType),
    /// A sequence of integers or strings, undecoded.
    #[prost(bytes = "vec", tag = "7")]
    Sequence(Vec<u8>),
    /// Memory that outlives a call.
    #[prost(message, tag = "8")]
    State(StateFeatureType),
}

/// A dictionary's keys.
#[derive(Clone, PartialEq, Message)]
pub struct DictionaryFeatureType {
    /// Their type.
    #[prost(oneof = "DictionaryKey", tags = "1, 2")]
    pub key: Option<DictionaryKey>,
}

/// The type of a dictionary's keys.
#[derive(Clone, PartialEq, Oneof)]
pub enum DictionaryKey {
    /// 64-bit integers.
    #[prost(message, tag = "1")]
    Int64(Empty),
    /// Strings.
    #[prost(message, tag = "2")]
    String(Empty),
}

/// A state's content.
#[derive(Clone, PartialEq, Message)]
pub struct StateFeatureType {
    /// An array.
    #[prost(message, optional, tag = "1")]
    pub array_type: Option<Kept<ArrayFeatureType>>,
}

/// An image's size and colours.
#[derive(Clone, PartialEq, Message)]
pub struct ImageFeatureType {
    /// Pixels across.
    #[prost(int64, tag = "1")]
    pub width: i64,
    /// Pixels down.
    #[prost(int64, tag = "2")]
    pub height: i64,
    /// 10 grey, 20 RGB, 30 BGR, 40 grey in half precision.
    #[prost(int32, tag = "3")]
    pub color_space: i32,
    /// `EnumeratedImageSizes`, undecoded.
    #[prost(bytes = "vec", optional, tag = "21")]
    pub enumerated_sizes: Option<Vec<u8>>,
    /// `ImageSizeRange`, undecoded.
    #[prost(bytes = "vec", optional, tag = "31")]
    pub image_size_range: Option<Vec<u8>>,
}

/// An array's element type and shape.
#[derive(Clone, PartialEq, Message)]
pub struct ArrayFeatureType {
    /// The shape, or the default one of several.
    #[prost(int64, repeated, tag = "1")]
    pub shape: Vec<i64>,
    /// Element type, see `description::array_type_number`.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Other shapes it may have.
    #[prost(oneof = "ShapeFlexibility", tags = "21, 31")]
    pub flexibility: Option<ShapeFlexibility>,
}

/// Which shapes an array may have.
#[derive(Clone, PartialEq, Oneof)]
pub enum ShapeFlexibility {
    /// One of these.
    #[prost(message, tag = "21")]
    Enumerated(EnumeratedShapes),
    /// Any in these ranges.
    #[prost(message, tag = "31")]
    Range(ShapeRange),
}

/// Shapes to choose from.
#[derive(Clone, PartialEq, Message)]
pub struct EnumeratedShapes {
    /// The shapes.
    #[prost(message, repeated, tag = "1")]
    pub shapes: Vec<Shape>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    /// Sizes.
    #[prost(int64, repeated, tag = "1")]
    pub shape: Vec<i64>,
}

/// A range for each axis.
#[derive(Clone, PartialEq, Message)]
pub struct ShapeRange {
    /// The ranges.
    #[prost(message, repeated, tag = "1")]
    pub size_ranges: Vec<SizeRange>,
}

/// A range of sizes.
#[derive(Clone, PartialEq, Message)]
pub struct SizeRange {
    /// Smallest.
    #[prost(uint64, tag = "1")]
    pub lower_bound: u64,
    /// Largest; negative if there is none.
    #[prost(int64, tag = "2")]
    pub upper_bound: i64,
}

/// An ML program.
#[derive(Clone, PartialEq, Message)]
pub struct Program {
    /// Always 1.
    #[prost(int64, tag = "1")]
    pub version: i64,
    /// Functions by name.
    #[prost(btree_map = "string, message", tag = "2")]
    pub functions: BTreeMap<String, Kept<Function>>,
    /// A comment.
    #[prost(string, tag = "3")]
    pub doc_string: String,
    /// Attributes such as `buildInfo`.
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Kept<Value>>,
}

/// A function.
#[derive(Clone, PartialEq, Message)]
pub struct Function {
    /// Inputs and states.
    #[prost(message, repeated, tag = "1")]
    pub inputs: Vec<NamedValueType>,
    /// Operation set, such as `CoreML8`.
    #[prost(string, tag = "2")]
    pub opset: String,
    /// Bodies by operation set.
    #[prost(btree_map = "string, message", tag = "3")]
    pub block_specializations: BTreeMap<String, Kept<Block>>,
    /// Attributes.
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Kept<Value>>,
}

/// A block.
#[derive(Clone, PartialEq, Message)]
pub struct Block {
    /// Parameters.
    #[prost(message, repeated, tag = "1")]
    pub inputs: Vec<NamedValueType>,
    /// Names of the values handed out.
    #[prost(string, repeated, tag = "2")]
    pub outputs: Vec<String>,
    /// Operations in order.
    #[prost(message, repeated, tag = "3")]
    pub operations: Vec<Kept<Operation>>,
    /// Attributes.
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Kept<Value>>,
}

/// An operation.
#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    /// Kind, such as `conv`.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Arguments by parameter.
    #[prost(btree_map = "string, message", tag = "2")]
    pub inputs: BTreeMap<String, Argument>,
    /// Results.
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<NamedValueType>,
    /// Nested blocks.
    #[prost(message, repeated, tag = "4")]
    pub blocks: Vec<Kept<Block>>,
    /// Attributes.
    #[prost(btree_map = "string, message", tag = "5")]
    pub attributes: BTreeMap<String, Kept<Value>>,
}

/// An argument: one binding, or several for a variadic parameter.
#[derive(Clone, PartialEq, Message)]
pub struct Argument {
    /// The bindings.
    #[prost(message, repeated, tag = "1")]
    pub arguments: Vec<Binding>,
}

/// A value by name, or a constant.
#[derive(Clone, PartialEq, Message)]
pub struct Binding {
    /// Which.
    #[prost(oneof = "BindingKind", tags = "1, 2")]
    pub binding: Option<BindingKind>,
}

/// What a binding is.
#[derive(Clone, PartialEq, Oneof)]
pub enum BindingKind {
    /// A value that is defined elsewhere.
    #[prost(string, tag = "1")]
    Name(String),
    /// A constant.
    #[prost(message, tag = "2")]
    Value(Kept<Value>),
}

/// A name with its type.
#[derive(Clone, PartialEq, Message)]
pub struct NamedValueType {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<ValueType>,
}

/// The type of a value.
#[derive(Clone, PartialEq, Message)]
pub struct ValueType {
    /// Which.
    #[prost(oneof = "TypeKind", tags = "1, 2, 3, 4, 5")]
    pub kind: Option<TypeKind>,
}

/// The types of values.
#[derive(Clone, PartialEq, Oneof)]
pub enum TypeKind {
    /// A tensor.
    #[prost(message, tag = "1")]
    Tensor(TensorType),
    /// A list.
    #[prost(message, tag = "2")]
    List(Box<ListType>),
    /// A tuple.
    #[prost(message, tag = "3")]
    Tuple(TupleType),
    /// A dictionary.
    #[prost(message, tag = "4")]
    Dictionary(Box<DictionaryType>),
    /// A state.
    #[prost(message, tag = "5")]
    State(Box<StateType>),
}

/// A tensor's type.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    /// Element type, by number.
    #[prost(int32, tag = "1")]
    pub data_type: i32,
    /// Number of dimensions; -1 if it is not known.
    #[prost(int64, tag = "2")]
    pub rank: i64,
    /// The dimensions.
    #[prost(message, repeated, tag = "3")]
    pub dimensions: Vec<Dimension>,
    /// Attributes.
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Kept<Value>>,
}

/// A list's type.
#[derive(Clone, PartialEq, Message)]
pub struct ListType {
    /// Type of the items.
    #[prost(message, optional, boxed, tag = "1")]
    pub r#type: Option<Box<ValueType>>,
    /// Their number.
    #[prost(message, optional, tag = "2")]
    pub length: Option<Dimension>,
}

/// A tuple's type.
#[derive(Clone, PartialEq, Message)]
pub struct TupleType {
    /// Types of the items.
    #[prost(message, repeated, tag = "1")]
    pub types: Vec<ValueType>,
}

/// A dictionary's type.
#[derive(Clone, PartialEq, Message)]
pub struct DictionaryType {
    /// Type of the keys.
    #[prost(message, optional, boxed, tag = "1")]
    pub key_type: Option<Box<ValueType>>,
    /// Type of the values.
    #[prost(message, optional, boxed, tag = "2")]
    pub value_type: Option<Box<ValueType>>,
}

/// A state's type.
#[derive(Clone, PartialEq, Message)]
pub struct StateType {
    /// Type of the content.
    #[prost(message, optional, boxed, tag = "1")]
    pub wrapped_type: Option<Box<ValueType>>,
}

/// A size.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    /// Known or not.
    #[prost(oneof = "DimensionKind", tags = "1, 2")]
    pub dimension: Option<DimensionKind>,
}

/// What is known of a size.
#[derive(Clone, PartialEq, Oneof)]
pub enum DimensionKind {
    /// All.
    #[prost(message, tag = "1")]
    Constant(ConstantDimension),
    /// Nothing.
    #[prost(message, tag = "2")]
    Unknown(UnknownDimension),
}

/// A known size.
#[derive(Clone, PartialEq, Message)]
pub struct ConstantDimension {
    /// The size.
    #[prost(uint64, tag = "1")]
    pub size: u64,
}

/// A size that is known when running.
#[derive(Clone, PartialEq, Message)]
pub struct UnknownDimension {
    /// Whether it stands for any number of dimensions.
    #[prost(bool, tag = "1")]
    pub variadic: bool,
}

/// A constant.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// A comment.
    #[prost(string, tag = "1")]
    pub doc_string: String,
    /// Type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<ValueType>,
    /// The value.
    #[prost(oneof = "ValueKind", tags = "3, 5")]
    pub value: Option<ValueKind>,
}

/// Where a constant is.
#[derive(Clone, PartialEq, Oneof)]
pub enum ValueKind {
    /// Here.
    #[prost(message, tag = "3")]
    Immediate(ImmediateValue),
    /// In a weight file.
    #[prost(message, tag = "5")]
    BlobFile(BlobFileValue),
}

/// A constant written in place.
#[derive(Clone, PartialEq, Message)]
pub struct ImmediateValue {
    /// Which.
    #[prost(oneof = "ImmediateKind", tags = "1, 2, 3, 4")]
    pub value: Option<ImmediateKind>,
}

/// The forms of constants.
#[derive(Clone, PartialEq, Oneof)]
pub enum ImmediateKind {
    /// Elements of a tensor.
    #[prost(message, tag = "1")]
    Tensor(TensorValue),
    /// Items of a tuple.
    #[prost(message, tag = "2")]
    Tuple(Values),
    /// Items of a list.
    #[prost(message, tag = "3")]
    List(Values),
    /// Entries of a dictionary.
    #[prost(message, tag = "4")]
    Dictionary(DictionaryValue),
}

/// A place in a weight file.
#[derive(Clone, PartialEq, Message)]
pub struct BlobFileValue {
    /// The file, beginning with `@model_path/`.
    #[prost(string, tag = "1")]
    pub file_name: String,
    /// Offset of the blob's record.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// A tensor's elements, row-major.
#[derive(Clone, PartialEq, Message)]
pub struct TensorValue {
    /// The elements.
    #[prost(oneof = "Elements", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub value: Option<Elements>,
}

/// Elements by the field that holds their type.
#[derive(Clone, PartialEq, Oneof)]
pub enum Elements {
    /// `fp32`.
    #[prost(message, tag = "1")]
    Floats(Floats),
    /// Integers of 16 bits, and `int32`.
    #[prost(message, tag = "2")]
    Ints(Ints),
    /// Truth values.
    #[prost(message, tag = "3")]
    Bools(Bools),
    /// Strings.
    #[prost(message, tag = "4")]
    Strings(Strings),
    /// Integers of 64 bits.
    #[prost(message, tag = "5")]
    LongInts(LongInts),
    /// `fp64`.
    #[prost(message, tag = "6")]
    Doubles(Doubles),
    /// The bytes of half-precision floats, of integers of up to 8 bits, and of `uint32`.
    #[prost(message, tag = "7")]
    Bytes(RawBytes),
}

macro_rules! repeated {
    ($($(#[$doc:meta])* $name:ident $kind:ident $ty:ty;)*) => {
        $($(#[$doc])*
        #[derive(Clone, PartialEq, Message)]
        pub struct $name {
            /// The elements.
            #[prost($kind, repeated, tag = "1")]
            pub values: Vec<$ty>,
        })*
    };
}

repeated! {
    /// Repeated floats.
    Floats float f32;
    /// Repeated integers.
    Ints int32 i32;
    /// Repeated truth values.
    Bools bool bool;
    /// Repeated strings.
    Strings string String;
    /// Repeated long integers.
    LongInts int64 i64;
    /// Repeated doubles.
    Doubles double f64;
    /// Items of a list or tuple.
    Values message Kept<Value>;
    /// Entries of a dictionary.
    DictionaryValue message KeyValuePair;
}

/// Elements as they lie in memory, little-endian; sub-byte ones LSB first.
#[derive(Clone, PartialEq, Message)]
pub struct RawBytes {
    /// The bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub values: Vec<u8>,
}

/// An entry of a dictionary.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValuePair {
    /// The key.
    #[prost(message, optional, tag = "1")]
    pub key: Option<Kept<Value>>,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<Kept<Value>>,
}
