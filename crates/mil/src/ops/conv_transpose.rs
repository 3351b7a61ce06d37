//! Transposed convolution over one, two or three spatial axes.

use super::conv::groups;
use super::windows::{Axis, Windows, sizes};
use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::exact::Sums;
use crate::eval::{Array, Data, EvalCx, Value, bounded};
use crate::{Dim, OpError, TensorType, Type};

/// The adjoint of convolution: `x` `[n, C_in, d...]` with `weight` `[C_in, C_out / groups, k...]`,
/// plus `bias` `[C_out]`. Each element of `x`, times the kernel, is added to the result `[n, C_out,
/// ...]` where a convolution with the same options would have read it from.
///
/// Constants: those of convolution, where `same` makes the result `d * stride` large, `same_lower`
/// is not allowed, and `custom` crops; and `output_shape`, the whole shape of the result, which
/// decides where several sizes convolve to `d`.
pub(super) struct ConvTranspose;

/// The sizes of the result's spatial axes, those of `x` being `sizes`; `None` where they do not fit.
fn result_sizes(
    op: &OpView<'_>,
    windows: &Windows,
    sizes: &[usize],
    kernels: &[usize],
) -> Result<Option<Vec<usize>>, OpError> {
    if let Some(shape) = output_shape(op, sizes.len())? {
        return Ok(Some(shape[2..].to_vec()));
    }
    let size = |axis: usize| {
        let (stride, size) = (windows.strides[axis], sizes[axis]);
        let whole = size.checked_sub(1)?.checked_mul(stride)?;
        let reach = kernels[axis].checked_sub(1)?.checked_mul(windows.dilations[axis])?;
        let full = whole.checked_add(reach)?.checked_add(1)?;
        match &*windows.pad_type {
            "same" => whole.checked_add(stride),
            "custom" => full.checked_sub(windows.pad[axis].iter().sum()),
            _ => Some(full),
        }
    };
    Ok((0..sizes.len()).map(size).collect())
}

fn output_shape(op: &OpView<'_>, axes: usize) -> Result<Option<Vec<usize>>, OpError> {
    match op.arg("output_shape") {
        Some(_) => sizes(op, "output_shape", axes + 2, 0, 1).map(Some),
        None => Ok(None),
    }
}

fn windows(op: &OpView<'_>, axes: usize) -> Result<Windows, OpError> {
    let windows = Windows::of(op, axes)?;
    if windows.pad_type == "same_lower" {
        return Err(OpError::invalid("pad_type \"same_lower\" is not for transposed convolution"));
    }
    Ok(windows)
}

