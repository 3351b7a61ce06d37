//! Normalisation.

use std::rc::Rc;

use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::exact::{Sum, quotient};
use crate::eval::{Array, EvalCx, Value};
use crate::ops::parametric::{channels, check_channels};
use crate::ops::reduction::{axes, axes_last};
use crate::{Dim, OpError, Type};

/// `away / root * gamma + beta`, the division last and rounded to odd.
fn normal(away: f64, root: f64, gamma: f64, beta: f64) -> f64 {
    let mut sum = Sum::of(quotient(away * gamma, root));
    sum.add(beta);
    sum.value()
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` over the constant `axes`, all by default
/// (Ba et al. 2016). `gamma` and `beta` have the sizes of those axes; `epsilon` is 1e-5 if not
/// given.
pub(super) struct LayerNorm;

impl OpDef for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("axes", Domain::Int).optional().constant(),
                Param::new("gamma", Domain::Float).optional(),
                Param::new("beta", Domain::Float).optional(),
                Param::new("epsilon", Domain::Float).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        let sizes: Vec<&Dim> = axes(op, x.rank())?.into_iter().map(|a| &x.shape[a]).collect();
        for name in ["gamma", "beta"] {
            if let Some(t) = op.opt_tensor(name)? {
                let fits = t.rank() == sizes.len()
                    && t.shape.iter().zip(&sizes).all(|(a, b)| a.compatible(b));
                if !fits {
                    return Err(OpError::invalid(format!("{name} {t} does not fit axes of x {x}")));
                }
            }
        }
        op.float("epsilon")?;
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, gamma, beta) = (cx.array("x")?, cx.opt_array("gamma")?, cx.opt_array("beta")?);
        let epsilon = cx.op.float("epsilon")?.unwrap_or(1e-5);
        let rank = x.shape.len();
        let axes = axes(&cx.op, rank)?;
        let n: usize = axes.iter().map(|&a| x.shape[a]).product();
        let gamma = gamma.as_deref().map(|a| a.floats()).transpose()?;
        let beta = beta.as_deref().map(|a| a.floats()).transpose()?;
        if gamma.is_some_and(|g| g.len() != n) || beta.is_some_and(|b| b.len() != n) {
            return Err(OpError::invalid(format!("gamma or beta does not fit x {:?}", x.shape)));
        }
        let perm = axes_last(rank, &axes);
        let mut moved = x.transposed(&perm);
        for row in moved.floats_mut()?.chunks_exact_mut(n.max(1)) {
            let mean = row.iter().sum::<f64>() / n as f64;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            let root = (variance + epsilon).sqrt();
            for (i, v) in row.iter_mut().enumerate() {
                let (gamma, beta) = (gamma.map_or(1.0, |g| g[i]), beta.map_or(0.0, |b| b[i]));
                *v = normal(*v - mean, root, gamma, beta);
            }
        }
        let mut back = vec![0; rank];
        perm.iter().enumerate().for_each(|(i, &p)| back[p] = i);
        Ok(vec![moved.transposed(&back).into()])
    }

    /// Eight an element: mean, variance, normalisation, `gamma`, `beta`.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        8.0 * elements(results)
    }
}

/// The numbers of channel `c` that the optional arguments `gamma` and `beta` `[C]` give.
struct Affine {
    gamma: Option<Rc<Array>>,
    beta: Option<Rc<Array>>,
}

impl Affine {
    fn of(cx: &EvalCx<'_, '_>, channels: usize) -> Result<Self, OpError> {
        let affine = Affine { gamma: cx.opt_array("gamma")?, beta: cx.opt_array("beta")? };
        for array in [&affine.gamma, &affine.beta].into_iter().flatten() {
            if array.floats()?.len() != channels {
                return Err(OpError::invalid(format!(
                    "gamma or beta {:?} does not fit {channels} channels",
                    array.shape
                )));
            }
        }
        Ok(affine)
    }

    /// Factor and summand of channel `c`.
    fn at(&self, c: usize) -> Result<(f64, f64), OpError> {
        let pick = |array: &Option<Rc<Array>>, default: f64| match array {
            Some(a) => Ok(a.floats()?.get(c).copied().unwrap_or(default)),
            None => Ok::<f64, OpError>(default),
        };
        Ok((pick(&self.gamma, 1.0)?, pick(&self.beta, 0.0)?))
    }
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` with one number for each channel of `x`
/// `[n, C, ...]`: the constants `mean` and `variance` `[C]`, and the optional `gamma` and `beta`
/// (Ioffe and Szegedy 2015). `epsilon` is 1e-5 if not given.
pub(super) struct BatchNorm;

impl OpDef for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("mean", Domain::Float).constant(),
                Param::new("variance", Domain::Float).constant(),
                Param::new("gamma", Domain::Float).optional().constant(),
                Param::new("beta", Domain::Float).optional().constant(),
                Param::new("epsilon", Domain::Float).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check_channels(op, &["mean", "variance", "gamma", "beta"])?;
        op.float("epsilon")?;
        Ok(vec![op.tensor("x")?.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, mean, variance) = (cx.array("x")?, cx.array("mean")?, cx.array("variance")?);
        let epsilon = cx.op.float("epsilon")?.unwrap_or(1e-5);
        let (channels, inner) = channels(&x.shape)?;
        let affine = Affine::of(cx, channels)?;
        let (mean, variance) = (mean.floats()?, variance.floats()?);
        if mean.len() != channels || variance.len() != channels {
            return Err(OpError::invalid(format!("mean or variance does not fit x {:?}", x.shape)));
        }
        let mut out = x.floats()?.to_vec();
        for (i, row) in out.chunks_exact_mut(inner.max(1)).enumerate() {
            let c = i % channels;
            let (gamma, beta) = affine.at(c)?;
            let root = (variance[c] + epsilon).sqrt();
            row.iter_mut().for_each(|v| *v = normal(*v - mean[c], root, gamma, beta));
        }
        Ok(vec![x.with_floats(out).into()])
    }

    /// Two an element: it is one product and one sum with constants.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        2.0 * elements(results)
    }
}

