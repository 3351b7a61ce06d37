//! Operations that move elements: transpose, slices, split, concat, gather.

use mil::{OpError, OpKind, Opset};
use tensor::DType;

use super::strided::{Walk, row_major};
use crate::kernel::{Binding, Kernel, Native, Operand, RunCx, i32s};
use crate::op_cx::{Bind, OpCx};

/// Bytes of an element of a whole-byte type.
fn element(dtype: DType) -> Bind<usize> {
    match dtype.block_len() {
        1 => Ok(dtype.block_bytes()),
        _ => Err(format!("elements of type {dtype}").into()),
    }
}

/// A copy by one walk for each result, or a view if all are contiguous.
fn walks(of: Operand, walks: Vec<Walk>) -> Bind<Binding> {
    let size = element(of.dtype)?;
    if walks.iter().all(Walk::is_contiguous) {
        let offsets = walks.iter().map(|w| w.start * size).collect();
        return Ok(Binding::View { of, offsets });
    }
    Ok(Native::moves(Copies { walks }, vec![of]).into())
}

struct Copies {
    walks: Vec<Walk>,
}

impl Kernel for Copies {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        self.walks.iter().zip(outs).for_each(|(walk, out)| walk.copy(cx.pool, ins[0], out));
        Ok(())
    }
}

/// Binds `transpose`.
pub(crate) fn transpose(cx: &OpCx<'_>) -> Bind<Binding> {
    let x = cx.get("x")?;
    let perm = cx.view.ints("perm")?.ok_or("no permutation")?;
    let rank = x.shape.len();
    let perm: Vec<usize> = perm.iter().map(|&p| cx.view.axis(p, rank)).collect::<Result<_, _>>()?;
    let own = row_major(&x.shape);
    let shape: Vec<usize> = perm.iter().map(|&p| x.shape[p]).collect();
    let walk = Walk::new(0, &shape, perm.iter().map(|&p| own[p]).collect(), element(x.dtype)?)?;
    walks(x, vec![walk])
}

/// Binds `slice_by_index` and `slice_by_size` with constant bounds.
pub(crate) fn slice(cx: &OpCx<'_>) -> Bind<Binding> {
    let x = cx.get("x")?;
    let rank = x.shape.len();
    let begin = cx.view.ints("begin")?.ok_or("no begin")?;
    let flags = |name| -> Bind<Vec<bool>> {
        if cx.op.kind == OpKind::SliceBySize {
            return Ok(vec![false; rank]);
        }
        Ok(cx.view.bools(name)?.unwrap_or_else(|| vec![false; rank]))
    };
    let (begin_mask, squeezed) = (flags("begin_mask")?, flags("squeeze_mask")?);
    let stride = match cx.op.kind {
        OpKind::SliceByIndex => cx.view.ints("stride")?,
        _ => None,
    };
    let stride = stride.unwrap_or_else(|| vec![1; rank]);
    if stride.iter().any(|&s| s < 1) {
        return Err("a negative stride".into());
    }
    let (_, result) = cx.result(0)?;
    let mut sizes = result.iter();
    let own = row_major(&x.shape);
    let (mut start, mut shape, mut strides) = (0, Vec::new(), Vec::new());
    for axis in 0..rank {
        let first = match begin[axis] {
            _ if begin_mask[axis] => 0,
            b if b < 0 => b + x.shape[axis] as i64,
            b => b,
        };
        let first = usize::try_from(first).unwrap_or(0).min(x.shape[axis]);
        start += first * own[axis];
        let size = if squeezed[axis] { Some(&1) } else { sizes.next() };
        shape.push(*size.ok_or("a result of too few axes")?);
        strides.push(own[axis] * stride[axis] as usize);
    }
    let walk = Walk::new(start, &shape, strides, element(x.dtype)?)?;
    walks(x, vec![walk])
}

/// Binds `split`.
pub(crate) fn split(cx: &OpCx<'_>) -> Bind<Binding> {
    let x = cx.get("x")?;
    let axis = cx.view.axis(cx.view.int("axis")?.ok_or("no axis")?, x.shape.len())?;
    let own = row_major(&x.shape);
    let mut start = 0;
    let mut parts = Vec::new();
    for i in 0..cx.op.outputs.len() {
        let (dtype, shape) = cx.result(i)?;
        parts.push(Walk::new(start, &shape, own.clone(), element(dtype)?)?);
        start += shape[axis] * own[axis];
    }
    walks(x, parts)
}

