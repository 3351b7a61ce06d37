//! Operations that move elements: transpose, slices, split, concat, gather, tile, reverse, pad.

use mil::{OpError, OpKind, Opset};
use tensor::{DType, Tensor};

use super::for_each_chunk;
use super::numbers::{integers_of, is_native_int};
use super::strided::{Walk, row_major};
use crate::kernel::{Binding, Kernel, Native, Operand, RunCx};
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

/// Binds `fill`.
pub(crate) fn fill(cx: &mut OpCx<'_>) -> Bind<Native> {
    let (dtype, _) = cx.result(0)?;
    let value = cx.opt("value")?;
    let element = match value.as_ref().map(Operand::as_const) {
        None => vec![0; element(dtype)?],
        Some(Some(tensor)) => tensor.bytes().to_vec(),
        Some(None) => return Err("a value that is not a constant".into()),
    };
    Ok(Native::moves(Fill { element }, Vec::new()))
}

struct Fill {
    /// The bytes of an element.
    element: Vec<u8>,
}

impl Kernel for Fill {
    fn run(&self, cx: &mut RunCx<'_>, _: &[&[u8]], outs: &mut [&mut [u8]]) -> Result<(), OpError> {
        /// Bytes of a piece of work, whole elements of any type.
        const PIECE: usize = 1 << 14;
        for_each_chunk(cx.pool, &mut *outs[0], PIECE, |_, part| {
            match self.element.iter().all(|&b| b == self.element[0]) {
                true => part.fill(self.element[0]),
                false => {
                    part.chunks_exact_mut(self.element.len())
                        .for_each(|out| out.copy_from_slice(&self.element));
                }
            }
        });
        Ok(())
    }
}

