//! Messages of a model around its program (`Model.proto`, `FeatureTypes.proto`).

use std::collections::BTreeMap;

use prost::{Message, Oneof};

use super::{Kept, Program, fields};

fields! {
    Model "Model" [1, 2, 202, 502];
    Pipeline "Pipeline" [1, 2];
    ModelDescription "ModelDescription" [1, 10, 11, 12, 13, 20, 21, 100];
    FunctionDescription "FunctionDescription" [1, 2, 3, 4, 5, 6];
    FeatureDescription "FeatureDescription" [1, 2, 3];
    Metadata "Metadata" [1, 2, 3, 4, 100];
    FeatureType "FeatureType" [1, 2, 3, 4, 5, 6, 7, 8, 1000];
    Empty "an empty message" [];
    ImageFeatureType "ImageFeatureType" [1, 2, 3, 21, 31];
    ArrayFeatureType "ArrayFeatureType" [1, 2, 21, 31];
    DictionaryFeatureType "DictionaryFeatureType" [1, 2];
    StateFeatureType "StateFeatureType" [1];
    EnumeratedShapes "EnumeratedShapes" [1];
    Shape "Shape" [1];
    ShapeRange "ShapeRange" [1];
    SizeRange "SizeRange" [1, 2];
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
    Int64(Kept<Empty>),
    /// A double.
    #[prost(message, tag = "2")]
    Double(Kept<Empty>),
    /// A string.
    #[prost(message, tag = "3")]
    String(Kept<Empty>),
    /// An image.
    #[prost(message, tag = "4")]
    Image(Kept<ImageFeatureType>),
    /// An array.
    #[prost(message, tag = "5")]
    MultiArray(Kept<ArrayFeatureType>),
    /// A number for each of some keys.
    #[prost(message, tag = "6")]
    Dictionary(Kept<DictionaryFeatureType>),
    /// A sequence of integers or strings, undecoded.
    #[prost(bytes = "vec", tag = "7")]
    Sequence(Vec<u8>),
    /// Memory that outlives a call.
    #[prost(message, tag = "8")]
    State(Kept<StateFeatureType>),
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
    Int64(Kept<Empty>),
    /// Strings.
    #[prost(message, tag = "2")]
    String(Kept<Empty>),
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
    Enumerated(Kept<EnumeratedShapes>),
    /// Any in these ranges.
    #[prost(message, tag = "31")]
    Range(Kept<ShapeRange>),
}

/// Shapes to choose from.
#[derive(Clone, PartialEq, Message)]
pub struct EnumeratedShapes {
    /// The shapes.
    #[prost(message, repeated, tag = "1")]
    pub shapes: Vec<Kept<Shape>>,
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
    pub size_ranges: Vec<Kept<SizeRange>>,
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
