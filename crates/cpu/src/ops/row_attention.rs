//! Attention among the rows at hand, and its gradient: batches of sequences, each of one or more documents.

use kernels::{Attention, AttentionGrad, Cache, CacheMut, Sequence};
use mil::OpError;
use tensor::DType;

use super::attention::{Shape, positions};
use crate::kernel::{Kernel, Native, Operand, RunCx, f32s, f32s_mut, i32s};
use crate::op_cx::{Bind, OpCx};

/// What rows see of each other, from operands when running.
struct Sight {
    sequences: usize,
    window: Option<usize>,
    /// Whether the operand after the positions says which document each row is of.
    documents: bool,
}

impl Sight {
    /// For the operation in `cx`; adds the operands that say it.
    fn of(cx: &mut OpCx<'_>, shape: &Shape, inputs: &mut Vec<Operand>) -> Bind<Self> {
        inputs.push(positions(cx)?);
        let segments = cx.opt("segments")?;
        if let Some(other) = segments.as_ref().map(|s| s.dtype).filter(|&d| d != DType::I32) {
            return Err(format!("segments of {other}").into());
        }
        let documents = segments.is_some();
        inputs.extend(segments);
        Ok(Sight { sequences: shape.batch, window: shape.window, documents })
    }

    /// In the order of documents and of positions in them, the rows that one sees are a range.
    fn sequences(&self, operands: &[&[u8]]) -> Vec<Sequence> {
        let positions = i32s(operands[0]);
        let rows = positions.len();
        (0..self.sequences)
            .map(|n| {
                let document = |row: usize| {
                    if self.documents { i32s(operands[1])[n * rows + row] } else { 0 }
                };
                let place = |row: usize| (document(row), i64::from(positions[row]));
                let mut order: Vec<usize> = (0..rows).collect();
                order.sort_by_key(|&row| place(row));
                let sorted: Vec<(i32, i64)> = order.iter().map(|&row| place(row)).collect();
                let visible = (0..rows).map(|row| {
                    let (document, at) = place(row);
                    // The last position before those that are seen.
                    let oldest =
                        self.window.map_or(i64::MIN, |w| at.saturating_sub_unsigned(w as u64));
                    sorted.partition_point(|&s| s <= (document, oldest))
                        ..sorted.partition_point(|&s| s <= (document, at))
                });
                let visible = visible.collect();
                Sequence { order, visible }
            })
            .collect()
    }
}

/// Binds `llm.attention` without caches.
pub(crate) fn attention(cx: &mut OpCx<'_>) -> Bind<Native> {
    let shape = Shape::of(cx)?;
    let mut inputs = vec![cx.float("query")?, cx.float("key")?, cx.float("value")?];
    let sight = Sight::of(cx, &shape, &mut inputs)?;
    let size = shape.rows * shape.groups * shape.dim;
    let native = Native::floats(RowAttention { shape, sight }, inputs);
    Ok(native.with_scratch(&[size, size]))
}

struct RowAttention {
    shape: Shape,
    sight: Sight,
}

impl Kernel for RowAttention {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let Shape { heads, groups, dim, scale, softcap, rows: capacity, .. } = self.shape;
        let [out, keys, values] = outs else { return Ok(()) };
        let (queries, size) = (capacity * heads * dim, capacity * groups * dim);
        for (n, seen) in self.sight.sequences(&ins[3..]).iter().enumerate() {
            let mut slots = vec![0; capacity];
            seen.order.iter().enumerate().for_each(|(slot, &row)| slots[row] = slot);
            for (rows, bytes) in [(ins[1], &mut **keys), (ins[2], &mut **values)] {
                let rows = &f32s(rows)[n * size..][..size];
                let mut cache = CacheMut { dtype: DType::F32, bytes, heads: groups, capacity, dim };
                kernels::store_cache(cx.pool, rows, &slots, &mut cache);
            }
            let view = |bytes| Cache { dtype: DType::F32, bytes, heads: groups, capacity, dim };
            let (keys, values) = (view(&**keys), view(&**values));
            let q = &f32s(ins[0])[n * queries..][..queries];
            let out = &mut f32s_mut(out)[n * queries..][..queries];
            let visible = &seen.visible;
            let args = Attention { q, heads, keys, values, visible, scale, softcap };
            kernels::attention(cx.pool, &args, out);
        }
        Ok(())
    }
}

/// Binds `llm.attention_grad`.
pub(crate) fn attention_grad(cx: &mut OpCx<'_>) -> Bind<Native> {
    let shape = Shape::of(cx)?;
    let mut inputs = ["query", "key", "value", "grad"]
        .into_iter()
        .map(|name| cx.float(name))
        .collect::<Bind<Vec<_>>>()?;
    let sight = Sight::of(cx, &shape, &mut inputs)?;
    Ok(Native::floats(RowAttentionGrad { shape, sight }, inputs))
}

struct RowAttentionGrad {
    shape: Shape,
    sight: Sight,
}

impl Kernel for RowAttentionGrad {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let Shape { heads, groups: kv_heads, dim, scale, softcap, .. } = self.shape;
        let [q, keys, values, grad] = [0, 1, 2, 3].map(|i| f32s(ins[i]));
        let sequences = &self.sight.sequences(&ins[4..])[..];
        let args = AttentionGrad {
            q,
            keys,
            values,
            grad,
            heads,
            kv_heads,
            dim,
            sequences,
            scale,
            softcap,
        };
        let [by_q, by_k, by_v] = outs else { return Ok(()) };
        let by = [f32s_mut(by_q), f32s_mut(by_k), f32s_mut(by_v)];
        kernels::attention_grad(cx.pool, &args, by);
        Ok(())
    }
}
