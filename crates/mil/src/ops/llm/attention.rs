//! Attention with grouped heads, over the rows at hand or over a key-value cache.

use super::attention_in_mil::decompose;
use crate::eval::exact::dot;
use crate::eval::{Array, EvalCx, Value};
use crate::ops::emit::{Emit, value};
use crate::ops::{Domain, Param, bytes, elements};
use crate::{
    Cost, Dim, Effect, FunctionBuilder, OpDef, OpError, OpView, TensorType, Type, ValueId,
};

/// Causal attention of grouped query heads (Ainslie et al. 2023), optionally over a cache, within a
/// sliding window and with capped scores.
///
/// `query` float `[B, T, H, D]`, `key` and `value` `[B, T, G, D]` with `H` a multiple of `G`,
/// `positions` `[T]`, `scale` a constant scalar. Query head `h` reads key-value head `h / (H / G)`.
/// The result is as `query`: the mean of values weighted by `softmax(scale * q k)`, scores `s` first
/// replaced by `softcap * tanh(s / softcap)` if that is given.
///
/// With `key_cache` and `value_cache` (states `[B, G, C, D]`) row `t` of key and value is first
/// written to slot `positions[t]`, rounded to the cache's element type; then query `t` attends the
/// slots `s <= positions[t]`. Without, it attends those of the `T` rows whose position is not
/// greater than its own. With `window` `w` only positions `> positions[t] - w` are attended.
///
/// Without caches, `segments` `[B, T]` of integers may say which of several documents in one sequence
/// a row belongs to: it attends rows of the same segment only.
pub(in crate::ops) struct LlmAttention;

/// The constant options.
pub(super) struct Options {
    pub(super) scale: f64,
    pub(super) window: Option<i64>,
    pub(super) softcap: Option<f64>,
}

impl Options {
    pub(super) fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        let scale = op.float("scale")?.unwrap_or(1.0);
        let (window, softcap) = (op.int("window")?, op.float("softcap")?);
        if window.is_some_and(|w| w < 1) || softcap.is_some_and(|c| c <= 0.0) {
            return Err(OpError::invalid("window and softcap must be positive"));
        }
        Ok(Options { scale, window, softcap })
    }

    /// Whether a query at position `at` attends position `other`.
    pub(super) fn sees(&self, at: i64, other: i64) -> bool {
        other <= at && self.window.is_none_or(|w| other > at - w)
    }

    /// Which of the rows at hand row `n` attends.
    pub(super) fn seen(&self, positions: &[i64], segments: Option<&[i64]>, n: usize) -> Vec<usize> {
        let same = |s: usize| segments.is_none_or(|of| of[s] == of[n]);
        let sees = |&s: &usize| same(s) && self.sees(positions[n], positions[s]);
        (0..positions.len()).filter(sees).collect()
    }

    pub(super) fn score(&self, product: f64) -> f64 {
        let s = self.scale * product;
        self.softcap.map_or(s, |c| c * (s / c).tanh())
    }
}

/// The sizes of an attention's arguments: `query` `[b, t, h, d]`, `key` and `value` `[b, t, g, d]`.
pub(super) struct Sizes {
    pub(super) b: usize,
    pub(super) t: usize,
    pub(super) h: usize,
    pub(super) g: usize,
    pub(super) d: usize,
}

impl Sizes {
    /// The sizes of the values at hand.
    pub(super) fn of(cx: &EvalCx<'_, '_>) -> Result<Self, OpError> {
        let (query, key, value) = (cx.array("query")?, cx.array("key")?, cx.array("value")?);
        let (positions, segments) = (cx.array("positions")?, cx.opt_array("segments")?);
        let (&[b, t, h, d], &[_, _, g, _]) = (&query.shape[..], &key.shape[..]) else {
            return Err(OpError::invalid("query or key is not of rank 4"));
        };
        let expected = [b, t, g, d];
        let grouped = g > 0 && h.is_multiple_of(g);
        let placed = positions.len() == t && segments.is_none_or(|s| s.shape == [b, t]);
        if key.shape != expected || value.shape != expected || !placed || !grouped {
            return Err(OpError::invalid(format!(
                "query {:?}, key {:?}, value {:?}, {} positions and the segments do not go together",
                query.shape,
                key.shape,
                value.shape,
                positions.len()
            )));
        }
        Ok(Sizes { b, t, h, g, d })
    }
}