/// Binds `transpose`.
pub(crate) fn transpose(cx: &mut OpCx<'_>) -> Bind<Binding> {
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
pub(crate) fn slice(cx: &mut OpCx<'_>) -> Bind<Binding> {
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
    if stride.contains(&0) {
        return Err("a stride of zero".into());
    }
    let (_, result) = cx.result(0)?;
    let mut sizes = result.iter();
    let own = row_major(&x.shape);
    let (mut start, mut shape, mut strides) = (0, Vec::new(), Vec::new());
    for axis in 0..rank {
        // A negative step begins at the last element, and before none.
        let (n, back) = (x.shape[axis] as i64, i64::from(stride[axis] < 0));
        let first = match begin[axis] {
            _ if begin_mask[axis] => back * (n - 1),
            b if b < 0 => b + n,
            b => b,
        };
        let first = first.clamp(0, (n - back).max(0)) as usize;
        start += first * own[axis];
        let size = if squeezed[axis] { Some(&1) } else { sizes.next() };
        shape.push(*size.ok_or("a result of too few axes")?);
        strides.push(own[axis].wrapping_mul(stride[axis] as usize));
    }
    let walk = Walk::new(start, &shape, strides, element(x.dtype)?)?;
    walks(x, vec![walk])
}

/// Binds `shape`, which is known as soon as the sizes are.
pub(crate) fn shape(cx: &mut OpCx<'_>) -> Bind<Binding> {
    let x = cx.get("x")?;
    let sizes: Vec<i32> = x
        .shape
        .iter()
        .map(|&n| i32::try_from(n))
        .collect::<Result<_, _>>()
        .map_err(|e| e.to_string())?;
    let tensor = Tensor::from_slice(&[sizes.len()], &sizes).map_err(|e| e.to_string())?;
    Ok(Binding::Constants(vec![Some(tensor)]))
}

/// Binds `split`.
pub(crate) fn split(cx: &mut OpCx<'_>) -> Bind<Binding> {
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
pub(crate) fn concat(cx: &mut OpCx<'_>) -> Bind<Binding> {
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

/// Binds `gather`.
pub(crate) fn gather(cx: &mut OpCx<'_>) -> Bind<Binding> {
    let (x, indices) = (cx.get("x")?, cx.get("indices")?);
    let indices = cx.aligned(indices)?;
    if !is_native_int(indices.dtype) {
        return Err(format!("indices of {}", indices.dtype).into());
    }
    let axis = cx.view.axis(cx.view.int("axis")?.unwrap_or(0), x.shape.len())?;
    let batch = cx.view.int("batch_dims")?.unwrap_or(0);
    let batch = if batch < 0 { batch + indices.shape.len() as i64 } else { batch };
    let batch = usize::try_from(batch).ok().filter(|&b| b <= axis).ok_or("batch axes")?;
    let product = |sizes: &[usize]| sizes.iter().product::<usize>();
    let kernel = Gather {
        size: x.shape[axis],
        between: product(&x.shape[batch..axis]),
        count: product(&indices.shape[batch..]),
        inner: product(&x.shape[axis + 1..]) * element(x.dtype)?,
        from_end: cx.view.function.opset < Opset::Ios17,
        dtype: indices.dtype,
    };
    Ok(Native::moves(kernel, vec![x, indices]).into())
}

struct Gather {
    /// Entries along the axis.
    size: usize,
    /// Rows of entries that share their indices.
    between: usize,
    /// Indices of such a row.
    count: usize,
    /// Bytes of an entry.
    inner: usize,
    /// Whether negative indices count from the end.
    from_end: bool,
    /// Of the indices.
    dtype: DType,
}

impl Kernel for Gather {
    fn run(&self, _: &mut RunCx<'_>, ins: &[&[u8]], outs: &mut [&mut [u8]]) -> Result<(), OpError> {
        let indices = integers_of(self.dtype, ins[1]);
        let entries: Vec<usize> =
            indices.iter().map(|&i| self.entry(i)).collect::<Result<_, _>>()?;
        if self.inner == 0 || outs[0].is_empty() {
            return Ok(());
        }
        let outer = outs[0].chunks_exact_mut(self.inner * self.count);
        for (row, (out, x)) in outer.zip(ins[0].chunks_exact(self.size * self.inner)).enumerate() {
            let entries = &entries[row / self.between * self.count..][..self.count];
            for (out, &entry) in out.chunks_exact_mut(self.inner).zip(entries) {
                out.copy_from_slice(&x[entry * self.inner..][..self.inner]);
            }
        }
        Ok(())
    }
}

impl Gather {
    /// The entry that `index` means.
    fn entry(&self, index: i64) -> Result<usize, OpError> {
        let from_end = index < 0 && self.from_end;
        let resolved = index + if from_end { self.size as i64 } else { 0 };
        let entry = usize::try_from(resolved).ok().filter(|&i| i < self.size);
        entry.ok_or_else(|| {
            OpError::invalid(format!("index {index} is out of range for {} entries", self.size))
        })
    }
}

/// Binds `tile`: each axis is walked as its repetitions, which take no step, and its elements.
pub(crate) fn tile(cx: &mut OpCx<'_>) -> Bind<Binding> {
    let x = cx.get("x")?;
    let (_, result) = cx.result(0)?;
    let own = row_major(&x.shape);
    let (mut shape, mut strides) = (Vec::new(), Vec::new());
    for (axis, &size) in x.shape.iter().enumerate() {
        let times = result.get(axis).and_then(|n| n.checked_div(size)).unwrap_or(0);
        shape.extend([times, size]);
        strides.extend([0, own[axis]]);
    }
    let walk = Walk::new(0, &shape, strides, element(x.dtype)?)?;
    walks(x, vec![walk])
}

/// Binds `reverse`.
pub(crate) fn reverse(cx: &mut OpCx<'_>) -> Bind<Binding> {
    let x = cx.get("x")?;
    let rank = x.shape.len();
    let axes = match cx.view.ints("axes")? {
        None => (0..rank).collect(),
        Some(axes) => axes.iter().map(|&a| cx.view.axis(a, rank)).collect::<Result<Vec<_>, _>>()?,
    };
    let (mut start, mut strides) = (0, row_major(&x.shape));
    for axis in axes {
        start += x.shape[axis].saturating_sub(1) * strides[axis];
        strides[axis] = strides[axis].wrapping_neg();
    }
    let walk = Walk::new(start, &x.shape, strides, element(x.dtype)?)?;
    walks(x, vec![walk])
}

/// Binds `pad` by constant amounts.
pub(crate) fn pad(cx: &mut OpCx<'_>) -> Bind<Binding> {
    let x = cx.get("x")?;
    let size = element(x.dtype)?;
    let (_, result) = cx.result(0)?;
    let amounts = cx.view.ints("pad")?.ok_or("no amounts")?;
    let mode = cx.view.str("mode")?.unwrap_or("constant").to_owned();
    let lead = x.shape.len() - amounts.len() / 2;
    let before = |axis: usize| axis.checked_sub(lead).map_or(0, |a| amounts[2 * a]);
    let sources = |axis: usize| {
        let last = x.shape[axis] as i64 - 1;
        let source = |i: usize| {
            let at = i as i64 - before(axis);
            let inside = match &*mode {
                "reflect" if at < 0 => -at,
                "reflect" if at > last => 2 * last - at,
                "replicate" => at.clamp(0, last.max(0)),
                _ => at,
            };
            usize::try_from(inside).ok().filter(|&s| s < x.shape[axis])
        };
        (0..result[axis]).map(source).collect::<Vec<_>>()
    };
    let sources: Vec<Vec<Option<usize>>> = (0..x.shape.len()).map(sources).collect();
    let value = match cx.opt("constant_val")? {
        None => vec![0; size],
        Some(value) if value.dtype == x.dtype => {
            value.as_const().ok_or("a value that is not constant")?.bytes().to_vec()
        }
        Some(value) => return Err(format!("a value of {} around {}", value.dtype, x.dtype).into()),
    };
    let strides = row_major(&x.shape);
    Ok(Native::moves(Pad { sources, strides, value }, vec![x]).into())
}

struct Pad {
    /// For each place along each axis the element it comes from; `None` for the constant.
    sources: Vec<Vec<Option<usize>>>,
    /// Of the argument, in elements.
    strides: Vec<usize>,
    /// The constant's bytes.
    value: Vec<u8>,
}

impl Kernel for Pad {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let size = self.value.len();
        let Some((last, outer)) = self.sources.split_last() else {
            outs[0].copy_from_slice(ins[0]);
            return Ok(());
        };
        // The stretch in the middle that is a copy, between what is looked up one by one.
        let first = last.iter().position(|&s| s == Some(0)).unwrap_or(last.len());
        let run = last[first..].iter().enumerate().take_while(|&(i, &s)| s == Some(i)).count();
        for_each_chunk(cx.pool, &mut *outs[0], last.len() * size, |mut row, out| {
            let mut at = Some(0);
            for (sources, stride) in outer.iter().zip(&self.strides).rev() {
                let source = sources[row % sources.len()];
                row /= sources.len();
                at = at.zip(source).map(|(at, s)| at + s * stride);
            }
            let Some(at) = at else {
                out.chunks_exact_mut(size).for_each(|o| o.copy_from_slice(&self.value));
                return;
            };
            let x = &ins[0][at * size..];
            out[first * size..][..run * size].copy_from_slice(&x[..run * size]);
            for (i, source) in last.iter().enumerate() {
                if (first..first + run).contains(&i) {
                    continue;
                }
                let from = source.map_or(&self.value[..], |s| &x[s * size..][..size]);
                out[i * size..][..size].copy_from_slice(from);
            }
        });
        Ok(())
    }
}
