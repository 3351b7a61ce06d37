//! Attention in plain MIL: products of matrices, a mask from positions, softmax.

use tensor::DType;

use super::attention::Options;
use crate::ops::emit::Emit;
use crate::ops::linear::hidden_score;
use crate::{Arg, OpError, OpKind, OpView, TensorType};

/// Emits the attention `op` and returns its result.
pub(super) fn decompose(
    op: &OpView<'_>,
    options: &Options,
    e: &mut Emit<'_, '_>,
) -> Result<Arg, OpError> {
    let (query, key) = (op.tensor("query")?, op.tensor("key")?);
    let dtype = query.dtype;
    let positions = e.cast(op.required("positions")?.clone(), DType::I32)?;
    let q = e.transpose(op.required("query")?, &HEADS_FIRST)?;
    let (mut k, mut v) = (
        e.transpose(op.required("key")?, &HEADS_FIRST)?,
        e.transpose(op.required("value")?, &HEADS_FIRST)?,
    );
    let mut slots = positions.clone();
    if let (Some(keys), Some(values)) = (op.arg("key_cache"), op.arg("value_cache")) {
        k = update_cache(e, keys, op.state("key_cache")?, k, &positions)?;
        v = update_cache(e, values, op.state("value_cache")?, v, &positions)?;
        slots = slot_numbers(e, &k)?;
        (k, v) = (e.cast(k, dtype)?, e.cast(v, dtype)?);
    }
    k = repeat_heads(e, k, query, key)?;
    v = repeat_heads(e, v, query, key)?;
    let seen = mask(e, &positions, &slots, options)?;
    let seen = within_segments(e, seen, op.arg("segments"))?;
    let Weights { weights, .. } = weigh(e, &q, &k, &seen, options)?;
    let mean = e.binary(OpKind::Matmul, &weights, &v)?;
    e.transpose(&mean, &HEADS_FIRST)
}

/// Rows and heads swapped, there and back.
const HEADS_FIRST: [i32; 4] = [0, 2, 1, 3];

/// How much each query `[B, H, T, D]` takes of each key `[B, H, S, D]`.
struct Weights {
    /// `[B, H, T, S]`; the sum over the last axis is 1.
    weights: Arg,
    /// The hyperbolic tangents that cap the scores.
    bent: Option<Arg>,
}

fn weigh(
    e: &mut Emit<'_, '_>,
    q: &Arg,
    k: &Arg,
    seen: &Arg,
    options: &Options,
) -> Result<Weights, OpError> {
    let dtype = e.ty(q)?.dtype;
    let yes = e.bool(true);
    let product =
        e.op(OpKind::Matmul, [("x", q.clone()), ("y", k.clone()), ("transpose_y", yes)])?;
    let (scores, bent) = scale(e, &product, options, dtype)?;
    let hidden = e.scalar(dtype, hidden_score(dtype))?;
    let scores = e.op(OpKind::Select, [("cond", seen.clone()), ("a", scores), ("b", hidden)])?;
    let last = e.int(-1);
    let weights = e.op(OpKind::Softmax, [("x", scores), ("axis", last)])?;
    Ok(Weights { weights, bent })
}

