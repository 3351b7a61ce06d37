//! A model's interface: what its functions take and give, as a description says it or as their
//! signatures imply it.

use tensor::DType;

use super::agreement::feature_fits;
use super::flexible;
use super::proto::{
    ArrayFeatureType, DictionaryFeatureType, DictionaryKey, Empty, FeatureDescription, FeatureKind,
    FeatureType, FunctionDescription, ImageFeatureType, Kept, ModelDescription, ShapeFlexibility,
    StateFeatureType,
};
use super::types::{array_of_dtype, dtype_of_array};
use crate::{Dim, Error, Function, OpError, Program, Result, TensorType, Type};

/// What a function takes and gives.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Interface {
    /// Inputs in the model's order.
    pub inputs: Vec<Feature>,
    /// Outputs in the model's order.
    pub outputs: Vec<Feature>,
    /// States.
    pub states: Vec<Feature>,
    /// The output that holds a classifier's label.
    pub predicted_feature: Option<String>,
    /// The output that holds a classifier's probabilities.
    pub predicted_probabilities: Option<String>,
}

/// An input, output or state.
#[derive(Clone, PartialEq, Debug)]
pub struct Feature {
    /// Name.
    pub name: String,
    /// What it means, for people; often empty.
    pub description: String,
    /// Whether it may be left out.
    pub optional: bool,
    /// Type.
    pub kind: Kind,
}

/// The type of a feature.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    /// A tensor. The element type is `None` if Rigel does not know it.
    Array(Option<DType>, Shapes),
    /// Memory that outlives a call.
    State(Option<DType>, Shapes),
    /// An image, which becomes a tensor `[1, channels, height, width]`.
    Image(Image),
    /// A 64-bit integer.
    Int64,
    /// A double.
    Double,
    /// A string.
    String,
    /// A number for each label; whether labels are strings (or integers).
    Dictionary {
        /// Whether the keys are strings.
        string_keys: bool,
    },
    /// Something else.
    Other,
}

/// Size and colours of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Image {
    /// Pixels across, by default.
    pub width: i64,
    /// Pixels down, by default.
    pub height: i64,
    /// `GRAYSCALE`, `RGB`, `BGR` or `GRAYSCALE_FLOAT16`.
    pub colors: &'static str,
    /// Whether other sizes are allowed.
    pub flexible: bool,
}

/// The shapes that an array may have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shapes {
    /// This one; empty if the description leaves it open.
    Fixed(Vec<i64>),
    /// Any with sizes in these ranges; `None` is no limit.
    Range {
        /// The shape by default.
        default: Vec<i64>,
        /// Smallest and largest size of each axis.
        ranges: Vec<(u64, Option<u64>)>,
    },
    /// One of several.
    Enumerated {
        /// The shape by default.
        default: Vec<i64>,
        /// All shapes.
        shapes: Vec<Vec<i64>>,
    },
}

/// The interface of function `name` that a description states; `None` if it does not know it.
pub(super) fn interface(description: &ModelDescription, name: &str) -> Option<Interface> {
    let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    let all = |features: &[Kept<FeatureDescription>]| features.iter().map(|f| feature(f)).collect();
    if description.functions.is_empty() {
        return Some(Interface {
            inputs: all(&description.input),
            outputs: all(&description.output),
            states: all(&description.state),
            predicted_feature: named(&description.predicted_feature_name),
            predicted_probabilities: named(&description.predicted_probabilities_name),
        });
    }
    let f = description.functions.iter().find(|f| f.name == name)?;
    Some(Interface {
        inputs: all(&f.input),
        outputs: all(&f.output),
        states: all(&f.state),
        predicted_feature: named(&f.predicted_feature_name),
        predicted_probabilities: named(&f.predicted_probabilities_name),
    })
}

fn feature(proto: &FeatureDescription) -> Feature {
    let ty = proto.r#type.as_ref();
    Feature {
        name: proto.name.clone(),
        description: proto.short_description.clone(),
        optional: ty.is_some_and(|t| t.is_optional),
        kind: ty.and_then(|t| t.kind.as_ref()).map_or(Kind::Other, kind),
    }
}

fn kind(proto: &FeatureKind) -> Kind {
    match proto {
        FeatureKind::Int64(_) => Kind::Int64,
        FeatureKind::Double(_) => Kind::Double,
        FeatureKind::String(_) => Kind::String,
        FeatureKind::Image(image) => Kind::Image(image_of(image)),
        FeatureKind::MultiArray(array) => {
            Kind::Array(dtype_of_array(array.data_type), shapes(array))
        }
        FeatureKind::Dictionary(d) => {
            Kind::Dictionary { string_keys: matches!(d.key, Some(DictionaryKey::String(_))) }
        }
        FeatureKind::Sequence(_) => Kind::Other,
        FeatureKind::State(state) => match &state.array_type {
            Some(array) => Kind::State(dtype_of_array(array.data_type), shapes(array)),
            None => Kind::Other,
        },
    }
}

