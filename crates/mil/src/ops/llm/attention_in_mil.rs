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
    let heads_first = [0, 2, 1, 3];
    let q = e.transpose(op.required("query")?, &heads_first)?;
    let (mut k, mut v) = (
        e.transpose(op.required("key")?, &heads_first)?,
        e.transpose(op.required("value")?, &heads_first)?,
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
    let yes = e.bool(true);
    let product = e.op(OpKind::Matmul, [("x", q), ("y", k), ("transpose_y", yes)])?;
    let scores = scale(e, &product, options, dtype)?;
    let seen = mask(e, &positions, &slots, options)?;
    let hidden = e.scalar(dtype, hidden_score(dtype))?;
    let scores = e.op(OpKind::Select, [("cond", seen), ("a", scores), ("b", hidden)])?;
    let last = e.int(-1);
    let weights = e.op(OpKind::Softmax, [("x", scores), ("axis", last)])?;
    let mean = e.binary(OpKind::Matmul, &weights, &v)?;
    e.transpose(&mean, &heads_first)
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

/// `x` `[B, G, S, D]` with each head as often as query heads read it: `[B, H, S, D]`.
fn repeat_heads(
    e: &mut Emit<'_, '_>,
    x: Arg,
    query: &TensorType,
    key: &TensorType,
) -> Result<Arg, OpError> {
    let fixed = |t: &TensorType, axis: usize| {
        t.shape[axis].fixed().ok_or_else(|| {
            OpError::unsupported(format!("batch, heads and head size of {t} must be known"))
        })
    };
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

/// Scores from products: scaled, and capped if asked for.
fn scale(
    e: &mut Emit<'_, '_>,
    product: &Arg,
    options: &Options,
    dtype: DType,
) -> Result<Arg, OpError> {
    let factor = e.scalar(dtype, options.scale)?;
    let scores = e.mul(product, &factor)?;
    let Some(cap) = options.softcap else { return Ok(scores) };
    let cap = e.scalar(dtype, cap)?;
    let small = e.binary(OpKind::RealDiv, &scores, &cap)?;
    let bent = e.op(OpKind::Tanh, [("x", small)])?;
    e.mul(&bent, &cap)
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
