//! How a weight is stored, in words: its type, or how it is compressed.

use std::collections::BTreeMap;

use mil::{OpKind, TensorType, Type};

use crate::constants::{Constant, Scope};

/// Deepest nesting that is described.
const DEPTH: usize = 3;

/// The encoding of a constant for people: `fp16`, or such as `4-bit palette of fp16` or
/// `int4 in blocks of [1, 32], scales fp16`.
pub(crate) fn encoding(scope: &Scope<'_>, constant: Constant<'_>) -> String {
    within(scope, constant, DEPTH)
}

fn tensor<'a>(scope: &Scope<'a>, constant: Constant<'a>) -> Option<&'a TensorType> {
    scope.ty(constant).as_tensor()
}

fn within<'a>(scope: &Scope<'a>, constant: Constant<'a>, depth: usize) -> String {
    let op = match constant {
        Constant::Literal(literal) => {
            return literal.ty.as_tensor().map_or(literal.ty.to_string(), |t| t.dtype.to_string());
        }
        Constant::Compressed(op, _) => op,
    };
    let kind = scope.function.ops[op].kind;
    if depth == 0 {
        return kind.name().to_owned();
    }
    let operands = scope.operands(op);
    let part = |name: &str| operands.get(name).map(|&c| within(scope, c, depth - 1));
    let part = |name: &str| part(name).unwrap_or_else(|| "?".to_owned());
    let offset = |name: &str| if operands.contains_key(name) { " and offsets" } else { "" };
    let shape = scope.ty(constant).as_tensor().map(|t| t.shape.clone()).unwrap_or_default();
    match kind {
        OpKind::ConstexprLutToDense => palette(scope, &operands, "indices", &part("lut")),
        OpKind::ConstexprLutToSparse => {
            let palette = palette(scope, &operands, "indices_nonzero_data", &part("lut"));
            format!("sparse, {palette}")
        }
        OpKind::ConstexprSparseToDense => {
            let whole: Option<usize> = shape.iter().map(|d| d.fixed()).product();
            let kept = operands.get("nonzero_data").and_then(|&c| tensor(scope, c));
            // What is kept may be compressed itself, and then its type says the whole shape.
            let kept = kept.and_then(|t| t.fixed_shape()).filter(|s| s.len() == 1).map(|s| s[0]);
            let share = match (kept, whole) {
                (Some(kept), Some(whole)) if whole > 0 => {
                    format!(" ({:.0} % kept)", kept as f64 / whole as f64 * 100.0)
                }
                _ => String::new(),
            };
            let data = part("nonzero_data");
            let data = data.strip_prefix("sparse, ").unwrap_or(&data);
            format!("sparse, {data}{share}")
        }
        OpKind::ConstexprBlockwiseShiftScale => {
            let data = operands.get("data").and_then(|&c| tensor(scope, c));
            let blocks = blocks(data, operands.get("scale").and_then(|&c| tensor(scope, c)));
            format!("{}{blocks}, scales{} {}", part("data"), offset("offset"), part("scale"))
        }
        OpKind::ConstexprSparseBlockwiseShiftScale => {
            let data = part("nonzero_data");
            let data = data.strip_prefix("sparse, ").unwrap_or(&data);
            format!("sparse, {data}, scales{} {}", offset("offset"), part("scale"))
        }
        OpKind::ConstexprAffineDequantize => {
            let data = part("quantized_data");
            let scales = operands.get("scale").and_then(|&c| tensor(scope, c));
            let each = match scales.map(TensorType::rank) {
                Some(0) => "one scale",
                _ => "a scale for each channel",
            };
            format!("{data}, {each} and offset {}", part("scale"))
        }
        OpKind::ConstexprCast => {
            format!("{} as {}", part("source_val"), described(scope, constant))
        }
        _ => kind.name().to_owned(),
    }
}

fn described(scope: &Scope<'_>, constant: Constant<'_>) -> String {
    let ty: &Type = scope.ty(constant);
    ty.as_tensor().map_or_else(|| ty.to_string(), |t| t.dtype.to_string())
}

/// The words for a palette with entries of encoding `entry`.
fn palette<'a>(
    scope: &Scope<'a>,
    operands: &BTreeMap<&str, Constant<'a>>,
    indices: &str,
    entry: &str,
) -> String {
    let lut = operands.get("lut").and_then(|&c| tensor(scope, c)).and_then(|t| t.fixed_shape());
    let sizes = lut.unwrap_or_default();
    // One palette alone is a vector in iOS 16's form; else groups, entries and the length of each come after each
    // other.
    let (groups, entries, length) = match &*sizes {
        &[n] => (1, n, 1),
        [groups @ .., n, length] => (groups.iter().product(), *n, *length),
        [] => (1, 0, 1),
    };
    let typed = operands.get(indices).and_then(|&c| tensor(scope, c)).map(|t| t.dtype.bits());
    let bits = if entries > 0 { entries.ilog2() } else { typed.unwrap_or(0.0) as u32 };
    let count = if groups == 1 { "palette".to_owned() } else { format!("palettes ({groups})") };
    let vectors = if length > 1 { format!("vectors of {length} ") } else { String::new() };
    format!("{bits}-bit {count} of {vectors}{entry}")
}

/// How much of the data a scale is for.
fn blocks(data: Option<&TensorType>, scale: Option<&TensorType>) -> String {
    let sizes = |t: Option<&TensorType>| t.and_then(TensorType::fixed_shape);
    let (Some(data), Some(scale)) = (sizes(data), sizes(scale)) else { return String::new() };
    if scale.iter().all(|&n| n == 1) {
        return String::new();
    }
    let block: Vec<usize> = data.iter().zip(&scale).map(|(n, s)| n / s.max(&1)).collect();
    format!(" in blocks of {block:?}")
}