/// Checks `query`, `key`, `value`, `positions`, `segments` and the options, whose types attention and
/// its gradient share.
pub(super) fn check_rows(op: &OpView<'_>) -> Result<(), OpError> {
    let (query, key, value) = (op.tensor("query")?, op.tensor("key")?, op.tensor("value")?);
    let positions = op.tensor("positions")?;
    let fits = query.rank() == 4
        && key.rank() == 4
        && key.compatible(value)
        && [0, 1, 3].iter().all(|&i| query.shape[i].compatible(&key.shape[i]));
    let groups = match (query.shape.get(2), key.shape.get(2)) {
        (Some(Dim::Fixed(h)), Some(Dim::Fixed(g))) => *g > 0 && h.is_multiple_of(*g),
        _ => true,
    };
    if !fits || !groups {
        return Err(OpError::invalid(format!(
            "query {query} is not [B, T, H, D] for key {key} and value {value} [B, T, G, D] \
             with H a multiple of G"
        )));
    }
    if positions.rank() != 1 || !positions.shape[0].compatible(&query.shape[1]) {
        return Err(OpError::invalid(format!(
            "positions {positions} are not [T] of query {query}"
        )));
    }
    if let Some(segments) = op.opt_tensor("segments")? {
        let fits = segments.rank() == 2
            && segments.shape.iter().zip(&query.shape).all(|(a, b)| a.compatible(b));
        if !fits {
            let message = format!("segments {segments} are not [B, T] of query {query}");
            return Err(OpError::invalid(message));
        }
    }
    Options::of(op).map(drop)
}

/// Keys and values of one batch item and head: row `s` starts at `start + s * step`.
struct Rows<'a> {
    keys: &'a [f64],
    values: &'a [f64],
    start: usize,
    step: usize,
    dim: usize,
}

impl Rows<'_> {
    /// Adds to `out` the mean of the values of rows `seen`, weighted by the softmax of the scores.
    fn attend(&self, query: &[f64], seen: &[usize], options: &Options, out: &mut [f64]) {
        let row = |s: usize| self.start + s * self.step..self.start + s * self.step + self.dim;
        let scores: Vec<f64> =
            seen.iter().map(|&s| options.score(dot(0.0, query, &self.keys[row(s)]))).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        for (&s, score) in seen.iter().zip(&scores) {
            let p = (score - max).exp() / sum;
            out.iter_mut().zip(&self.values[row(s)]).for_each(|(o, v)| *o += p * v);
        }
    }
}

fn check_cache(name: &str, cache: &TensorType, key: &TensorType) -> Result<(), OpError> {
    let fits = cache.dtype.is_float()
        && cache.rank() == 4
        && [(0, 0), (1, 2), (3, 3)].iter().all(|&(c, k)| cache.shape[c].compatible(&key.shape[k]));
    if !fits {
        return Err(OpError::invalid(format!("{name} {cache} is not [B, G, C, D] for key {key}")));
    }
    Ok(())
}

