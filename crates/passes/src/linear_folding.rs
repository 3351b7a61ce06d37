//! Takes constant factors and summands around a layer into its weight and bias.

use std::collections::HashMap;

use mil::eval::{Array, Data, tensor_floats};
use mil::{
    Arg, Function, Literal, OpError, OpId, OpKind, Payload, Program, TensorType, ValueDef, ValueId,
};
use tensor::{DType, Tensor, WeightId, WeightStore};

use crate::affine::Affine;
use crate::dead_code::DeadCode;
use crate::rebuild::{Results, Site, rebuild, uses};
use crate::rewrite::{for_each_block, is_own, weight_uses};
use crate::{Pass, Property};

/// Takes constant factors and summands around a layer into its weight and bias.
pub(crate) struct LinearFolding;

impl Pass for LinearFolding {
    fn name(&self) -> &'static str {
        "linear_folding"
    }

    fn doc(&self) -> &'static str {
        "Takes add, sub, mul, real_div by constants (one number, or one a channel), batch_norm and \
         linear_activation behind or in front of conv, conv_transpose, linear and matmul with a constant \
         into weight and bias. They are computed in double precision and rounded once; a product whose \
         weights would leave the normal range of their type stays, and so does one with a weight that \
         something else uses or that is compressed. Not exact: the layer's result is rounded once where it \
         was rounded after each operation.\n\
         before: a = conv(x = x, weight = w); b = mul(x = a, y = s); c = add(x = b, y = t) -> (c)\n\
         after:  c = conv(x = x, weight = w * s, bias = t) -> (c)"
    }

    fn breaks(&self) -> &'static [Property] {
        &[Property::UniqueConstants]
    }

    fn exact(&self) -> bool {
        false
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let mut total = 0;
        loop {
            let Some(function) = program.functions.get(name) else { return Ok(total) };
            let known = Known {
                uses: uses(function),
                weights: weight_uses(program),
                blocks: blocks(function),
            };
            let changed = rebuild(program, name, &mut |site| fold(site, &known))?;
            if changed == 0 {
                return Ok(total);
            }
            DeadCode.run(program, name)?;
            total += changed;
        }
    }
}

/// How often values of the function, and weights of the program, are used, and the number of the block in
/// which each operation stands.
struct Known {
    uses: HashMap<ValueId, usize>,
    weights: HashMap<WeightId, usize>,
    blocks: HashMap<OpId, usize>,
}

fn blocks(function: &Function) -> HashMap<OpId, usize> {
    let (mut blocks, mut number) = (HashMap::new(), 0);
    for_each_block(function, &mut |block| {
        blocks.extend(block.ops.iter().map(|&op| (op, number)));
        number += 1;
    });
    blocks
}

/// A layer with a constant weight.
struct Layer<'a> {
    kind: OpKind,
    x: ValueId,
    x_ty: &'a TensorType,
    weight: &'a Literal,
    tensor: &'a Tensor,
    bias: Option<&'a Tensor>,
    /// Whether nothing else uses the weight.
    own_weight: bool,
    /// Channels in and out.
    channels: [usize; 2],
    groups: usize,
    /// For a product of matrices: whether the weight is `[out, in]`, and whether `x` is turned.
    turned: [bool; 2],
    /// Whether zeros are put around `x`.
    padded: bool,
}

impl<'a> Layer<'a> {
    /// The layer that operation `id` is.
    fn of(
        function: &'a Function,
        weights: &'a WeightStore,
        id: OpId,
        known: &Known,
    ) -> Option<Self> {
        let op = &function.ops[id];
        let view = mil::OpView::new(function, weights, op);
        let name = match op.kind {
            OpKind::Conv | OpKind::ConvTranspose | OpKind::Linear => "weight",
            OpKind::Matmul => "y",
            _ => return None,
        };
        let Some(&Arg::Value(x)) = op.arg("x") else { return None };
        let weight = view.literal(name)?;
        let tensor = weight.resolve(weights).filter(|t| is_plain(t.dtype()))?;
        let bias = match view.arg("bias") {
            Some(arg) => Some(function.const_arg(arg)?.resolve(weights)?),
            None => None,
        };
        let shape = tensor.shape();
        let int = |name| view.int(name).ok().flatten().unwrap_or(1);
        let groups = usize::try_from(int("groups")).ok().filter(|&g| g > 0)?;
        let flag = |name| view.bool_or(name, false).unwrap_or(false);
        let turned = [flag("transpose_y"), flag("transpose_x")];
        let channels = match (op.kind, shape) {
            (OpKind::Conv, [out, inner, ..]) => [inner * groups, *out],
            (OpKind::ConvTranspose, [input, outer, ..]) => [*input, outer * groups],
            (OpKind::Linear, [out, input]) => [*input, *out],
            (OpKind::Matmul, [out, input]) if turned[0] => [*input, *out],
            (OpKind::Matmul, [input, out]) => [*input, *out],
            _ => return None,
        };
        let used_once = match op.arg(name) {
            Some(Arg::Value(v)) => known.uses.get(v) == Some(&1),
            _ => true,
        };
        let padded = match view.str("pad_type").ok()?.unwrap_or("valid") {
            "valid" => false,
            "custom" => view.ints("pad").ok()?.is_some_and(|p| p.iter().any(|&n| n != 0)),
            _ => true,
        };
        let x_ty = function.tensor_ty(x)?;
        let own_weight = used_once && is_own(weight, &known.weights);
        let kind = op.kind;
        let layer = Layer {
            kind,
            x,
            x_ty,
            weight,
            tensor,
            bias,
            own_weight,
            channels,
            groups,
            turned,
            padded,
        };
        (x_ty.rank() >= 2).then_some(layer)
    }

