//! Messages of an ML program (`MIL.proto`).

use std::collections::BTreeMap;

use prost::{Message, Oneof};

use super::{Kept, fields};

fields! {
    Program "Program" [1, 2, 3, 4];
    Function "Function" [1, 2, 3, 4];
    Block "Block" [1, 2, 3, 4];
    Operation "Operation" [1, 2, 3, 4, 5];
    Argument "Argument" [1];
    Binding "Binding" [1, 2];
    NamedValueType "NamedValueType" [1, 2];
    ValueType "ValueType" [1, 2, 3, 4, 5];
    TensorType "TensorType" [1, 2, 3, 4];
    ListType "ListType" [1, 2];
    TupleType "TupleType" [1];
    DictionaryType "DictionaryType" [1, 2];
    StateType "StateType" [1];
    Dimension "Dimension" [1, 2];
    ConstantDimension "ConstantDimension" [1];
    UnknownDimension "UnknownDimension" [1];
    Value "Value" [1, 2, 3, 5];
    ImmediateValue "ImmediateValue" [1, 2, 3, 4];
    BlobFileValue "BlobFileValue" [1, 2];
    TensorValue "TensorValue" [1, 2, 3, 4, 5, 6, 7];
    Floats "RepeatedFloats" [1];
    Ints "RepeatedInts" [1];
    Bools "RepeatedBools" [1];
    Strings "RepeatedStrings" [1];
    LongInts "RepeatedLongInts" [1];
    Doubles "RepeatedDoubles" [1];
    RawBytes "RepeatedBytes" [1];
    Values "ListValue" [1];
    DictionaryValue "DictionaryValue" [1];
    KeyValuePair "KeyValuePair" [1, 2];
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
    pub inputs: Vec<Kept<NamedValueType>>,
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
    pub inputs: Vec<Kept<NamedValueType>>,
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
    pub inputs: BTreeMap<String, Kept<Argument>>,
    /// Results.
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<Kept<NamedValueType>>,
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
    pub arguments: Vec<Kept<Binding>>,
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
    Value(Box<Kept<Value>>),
}

/// A name with its type.
#[derive(Clone, PartialEq, Message)]
pub struct NamedValueType {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<Kept<ValueType>>,
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
    Tensor(Kept<TensorType>),
    /// A list.
    #[prost(message, tag = "2")]
    List(Box<Kept<ListType>>),
    /// A tuple.
    #[prost(message, tag = "3")]
    Tuple(Kept<TupleType>),
    /// A dictionary.
    #[prost(message, tag = "4")]
    Dictionary(Box<Kept<DictionaryType>>),
    /// A state.
    #[prost(message, tag = "5")]
    State(Box<Kept<StateType>>),
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
    pub dimensions: Vec<Kept<Dimension>>,
    /// Attributes.
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Kept<Value>>,
}

/// A list's type.
#[derive(Clone, PartialEq, Message)]
pub struct ListType {
    /// Type of the items.
    #[prost(message, optional, boxed, tag = "1")]
    pub r#type: Option<Box<Kept<ValueType>>>,
    /// Their number.
    #[prost(message, optional, tag = "2")]
    pub length: Option<Kept<Dimension>>,
}

/// A tuple's type.
#[derive(Clone, PartialEq, Message)]
pub struct TupleType {
    /// Types of the items.
    #[prost(message, repeated, tag = "1")]
    pub types: Vec<Kept<ValueType>>,
}

/// A dictionary's type.
#[derive(Clone, PartialEq, Message)]
pub struct DictionaryType {
    /// Type of the keys.
    #[prost(message, optional, boxed, tag = "1")]
    pub key_type: Option<Box<Kept<ValueType>>>,
    /// Type of the values.
    #[prost(message, optional, boxed, tag = "2")]
    pub value_type: Option<Box<Kept<ValueType>>>,
}

/// A state's type.
#[derive(Clone, PartialEq, Message)]
pub struct StateType {
    /// Type of the content.
    #[prost(message, optional, boxed, tag = "1")]
    pub wrapped_type: Option<Box<Kept<ValueType>>>,
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
    Constant(Kept<ConstantDimension>),
    /// Nothing.
    #[prost(message, tag = "2")]
    Unknown(Kept<UnknownDimension>),
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
    pub r#type: Option<Kept<ValueType>>,
    /// The value.
    #[prost(oneof = "ValueKind", tags = "3, 5")]
    pub value: Option<ValueKind>,
}

/// Where a constant is.
#[derive(Clone, PartialEq, Oneof)]
pub enum ValueKind {
    /// Here.
    #[prost(message, tag = "3")]
    Immediate(Kept<ImmediateValue>),
    /// In a weight file.
    #[prost(message, tag = "5")]
    BlobFile(Kept<BlobFileValue>),
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
    Tensor(Kept<TensorValue>),
    /// Items of a tuple.
    #[prost(message, tag = "2")]
    Tuple(Kept<Values>),
    /// Items of a list.
    #[prost(message, tag = "3")]
    List(Kept<Values>),
    /// Entries of a dictionary.
    #[prost(message, tag = "4")]
    Dictionary(Kept<DictionaryValue>),
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
    Floats(Kept<Floats>),
    /// Integers of 16 bits, and `int32`.
    #[prost(message, tag = "2")]
    Ints(Kept<Ints>),
    /// Truth values.
    #[prost(message, tag = "3")]
    Bools(Kept<Bools>),
    /// Strings.
    #[prost(message, tag = "4")]
    Strings(Kept<Strings>),
    /// Integers of 64 bits.
    #[prost(message, tag = "5")]
    LongInts(Kept<LongInts>),
    /// `fp64`.
    #[prost(message, tag = "6")]
    Doubles(Kept<Doubles>),
    /// The bytes of half-precision floats, of integers of up to 8 bits, and of `uint32`.
    #[prost(message, tag = "7")]
    Bytes(Kept<RawBytes>),
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
    DictionaryValue message Kept<KeyValuePair>;
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