impl OpDef for ConvTranspose {
    fn name(&self) -> &'static str {
        "conv_transpose"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("weight", Domain::Float),
                Param::new("bias", Domain::Float).optional(),
                Param::new("pad", Domain::Int).optional().constant(),
                Param::new("output_shape", Domain::Int).optional().constant(),
                Param::new("pad_type", Domain::Str).optional().constant(),
                Param::new("strides", Domain::Int).optional().constant(),
                Param::new("dilations", Domain::Int).optional().constant(),
                Param::new("groups", Domain::Int).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, weight) = (op.tensor("x")?, op.tensor("weight")?);
        let mismatch =
            || OpError::invalid(format!("weight {weight} does not fit x {x} [n, C_in, ...]"));
        if !(3..=5).contains(&x.rank())
            || weight.rank() != x.rank()
            || !weight.shape[0].compatible(&x.shape[1])
        {
            return Err(mismatch());
        }
        let windows = windows(op, x.rank() - 2)?;
        let groups = groups(op)?;
        let out = weight.shape[1].fixed().map_or(Dim::Unknown, |n| Dim::Fixed(n * groups));
        if let Some(bias) = op.opt_tensor("bias")?
            && !(bias.rank() == 1 && bias.shape[0].compatible(&out))
        {
            return Err(OpError::invalid(format!("bias {bias} is not [C_out] of {weight}")));
        }
        let spatial = |t: &TensorType| t.shape[2..].iter().map(Dim::fixed).collect::<Option<_>>();
        let sizes: Option<(Vec<usize>, Vec<usize>)> = spatial(x).zip(spatial(weight));
        let mut shape = vec![x.shape[0].clone(), out];
        match sizes {
            Some((sizes, kernels)) => {
                let sizes = result_sizes(op, &windows, &sizes, &kernels)?.ok_or_else(mismatch)?;
                shape.extend(sizes.into_iter().map(Dim::Fixed));
            }
            None => shape.resize(x.rank(), Dim::Unknown),
        }
        let result = TensorType { dtype: x.dtype, shape };
        if let Some(given) = output_shape(op, x.rank() - 2)? {
            let given = TensorType::new(x.dtype, given);
            if !given.compatible(&result) {
                return Err(OpError::invalid(format!("output_shape {given} is not {result}")));
            }
            return Ok(vec![given.into()]);
        }
        Ok(vec![result.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, weight, bias) = (cx.array("x")?, cx.array("weight")?, cx.opt_array("bias")?);
        let bias = bias.as_deref().map(Array::floats).transpose()?;
        let mismatch =
            || OpError::invalid(format!("weight {:?} does not fit x {:?}", weight.shape, x.shape));
        let axes = x.shape.len().checked_sub(2).filter(|&a| a > 0).ok_or_else(mismatch)?;
        let (windows, groups) = (windows(&cx.op, axes)?, groups(&cx.op)?);
        if weight.shape.len() != axes + 2 || weight.shape[0] != x.shape[1] {
            return Err(mismatch());
        }
        let kernels = &weight.shape[2..];
        let out = weight.shape[1] * groups;
        if !x.shape[1].is_multiple_of(groups) || bias.is_some_and(|b| b.len() != out) {
            return Err(mismatch());
        }
        let sizes = result_sizes(&cx.op, &windows, &x.shape[2..], kernels)?;
        let sizes = sizes.ok_or_else(mismatch)?;
        let (spatial, convolved) = windows.spatial(&sizes, kernels).ok_or_else(mismatch)?;
        if convolved != x.shape[2..] {
            return Err(OpError::invalid(format!(
                "a result of sizes {sizes:?} does not convolve to {:?}",
                &x.shape[2..]
            )));
        }
        let shape = [&[x.shape[0], out], &*sizes].concat();
        bounded(&shape)?;
        let values = transposed(&x, &weight, groups, bias, &spatial, out)?;
        Ok(vec![Array { dtype: x.dtype, shape, data: Data::Float(values) }.into()])
    }

    /// Two for each element of `x` and weight of its channel.
    fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
        let (Ok(x), Ok(weight)) = (op.tensor("x"), op.tensor("weight")) else { return 0.0 };
        let channel = weight.shape.iter().skip(1).map(|d| d.fixed().unwrap_or(1) as f64);
        2.0 * elements(&[x.clone().into()]) * channel.product::<f64>()
    }
}

/// The elements of the result, whose axes are those that the windows slide over.
fn transposed(
    x: &Array,
    weight: &Array,
    groups: usize,
    bias: Option<&[f64]>,
    spatial: &[Axis; 3],
    out: usize,
) -> Result<Vec<f64>, OpError> {
    let (n, channels, per_group) = (x.shape[0], x.shape[1], weight.shape[1]);
    let plane: usize = spatial.iter().map(|a| a.size).product();
    let source: usize = spatial.iter().map(|a| a.out).product();
    let taps: usize = spatial.iter().map(|a| a.kernel).product();
    let (xs, w) = (x.floats()?, weight.floats()?);
    let mut y = Vec::with_capacity(n * out * plane);
    for i in 0..n * out {
        let (image, channel) = (i / out, i % out);
        let mut sums = Sums::of(vec![bias.map_or(0.0, |b| b[channel]); plane]);
        let (group, own) = (channel / per_group, channel % per_group);
        let inner = channels / groups;
        for c in group * inner..(group + 1) * inner {
            let from = (image * channels + c) * source;
            let kernel = &w[(c * per_group + own) * taps..][..taps];
            add_channel(&mut sums, &xs[from..][..source], kernel, spatial);
        }
        y.extend(sums.values());
    }
    Ok(y)
}

/// Adds to the plane `y` what one input channel contributes.
fn add_channel(y: &mut Sums, x: &[f64], kernel: &[f64], [d, h, w]: &[Axis; 3]) {
    for (tap, &weight) in kernel.iter().enumerate() {
        let (kd, kh, kw) = (tap / (h.kernel * w.kernel), tap / w.kernel % h.kernel, tap % w.kernel);
        let ((d0, dn, dy), (h0, hn, hy), (w0, wn, wy)) = (d.run(kd), h.run(kh), w.run(kw));
        if wn == 0 {
            continue;
        }
        for i in 0..dn {
            for j in 0..hn {
                let from = ((d0 + i) * h.out + h0 + j) * w.out + w0;
                let to = ((dy + i * d.stride) * h.size + hy + j * h.stride) * w.size + wy;
                y.add_products(to, w.stride, weight, x[from..][..wn].iter());
            }
        }
    }
}