    /// The axis of channels in a tensor of `rank` axes, going in or out.
    fn channel_axis(&self, rank: usize) -> usize {
        match self.kind {
            OpKind::Conv | OpKind::ConvTranspose => 1,
            // A number has no axes: 0 is then none of them.
            _ => rank.saturating_sub(1),
        }
    }

    /// Channels, in and out, that element `i` of the weight connects.
    fn connects(&self, i: usize) -> [usize; 2] {
        let ([input, out], shape) = (self.channels, self.tensor.shape());
        let taps: usize = shape[2..].iter().product();
        match self.kind {
            OpKind::Conv => {
                let (inner, to) = (shape[1], i / (shape[1] * taps));
                [to / (out / self.groups) * inner + i / taps % inner, to]
            }
            OpKind::ConvTranspose => {
                let (outer, from) = (shape[1], i / (shape[1] * taps));
                [from, from / (input / self.groups) * outer + i / taps % outer]
            }
            OpKind::Matmul if !self.turned[0] => [i / out, i % out],
            _ => [i % input, i / input],
        }
    }

    fn biases(&self) -> Option<Vec<f64>> {
        match self.bias {
            Some(bias) => tensor_floats(bias),
            None => Some(vec![0.0; self.channels[1]]),
        }
    }

    /// Weight and bias of the layer followed by `a`; `None` for a weight that stays as it is.
    fn then(&self, a: &Affine) -> Option<(Option<Tensor>, Vec<f64>)> {
        let bias = self.biases()?;
        let folded = bias.iter().enumerate().map(|(c, b)| b * a.scale(c) + a.shift(c)).collect();
        if a.keeps_scale() {
            return Some((None, folded));
        }
        let scaled = tensor_floats(self.tensor)?;
        let scaled = scaled.iter().enumerate().map(|(i, w)| w * a.scale(self.connects(i)[1]));
        Some((Some(self.rounded(scaled.collect())?), folded))
    }

    /// Weight and bias of the layer behind `a`.
    fn after(&self, a: &Affine) -> Option<(Option<Tensor>, Vec<f64>)> {
        let through = !self.padded && self.kind != OpKind::ConvTranspose;
        if (self.kind == OpKind::Matmul && self.turned[1]) || !(a.keeps_shift() || through) {
            return None;
        }
        let weights = tensor_floats(self.tensor)?;
        let mut bias = self.biases()?;
        let mut scaled = Vec::with_capacity(weights.len());
        for (i, w) in weights.into_iter().enumerate() {
            let [from, to] = self.connects(i);
            bias[to] += w * a.shift(from);
            scaled.push(w * a.scale(from));
        }
        let weight = if a.keeps_scale() { None } else { Some(self.rounded(scaled)?) };
        Some((weight, bias))
    }

    /// The weight with other values; `None` if those of a channel leave the type's normal range.
    fn rounded(&self, values: Vec<f64>) -> Option<Tensor> {
        let dtype = self.tensor.dtype();
        let mut largest = vec![0f64; self.channels[1]];
        for (i, v) in values.iter().enumerate() {
            let channel = &mut largest[self.connects(i)[1]];
            *channel = channel.max(v.abs());
        }
        let fits = largest.iter().all(|&v| v == 0.0 || v >= least_normal(dtype));
        let shape = self.tensor.shape().to_vec();
        let array = Array { dtype, shape, data: Data::Float(values) };
        let tensor = array.to_tensor().ok().filter(|_| fits)?;
        let finite = tensor_floats(&tensor)?.iter().all(|v| v.is_finite());
        finite.then_some(tensor)
    }
}

/// Float types whose weights are folded.
fn is_plain(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::F32 | DType::F64)
}

/// The least number of full precision.
fn least_normal(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f64::from(2f32.powi(-14)),
        DType::F32 => f64::from(f32::MIN_POSITIVE),
        _ => f64::MIN_POSITIVE,
    }
}

/// What a layer becomes.
struct Folded<'a> {
    layer: Layer<'a>,
    id: OpId,
    x: ValueId,
    /// The new weight, if it changes.
    weight: Option<Tensor>,
    bias: Vec<f64>,
}

fn fold(site: &mut Site<'_, '_>, known: &Known) -> Result<Option<Results>, OpError> {
    match behind(site, known).or_else(|| in_front(site, known)) {
        Some(folded) if folded.weight.is_none() || folded.layer.own_weight => emit(site, folded),
        _ => Ok(None),
    }
}

