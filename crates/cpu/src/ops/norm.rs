//! Normalisation and softmax: over the last axis, over others, and by channels.

use mil::OpError;
use tensor::Tensor;

use super::for_each_chunk;
use crate::kernel::{Kernel, Native, Operand, RunCx, f32s, f32s_mut};
use crate::op_cx::{Bind, OpCx};

/// Binds `llm.rms_norm`.
pub(crate) fn rms_norm(cx: &mut OpCx<'_>) -> Bind<Native> {
    let (x, weight) = (cx.float("x")?, cx.float("weight")?);
    let dim = weight.len();
    if dim == 0 {
        return Err("rows without elements".into());
    }
    let eps = cx.view.float("epsilon")?.unwrap_or(0.0) as f32;
    Ok(Native::floats(RmsNorm { dim, eps }, vec![x, weight]))
}

struct RmsNorm {
    dim: usize,
    eps: f32,
}

impl Kernel for RmsNorm {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let (x, weight) = (f32s(ins[0]), f32s(ins[1]));
        kernels::rms_norm(cx.pool, x, Some(weight), self.eps, self.dim, f32s_mut(outs[0]));
        Ok(())
    }
}

/// Binds `llm.rms_norm_grad`.
pub(crate) fn rms_norm_grad(cx: &mut OpCx<'_>) -> Bind<Native> {
    let inputs = vec![cx.float("x")?, cx.float("weight")?, cx.float("grad")?];
    if inputs[1].len() == 0 {
        return Err("rows without elements".into());
    }
    let eps = cx.view.float("epsilon")?.unwrap_or(0.0) as f32;
    Ok(Native::floats(RmsNormGrad { eps }, inputs))
}

struct RmsNormGrad {
    eps: f32,
}

impl Kernel for RmsNormGrad {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let [by_x, by_weight] = outs else { return Ok(()) };
        let args = (f32s(ins[0]), f32s(ins[1]), f32s(ins[2]));
        kernels::rms_norm_grad(cx.pool, args, self.eps, f32s_mut(by_x), f32s_mut(by_weight));
        Ok(())
    }
}

/// Binds `layer_norm` over axes next to each other.
pub(crate) fn layer_norm(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x = cx.float("x")?;
    let mut rank = x.shape.len();
    let axes = cx.view.ints("axes")?.map_or_else(
        || Ok((0..rank).collect()),
        |axes| axes.iter().map(|&a| cx.view.axis(a, rank)).collect::<Result<Vec<_>, _>>(),
    );
    let mut axes = axes?;
    axes.sort_unstable();
    // Axes of size 1 behind them do not matter.
    while rank > 0 && x.shape[rank - 1] == 1 && axes.last().is_none_or(|&a| a < rank - 1) {
        rank -= 1;
    }
    let Some(&first) = axes.first() else { return Err("no axes".into()) };
    let end = first + axes.len();
    if axes.iter().copied().ne(first..end) {
        return Err("axes that are not next to each other".into());
    }
    let dim: usize = x.shape[first..end].iter().product();
    if x.len() == 0 {
        return Err("rows without elements".into());
    }
    let eps = cx.view.float("epsilon")?.unwrap_or(1e-5) as f32;
    let (gamma, beta) = (cx.opt_float("gamma")?, cx.opt_float("beta")?);
    let affine = [gamma.is_some(), beta.is_some()];
    let inner: usize = x.shape[end..].iter().product();
    let inputs = std::iter::once(x).chain(gamma).chain(beta).collect();
    let [gamma, beta] = affine;
    if end == rank {
        return Ok(Native::floats(LayerNorm { dim, eps, gamma, beta }, inputs));
    }
    let lanes = Lanes { dim, inner, function: OfLanes::Normal { eps, gamma, beta } };
    Ok(Native::floats(lanes, inputs))
}

struct LayerNorm {
    dim: usize,
    eps: f32,
    gamma: bool,
    beta: bool,
}

