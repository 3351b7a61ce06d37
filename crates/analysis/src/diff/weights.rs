//! Weights of two functions that stand in the same place: how each is stored, and how far apart their numbers are.

use mil::Arg;
use serde::Serialize;

use crate::constants::{Constant, Scope};
use crate::difference::Difference;
use crate::encoding::encoding;

/// How a weight is stored.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Stored {
    /// Its name.
    pub name: String,
    /// Its type when it is decompressed.
    #[serde(rename = "type")]
    pub ty: String,
    /// Its encoding for people.
    pub encoding: String,
    /// Bytes it takes as stored.
    pub bytes: u64,
}

/// A weight that differs; from nothing if it was added, to nothing if it was removed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WeightChange {
    /// Kind and name of the first operation that uses it, and the argument it is.
    pub used_by: String,
    /// In the first function.
    pub from: Option<Stored>,
    /// In the second.
    pub to: Option<Stored>,
    /// Of the numbers; `None` if there are none on one side, or the shapes differ.
    pub difference: Option<Difference>,
}

/// The name of the weight that is argument `arg`: of the value, or of the tensor in the store.
pub(super) fn name(scope: &Scope<'_>, arg: &Arg) -> String {
    match arg {
        Arg::Value(v) => scope.function.values[*v].name.clone(),
        Arg::Literal(literal) => match &literal.payload {
            mil::Payload::Weight(id) => {
                scope.program.weights.get(*id).map_or(String::new(), |w| w.name.clone())
            }
            _ => String::new(),
        },
        Arg::List(_) => String::new(),
    }
}

pub(super) fn stored<'a>(scope: &Scope<'a>, arg: &'a Arg, constant: Constant<'a>) -> Stored {
    Stored {
        name: name(scope, arg),
        ty: scope.ty(constant).to_string(),
        encoding: encoding(scope, constant),
        bytes: scope.stored_bytes(constant),
    }
}

/// The change between two weights that are not the same.
///
/// # Errors
/// When one cannot be decompressed.
pub(super) fn change<'a, 'b>(
    (a, from): (&Scope<'a>, Option<&'a Arg>),
    (b, to): (&Scope<'b>, Option<&'b Arg>),
    used_by: String,
) -> mil::Result<WeightChange> {
    let x = from.and_then(|arg| Some((arg, a.constant(arg)?)));
    let y = to.and_then(|arg| Some((arg, b.constant(arg)?)));
    let difference = match (x, y) {
        (Some((_, x)), Some((_, y))) if shape(a, x) == shape(b, y) => {
            Difference::new(&*a.array(x)?, &*b.array(y)?)
        }
        _ => None,
    };
    let from = x.map(|(arg, x)| stored(a, arg, x));
    let to = y.map(|(arg, y)| stored(b, arg, y));
    Ok(WeightChange { used_by, from, to, difference })
}

fn shape<'a>(scope: &Scope<'a>, constant: Constant<'a>) -> Option<&'a [mil::Dim]> {
    scope.ty(constant).as_tensor().map(|t| t.shape.as_slice())
}
