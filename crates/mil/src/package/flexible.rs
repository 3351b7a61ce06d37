//! Shapes that an input may have besides its default one: in a description, and as the attribute
//! `FlexibleShapeInformation` by which MIL text says the same.
//!
//! The attribute is a tuple of pairs of a name and a dictionary: `DefaultShapes` (shape by input),
//! `RangeDims` (smallest and largest size of each axis by input; -1 is no limit) and
//! `EnumeratedShapes` (shape by input, by a key for each choice; the n-th choice takes the n-th shape
//! of every input). Inputs of a fixed shape do not appear. How Apple's compiler makes the keys is not
//! known; here they are a digest of the choice.

use sha2::{Digest, Sha256};
use tensor::DType;

use super::proto::{
    ArrayFeatureType, EnumeratedShapes, FeatureDescription, FeatureKind, Kept, Shape,
    ShapeFlexibility, ShapeRange, SizeRange,
};
use crate::{Dim, Literal, OpError, Payload, TensorType, Type};

/// Name of the attribute.
pub(super) const ATTRIBUTE: &str = "FlexibleShapeInformation";

fn ints(shape: Vec<Dim>) -> Type {
    TensorType { dtype: DType::I32, shape }.into()
}

fn string() -> Type {
    TensorType::scalar(DType::Str).into()
}

fn dict(value: Type) -> Type {
    Type::Dict(Box::new(string()), Box::new(value))
}

fn key(name: &str) -> Payload {
    Payload::Strings(vec![name.to_owned()])
}

/// Sizes as the attribute holds them.
fn sizes(values: impl IntoIterator<Item = i64>) -> Result<Payload, OpError> {
    let narrow = |v: i64| {
        i32::try_from(v)
            .map_err(|_| OpError::limit(format!("a size of {v} in a model's interface")))
    };
    let values = values.into_iter().map(narrow).collect::<Result<Vec<i32>, _>>()?;
    Ok(Literal::vector(&values).payload)
}

/// The array of an input, if it is one.
fn array(feature: &FeatureDescription) -> Option<&ArrayFeatureType> {
    match &feature.r#type.as_ref()?.kind {
        Some(FeatureKind::MultiArray(array)) => Some(array),
        _ => None,
    }
}

/// The attribute that says what `inputs` do; `None` if all their shapes are fixed.
///
/// # Errors
/// When a size does not fit the attribute.
pub(super) fn attribute(inputs: &[Kept<FeatureDescription>]) -> Result<Option<Literal>, OpError> {
    let flexible: Vec<(&str, &ArrayFeatureType, &ShapeFlexibility)> = inputs
        .iter()
        .filter_map(|f| array(f).map(|a| (f.name.as_str(), a)))
        .filter_map(|(name, a)| a.flexibility.as_ref().map(|s| (name, a, s)))
        .collect();
    if flexible.is_empty() {
        return Ok(None);
    }
    let (mut defaults, mut ranges) = (Vec::new(), Vec::new());
    let mut choices: Vec<Vec<(Payload, Payload)>> = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    for (name, array, flexibility) in flexible {
        defaults.push((key(name), sizes(array.shape.iter().copied())?));
        match flexibility {
            ShapeFlexibility::Range(range) => {
                let bounds = range.size_ranges.iter().map(|r| {
                    sizes([i64::try_from(r.lower_bound).unwrap_or(i64::MAX), r.upper_bound.max(-1)])
                });
                ranges.push((key(name), Payload::Items(bounds.collect::<Result<_, _>>()?)));
            }
            ShapeFlexibility::Enumerated(shapes) => {
                for (i, shape) in shapes.shapes.iter().enumerate() {
                    if i == choices.len() {
                        choices.push(Vec::new());
                        texts.push(String::new());
                    }
                    choices[i].push((key(name), sizes(shape.shape.iter().copied())?));
                    texts[i].push_str(&format!("{name}{:?}", shape.shape));
                }
            }
        }
    }
    let shapes = dict(ints(vec![Dim::Unknown]));
    let mut parts = vec![("DefaultShapes", shapes.clone(), defaults)];
    if !choices.is_empty() {
        let digest = |text: &String| {
            let hash = Sha256::digest(text.as_bytes());
            hash[..4].iter().map(|b| format!("{b:02x}")).collect::<String>()
        };
        let entries =
            texts.iter().map(digest).zip(choices).map(|(k, c)| (key(&k), Payload::Entries(c)));
        parts.push(("EnumeratedShapes", dict(shapes), entries.collect()));
    }
    if !ranges.is_empty() {
        let pairs = Type::List(Box::new(ints(vec![Dim::Fixed(2)])), None);
        parts.push(("RangeDims", dict(pairs), ranges));
    }
    let (mut types, mut items) = (Vec::new(), Vec::new());
    for (name, ty, entries) in parts {
        types.push(Type::Tuple(vec![string(), ty]));
        items.push(Payload::Items(vec![key(name), Payload::Entries(entries)]));
    }
    Ok(Some(Literal { ty: Type::Tuple(types), payload: Payload::Items(items) }))
}

/// The integers of a vector.
fn values(payload: &Payload) -> Option<Vec<i64>> {
    match payload {
        Payload::Tensor(t) => {
            t.as_slice::<i32>().ok().map(|v| v.iter().copied().map(i64::from).collect())
        }
        _ => None,
    }
}

/// The value of the entry `name`.
fn entry<'p>(entries: &'p [(Payload, Payload)], name: &str) -> Option<&'p Payload> {
    entries.iter().find(|(k, _)| *k == key(name)).map(|(_, v)| v)
}

/// The entries of the attribute's part `name`.
fn part<'l>(attribute: &'l Literal, name: &str) -> &'l [(Payload, Payload)] {
    let Payload::Items(parts) = &attribute.payload else { return &[] };
    let found = parts.iter().find_map(|part| match part {
        Payload::Items(pair) => match pair.as_slice() {
            [k, Payload::Entries(entries)] if *k == key(name) => Some(entries.as_slice()),
            _ => None,
        },
        _ => None,
    });
    found.unwrap_or_default()
}

/// What the attribute says of input `name`: its default shape and the others. `None` if nothing.
pub(super) fn of_input(attribute: &Literal, name: &str) -> Option<(Vec<i64>, ShapeFlexibility)> {
    let default = values(entry(part(attribute, "DefaultShapes"), name)?)?;
    let ranges = entry(part(attribute, "RangeDims"), name);
    if let Some(Payload::Items(ranges)) = ranges {
        let range = |p: &Payload| match *values(p)?.as_slice() {
            [low, high] => {
                Some(SizeRange { lower_bound: low.try_into().ok()?, upper_bound: high }.into())
            }
            _ => None,
        };
        let size_ranges = ranges.iter().map(range).collect::<Option<_>>()?;
        return Some((default, ShapeFlexibility::Range(ShapeRange { size_ranges }.into())));
    }
    let shape = |(_, choice): &(Payload, Payload)| match choice {
        Payload::Entries(inputs) => entry(inputs, name).and_then(values),
        _ => None,
    };
    let shapes = part(attribute, "EnumeratedShapes").iter().filter_map(shape);
    let shapes: Vec<Kept<Shape>> = shapes.map(|shape| Shape { shape }.into()).collect();
    (!shapes.is_empty())
        .then_some((default, ShapeFlexibility::Enumerated(EnumeratedShapes { shapes }.into())))
}
