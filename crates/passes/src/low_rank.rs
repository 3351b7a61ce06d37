//! Low-rank changes of linear layers, `y += B (A x)`, as inputs of a program: an adapter is given with
//! each run, and another one needs no other program. This is the form for whoever runs the language-model
//! dialect as it is; [`ane::lower`](crate::ane::lower) has one of its own.

use std::collections::BTreeMap;

use mil::{
    Arg, Dim, Function, Literal, OpError, OpKind, OpView, Payload, Program, TensorType, ValueId,
};
use tensor::DType;

use crate::ane::AdapterSlot;
use crate::gated_mlp;
use crate::rebuild::{Results, Site, rebuild};

/// Names of the inputs `A` `[rank, in]` and `B` `[out, rank]` of slot number `slot`.
pub fn input_names(slot: usize) -> [String; 2] {
    [format!("lora_a_{slot}"), format!("lora_b_{slot}")]
}

/// Whether function `function` takes the factors of slot number `slot` as inputs.
pub fn takes_inputs(function: &Function, slot: usize) -> bool {
    input_names(slot).iter().all(|name| function.input(name).is_some())
}

/// Gives the functions of `program` that are `wanted` two [inputs](input_names), fp32, for each of the
/// `slots` of whose layers they have one. `y = llm.linear(x, W)` becomes
/// `y = llm.linear(x, W) + scale llm.linear(llm.linear(x, A), B)`; a gated feed-forward layer with such a
/// weight first becomes the layers that it is made of. Whoever trains factors needs the scale, for it scales
/// gradients; else `B` may hold it.
///
/// # Errors
/// When an operation is invalid.
pub fn low_rank_inputs(
    program: &mut Program,
    slots: &[AdapterSlot],
    scale: f32,
    wanted: &dyn Fn(&str) -> bool,
) -> mil::Result<()> {
    let slots: Slots<'_> =
        slots.iter().enumerate().map(|(n, s)| (s.weight.as_str(), (n, s.rank))).collect();
    let names: Vec<String> = program.functions.keys().filter(|n| wanted(n)).cloned().collect();
    for name in names {
        rebuild(program, &name, &mut |site| split_gated(site, &slots))?;
        let mut inputs = BTreeMap::new();
        rebuild(program, &name, &mut |site| branch(site, &slots, scale, &mut inputs))?;
    }
    Ok(())
}

/// Numbers and ranks of slots by the names of their weights.
type Slots<'s> = BTreeMap<&'s str, (usize, usize)>;

/// The name of the weight that is argument `parameter`.
fn weight_name<'a>(view: &OpView<'a>, parameter: &str) -> Option<&'a str> {
    match view.literal(parameter)?.payload {
        Payload::Weight(id) => Some(view.weights.get(id)?.name.as_str()),
        _ => None,
    }
}

/// A gated feed-forward layer with a slot as linear layers, which keep weights in their block formats.
fn split_gated(site: &mut Site<'_, '_>, slots: &Slots<'_>) -> Result<Option<Results>, OpError> {
    let view = site.view();
    let has_slot = |parameter: &&str| {
        weight_name(&view, parameter).is_some_and(|name| slots.contains_key(name))
    };
    if view.kind != OpKind::LlmGatedMlp || !["gate", "up", "down"].iter().any(has_slot) {
        return Ok(None);
    }
    let name = site.function.values[site.function.ops[site.id].outputs[0]].name.clone();
    Ok(Some(vec![Some(gated_mlp::split(&view, site.b, &name)?)]))
}

/// A linear layer with its slot's change added.
fn branch(
    site: &mut Site<'_, '_>,
    slots: &Slots<'_>,
    scale: f32,
    inputs: &mut BTreeMap<usize, [ValueId; 2]>,
) -> Result<Option<Results>, OpError> {
    let view = site.view();
    let slot = weight_name(&view, "weight").and_then(|name| slots.get(name));
    let (OpKind::LlmLinear, Some(&(number, rank))) = (view.kind, slot) else { return Ok(None) };
    let shape = &view.tensor("weight")?.shape;
    let [a, b_factor] = *inputs.entry(number).or_insert_with(|| {
        let [a, b] = input_names(number);
        let factor = |shape: [Dim; 2]| TensorType::new(DType::F32, shape);
        [
            site.b.input(&a, factor([rank.into(), shape[1].clone()])),
            site.b.input(&b, factor([shape[0].clone(), rank.into()])),
        ]
    });
    let x = view.required("x")?.clone();
    let name = site.function.values[site.function.ops[site.id].outputs[0]].name.clone();
    let b = &mut *site.b;
    let mut linear = |x: Arg, weight: Arg, bias: Option<Arg>, end: &str| {
        let op = b.op(OpKind::LlmLinear).arg("x", x).arg("weight", weight).opt_arg("bias", bias);
        Ok::<_, OpError>(op.name(format!("{name}_{end}")).result()?)
    };
    let bias = site.function.ops[site.id].arg("bias").cloned();
    let plain = linear(x.clone(), view.required("weight")?.clone(), bias, "plain")?;
    let low = linear(x, a.into(), None, "low")?;
    let mut change = linear(low.into(), b_factor.into(), None, "change")?;
    if scale != 1.0 {
        let scale = match view.tensor("x")?.dtype {
            DType::F16 => Literal::scalar(half::f16::from_f32(scale)),
            _ => Literal::scalar(scale),
        };
        let scaled = site.b.op(OpKind::Mul).arg("x", change).arg("y", scale);
        change = scaled.name(format!("{name}_scaled")).result()?;
    }
    let sum = site.b.op(OpKind::Add).arg("x", plain).arg("y", change);
    Ok(Some(vec![Some(sum.name(format!("{name}_adapted")).result()?)]))
}
