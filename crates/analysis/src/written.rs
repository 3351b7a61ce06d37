//! Constants in words.

use mil::eval::{Array, Data};
use mil::{Literal, Payload};
use tensor::{DType, WeightStore};

/// Elements of a constant that are written out.
const WRITTEN: usize = 16;

/// A constant for people: its elements if they are few, with the type in front if `typed`, else its type.
pub(crate) fn literal(weights: &WeightStore, literal: &Literal, typed: bool) -> String {
    let ty = &literal.ty;
    let elements = match &literal.payload {
        Payload::Strings(strings) => strings.iter().map(|s| format!("{s:?}")).collect(),
        _ => literal.resolve(weights).filter(|t| t.len() <= WRITTEN).map_or_else(Vec::new, |t| {
            Array::from_tensor(t).map_or_else(|_| Vec::new(), |array| elements(&array))
        }),
    };
    let scalar = ty.as_tensor().is_some_and(|t| t.rank() == 0);
    match (&*elements, scalar) {
        ([one], true) if typed => format!("{ty} {one}"),
        ([one], true) => one.clone(),
        ([], _) => ty.to_string(),
        (several, _) if typed => format!("{ty} [{}]", several.join(", ")),
        (several, _) => format!("[{}]", several.join(", ")),
    }
}

fn elements(array: &Array) -> Vec<String> {
    match &array.data {
        Data::Float(v) if array.dtype == DType::F64 => v.iter().map(f64::to_string).collect(),
        // As few digits as tell it from its neighbours.
        Data::Float(v) => v.iter().map(|&x| short(x as f32)).collect(),
        Data::Int(v) => v.iter().map(ToString::to_string).collect(),
        Data::Bool(v) => v.iter().map(ToString::to_string).collect(),
        Data::Str(v) => v.clone(),
    }
}

fn short(x: f32) -> String {
    let plain = (1e-4..1e7).contains(&x.abs()) || x == 0.0 || !x.is_finite();
    if plain { x.to_string() } else { format!("{x:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_in_words() {
        let weights = WeightStore::new();
        let words = |l: Literal, typed| literal(&weights, &l, typed);
        assert_eq!(words(Literal::scalar(1e-5f32), false), "1e-5");
        assert_eq!(words(Literal::scalar(1e-5f32), true), "fp32 1e-5");
        assert_eq!(words(Literal::vector(&[1i32, -1]), false), "[1, -1]");
        assert_eq!(words(Literal::string("a\"b"), false), r#""a\"b""#);
        assert_eq!(words(Literal::vector(&[0f32; 17]), false), "tensor<fp32, [17]>");
        assert_eq!(words(Literal::scalar(f32::NEG_INFINITY), false), "-inf");
    }
}