/// As layer normalisation of each image and channel of `x` `[n, C, ...]` over its other axes, with
/// the constants `gamma` and `beta` `[C]` (Ulyanov et al. 2016). `epsilon` is 1e-5 if not given.
pub(super) struct InstanceNorm;

impl OpDef for InstanceNorm {
    fn name(&self) -> &'static str {
        "instance_norm"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("gamma", Domain::Float).optional().constant(),
                Param::new("beta", Domain::Float).optional().constant(),
                Param::new("epsilon", Domain::Float).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check_channels(op, &["gamma", "beta"])?;
        op.float("epsilon")?;
        Ok(vec![op.tensor("x")?.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let epsilon = cx.op.float("epsilon")?.unwrap_or(1e-5);
        let (channels, inner) = channels(&x.shape)?;
        let affine = Affine::of(cx, channels)?;
        let mut out = x.floats()?.to_vec();
        for (i, row) in out.chunks_exact_mut(inner.max(1)).enumerate() {
            let (gamma, beta) = affine.at(i % channels)?;
            let mean = row.iter().sum::<f64>() / inner as f64;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / inner as f64;
            let root = (variance + epsilon).sqrt();
            row.iter_mut().for_each(|v| *v = normal(*v - mean, root, gamma, beta));
        }
        Ok(vec![x.with_floats(out).into()])
    }

    /// Eight an element, as layer normalisation.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        8.0 * elements(results)
    }
}

/// `x / sqrt(sum(x^2) + epsilon)` over the last three axes; `epsilon` is 1e-6 if not given.
pub(super) struct L2Norm;

impl OpDef for L2Norm {
    fn name(&self) -> &'static str {
        "l2_norm"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("epsilon", Domain::Float).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        op.float("epsilon")?;
        if x.rank() < 3 {
            return Err(OpError::invalid(format!("x {x} has fewer than three axes")));
        }
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let epsilon = cx.op.float("epsilon")?.unwrap_or(1e-6);
        let size: usize = x.shape.iter().rev().take(3).product();
        let mut out = x.floats()?.to_vec();
        for block in out.chunks_exact_mut(size.max(1)) {
            let root = (block.iter().map(|v| v * v).sum::<f64>() + epsilon).sqrt();
            block.iter_mut().for_each(|v| *v /= root);
        }
        Ok(vec![x.with_floats(out).into()])
    }

    /// Three an element: square, sum, division.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        3.0 * elements(results)
    }
}

/// `x / (k + alpha / size * sum(x^2))^beta` of `x` `[n, C, ...]`, where the sum is over the `size`
/// channels around the element's, those outside counting zero (Krizhevsky et al. 2012). All
/// constants; `alpha` is 1e-4, `beta` 0.75 and `k` 1 if not given.
///
/// Of an even `size` one channel more lies before the element's than behind.
pub(super) struct LocalResponseNorm;

impl OpDef for LocalResponseNorm {
    fn name(&self) -> &'static str {
        "local_response_norm"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("size", Domain::Int).constant(),
                Param::new("alpha", Domain::Float).optional().constant(),
                Param::new("beta", Domain::Float).optional().constant(),
                Param::new("k", Domain::Float).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        ["alpha", "beta", "k"].iter().try_for_each(|name| op.float(name).map(drop))?;
        match op.int("size")? {
            Some(size) if size > 0 && x.rank() >= 3 => Ok(vec![x.clone().into()]),
            size => Err(OpError::invalid(format!("size {size:?} does not fit x {x} [n, C, ...]"))),
        }
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let constant = |name, default| Ok::<f64, OpError>(cx.op.float(name)?.unwrap_or(default));
        let (alpha, beta, k) =
            (constant("alpha", 1e-4)?, constant("beta", 0.75)?, constant("k", 1.0)?);
        let size = cx.op.int("size")?.unwrap_or(1).clamp(1, i64::from(u32::MAX)) as usize;
        let (channels, inner) = channels(&x.shape)?;
        let values = x.floats()?;
        let mut out = values.to_vec();
        for (i, v) in out.iter_mut().enumerate() {
            let (image, c, at) = (i / inner / channels, i / inner % channels, i % inner);
            let near = c.saturating_sub(size / 2)..(c + size.div_ceil(2)).min(channels);
            let sum: f64 = near.map(|c| values[(image * channels + c) * inner + at].powi(2)).sum();
            *v /= (k + alpha * sum / size as f64).powf(beta);
        }
        Ok(vec![x.with_floats(out).into()])
    }

    /// Two for each channel of the window and four more an element.
    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        let size = op.int("size").ok().flatten().unwrap_or(1);
        (2.0 * size as f64 + 4.0) * elements(results)
    }
}