impl Kernel for LayerNorm {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let gamma = self.gamma.then(|| f32s(ins[1]));
        let beta = self.beta.then(|| f32s(ins[1 + usize::from(self.gamma)]));
        let (x, out) = (f32s(ins[0]), f32s_mut(outs[0]));
        kernels::layer_norm(cx.pool, x, gamma, beta, self.eps, self.dim, out);
        Ok(())
    }
}

/// Binds `softmax`.
pub(crate) fn softmax(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x = cx.float("x")?;
    let axis = cx.view.axis(cx.view.int("axis")?.unwrap_or(-1), x.shape.len())?;
    // Axes of size 1 after it do not matter.
    let after: usize = x.shape[axis + 1..].iter().product();
    match x.shape[axis] {
        0 => Err("rows without elements".into()),
        dim if after != 1 => {
            let lanes = Lanes { dim, inner: after, function: OfLanes::Softmax };
            Ok(Native::floats(lanes, vec![x]))
        }
        dim => Ok(Native::floats(Softmax { dim }, vec![x])),
    }
}

struct Softmax {
    dim: usize,
}

impl Kernel for Softmax {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        kernels::softmax(cx.pool, f32s(ins[0]), self.dim, f32s_mut(outs[0]));
        Ok(())
    }
}

/// What becomes of the numbers that lie `inner` apart.
enum OfLanes {
    Softmax,
    /// Layer normalisation, with factors and summands by place if given.
    Normal {
        eps: f32,
        gamma: bool,
        beta: bool,
    },
}

/// A function of the `dim` numbers along an axis, behind which there are `inner` elements: lanes of
/// them are taken together, so that memory is read in order.
struct Lanes {
    dim: usize,
    inner: usize,
    function: OfLanes,
}

impl Lanes {
    /// `out = f(out, lane)` for each row of the block.
    fn each(&self, block: &mut [f32], lanes: &[f32], f: impl Fn(f32, f32) -> f32) {
        for row in block.chunks_exact_mut(self.inner) {
            row.iter_mut().zip(lanes).for_each(|(v, lane)| *v = f(*v, *lane));
        }
    }

    /// Folds each lane of the block.
    fn fold(&self, block: &[f32], lanes: &mut [f32], f: impl Fn(f32, f32) -> f32) {
        for row in block.chunks_exact(self.inner) {
            lanes.iter_mut().zip(row).for_each(|(lane, v)| *lane = f(*lane, *v));
        }
    }
}

impl Kernel for Lanes {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let x = f32s(ins[0]);
        let size = self.dim * self.inner;
        for_each_chunk(cx.pool, f32s_mut(outs[0]), size, |i, block| {
            block.copy_from_slice(&x[i * size..][..size]);
            let mut lanes = vec![0f32; self.inner];
            let n = self.dim as f32;
            match self.function {
                OfLanes::Softmax => {
                    lanes.fill(f32::NEG_INFINITY);
                    self.fold(block, &mut lanes, |m, v| if v > m { v } else { m });
                    self.each(block, &lanes, |v, max| v - max);
                    // On one thread: the blocks are the tasks.
                    kernels::activate_in_place(cx.pool, kernels::Activation::Exp, block);
                    lanes.fill(0.0);
                    self.fold(block, &mut lanes, |sum, v| sum + v);
                    self.each(block, &lanes, |v, sum| v / sum);
                }
                OfLanes::Normal { eps, gamma, beta } => {
                    self.fold(block, &mut lanes, |sum, v| sum + v);
                    lanes.iter_mut().for_each(|sum| *sum /= n);
                    self.each(block, &lanes, |v, mean| v - mean);
                    lanes.fill(0.0);
                    self.fold(block, &mut lanes, |sum, v| sum + v * v);
                    lanes.iter_mut().for_each(|sum| *sum = 1.0 / (*sum / n + eps).sqrt());
                    self.each(block, &lanes, |v, r| v * r);
                    let by = |at: usize, given: bool| given.then(|| f32s(ins[at]));
                    let (gamma, beta) = (by(1, gamma), by(1 + usize::from(gamma), beta));
                    for (place, row) in block.chunks_exact_mut(self.inner).enumerate() {
                        let (g, b) =
                            (gamma.map_or(1.0, |g| g[place]), beta.map_or(0.0, |b| b[place]));
                        row.iter_mut().for_each(|v| *v = *v * g + b);
                    }
                }
            }
        });
        Ok(())
    }
}