/// The layer whose result the operation scales and shifts.
fn behind<'a>(site: &Site<'a, '_>, known: &Known) -> Option<Folded<'a>> {
    let (function, weights) = (site.function, site.weights);
    let before = ["x", "y"].iter().filter_map(|name| match function.ops[site.id].arg(name) {
        Some(&Arg::Value(v)) => maker(function, v, known),
        _ => None,
    });
    // A layer in front of a loop would move into it and run in each round.
    let beside = |id: &OpId| known.blocks.get(id) == known.blocks.get(&site.id);
    before.filter(beside).find_map(|id| {
        let layer = Layer::of(function, weights, id, known)?;
        let axis = |rank| layer.channel_axis(rank);
        let (_, affine) = Affine::of(function, weights, site.id, layer.channels[1], axis)?;
        let (weight, bias) = layer.then(&affine)?;
        Some(Folded { x: layer.x, layer, id, weight, bias })
    })
}

/// The operation as a layer of what the one before scales and shifts.
fn in_front<'a>(site: &Site<'a, '_>, known: &Known) -> Option<Folded<'a>> {
    let (function, weights) = (site.function, site.weights);
    let layer = Layer::of(function, weights, site.id, known)?;
    let before = maker(function, layer.x, known)?;
    let axis = |rank| layer.channel_axis(rank);
    let (x, affine) = Affine::of(function, weights, before, layer.channels[0], axis)?;
    let (weight, bias) = layer.after(&affine)?;
    Some(Folded { layer, id: site.id, x, weight, bias })
}

/// The operation that makes `v`, if nothing but one operation uses `v`.
fn maker(function: &Function, v: ValueId, known: &Known) -> Option<OpId> {
    match function.values[v].def {
        ValueDef::Result(id, 0) if known.uses.get(&v) == Some(&1) => Some(id),
        _ => None,
    }
}

fn emit(site: &mut Site<'_, '_>, folded: Folded<'_>) -> Result<Option<Results>, OpError> {
    let Folded { layer, id, x, weight, bias } = folded;
    let dtype = layer.tensor.dtype();
    let biased = layer.bias.is_some() || bias.iter().any(|&b| b != 0.0);
    let bias = Array { dtype, shape: vec![bias.len()], data: Data::Float(bias) }.to_tensor()?;
    if tensor_floats(&bias).is_none_or(|v| v.iter().any(|b| !b.is_finite())) {
        return Ok(None);
    }
    // A product of matrices has no bias: it becomes a linear layer, whose weight is [out, in].
    let linear = layer.kind == OpKind::Matmul && biased;
    let turn = linear && !layer.turned[0];
    if linear && (layer.turned[1] || layer.x_ty.rank() > LINEAR_RANK || !layer.own_weight) {
        return Ok(None);
    }
    let changed = match weight {
        None if turn => Some(layer.tensor.clone()),
        changed => changed,
    };
    let changed = match changed {
        Some(tensor) if turn => Some(Array::from_tensor(&tensor)?.transposed(&[1, 0]).to_tensor()?),
        changed => changed,
    };
    let op = &site.function.ops[id];
    let kind = if linear { OpKind::Linear } else { op.kind };
    let old = if layer.kind == OpKind::Matmul { "y" } else { "weight" };
    let new = if kind == OpKind::Matmul { "y" } else { "weight" };
    let weight = match changed {
        Some(tensor) => constant(site, layer.weight, &weight_name(site, &layer), tensor)?.into(),
        None => op.arg(old).cloned().ok_or_else(|| OpError::invalid("the weight is missing"))?,
    };
    let bias = if biased {
        let name = format!("{}_bias", site.function.values[op.outputs[0]].name);
        Some(constant(site, layer.weight, &name, bias)?)
    } else {
        None
    };
    let mut next = site.b.op(kind).arg("x", x).arg(new, weight).opt_arg("bias", bias);
    if !linear {
        for (param, arg) in kind.def().params().iter().zip(&op.args) {
            if !["x", new, "bias"].contains(&param.name) {
                next = next.opt_arg(param.name, arg.clone());
            }
        }
    }
    Ok(Some(vec![Some(next.result()?)]))
}

/// The most axes that Core ML's linear layer takes.
const LINEAR_RANK: usize = 3;

/// A constant that is held as `like` is: in the weight store or in the program.
fn constant(
    site: &mut Site<'_, '_>,
    like: &Literal,
    name: &str,
    tensor: Tensor,
) -> Result<ValueId, OpError> {
    Ok(match like.payload {
        Payload::Weight(_) => site.b.new_weight(name, tensor)?,
        _ => site.b.constant(name, Literal::tensor(tensor)),
    })
}

fn weight_name(site: &Site<'_, '_>, layer: &Layer<'_>) -> String {
    match layer.weight.payload {
        Payload::Weight(id) => site.weights.get(id).map(|w| w.name.clone()).unwrap_or_default(),
        _ => "weight".to_owned(),
    }
}