fn image_of(proto: &ImageFeatureType) -> Image {
    let colors = match proto.color_space {
        10 => "GRAYSCALE",
        20 => "RGB",
        30 => "BGR",
        40 => "GRAYSCALE_FLOAT16",
        _ => "unknown colors",
    };
    let flexible = proto.enumerated_sizes.is_some() || proto.image_size_range.is_some();
    Image { width: proto.width, height: proto.height, colors, flexible }
}

fn shapes(array: &ArrayFeatureType) -> Shapes {
    let default = array.shape.clone();
    match &array.flexibility {
        None => Shapes::Fixed(default),
        Some(ShapeFlexibility::Range(range)) => {
            let bounds =
                |r: &Kept<super::proto::SizeRange>| (r.lower_bound, r.upper_bound.try_into().ok());
            Shapes::Range { default, ranges: range.size_ranges.iter().map(bounds).collect() }
        }
        Some(ShapeFlexibility::Enumerated(e)) => Shapes::Enumerated {
            default,
            shapes: e.shapes.iter().map(|s| s.shape.clone()).collect(),
        },
    }
}

/// The description that the signatures of a program's functions imply; with one function it is the
/// model's own, with several each has its own and `main`, or else the first, runs by default.
///
/// # Errors
/// When a function's input or output is of a type or of sizes that an interface cannot have.
pub(super) fn of_program(program: &Program) -> Result<ModelDescription> {
    let mut described = Vec::new();
    for (name, function) in &program.functions {
        let f = of_function(name, function);
        described.push(f.map_err(|e| Error::new(e.kind, e.message).in_function(name))?);
    }
    if described.len() == 1
        && let Some(f) = described.pop()
    {
        return Ok(ModelDescription {
            input: f.input,
            output: f.output,
            state: f.state,
            predicted_feature_name: f.predicted_feature_name,
            predicted_probabilities_name: f.predicted_probabilities_name,
            ..Default::default()
        });
    }
    let default = described.iter().find(|f| f.name == "main").or(described.first());
    Ok(ModelDescription {
        default_function_name: default.map(|f| f.name.clone()).unwrap_or_default(),
        functions: described.into_iter().map(Kept::from).collect(),
        ..Default::default()
    })
}

/// The description of `program`, with what `old` says where that still fits: metadata, features of the
/// same name and type, and of the others what is said to people.
///
/// # Errors
/// As [`of_program`].
pub(super) fn renewed(
    old: &Kept<ModelDescription>,
    program: &Program,
) -> Result<Kept<ModelDescription>> {
    let mut new = Kept { message: of_program(program)?, unknown: old.unknown.clone() };
    new.metadata.clone_from(&old.metadata);
    if program.functions.contains_key(&old.default_function_name) {
        new.default_function_name.clone_from(&old.default_function_name);
    }
    if let ([], Some((name, function))) = (&*new.functions, program.functions.iter().next()) {
        let [inputs, outputs, states] = features_of(old, name);
        let ModelDescription { input, output, state, .. } = &mut new.message;
        for (features, old) in [(input, inputs), (output, outputs), (state, states)] {
            renew(features, old, function);
        }
    }
    for f in &mut new.message.functions {
        let Some(function) = program.functions.get(&f.name) else { continue };
        let [inputs, outputs, states] = features_of(old, &f.name);
        if let Some(stated) = old.functions.iter().find(|o| o.name == f.name) {
            f.unknown.clone_from(&stated.unknown);
        }
        let FunctionDescription { input, output, state, .. } = &mut f.message;
        for (features, old) in [(input, inputs), (output, outputs), (state, states)] {
            renew(features, old, function);
        }
    }
    Ok(new)
}

/// Inputs, outputs and states that a description states for function `name`.
fn features_of<'d>(
    description: &'d ModelDescription,
    name: &str,
) -> [&'d [Kept<FeatureDescription>]; 3] {
    match description.functions.iter().find(|f| f.name == name) {
        Some(f) => [&f.input, &f.output, &f.state],
        None => [&description.input, &description.output, &description.state],
    }
}

/// Puts what `old` says of features into those of `function`, where it fits; in the old order.
fn renew(
    features: &mut [Kept<FeatureDescription>],
    old: &[Kept<FeatureDescription>],
    function: &Function,
) {
    let place = |name: &str| old.iter().position(|o| o.name == name).unwrap_or(usize::MAX);
    features.sort_by_key(|f| place(&f.name));
    for new in features {
        let Some(old) = old.iter().find(|o| o.name == new.name) else { continue };
        let values = function.inputs.iter().chain(&function.body.outputs);
        let value = values.copied().find(|&v| function.values[v].name == new.name);
        match value {
            Some(v) if feature_fits(&feature(old), function.ty(v)).is_ok() => new.clone_from(old),
            _ => new.short_description.clone_from(&old.short_description),
        }
    }
}

