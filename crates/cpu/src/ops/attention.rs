//! Attention over a cache, and rotary embedding.

use std::ops::Range;

use kernels::{Attention, Cache, CacheMut, Pairing, Pool, Rope};
use mil::{Arg, ErrorKind, OpError, Type};
use tensor::DType;

use super::row_attention;
use crate::kernel::{Kernel, Native, Operand, RunCx, Source, f32s, f32s_mut, i32s};
use crate::op_cx::{Bind, OpCx};

/// Sizes and options of one attention.
pub(super) struct Shape {
    /// Sequences.
    pub(super) batch: usize,
    /// Rows of a sequence.
    pub(super) rows: usize,
    pub(super) heads: usize,
    pub(super) groups: usize,
    pub(super) dim: usize,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) window: Option<usize>,
}

impl Shape {
    pub(super) fn of(cx: &mut OpCx<'_>) -> Bind<Self> {
        let (query, key) = (cx.get("query")?, cx.get("key")?);
        let (&[batch, rows, heads, dim], &[_, _, groups, _]) = (&query.shape[..], &key.shape[..])
        else {
            return Err("query or key is not of rank 4".into());
        };
        let scale = cx.view.float("scale")?.unwrap_or(1.0) as f32;
        let softcap = cx.view.float("softcap")?.map(|c| c as f32);
        let window = cx.view.int("window")?.and_then(|w| usize::try_from(w).ok());
        Ok(Shape { batch, rows, heads, groups, dim, scale, softcap, window })
    }

    /// The first of the slots that a query at `position` sees.
    fn first(&self, position: usize) -> usize {
        self.window.map_or(0, |w| (position + 1).saturating_sub(w))
    }
}

/// Binds `llm.attention`.
pub(crate) fn attention(cx: &mut OpCx<'_>) -> Bind<Native> {
    if cx.view.arg("key_cache").is_none() {
        return row_attention::attention(cx);
    }
    let shape = Shape::of(cx)?;
    if shape.batch * shape.heads * shape.groups * shape.dim == 0 {
        return Err("rows without elements".into());
    }
    let inputs = vec![cx.float("query")?, cx.float("key")?, cx.float("value")?, positions(cx)?];
    let (keys, values) = (state_name(cx, "key_cache")?, state_name(cx, "value_cache")?);
    if keys == values {
        return Err("keys and values in one state".into());
    }
    for name in ["key_cache", "value_cache"] {
        let dtype = cx.view.state(name)?.dtype;
        if !matches!(dtype, DType::F16 | DType::F32) {
            return Err(format!("a cache of {dtype}").into());
        }
    }
    let written = [keys.clone(), values.clone()];
    let native = Native::floats(CachedAttention { shape, keys, values }, inputs);
    Ok(native.writing(&[&written[0], &written[1]]))
}

pub(super) fn positions(cx: &mut OpCx<'_>) -> Bind<Operand> {
    let positions = cx.get("positions")?;
    match positions.dtype {
        DType::I32 => Ok(positions),
        other => Err(format!("positions of {other}").into()),
    }
}

/// The name of the state that argument `name` is.
pub(super) fn state_name(cx: &OpCx<'_>, name: &str) -> Bind<String> {
    match cx.view.arg(name) {
        Some(Arg::Value(v)) if matches!(cx.view.function.ty(*v), Type::State(_)) => {
            Ok(cx.view.function.values[*v].name.clone())
        }
        _ => Err(format!("{name} is not a state").into()),
    }
}

/// Attention over key and value caches, which it first writes.
struct CachedAttention {
    shape: Shape,
    keys: String,
    values: String,
}

impl CachedAttention {
    /// What `state` holds of each sequence.
    fn caches<'a>(&self, state: &'a exec::StateBuffer) -> impl Iterator<Item = Cache<'a>> {
        let (heads, dim, dtype) = (self.shape.groups, self.shape.dim, state.dtype);
        let capacity = state.shape.get(2).copied().unwrap_or(0);
        let of_one = state.data.len() / self.shape.batch;
        let sequences = state.data.chunks_exact(of_one);
        sequences.map(move |bytes| Cache { dtype, bytes, heads, capacity, dim })
    }
}