/// Emits the gradient `op` of an attention and returns those of query, key and value.
///
/// With `P = softmax(S)` and `O = P V`: `dV = P^T dO`, `dP = dO V^T`, `dS = P (dP - sum(P dP))`,
/// `dQ = dS K`, `dK = dS^T Q`, the derivatives of scale and cap put into `dS`.
pub(super) fn decompose_grad(
    op: &OpView<'_>,
    options: &Options,
    e: &mut Emit<'_, '_>,
) -> Result<[Arg; 3], OpError> {
    let (query, key) = (op.tensor("query")?, op.tensor("key")?);
    let positions = e.cast(op.required("positions")?.clone(), DType::I32)?;
    let mut heads_first = |name| e.transpose(op.required(name)?, &HEADS_FIRST);
    let (q, g) = (heads_first("query")?, heads_first("grad")?);
    let (k, v) = (heads_first("key")?, heads_first("value")?);
    let k = repeat_heads(e, k, query, key)?;
    let v = repeat_heads(e, v, query, key)?;
    let seen = mask(e, &positions, &positions, options)?;
    let seen = within_segments(e, seen, op.arg("segments"))?;
    let Weights { weights: p, bent } = weigh(e, &q, &k, &seen, options)?;
    let dv = e.matmul(&p, &g, [true, false])?;
    let dp = e.matmul(&g, &v, [false, true])?;
    let weighted = e.mul(&p, &dp)?;
    let row = e.reduce(OpKind::ReduceSum, &weighted, &[3], true)?;
    let mean = e.mul(&p, &row)?;
    let mut ds = e.sub(&weighted, &mean)?;
    if let Some(bent) = bent {
        let square = e.mul(&bent, &bent)?;
        let one = e.scalar(query.dtype, 1.0)?;
        let slope = e.sub(&one, &square)?;
        ds = e.mul(&ds, &slope)?;
    }
    let ds = e.times(&ds, options.scale)?;
    let dq = e.matmul(&ds, &k, [false, false])?;
    let dk = e.matmul(&ds, &q, [true, false])?;
    let dk = sum_heads(e, dk, query, key)?;
    let dv = sum_heads(e, dv, query, key)?;
    Ok([
        e.transpose(&dq, &HEADS_FIRST)?,
        e.transpose(&dk, &HEADS_FIRST)?,
        e.transpose(&dv, &HEADS_FIRST)?,
    ])
}

/// The converse of [`repeat_heads`]: the sum over the query heads that read a key head.
fn sum_heads(
    e: &mut Emit<'_, '_>,
    x: Arg,
    query: &TensorType,
    key: &TensorType,
) -> Result<Arg, OpError> {
    let (heads, groups) = (fixed(query, 2)?, fixed(key, 2)?);
    if heads == groups {
        return Ok(x);
    }
    let (batch, width) = (fixed(query, 0)?, fixed(query, 3)?);
    let sizes = [batch, groups, heads / groups, 0, width].map(|n| n as i32);
    let shape = e.ints(&sizes.map(|n| if n == 0 { -1 } else { n }));
    let grouped = e.op(OpKind::Reshape, [("x", x), ("shape", shape)])?;
    e.reduce(OpKind::ReduceSum, &grouped, &[2], false)
}

/// Writes rows `[B, G, T, D]` to slots `positions` of `cache` and returns its new content.
fn update_cache(
    e: &mut Emit<'_, '_>,
    cache: &Arg,
    ty: &TensorType,
    rows: Arg,
    positions: &Arg,
) -> Result<Arg, OpError> {
    let rows = e.cast(rows, ty.dtype)?;
    let old = e.op(OpKind::ReadState, [("input", cache.clone())])?;
    let (axis, mode) = (e.int(2), e.str("update"));
    let new = e.op(
        OpKind::Scatter,
        [
            ("data", old),
            ("indices", positions.clone()),
            ("updates", rows),
            ("axis", axis),
            ("mode", mode),
        ],
    )?;
    e.effect(OpKind::WriteState, [("input", cache.clone()), ("data", new)])?;
    e.op(OpKind::ReadState, [("input", cache.clone())])
}

/// `0, 1, ...` for the slots of a cache `[B, G, C, D]`.
fn slot_numbers(e: &mut Emit<'_, '_>, cache: &Arg) -> Result<Arg, OpError> {
    if let Some(capacity) = e.ty(cache)?.shape[2].fixed() {
        let numbers: Vec<i32> = (0..capacity as i32).collect();
        return Ok(e.ints(&numbers));
    }
    let shape = e.op(OpKind::Shape, [("x", cache.clone())])?;
    let (begin, end, squeeze) = (e.ints(&[2]), e.ints(&[3]), e.bools(&[true]));
    let capacity = e.op(
        OpKind::SliceByIndex,
        [("x", shape), ("begin", begin), ("end", end), ("squeeze_mask", squeeze)],
    )?;
    let (start, step) = (e.int(0), e.int(1));
    e.op(OpKind::Range1d, [("end", capacity), ("start", start), ("step", step)])
}