fn of_function(name: &str, function: &Function) -> Result<FunctionDescription, OpError> {
    let flexible = function.attributes.get(flexible::ATTRIBUTE);
    let mut described = FunctionDescription { name: name.to_owned(), ..Default::default() };
    for &v in &function.inputs {
        let (name, ty) = (&function.values[v].name, function.ty(v));
        let (list, kind) = match ty {
            Type::State(t) => {
                let array = Some(array(name, t, None)?.into());
                (
                    &mut described.state,
                    FeatureKind::State(StateFeatureType { array_type: array }.into()),
                )
            }
            Type::Tensor(t) => {
                let shapes = flexible.and_then(|f| flexible::of_input(f, name));
                let array = array(name, t, shapes)?.into();
                (&mut described.input, FeatureKind::MultiArray(array))
            }
            _ => return Err(OpError::unsupported(format!("input {name} of type {ty} in a model"))),
        };
        list.push(named(name, kind));
    }
    for &v in &function.body.outputs {
        let (name, ty) = (&function.values[v].name, function.ty(v));
        described.output.push(named(name, output(name, ty)?));
    }
    if let [label, probabilities] = described.output.as_slice()
        && let Type::Dict(..) = function.ty(function.body.outputs[1])
    {
        described.predicted_feature_name = label.name.clone();
        described.predicted_probabilities_name = probabilities.name.clone();
    }
    Ok(described)
}

fn named(name: &str, kind: FeatureKind) -> Kept<FeatureDescription> {
    let ty = FeatureType { kind: Some(kind), is_optional: false };
    FeatureDescription {
        name: name.to_owned(),
        short_description: String::new(),
        r#type: Some(ty.into()),
    }
    .into()
}

fn output(name: &str, ty: &Type) -> Result<FeatureKind, OpError> {
    let unsupported = || OpError::unsupported(format!("output {name} of type {ty} in a model"));
    let scalar = |ty: &Type| ty.as_tensor().filter(|t| t.rank() == 0).map(|t| t.dtype);
    Ok(match ty {
        Type::Dict(key, _) => FeatureKind::Dictionary(
            DictionaryFeatureType {
                key: Some(match scalar(key) {
                    Some(DType::Str) => DictionaryKey::String(Empty {}.into()),
                    Some(DType::I64) => DictionaryKey::Int64(Empty {}.into()),
                    _ => return Err(unsupported()),
                }),
            }
            .into(),
        ),
        Type::Tensor(t) => match scalar(ty) {
            Some(DType::Str) => FeatureKind::String(Empty {}.into()),
            Some(DType::I64) => FeatureKind::Int64(Empty {}.into()),
            _ => {
                let data_type = array_of_dtype(t.dtype).ok_or_else(unsupported)?;
                // An output of open sizes has no shape.
                let shape = t.fixed_shape().map(|s| signed(&s)).transpose()?.unwrap_or_default();
                FeatureKind::MultiArray(
                    ArrayFeatureType { shape, data_type, flexibility: None }.into(),
                )
            }
        },
        _ => return Err(unsupported()),
    })
}

fn signed(shape: &[usize]) -> Result<Vec<i64>, OpError> {
    let signed = |&n: &usize| {
        i64::try_from(n)
            .map_err(|_| OpError::limit(format!("a size of {n} in a model's interface")))
    };
    shape.iter().map(signed).collect()
}

fn array(
    name: &str,
    ty: &TensorType,
    flexible: Option<(Vec<i64>, ShapeFlexibility)>,
) -> Result<ArrayFeatureType, OpError> {
    let data_type = array_of_dtype(ty.dtype)
        .ok_or_else(|| OpError::unsupported(format!("input {name} of type {ty} in a model")))?;
    if let Some((shape, flexibility)) = flexible {
        return Ok(ArrayFeatureType { shape, data_type, flexibility: Some(flexibility) });
    }
    let shape = ty.fixed_shape().ok_or_else(|| {
        let open = ty.shape.iter().find(|d| !matches!(d, Dim::Fixed(_)));
        OpError::invalid(format!(
            "input {name} is {ty}: size {} must be fixed first, or described by {}",
            open.unwrap_or(&Dim::Unknown),
            flexible::ATTRIBUTE
        ))
    })?;
    Ok(ArrayFeatureType { shape: signed(&shape)?, data_type, flexibility: None })
}
