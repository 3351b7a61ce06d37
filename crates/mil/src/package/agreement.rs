//! Whether a model's description says what its functions' signatures do.

use std::collections::{BTreeMap, BTreeSet};

use super::description::{Feature, Image, Kind, Shapes, interface};
use super::proto::ModelDescription;
use crate::{Dim, Error, Function, OpError, Program, Result, TensorType, Type, ValueId};

/// Checks that a description has the functions of `program`, and of each the same inputs, states and
/// outputs, of types and sizes that are the program's. It may leave sizes open, and narrow those that
/// the program leaves open.
///
/// # Errors
/// The first feature that is not as the program has it.
pub(super) fn check(description: &ModelDescription, program: &Program) -> Result<()> {
    fn at(name: &str) -> impl Fn(OpError) -> Error + '_ {
        move |e| Error::new(e.kind, e.message).in_function(name)
    }
    for (name, function) in &program.functions {
        let stated = interface(description, name);
        // The features of the model itself are those of its only function.
        let own = program.functions.len() == 1 || !description.functions.is_empty();
        let unknown = || OpError::invalid("the description does not know the function");
        let stated = stated.filter(|_| own).ok_or_else(unknown).map_err(at(name))?;
        let inputs: Vec<&Feature> = stated.inputs.iter().chain(&stated.states).collect();
        features("input", &inputs, function, &function.inputs).map_err(at(name))?;
        let outputs: Vec<&Feature> = stated.outputs.iter().collect();
        features("output", &outputs, function, &function.body.outputs).map_err(at(name))?;
    }
    match description.functions.iter().find(|f| !program.functions.contains_key(&f.name)) {
        None => Ok(()),
        Some(f) => {
            let message = "the description has a function that the program lacks";
            Err(at(&f.name)(OpError::invalid(message)))
        }
    }
}

fn features(
    what: &str,
    stated: &[&Feature],
    function: &Function,
    values: &[ValueId],
) -> Result<(), OpError> {
    let own: BTreeMap<&str, ValueId> =
        values.iter().map(|&v| (function.values[v].name.as_str(), v)).collect();
    let mut met = BTreeSet::new();
    for feature in stated {
        let name = &feature.name;
        let Some(&value) = own.get(name.as_str()) else {
            let message = format!("the description has an {what} {name} that the program lacks");
            return Err(OpError::invalid(message));
        };
        if !met.insert(name.as_str()) {
            return Err(OpError::invalid(format!("the description has {what} {name} twice")));
        }
        feature_fits(feature, function.ty(value)).map_err(|said| {
            let ty = function.ty(value);
            let message =
                format!("{what} {name} is {ty} in the program, in its description {said}");
            OpError::invalid(message)
        })?;
    }
    match own.keys().find(|name| !met.contains(**name)) {
        None => Ok(()),
        Some(name) => {
            Err(OpError::invalid(format!("the description lacks {what} {name} of the program")))
        }
    }
}

/// Whether a feature can stand for a value of type `ty`.
///
/// # Errors
/// What the feature is, if it cannot.
pub(super) fn feature_fits(feature: &Feature, ty: &Type) -> Result<(), String> {
    match (&feature.kind, ty) {
        (Kind::Array(dtype, shapes), Type::Tensor(t))
        | (Kind::State(dtype, shapes), Type::State(t)) => {
            // A type that Rigel does not know is left to the reader who does.
            if dtype.is_some_and(|d| d != t.dtype) || !shapes_fit(shapes, t) {
                let dtype = dtype.map_or("of unknown type", |d| d.name());
                return Err(format!("{dtype} of {}", described(shapes)));
            }
            Ok(())
        }
        (Kind::Image(image), Type::Tensor(t)) => match image_fits(image, t) {
            true => Ok(()),
            false => {
                Err(format!("an image of {} x {}, {}", image.width, image.height, image.colors))
            }
        },
        (Kind::Int64 | Kind::Double | Kind::String, Type::Tensor(t)) if t.rank() == 0 => Ok(()),
        (Kind::Dictionary { .. }, Type::Dict(..)) | (Kind::Other, _) => Ok(()),
        (kind, _) => Err(match kind {
            Kind::Array(..) => "an array",
            Kind::State(..) => "a state",
            Kind::Image(_) => "an image",
            Kind::Int64 => "an integer",
            Kind::Double => "a double",
            Kind::String => "a string",
            Kind::Dictionary { .. } => "a dictionary",
            Kind::Other => "of another kind",
        }
        .into()),
    }
}

fn described(shapes: &Shapes) -> String {
    match shapes {
        Shapes::Fixed(shape) => format!("shape {shape:?}"),
        Shapes::Range { default, ranges } => format!("shape {default:?} in ranges {ranges:?}"),
        Shapes::Enumerated { shapes, .. } => format!("shapes {shapes:?}"),
    }
}

/// Whether all sizes that `shapes` allows are those of `t`, where it has fixed them.
fn shapes_fit(shapes: &Shapes, t: &TensorType) -> bool {
    let fits = |shape: &[i64]| {
        let same =
            |(dim, &n): (&Dim, &i64)| dim.fixed().is_none_or(|d| usize::try_from(n) == Ok(d));
        shape.len() == t.rank() && t.shape.iter().zip(shape).all(same)
    };
    match shapes {
        // No shape at all leaves it open, and a scalar may be an array of one element.
        Shapes::Fixed(shape) => shape.is_empty() || (t.rank() == 0 && *shape == [1]) || fits(shape),
        Shapes::Enumerated { default, shapes } => {
            fits(default) && shapes.iter().all(|shape| fits(shape))
        }
        Shapes::Range { default, ranges } => {
            let inside = |(dim, &(low, high)): (&Dim, &(u64, Option<u64>))| match dim.fixed() {
                Some(n) => low == n as u64 && high == Some(n as u64),
                None => true,
            };
            fits(default) && ranges.len() == t.rank() && t.shape.iter().zip(ranges).all(inside)
        }
    }
}

/// An image is a tensor whose last three sizes are channels, height and width.
fn image_fits(image: &Image, t: &TensorType) -> bool {
    let [.., channels, height, width] = t.shape.as_slice() else { return false };
    let is = |dim: &Dim, n: i64| dim.fixed().is_none_or(|d| usize::try_from(n) == Ok(d));
    let colors = match image.colors {
        "RGB" | "BGR" => is(channels, 3),
        "GRAYSCALE" | "GRAYSCALE_FLOAT16" => is(channels, 1),
        _ => true,
    };
    colors && (image.flexible || (is(height, image.height) && is(width, image.width)))
}