impl OpDef for LlmAttention {
    fn name(&self) -> &'static str {
        "llm.attention"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("query", Domain::Float),
                Param::new("key", Domain::Float),
                Param::new("value", Domain::Float),
                Param::new("positions", Domain::Int),
                Param::new("scale", Domain::Float).constant(),
                Param::new("key_cache", Domain::State).optional(),
                Param::new("value_cache", Domain::State).optional(),
                Param::new("window", Domain::Int).optional().constant(),
                Param::new("softcap", Domain::Float).optional().constant(),
                Param::new("segments", Domain::Int).optional(),
            ]
        }
    }

    /// With caches it writes them.
    fn effect(&self, op: &OpView<'_>) -> Effect {
        if op.arg("key_cache").is_some() { Effect::WritesState } else { Effect::Pure }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check_rows(op)?;
        let (query, key, value) = (op.tensor("query")?, op.tensor("key")?, op.tensor("value")?);
        match (op.arg("key_cache"), op.arg("value_cache")) {
            (None, None) => {}
            (Some(_), Some(_)) => {
                check_cache("key_cache", op.state("key_cache")?, key)?;
                check_cache("value_cache", op.state("value_cache")?, value)?;
                if op.arg("segments").is_some() {
                    return Err(OpError::invalid(
                        "segments are of the rows at hand, not of a cache",
                    ));
                }
            }
            _ => {
                return Err(OpError::invalid("key_cache and value_cache are given only together"));
            }
        }
        Ok(vec![query.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let options = Options::of(&cx.op)?;
        let (query, key, value) = (cx.array("query")?, cx.array("key")?, cx.array("value")?);
        let Sizes { b, t, h, g, d } = Sizes::of(cx)?;
        let (positions, segments) = (cx.array("positions")?, cx.opt_array("segments")?);
        let (positions, q) = (positions.ints()?, query.floats()?);
        let segments = segments.as_deref().map(Array::ints).transpose()?;
        let cached = cx.op.arg("key_cache").is_some();
        let mut out = vec![0.0; q.len()];
        let (keys, values, slots) = if cached {
            store(cx, "key_cache", &key.shape, key.floats()?, positions)?;
            let slots = store(cx, "value_cache", &value.shape, value.floats()?, positions)?;
            let content = |name| cx.state(name)?.floats();
            (content("key_cache")?, content("value_cache")?, slots)
        } else {
            (key.floats()?, value.floats()?, t)
        };
        for (batch, n) in (0..b).flat_map(|batch| (0..t).map(move |n| (batch, n))) {
            let seen: Vec<usize> = match cached {
                true => (0..slots).filter(|&s| options.sees(positions[n], s as i64)).collect(),
                false => options.seen(positions, segments.map(|s| &s[batch * t..][..t]), n),
            };
            for head in 0..h {
                let kv = head / (h / g);
                let (start, step) = if cached {
                    ((batch * g + kv) * slots * d, d)
                } else {
                    ((batch * t * g + kv) * d, g * d)
                };
                let rows = Rows { keys, values, start, step, dim: d };
                let place = ((batch * t + n) * h + head) * d;
                rows.attend(&q[place..][..d], &seen, &options, &mut out[place..][..d]);
            }
        }
        Ok(vec![query.with_floats(out).into()])
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        decompose(op, &Options::of(op)?, &mut Emit::new(b)).map(value)
    }

    /// Four flops for each query element and slot it could see (the whole cache, or `T` without);
    /// softmax is not counted. The caches are read once.
    fn cost(&self, op: &OpView<'_>, results: &[Type]) -> Cost {
        let caches = ["key_cache", "value_cache"].map(|name| op.state(name).ok().cloned());
        let span = match &caches[0] {
            Some(cache) => cache.shape.get(2).cloned(),
            None => op.tensor("key").ok().and_then(|k| k.shape.get(1).cloned()),
        };
        let span = span.and_then(|d| d.fixed()).unwrap_or(1) as f64;
        let cached: f64 = caches.into_iter().flatten().map(|c| bytes(&[c.into()])).sum();
        Cost {
            flops: 4.0 * elements(results) * span,
            bytes: op.arg_bytes() + cached + bytes(results),
        }
    }
}

/// Writes `rows` `[B, T, G, D]` to the slots `positions` of a cache `[B, G, C, D]`, and returns `C`.
fn store(
    cx: &mut EvalCx<'_, '_>,
    name: &str,
    shape: &[usize],
    rows: &[f64],
    positions: &[i64],
) -> Result<usize, OpError> {
    let dtype = cx.state(name)?.dtype;
    let rounded: Vec<f64> = rows.iter().map(|&x| cx.round(dtype, x)).collect();
    let cache = cx.state_mut(name)?;
    let &[b, t, g, d] = shape else {
        return Err(OpError::invalid(format!("rows of shape {shape:?} for {name}")));
    };
    let capacity = match cache.shape[..] {
        [cb, cg, c, cd] if [cb, cg, cd] == [b, g, d] => c,
        _ => {
            return Err(OpError::invalid(format!(
                "{name} of shape {:?} does not take rows of shape {shape:?}",
                cache.shape
            )));
        }
    };
    let cells = cache.floats_mut()?;
    for (n, &position) in positions.iter().enumerate() {
        let slot = usize::try_from(position).ok().filter(|&s| s < capacity).ok_or_else(|| {
            OpError::invalid(format!("position {position} is not in {name} of {capacity} slots"))
        })?;
        for batch in 0..b {
            for head in 0..g {
                let from = ((batch * t + n) * g + head) * d;
                let to = ((batch * g + head) * capacity + slot) * d;
                cells[to..][..d].copy_from_slice(&rounded[from..][..d]);
            }
        }
    }
    Ok(capacity)
}
