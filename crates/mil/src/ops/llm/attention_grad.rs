//! The gradient of attention.

use super::attention::{Options, Sizes, check_rows};
use super::attention_in_mil::decompose_grad;
use crate::eval::exact::dot;
use crate::eval::{Array, EvalCx, Value};
use crate::ops::emit::{Emit, value};
use crate::ops::{Domain, Param, elements};
use crate::{FunctionBuilder, OpDef, OpError, OpView, Type, ValueId};

/// The gradient of `llm.attention` without caches by query, key and value.
///
/// `query`, `key`, `value`, `positions`, `scale`, `window`, `softcap` and `segments` are those of
/// `llm.attention`, `grad` as its result. Results: the gradients by `query`, `key` and `value`, each
/// of its type. The weights are computed again, so that nothing of `T * T` elements need be kept.
pub(in crate::ops) struct LlmAttentionGrad;

/// Arrays of an attention and its gradients.
struct Heads<'a> {
    sizes: Sizes,
    options: Options,
    arrays: [&'a [f64]; 4],
    by: [Vec<f64>; 3],
}

impl Heads<'_> {
    /// Adds what query `n` of `head` in `batch` contributes to the gradients; it attends rows `seen`.
    fn add(&mut self, batch: usize, head: usize, n: usize, seen: &[usize]) {
        let &Sizes { t, h, g, d, .. } = &self.sizes;
        let [q, k, v, grad] = self.arrays;
        let at = ((batch * t + n) * h + head) * d;
        let row = |s: usize| ((batch * t + s) * g + head / (h / g)) * d;
        let (query, grad) = (&q[at..][..d], &grad[at..][..d]);
        let scores: Vec<f64> =
            seen.iter().map(|&s| self.options.score(dot(0.0, query, &k[row(s)..][..d]))).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp() / sum).collect();
        let by_weights: Vec<f64> =
            seen.iter().map(|&s| dot(0.0, grad, &v[row(s)..][..d])).collect();
        let mean: f64 = weights.iter().zip(&by_weights).map(|(p, g)| p * g).sum();
        for (i, &s) in seen.iter().enumerate() {
            let cap = self.options.softcap.map_or(1.0, |c| 1.0 - (scores[i] / c).powi(2));
            let by_score = weights[i] * (by_weights[i] - mean) * cap * self.options.scale;
            let from = row(s);
            for j in 0..d {
                self.by[0][at + j] += by_score * k[from + j];
                self.by[1][from + j] += by_score * query[j];
                self.by[2][from + j] += weights[i] * grad[j];
            }
        }
    }
}

impl OpDef for LlmAttentionGrad {
    fn name(&self) -> &'static str {
        "llm.attention_grad"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("query", Domain::Float),
                Param::new("key", Domain::Float),
                Param::new("value", Domain::Float),
                Param::new("positions", Domain::Int),
                Param::new("grad", Domain::Float),
                Param::new("scale", Domain::Float).constant(),
                Param::new("window", Domain::Int).optional().constant(),
                Param::new("softcap", Domain::Float).optional().constant(),
                Param::new("segments", Domain::Int).optional(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check_rows(op)?;
        let (query, grad) = (op.tensor("query")?, op.tensor("grad")?);
        if !grad.compatible(query) {
            return Err(OpError::invalid(format!("grad {grad} is not as query {query}")));
        }
        ["query", "key", "value"].into_iter().map(|n| Ok(op.tensor(n)?.clone().into())).collect()
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (options, sizes) = (Options::of(&cx.op)?, Sizes::of(cx)?);
        let (query, key, value) = (cx.array("query")?, cx.array("key")?, cx.array("value")?);
        let (grad, positions) = (cx.array("grad")?, cx.array("positions")?);
        if grad.shape != query.shape {
            let (grad, query) = (&grad.shape, &query.shape);
            return Err(OpError::invalid(format!("grad {grad:?} is not as query {query:?}")));
        }
        let segments = cx.opt_array("segments")?;
        let segments = segments.as_deref().map(Array::ints).transpose()?;
        let arrays = [query.floats()?, key.floats()?, value.floats()?, grad.floats()?];
        let by = [&query, &key, &value].map(|a| vec![0.0; a.len()]);
        let (b, t, h) = (sizes.b, sizes.t, sizes.h);
        let mut heads = Heads { sizes, options, arrays, by };
        for (batch, n) in (0..b).flat_map(|batch| (0..t).map(move |n| (batch, n))) {
            let segments = segments.map(|s| &s[batch * t..][..t]);
            let seen = heads.options.seen(positions.ints()?, segments, n);
            (0..h).for_each(|head| heads.add(batch, head, n, &seen));
        }
        let [dq, dk, dv] = heads.by;
        Ok(vec![
            query.with_floats(dq).into(),
            key.with_floats(dk).into(),
            value.with_floats(dv).into(),
        ])
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let results = decompose_grad(op, &Options::of(op)?, &mut Emit::new(b))?;
        Ok(results.into_iter().flat_map(value).collect())
    }

    /// Ten for each element of the query and row: five products of matrices.
    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        let rows = op.tensor("key").ok().and_then(|k| k.shape.get(1)?.fixed()).unwrap_or(1);
        results.first().map_or(0.0, |q| 10.0 * elements(std::slice::from_ref(q)) * rows as f64)
    }
}
