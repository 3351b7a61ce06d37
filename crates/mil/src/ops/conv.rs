//! Convolution over one, two or three spatial axes.

use super::windows::{Axis, Windows, sizes};
use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::exact::Sums;
use crate::eval::{Array, Data, EvalCx, Value};
use crate::{Dim, OpError, TensorType, Type};

/// Cross-correlation: `x` `[n, C_in, d...]` with `weight` `[C_out, C_in / groups, k...]`, plus `bias`
/// `[C_out]`.
///
/// Constants, one number a spatial axis: `strides` and `dilations` (1 by default), `groups` (1),
/// `pad_type`: `valid` (default) no padding, `custom` zeros as `pad` says (before and after each
/// axis), `same` as many that the result has `ceil(d / stride)` elements, an odd one behind, and
/// `same_lower`, an odd one in front.
pub(super) struct Conv;

impl OpDef for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("weight", Domain::Float),
                Param::new("bias", Domain::Float).optional(),
                Param::new("strides", Domain::Int).optional().constant(),
                Param::new("pad_type", Domain::Str).optional().constant(),
                Param::new("pad", Domain::Int).optional().constant(),
                Param::new("dilations", Domain::Int).optional().constant(),
                Param::new("groups", Domain::Int).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, weight) = (op.tensor("x")?, op.tensor("weight")?);
        let mismatch =
            || OpError::invalid(format!("weight {weight} does not fit x {x} [n, C_in, ...]"));
        if !(3..=5).contains(&x.rank()) || weight.rank() != x.rank() {
            return Err(mismatch());
        }
        let windows = Windows::of(op, x.rank() - 2)?;
        let groups = groups(op)?;
        if let (Some(channels), Some(inner), Some(out)) =
            (x.shape[1].fixed(), weight.shape[1].fixed(), weight.shape[0].fixed())
            && (channels != inner * groups || !out.is_multiple_of(groups))
        {
            return Err(OpError::invalid(format!(
                "weight {weight} does not fit x {x} in {groups} groups"
            )));
        }
        if let Some(bias) = op.opt_tensor("bias")?
            && !(bias.rank() == 1 && bias.shape[0].compatible(&weight.shape[0]))
        {
            return Err(OpError::invalid(format!("bias {bias} is not [C_out] of {weight}")));
        }
        let mut shape = vec![x.shape[0].clone(), weight.shape[0].clone()];
        for axis in 0..x.rank() - 2 {
            shape.push(match (x.shape[axis + 2].fixed(), weight.shape[axis + 2].fixed()) {
                (Some(size), Some(kernel)) => {
                    Dim::Fixed(windows.axis(axis, size, kernel).ok_or_else(mismatch)?.out)
                }
                // A kernel of one element, without stride or padding, keeps an unknown size.
                (None, Some(kernel)) if windows.keeps(axis, kernel) => x.shape[axis + 2].clone(),
                _ => Dim::Unknown,
            });
        }
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, weight, bias) = (cx.array("x")?, cx.array("weight")?, cx.opt_array("bias")?);
        let bias = bias.as_deref().map(Array::floats).transpose()?;
        let axes = x.shape.len().saturating_sub(2);
        let windows = Windows::of(&cx.op, axes)?;
        Ok(vec![convolve(&x, &weight, bias, &windows, groups(&cx.op)?)?.into()])
    }

    /// Two for each element of the result and weight of its channel.
    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        let Ok(weight) = op.tensor("weight") else { return 0.0 };
        let channel = weight.shape.iter().skip(1).map(|d| d.fixed().unwrap_or(1) as f64);
        2.0 * elements(results) * channel.product::<f64>()
    }
}

/// The constant `groups`, 1 by default.
pub(super) fn groups(op: &OpView<'_>) -> Result<usize, OpError> {
    Ok(sizes(op, "groups", 1, 1, 1)?[0])
}

fn convolve(
    x: &Array,
    weight: &Array,
    bias: Option<&[f64]>,
    windows: &Windows,
    groups: usize,
) -> Result<Array, OpError> {
    let mismatch =
        || OpError::invalid(format!("weight {:?} does not fit x {:?}", weight.shape, x.shape));
    let axes = x.shape.len().saturating_sub(2);
    if axes == 0 || weight.shape.len() != axes + 2 {
        return Err(mismatch());
    }
    let (n, channels) = (x.shape[0], x.shape[1]);
    let (out, inner) = (weight.shape[0], weight.shape[1]);
    if channels != inner * groups
        || !out.is_multiple_of(groups)
        || bias.is_some_and(|b| b.len() != out)
    {
        return Err(mismatch());
    }
    let (mut spatial, sizes) =
        windows.spatial(&x.shape[2..], &weight.shape[2..]).ok_or_else(mismatch)?;
    // An axis of one element is no axis: the inner loop is to run along a long one.
    while spatial[2].is_one() && !spatial[..2].iter().all(Axis::is_one) {
        spatial.rotate_right(1);
    }
    let shape = [&[n, out], &*sizes].concat();
    let plane: usize = spatial.iter().map(|a| a.out).product();
    let source: usize = spatial.iter().map(|a| a.size).product();
    let taps: usize = spatial.iter().map(|a| a.kernel).product();
    let (xs, w) = (x.floats()?, weight.floats()?);
    let mut y = Vec::with_capacity(n * out * plane);
    for i in 0..n * out {
        let (image, channel) = (i / out, i % out);
        let mut sums = Sums::of(vec![bias.map_or(0.0, |b| b[channel]); plane]);
        let group = channel / (out / groups);
        for c in 0..inner {
            let from = (image * channels + group * inner + c) * source;
            let kernel = &w[(channel * inner + c) * taps..][..taps];
            add_channel(&mut sums, &xs[from..][..source], kernel, &spatial);
        }
        y.extend(sums.values());
    }
    Ok(Array { dtype: x.dtype, shape, data: Data::Float(y) })
}

/// Adds to the plane `y` what one input channel contributes.
fn add_channel(y: &mut Sums, x: &[f64], kernel: &[f64], [d, h, w]: &[Axis; 3]) {
    for (tap, &weight) in kernel.iter().enumerate() {
        let (kd, kh, kw) = (tap / (h.kernel * w.kernel), tap / w.kernel % h.kernel, tap % w.kernel);
        let ((d0, dn, dx), (h0, hn, hx), (w0, wn, wx)) = (d.run(kd), h.run(kh), w.run(kw));
        if wn == 0 {
            continue;
        }
        for i in 0..dn {
            for j in 0..hn {
                let to = ((d0 + i) * h.out + h0 + j) * w.out + w0;
                let from = ((dx + i * d.stride) * h.size + hx + j * h.stride) * w.size + wx;
                match w.stride {
                    1 => y.add_products(to, 1, weight, x[from..][..wn].iter()),
                    n => y.add_products(to, 1, weight, x[from..].iter().step_by(n).take(wn)),
                }
            }
        }
    }
}