/// Binds `concat` and `stack`.
pub(crate) fn concat(cx: &OpCx<'_>) -> Bind<Binding> {
    let values = cx.list("values")?;
    let (dtype, result) = cx.result(0)?;
    let axis = cx.view.axis(cx.view.int("axis")?.ok_or("no axis")?, result.len())?;
    if cx.op.kind == OpKind::Concat && cx.view.bool_or("interleave", false)? {
        return Err("interleaved".into());
    }
    let inner: usize = result[axis + 1..].iter().product::<usize>() * element(dtype)?;
    let stacked = cx.op.kind == OpKind::Stack;
    let widths = values.iter().map(|v| if stacked { inner } else { v.shape[axis] * inner });
    Ok(Native::moves(Concat { widths: widths.collect() }, values).into())
}

/// Bytes that each argument adds to each of the outer rows.
struct Concat {
    widths: Vec<usize>,
}

impl Kernel for Concat {
    fn run(&self, _: &mut RunCx<'_>, ins: &[&[u8]], outs: &mut [&mut [u8]]) -> Result<(), OpError> {
        let row: usize = self.widths.iter().sum();
        if row == 0 {
            return Ok(());
        }
        for (r, out) in outs[0].chunks_exact_mut(row).enumerate() {
            let mut out = out;
            for (&width, x) in self.widths.iter().zip(ins) {
                let (part, rest) = out.split_at_mut(width);
                part.copy_from_slice(&x[r * width..][..width]);
                out = rest;
            }
        }
        Ok(())
    }
}

/// Binds `gather` without batch axes.
pub(crate) fn gather(cx: &OpCx<'_>) -> Bind<Binding> {
    let (x, indices) = (cx.get("x")?, cx.get("indices")?);
    if indices.dtype != DType::I32 {
        return Err(format!("indices of {}", indices.dtype).into());
    }
    if cx.view.int("batch_dims")?.unwrap_or(0) != 0 {
        return Err("batch axes".into());
    }
    let axis = cx.view.axis(cx.view.int("axis")?.unwrap_or(0), x.shape.len())?;
    let inner = x.shape[axis + 1..].iter().product::<usize>() * element(x.dtype)?;
    let from_end = cx.view.function.opset < Opset::Ios17;
    Ok(Native::moves(Gather { size: x.shape[axis], inner, from_end }, vec![x, indices]).into())
}

struct Gather {
    /// Entries along the axis.
    size: usize,
    /// Bytes of one.
    inner: usize,
    /// Whether negative indices count from the end.
    from_end: bool,
}

impl Kernel for Gather {
    fn run(&self, _: &mut RunCx<'_>, ins: &[&[u8]], outs: &mut [&mut [u8]]) -> Result<(), OpError> {
        let indices = i32s(ins[1]);
        let entries: Vec<usize> =
            indices.iter().map(|&i| self.entry(i)).collect::<Result<_, _>>()?;
        if self.inner == 0 || entries.is_empty() {
            return Ok(());
        }
        let outer = outs[0].chunks_exact_mut(self.inner * entries.len());
        for (out, x) in outer.zip(ins[0].chunks_exact(self.size * self.inner)) {
            for (out, &entry) in out.chunks_exact_mut(self.inner).zip(&entries) {
                out.copy_from_slice(&x[entry * self.inner..][..self.inner]);
            }
        }
        Ok(())
    }
}

impl Gather {
    /// The entry that `index` means.
    fn entry(&self, index: i32) -> Result<usize, OpError> {
        let from_end = index < 0 && self.from_end;
        let resolved = i64::from(index) + if from_end { self.size as i64 } else { 0 };
        let entry = usize::try_from(resolved).ok().filter(|&i| i < self.size);
        entry.ok_or_else(|| {
            OpError::invalid(format!("index {index} is out of range for {} entries", self.size))
        })
    }
}
