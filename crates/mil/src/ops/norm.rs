//! Normalisation.

use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::{EvalCx, Value};
use crate::ops::reduction::{axes, axes_last};
use crate::{Dim, OpError, Type};

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
            let scale = 1.0 / (variance + epsilon).sqrt();
            for (i, v) in row.iter_mut().enumerate() {
                let normal = (*v - mean) * scale;
                *v = normal * gamma.map_or(1.0, |g| g[i]) + beta.map_or(0.0, |b| b[i]);
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