impl Kernel for CachedAttention {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let Shape { batch, heads, groups, dim, scale, softcap, .. } = self.shape;
        let (keys, values) = cx
            .state
            .get_two_mut(&self.keys, &self.values)
            .map_err(|e| OpError { kind: ErrorKind::Invalid, message: e.to_string() })?;
        let capacity = keys.shape.get(2).copied().unwrap_or(0);
        let slots: Vec<usize> = i32s(ins[3])
            .iter()
            .map(|&p| usize::try_from(p).ok().filter(|&s| s < capacity))
            .collect::<Option<_>>()
            .ok_or_else(|| past_the_cache(i32s(ins[3]), capacity))?;
        if slots.is_empty() {
            return Ok(());
        }
        for (rows, state) in [(ins[1], &mut *keys), (ins[2], &mut *values)] {
            let (dtype, of_one) = (state.dtype, state.data.len() / batch);
            let rows = f32s(rows).chunks_exact(slots.len() * groups * dim);
            for (rows, bytes) in rows.zip(state.data.chunks_exact_mut(of_one)) {
                let mut cache = CacheMut { dtype, bytes, heads: groups, capacity, dim };
                kernels::store_cache(cx.pool, rows, &slots, &mut cache);
            }
        }
        let visible: Vec<Range<usize>> =
            slots.iter().map(|&s| self.shape.first(s)..s + 1).collect();
        let size = slots.len() * heads * dim;
        let rows = f32s(ins[0]).chunks_exact(size).zip(f32s_mut(outs[0]).chunks_exact_mut(size));
        let caches = self.caches(keys).zip(self.caches(values));
        for ((q, out), (keys, values)) in rows.zip(caches) {
            let args = Attention { q, heads, keys, values, visible: &visible, scale, softcap };
            kernels::attention(cx.pool, &args, out);
        }
        Ok(())
    }
}

fn past_the_cache(positions: &[i32], capacity: usize) -> OpError {
    let bad = positions.iter().find(|&&p| usize::try_from(p).map_or(true, |p| p >= capacity));
    let kind = if bad.is_some_and(|&p| p < 0) { ErrorKind::Invalid } else { ErrorKind::Limit };
    let bad = bad.copied().unwrap_or_default();
    let message = format!("position {bad} is not in the cache, whose capacity is {capacity}");
    OpError { kind, message }
}

/// Binds `llm.rope`.
pub(crate) fn rope(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x = cx.float("x")?;
    let &[_, t, heads, dim] = &x.shape[..] else { return Err("x is not of rank 4".into()) };
    if t * heads * dim == 0 {
        return Err("rows without elements".into());
    }
    let Source::Value(positions) = positions(cx)?.source else {
        return Err("positions are a constant".into());
    };
    let pairing =
        if cx.view.bool_or("interleaved", false)? { Pairing::Adjacent } else { Pairing::Half };
    let inv_freq = cx.const_float("inv_freq")?;
    let angles = |sine| Operand {
        dtype: DType::F32,
        shape: vec![x.shape[1], inv_freq.len()],
        source: Source::Angles { positions, inv_freq: inv_freq.clone(), sine },
    };
    let inputs = vec![x.clone(), angles(false), angles(true)];
    Ok(Native::floats(RopeKernel { pairing, t, heads, dim }, inputs))
}

struct RopeKernel {
    pairing: Pairing,
    /// Rows of a sequence.
    t: usize,
    heads: usize,
    dim: usize,
}

impl Kernel for RopeKernel {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let RopeKernel { pairing, t, heads, dim } = *self;
        let args = Rope { pairing, heads, dim, cos: f32s(ins[1]), sin: f32s(ins[2]) };
        let out = f32s_mut(outs[0]);
        if cx.in_place.is_none() {
            out.copy_from_slice(f32s(ins[0]));
        }
        for sequence in out.chunks_exact_mut(t * heads * dim) {
            kernels::rope_in_place(cx.pool, &args, sequence);
        }
        Ok(())
    }
}

/// Cosines and sines of `positions[t] * inv_freq[i]`, in double precision before rounding.
pub(crate) struct AngleTables;

impl Kernel for AngleTables {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let (positions, inv_freq) = (i32s(ins[0]), f32s(ins[1]));
        let [cos, sin] = outs else { return Ok(()) };
        tables(cx.pool, positions, inv_freq, f32s_mut(cos), false);
        tables(cx.pool, positions, inv_freq, f32s_mut(sin), true);
        Ok(())
    }
}

fn tables(pool: &Pool, positions: &[i32], inv_freq: &[f32], out: &mut [f32], sine: bool) {
    super::for_each_chunk(pool, out, inv_freq.len(), |t, row| {
        for (o, &f) in row.iter_mut().zip(inv_freq) {
            let angle = f64::from(positions[t]) * f64::from(f);
            *o = (if sine { angle.sin() } else { angle.cos() }) as f32;
        }
    });
}