fn fixed(t: &TensorType, axis: usize) -> Result<usize, OpError> {
    t.shape[axis].fixed().ok_or_else(|| {
        OpError::unsupported(format!("batch, heads and head size of {t} must be known"))
    })
}

/// `x` `[B, G, S, D]` with each head as often as query heads read it: `[B, H, S, D]`.
fn repeat_heads(
    e: &mut Emit<'_, '_>,
    x: Arg,
    query: &TensorType,
    key: &TensorType,
) -> Result<Arg, OpError> {
    let (heads, groups) = (fixed(query, 2)?, fixed(key, 2)?);
    if heads == groups {
        return Ok(x);
    }
    let behind = e.ints(&[2]);
    let expanded = e.op(OpKind::ExpandDims, [("x", x), ("axes", behind)])?;
    let reps = e.ints(&[1, 1, (heads / groups) as i32, 1, 1]);
    let tiled = e.op(OpKind::Tile, [("x", expanded), ("reps", reps)])?;
    let (batch, width) = (fixed(query, 0)?, fixed(query, 3)?);
    let shape = e.ints(&[batch as i32, heads as i32, -1, width as i32]);
    e.op(OpKind::Reshape, [("x", tiled), ("shape", shape)])
}

/// Scores from products: scaled, and capped if asked for; then also the tangents that cap them.
fn scale(
    e: &mut Emit<'_, '_>,
    product: &Arg,
    options: &Options,
    dtype: DType,
) -> Result<(Arg, Option<Arg>), OpError> {
    let factor = e.scalar(dtype, options.scale)?;
    let scores = e.mul(product, &factor)?;
    let Some(cap) = options.softcap else { return Ok((scores, None)) };
    let cap = e.scalar(dtype, cap)?;
    let small = e.binary(OpKind::RealDiv, &scores, &cap)?;
    let bent = e.op(OpKind::Tanh, [("x", small)])?;
    Ok((e.mul(&bent, &cap)?, Some(bent)))
}

/// What is `seen` `[T, T]`, within the same segment only: `[B, 1, T, T]` if there are segments.
fn within_segments(
    e: &mut Emit<'_, '_>,
    seen: Arg,
    segments: Option<&Arg>,
) -> Result<Arg, OpError> {
    let Some(segments) = segments else { return Ok(seen) };
    let (columns, rows) = (e.ints(&[1, 3]), e.ints(&[1, 2]));
    let own = e.op(OpKind::ExpandDims, [("x", segments.clone()), ("axes", columns)])?;
    let other = e.op(OpKind::ExpandDims, [("x", segments.clone()), ("axes", rows)])?;
    let same = e.binary(OpKind::Equal, &own, &other)?;
    e.binary(OpKind::LogicalAnd, &same, &seen)
}

/// Which slots `[S]` the queries at `positions` `[T]` see: `[T, S]`.
fn mask(
    e: &mut Emit<'_, '_>,
    positions: &Arg,
    slots: &Arg,
    options: &Options,
) -> Result<Arg, OpError> {
    let behind = e.ints(&[1]);
    let at = e.op(OpKind::ExpandDims, [("x", positions.clone()), ("axes", behind)])?;
    let before = e.ints(&[0]);
    let slots = e.op(OpKind::ExpandDims, [("x", slots.clone()), ("axes", before)])?;
    let earlier = e.binary(OpKind::LessEqual, &slots, &at)?;
    let Some(window) = options.window.and_then(|w| i32::try_from(w).ok()) else {
        return Ok(earlier);
    };
    let window = e.int(window);
    let start = e.binary(OpKind::Sub, &at, &window)?;
    let within = e.binary(OpKind::Greater, &slots, &start)?;
    e.binary(OpKind::LogicalAnd, &earlier, &within)
}
