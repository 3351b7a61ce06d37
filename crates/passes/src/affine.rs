//! Operations that multiply each channel by a constant and add another one.

use mil::eval::tensor_floats;
use mil::{Arg, Dim, Function, OpId, OpKind, OpView, ValueId};
use tensor::WeightStore;

/// `x * scale + shift`, with one number or one a channel.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Affine {
    scale: Vec<f64>,
    shift: Vec<f64>,
}

impl Affine {
    /// The factor of channel `c`.
    pub(crate) fn scale(&self, c: usize) -> f64 {
        at(&self.scale, c)
    }

    /// The summand of channel `c`.
    pub(crate) fn shift(&self, c: usize) -> f64 {
        at(&self.shift, c)
    }

    /// Whether every factor is 1.
    pub(crate) fn keeps_scale(&self) -> bool {
        self.scale.iter().all(|&s| s == 1.0)
    }

    /// Whether every summand is 0.
    pub(crate) fn keeps_shift(&self) -> bool {
        self.shift.iter().all(|&s| s == 0.0)
    }

    fn shift_by(shift: Vec<f64>) -> Self {
        Affine { scale: vec![1.0], shift }
    }

    fn scale_by(scale: Vec<f64>) -> Self {
        Affine { scale, shift: vec![0.0] }
    }

    /// What operation `id` does to the value returned with it, whose axis `axis(rank)` has `channels`
    /// channels; `None` if it is something else, also where it makes a larger tensor of the value.
    pub(crate) fn of(
        function: &Function,
        weights: &WeightStore,
        id: OpId,
        channels: usize,
        axis: impl Fn(usize) -> usize,
    ) -> Option<(ValueId, Affine)> {
        let op = &function.ops[id];
        let view = OpView::new(function, weights, op);
        let given = |name: &str| match op.arg(name) {
            Some(&Arg::Value(v)) if function.const_of(v).is_none() => Some(v),
            _ => None,
        };
        let (x, other) = match (given("x"), given("y")) {
            (Some(x), None) => (x, "y"),
            (None, Some(y)) => (y, "x"),
            _ => return None,
        };
        let (ty, result) = (function.tensor_ty(x)?, function.tensor_ty(*op.outputs.first()?)?);
        let axis = Some(axis(ty.rank())).filter(|&a| a < ty.rank())?;
        if ty.shape[axis] != Dim::Fixed(channels) || !result.compatible(ty) {
            return None;
        }
        let constant = || by_channel(&view, other, ty.rank(), axis, channels);
        let affine = match (op.kind, other) {
            (OpKind::Add, _) => Self::shift_by(constant()?),
            (OpKind::Sub, "y") => Self::shift_by(map(constant()?, |c| -c)),
            (OpKind::Sub, _) => Affine { scale: vec![-1.0], shift: constant()? },
            (OpKind::Mul, _) => Self::scale_by(constant()?),
            (OpKind::RealDiv, "y") => Self::scale_by(map(constant()?, |c| 1.0 / c)),
            (OpKind::BatchNorm, _) if axis == 1 => Self::of_batch_norm(&view, channels)?,
            (OpKind::LinearActivation, _) => Affine {
                scale: vec![view.float("alpha").ok()??],
                shift: vec![view.float("beta").ok()??],
            },
            _ => return None,
        };
        let finite = affine.scale.iter().chain(&affine.shift).all(|v| v.is_finite());
        finite.then_some((x, affine))
    }

    fn of_batch_norm(view: &OpView<'_>, channels: usize) -> Option<Self> {
        let vector = |name, default: f64| match view.arg(name) {
            Some(_) => by_channel(view, name, 1, 0, channels),
            None => Some(vec![default]),
        };
        let (mean, variance) = (vector("mean", 0.0)?, vector("variance", 1.0)?);
        let (gamma, beta) = (vector("gamma", 1.0)?, vector("beta", 0.0)?);
        let epsilon = view.float("epsilon").ok()?.unwrap_or(1e-5);
        let scale = (0..channels).map(|c| at(&gamma, c) / (at(&variance, c) + epsilon).sqrt());
        let scale: Vec<f64> = scale.collect();
        let shift = (0..channels).map(|c| at(&beta, c) - at(&mean, c) * scale[c]).collect();
        Some(Affine { scale, shift })
    }
}

fn at(values: &[f64], c: usize) -> f64 {
    if values.len() == 1 { values[0] } else { values[c] }
}

fn map(values: Vec<f64>, f: impl Fn(f64) -> f64) -> Vec<f64> {
    values.into_iter().map(f).collect()
}

/// The constant argument `name`: one number, or one for each place along `axis` of a tensor of `rank`
/// axes with which it broadcasts.
fn by_channel(
    view: &OpView<'_>,
    name: &str,
    rank: usize,
    axis: usize,
    channels: usize,
) -> Option<Vec<f64>> {
    let tensor = view.literal(name)?.resolve(view.weights)?;
    if tensor.dtype().is_block_quantized() || tensor.shape().len() > rank {
        return None;
    }
    let missing = rank - tensor.shape().len();
    let fits = tensor
        .shape()
        .iter()
        .enumerate()
        .all(|(i, &n)| n == 1 || (i + missing == axis && n == channels));
    tensor_floats(tensor).filter(|v| fits && (v.len() == 1 || v.len() == channels))
}