/// Binds `batch_norm`: one product and two sums with constants of the channel.
pub(crate) fn batch_norm(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x = cx.float("x")?;
    let (mean, variance) = (cx.const_float("mean")?, cx.const_float("variance")?);
    let eps = cx.view.float("epsilon")?.unwrap_or(1e-5);
    let [gamma, beta] = affine(cx)?;
    let values = |t: &Tensor| t.as_slice::<f32>().map(<[f32]>::to_vec).map_err(|e| e.to_string());
    let (mean, variance) = (values(&mean)?, values(&variance)?);
    let scale = variance.iter().enumerate().map(|(c, &v)| {
        let gamma = gamma.as_ref().map_or(1.0, |g| f64::from(g[c]));
        (gamma / (f64::from(v) + eps).sqrt()) as f32
    });
    let beta = beta.unwrap_or_else(|| vec![0.0; mean.len()]);
    let inner = x.shape.get(2..).map_or(1, |s| s.iter().product());
    Ok(Native::floats(BatchNorm { inner, scale: scale.collect(), mean, beta }, vec![x]))
}

/// The constants `gamma` and `beta`, if given.
fn affine(cx: &mut OpCx<'_>) -> Bind<[Option<Vec<f32>>; 2]> {
    let mut get = |name| -> Bind<Option<Vec<f32>>> {
        if cx.view.arg(name).is_none() {
            return Ok(None);
        }
        let tensor = cx.const_float(name)?;
        Ok(Some(tensor.as_slice::<f32>().map_err(|e| e.to_string())?.to_vec()))
    };
    Ok([get("gamma")?, get("beta")?])
}

struct BatchNorm {
    /// Elements of a channel of an image.
    inner: usize,
    mean: Vec<f32>,
    scale: Vec<f32>,
    beta: Vec<f32>,
}

impl Kernel for BatchNorm {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let x = f32s(ins[0]);
        for_each_chunk(cx.pool, f32s_mut(outs[0]), self.inner, |i, out| {
            let c = i % self.mean.len();
            let (mean, scale, beta) = (self.mean[c], self.scale[c], self.beta[c]);
            let x = &x[i * self.inner..];
            out.iter_mut().zip(x).for_each(|(o, v)| *o = (v - mean) * scale + beta);
        });
        Ok(())
    }
}

/// Binds `instance_norm`: layer normalisation of each channel, then factor and summand of it.
pub(crate) fn instance_norm(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x: Operand = cx.float("x")?;
    let eps = cx.view.float("epsilon")?.unwrap_or(1e-5) as f32;
    let [gamma, beta] = affine(cx)?;
    let inner: usize = x.shape.get(2..).map_or(1, |s| s.iter().product());
    if x.len() == 0 {
        return Err("rows without elements".into());
    }
    Ok(Native::floats(InstanceNorm { inner, eps, gamma, beta }, vec![x]))
}

struct InstanceNorm {
    inner: usize,
    eps: f32,
    gamma: Option<Vec<f32>>,
    beta: Option<Vec<f32>>,
}

impl Kernel for InstanceNorm {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let out = f32s_mut(outs[0]);
        kernels::layer_norm(cx.pool, f32s(ins[0]), None, None, self.eps, self.inner, out);
        for (i, row) in out.chunks_exact_mut(self.inner).enumerate() {
            let of = |given: &Option<Vec<f32>>, default| match given {
                Some(values) => values[i % values.len()],
                None => default,
            };
            let (gamma, beta) = (of(&self.gamma, 1.0), of(&self.beta, 0.0));
            row.iter_mut().for_each(|v| *v = *v * gamma + beta);
        }
        Ok(())
    }
}
