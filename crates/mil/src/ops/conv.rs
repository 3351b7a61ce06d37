//! Convolution over one, two or three spatial axes.

use super::{Domain, OpDef, OpView, Param, elements};
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

/// The constant options, by spatial axis.
struct Options {
    strides: Vec<usize>,
    dilations: Vec<usize>,
    pad: Vec<[usize; 2]>,
    pad_type: String,
    groups: usize,
}

impl Options {
    fn of(op: &OpView<'_>, axes: usize) -> Result<Self, OpError> {
        let sizes = |name: &str, count: usize, default: usize, least: usize| {
            let Some(given) = op.ints(name)? else { return Ok(vec![default; count]) };
            let sizes: Option<Vec<usize>> =
                given.iter().map(|&v| usize::try_from(v).ok().filter(|&v| v >= least)).collect();
            sizes.filter(|s| s.len() == count).ok_or_else(|| {
                OpError::invalid(format!("{name} {given:?} does not fit {axes} spatial axes"))
            })
        };
        let pad = sizes("pad", 2 * axes, 0, 0)?;
        let pad_type = op.str("pad_type")?.unwrap_or("valid").to_owned();
        if !["valid", "custom", "same", "same_lower"].contains(&&*pad_type) {
            return Err(OpError::invalid(format!("pad_type \"{pad_type}\" is unknown")));
        }
        Ok(Options {
            strides: sizes("strides", axes, 1, 1)?,
            dilations: sizes("dilations", axes, 1, 1)?,
            pad: pad.as_chunks::<2>().0.to_vec(),
            pad_type,
            groups: sizes("groups", 1, 1, 1)?[0],
        })
    }

    /// Padding before the axis and size of the result, for `size` elements and a kernel of `kernel`.
    fn axis(&self, axis: usize, size: usize, kernel: usize) -> Option<(usize, usize)> {
        let (stride, reach) =
            (self.strides[axis], kernel.checked_sub(1)?.checked_mul(self.dilations[axis])?);
        let [before, after] = match &*self.pad_type {
            "valid" => [0, 0],
            "custom" => self.pad[axis],
            same => {
                let out = size.div_ceil(stride);
                let total = (out.saturating_sub(1).checked_mul(stride)?)
                    .checked_add(reach + 1)?
                    .saturating_sub(size);
                let less = total / 2;
                if same == "same" { [less, total - less] } else { [total - less, less] }
            }
        };
        let span = size.checked_add(before)?.checked_add(after)?.checked_sub(reach + 1)?;
        Some((before, span / stride + 1))
    }
}

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
        let options = Options::of(op, x.rank() - 2)?;
        if let (Some(channels), Some(inner), Some(out)) =
            (x.shape[1].fixed(), weight.shape[1].fixed(), weight.shape[0].fixed())
            && (channels != inner * options.groups || !out.is_multiple_of(options.groups))
        {
            return Err(OpError::invalid(format!(
                "weight {weight} does not fit x {x} in {} groups",
                options.groups
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
                    Dim::Fixed(options.axis(axis, size, kernel).ok_or_else(mismatch)?.1)
                }
                // A kernel of one element, without stride or padding, keeps an unknown size.
                (None, Some(1))
                    if options.strides[axis] == 1
                        && (options.pad_type != "custom" || options.pad[axis] == [0, 0]) =>
                {
                    x.shape[axis + 2].clone()
                }
                _ => Dim::Unknown,
            });
        }
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, weight, bias) = (cx.array("x")?, cx.array("weight")?, cx.opt_array("bias")?);
        let bias = bias.as_deref().map(Array::floats).transpose()?;
        let axes = x.shape.len().saturating_sub(2);
        let options = Options::of(&cx.op, axes)?;
        Ok(vec![convolve(&x, &weight, bias, &options)?.into()])
    }

    /// Two for each element of the result and weight of its channel.
    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        let Ok(weight) = op.tensor("weight") else { return 0.0 };
        let channel = weight.shape.iter().skip(1).map(|d| d.fixed().unwrap_or(1) as f64);
        2.0 * elements(results) * channel.product::<f64>()
    }
}

/// One spatial axis of a convolution.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    kernel: usize,
    out: usize,
    before: usize,
    stride: usize,
    dilation: usize,
}

impl Axis {
    /// The results that kernel element `k` contributes to: the first, how many, and the element
    /// that the first reads.
    fn run(&self, k: usize) -> (usize, usize, usize) {
        let shift = k * self.dilation;
        let first = self.before.saturating_sub(shift).div_ceil(self.stride);
        // Result `o` reads element `o * stride + shift - before`, which must be below `size`.
        let end = (self.size + self.before)
            .checked_sub(shift)
            .map_or(0, |n| n.div_ceil(self.stride))
            .min(self.out);
        let count = end.saturating_sub(first);
        (first, count, (first * self.stride + shift).saturating_sub(self.before))
    }
}

fn convolve(
    x: &Array,
    weight: &Array,
    bias: Option<&[f64]>,
    options: &Options,
) -> Result<Array, OpError> {
    let mismatch =
        || OpError::invalid(format!("weight {:?} does not fit x {:?}", weight.shape, x.shape));
    let axes = x.shape.len().saturating_sub(2);
    if axes == 0 || weight.shape.len() != axes + 2 {
        return Err(mismatch());
    }
    let (n, channels) = (x.shape[0], x.shape[1]);
    let (out, inner) = (weight.shape[0], weight.shape[1]);
    if channels != inner * options.groups
        || !out.is_multiple_of(options.groups)
        || bias.is_some_and(|b| b.len() != out)
    {
        return Err(mismatch());
    }
    // Leading axes of one element make every case three-dimensional.
    let single = Axis { size: 1, kernel: 1, out: 1, before: 0, stride: 1, dilation: 1 };
    let mut spatial = [single; 3];
    let mut shape = vec![n, out];
    for axis in 0..axes {
        let (size, kernel) = (x.shape[axis + 2], weight.shape[axis + 2]);
        let (before, out) = options.axis(axis, size, kernel).ok_or_else(mismatch)?;
        let (stride, dilation) = (options.strides[axis], options.dilations[axis]);
        spatial[3 - axes + axis] = Axis { size, kernel, out, before, stride, dilation };
        shape.push(out);
    }
    let plane: usize = spatial.iter().map(|a| a.out).product();
    let source: usize = spatial.iter().map(|a| a.size).product();
    let taps: usize = spatial.iter().map(|a| a.kernel).product();
    let (xs, w) = (x.floats()?, weight.floats()?);
    let mut y = vec![0.0; n * out * plane];
    for (i, y) in y.chunks_exact_mut(plane.max(1)).enumerate() {
        let (image, channel) = (i / out, i % out);
        y.fill(bias.map_or(0.0, |b| b[channel]));
        let group = channel / (out / options.groups);
        for c in 0..inner {
            let from = (image * channels + group * inner + c) * source;
            let kernel = &w[(channel * inner + c) * taps..][..taps];
            add_channel(y, &xs[from..][..source], kernel, &spatial);
        }
    }
    Ok(Array { dtype: x.dtype, shape, data: Data::Float(y) })
}

/// Adds to the plane `y` what one input channel contributes.
fn add_channel(y: &mut [f64], x: &[f64], kernel: &[f64], [d, h, w]: &[Axis; 3]) {
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
                let row = x[from..].iter().step_by(w.stride);
                y[to..][..wn].iter_mut().zip(row).for_each(|(y, x)| *y += weight * x);
            }
        }
    }
}
