//! Operations with exponentials, powers, or roots of sums: against values with 200 bits.

use half::f16;
use mil::eval::{Array, Data};
use mil::{Literal, OpKind};
use tensor::DType;
use testkit::seeded;

use super::case::{Args, Case, check};
use super::{Line, constant, golden, halves, is_digests};
use crate::common::In;
use crate::plain::{int, int_list, str};

fn sizes(text: &str) -> Vec<usize> {
    text.split('x').map(|n| n.parse().unwrap()).collect()
}

/// `scale+offset:shape`, as the head of fp16.py says.
fn random(name: &str, text: &str) -> Array {
    let (numbers, shape) = text.split_once(':').unwrap();
    let (scale, offset) = numbers.split_once('+').unwrap_or((numbers, "0"));
    let (shape, offset) = (sizes(shape), offset.parse::<f64>().unwrap());
    let count = shape.iter().product();
    let values = seeded::tensor(16, name, count, scale.parse().unwrap());
    let values = values.into_iter().map(|v| f16::from_f32(v).to_f64() + offset);
    halves(&shape, values.map(f16::from_f64))
}

/// Whether a query attends a key, by the mask's shape.
fn attended(shape: &[usize]) -> impl Iterator<Item = bool> {
    let keys = shape[1];
    (0..shape[0] * keys).map(move |i| i % keys <= i / keys)
}

fn bools(shape: &[usize]) -> Array {
    let data = Data::Bool(attended(shape).collect());
    Array { dtype: DType::Bool, shape: shape.to_vec(), data }
}

/// The argument `name` of `kind` that `text` stands for.
fn argument(kind: OpKind, name: &str, text: &str) -> In {
    let fixed = kind.def().params().iter().any(|p| p.name == name && p.constant);
    let placed = |array: Array| if fixed { constant(&array).into() } else { array.into() };
    if let Some(text) = text.strip_prefix('~') {
        return placed(random(name, text));
    }
    if let Some(list) = text.strip_prefix("#[") {
        let list = list.strip_suffix(']').unwrap();
        return int_list(&list.split(',').map(|n| n.parse().unwrap()).collect::<Vec<_>>());
    }
    if let Some(number) = text.strip_prefix('#') {
        return int(number.parse().unwrap());
    }
    if let Some(shape) = text.strip_prefix("causal:") {
        return bools(&sizes(shape)).into();
    }
    if let Some(shape) = text.strip_prefix("bias:") {
        let number = |seen| if seen { f16::ZERO } else { f16::NEG_INFINITY };
        let shape = sizes(shape);
        return halves(&shape, attended(&shape).map(number)).into();
    }
    match (u16::from_str_radix(text, 16), text.parse()) {
        (Ok(bits), _) => Literal::scalar(f16::from_bits(bits)).into(),
        (_, Ok(truth)) => Literal::bool(truth).into(),
        _ => str(text),
    }
}

pub(super) fn cases() -> Vec<Case> {
    let case = |(name, given, results): Line| {
        let kind = OpKind::from_name(&name).unwrap();
        let params = kind.def().params();
        let named = |name: &str| params.iter().find(|p| p.name == name).unwrap().name;
        let args: Args =
            given.iter().map(|(name, text)| (named(name), argument(kind, name, text))).collect();
        let expected = results.iter().map(|b| u16::from_str_radix(b, 16).unwrap()).collect();
        Case { kind, label: format!("{given:?}"), args, expected }
    };
    let others = golden().into_iter().filter(|(name, _, rest)| !is_digests(rest) && name != "pow");
    others.map(case).collect()
}

#[test]
fn rounded_once() {
    let compared = check(cases());
    assert!(compared >= 2400, "only {compared} numbers");
}
