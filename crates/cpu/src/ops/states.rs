//! States as values: reading, writing, and replacing a part of a tensor, in place where it can be.

use mil::{ErrorKind, OpError, OpKind, Opset};
use tensor::DType;

use super::attention::state_name;
use super::numbers::integers_of;
use super::strided::row_major;
use crate::kernel::{Kernel, Native, RunCx, numbers, numbers_mut};
use crate::op_cx::{Bind, OpCx};

/// Binds `read_state` as a copy, for values that outlive what they were read from.
pub(crate) fn read(cx: &OpCx<'_>) -> Bind<Native> {
    cx.result(0)?;
    Ok(Native::moves(Read { state: state_name(cx, "input")? }, Vec::new()))
}

struct Read {
    state: String,
}

fn error(e: exec::ExecError) -> OpError {
    OpError { kind: ErrorKind::Invalid, message: e.to_string() }
}

impl Kernel for Read {
    fn run(&self, cx: &mut RunCx<'_>, _: &[&[u8]], outs: &mut [&mut [u8]]) -> Result<(), OpError> {
        outs[0].copy_from_slice(&cx.state.get(&self.state).map_err(error)?.data);
        Ok(())
    }
}

/// Binds `write_state`.
pub(crate) fn write(cx: &mut OpCx<'_>) -> Bind<Native> {
    let (state, data) = (state_name(cx, "input")?, cx.get("data")?);
    let content = cx.view.state("input")?;
    if content.dtype != data.dtype {
        return Err(format!("{} written to a state of {}", data.dtype, content.dtype).into());
    }
    let kernel = Write { state: state.clone() };
    Ok(Native::moves(kernel, vec![data]).writing(&[&state]))
}

struct Write {
    state: String,
}

impl Kernel for Write {
    fn run(&self, cx: &mut RunCx<'_>, ins: &[&[u8]], _: &mut [&mut [u8]]) -> Result<(), OpError> {
        cx.state.get_mut(&self.state).map_err(error)?.data.copy_from_slice(ins[0]);
        Ok(())
    }
}

/// Binds `slice_update` and `scatter` in modes `update` and `add`. With `state`, what is updated is that state's
/// memory and no operand.
pub(crate) fn update(cx: &mut OpCx<'_>, state: Option<String>) -> Bind<Native> {
    let (name, part) = match cx.op.kind {
        OpKind::Scatter => ("data", Part::Entries(entries(cx)?)),
        _ => ("x", Part::Slice(slice(cx)?)),
    };
    let x = cx.get(name)?;
    let mut inputs = match &part {
        Part::Entries(_) => vec![cx.get("updates")?, cx.get("indices")?],
        Part::Slice(_) => vec![cx.get("update")?, cx.get("begin")?, cx.get("end")?],
    };
    let sizes = inputs[1..].iter().map(|o| o.dtype).collect();
    for operand in &mut inputs[1..] {
        *operand = cx.aligned(operand.clone())?;
    }
    if inputs[0].dtype != x.dtype || x.dtype.block_len() != 1 {
        return Err(format!("{} in place of {}", inputs[0].dtype, x.dtype).into());
    }
    let written = state.clone();
    if state.is_none() {
        inputs.insert(0, x);
    }
    let native = Native::moves(Update { state, part, sizes }, inputs);
    Ok(match written {
        Some(state) => native.writing(&[&state]),
        None => native,
    })
}

fn entries(cx: &mut OpCx<'_>) -> Bind<Entries> {
    let data = cx.get("data")?;
    let add = match cx.view.str("mode")?.unwrap_or("add") {
        "update" => false,
        "add" if data.dtype == DType::F32 => true,
        mode => return Err(format!("mode {mode} of {}", data.dtype).into()),
    };
    let axis = cx.view.axis(cx.view.int("axis")?.unwrap_or(0), data.shape.len())?;
    let inner = data.shape[axis + 1..].iter().product::<usize>() * data.dtype.block_bytes();
    let from_end = cx.view.function.opset < Opset::Ios17;
    Ok(Entries { size: data.shape[axis], inner, from_end, add })
}

fn slice(cx: &mut OpCx<'_>) -> Bind<Slice> {
    let (x, update) = (cx.get("x")?, cx.get("update")?);
    let rank = x.shape.len();
    let flags =
        |name| -> Bind<Vec<bool>> { Ok(cx.view.bools(name)?.unwrap_or_else(|| vec![false; rank])) };
    let (begin, end, squeeze) = (flags("begin_mask")?, flags("end_mask")?, flags("squeeze_mask")?);
    let stride = cx.view.ints("stride")?.unwrap_or_else(|| vec![1; rank]);
    let stride: Option<Vec<usize>> =
        stride.iter().map(|&s| usize::try_from(s).ok().filter(|&s| s > 0)).collect();
    let stride = stride.ok_or("a negative stride")?;
    let mut sizes = update.shape.iter().copied();
    let counts = squeeze.iter().map(|&s| if s { Some(1) } else { sizes.next() });
    let counts = counts.collect::<Option<Vec<usize>>>().ok_or("an update of too few axes")?;
    if [begin.len(), end.len(), stride.len(), counts.len()] != [rank; 4] {
        return Err("masks of another rank".into());
    }
    let element = x.dtype.block_bytes();
    Ok(Slice { shape: x.shape, counts, begin, end, squeeze, stride, element })
}

/// What is replaced.
enum Part {
    Entries(Entries),
    Slice(Slice),
}

/// Entries along an axis, by indices.
struct Entries {
    /// Entries that there are.
    size: usize,
    /// Bytes of one.
    inner: usize,
    /// Whether negative indices count from the end.
    from_end: bool,
    /// Whether they are added to what is there, in `fp32`, and not put in its place.
    add: bool,
}

impl Entries {
    fn place(&self, indices: &[i64], updates: &[u8], out: &mut [u8]) -> Result<(), OpError> {
        let place = |&index: &i64| {
            let from_end = index < 0 && self.from_end;
            let resolved = index + if from_end { self.size as i64 } else { 0 };
            let place = usize::try_from(resolved).ok().filter(|&i| i < self.size);
            place.ok_or_else(|| {
                OpError::invalid(format!("index {index} is out of range for size {}", self.size))
            })
        };
        let places = indices.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        if self.inner == 0 || places.is_empty() {
            return Ok(());
        }
        let rows = out.chunks_exact_mut(self.size * self.inner);
        for (out, updates) in rows.zip(updates.chunks_exact(self.inner * places.len())) {
            for (&at, update) in places.iter().zip(updates.chunks_exact(self.inner)) {
                let out = &mut out[at * self.inner..][..self.inner];
                if self.add {
                    let (out, update) = (numbers_mut::<f32>(out), numbers::<f32>(update));
                    out.iter_mut().zip(update).for_each(|(o, u)| *o += u);
                } else {
                    out.copy_from_slice(update);
                }
            }
        }
        Ok(())
    }
}

/// A slice whose size is known, but maybe not where it begins.
struct Slice {
    shape: Vec<usize>,
    counts: Vec<usize>,
    begin: Vec<bool>,
    end: Vec<bool>,
    squeeze: Vec<bool>,
    stride: Vec<usize>,
    /// Bytes of an element.
    element: usize,
}

impl Slice {
    /// The first element along `axis`, as numpy slices.
    fn first(&self, axis: usize, begin: i64, end: i64) -> Result<usize, OpError> {
        let n = self.shape[axis] as i64;
        let clamp = |at: i64| (if at < 0 { at + n } else { at }).clamp(0, n);
        let first = if self.begin[axis] { 0 } else { clamp(begin) };
        if self.squeeze[axis] {
            let at = if begin < 0 { begin + n } else { begin };
            let given = if self.begin[axis] { 0 } else { at };
            return match usize::try_from(given) {
                Ok(at) if given < n => Ok(at),
                _ => Err(OpError::invalid(format!(
                    "begin {begin} is out of range for axis {axis} of size {n}"
                ))),
            };
        }
        let last = if self.end[axis] { n } else { clamp(end) };
        let span = usize::try_from(last - first).unwrap_or(0);
        let count = span.div_ceil(self.stride[axis]);
        if count != self.counts[axis] {
            return Err(OpError::invalid(format!(
                "an update of {} does not fit the {count} elements from {begin} to {end} of axis {axis}",
                self.counts[axis]
            )));
        }
        Ok(if count == 0 { 0 } else { first as usize })
    }

    fn place(
        &self,
        begin: &[i64],
        end: &[i64],
        update: &[u8],
        out: &mut [u8],
    ) -> Result<(), OpError> {
        let rank = self.shape.len();
        if begin.len() != rank || end.len() != rank {
            return Err(OpError::invalid("begin or end of another rank"));
        }
        let steps = row_major(&self.shape);
        let mut start = 0;
        for (axis, step) in steps.iter().enumerate() {
            start += self.first(axis, begin[axis], end[axis])? * step;
        }
        if update.is_empty() {
            return Ok(());
        }
        // Trailing axes that are taken whole make runs of bytes.
        let mut split = rank;
        let mut run = self.element;
        while split > 0 && self.stride[split - 1] == 1 {
            split -= 1;
            run *= self.counts[split];
            if self.counts[split] != self.shape[split] {
                break;
            }
        }
        for (row, update) in update.chunks_exact(run).enumerate() {
            let (mut at, mut row) = (start, row);
            for axis in (0..split).rev() {
                at += row % self.counts[axis] * self.stride[axis] * steps[axis];
                row /= self.counts[axis];
            }
            out[at * self.element..][..run].copy_from_slice(update);
        }
        Ok(())
    }
}

struct Update {
    /// The state that is updated, or else the first operand.
    state: Option<String>,
    part: Part,
    /// Types of the operands that say where.
    sizes: Vec<DType>,
}

impl Kernel for Update {
    fn in_place(&self) -> &'static [usize] {
        if self.state.is_none() { &[0] } else { &[] }
    }

    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let operands = if self.state.is_some() { ins } else { &ins[1..] };
        let out: &mut [u8] = match &self.state {
            Some(state) => &mut cx.state.get_mut(state).map_err(error)?.data,
            None => {
                if cx.in_place.is_none() {
                    outs[0].copy_from_slice(ins[0]);
                }
                &mut *outs[0]
            }
        };
        let integers = |i: usize| integers_of(self.sizes[i], operands[i + 1]);
        match &self.part {
            Part::Entries(entries) => entries.place(&integers(0), operands[0], out),
            Part::Slice(slice) => slice.place(&integers(0), &integers(1), operands[0], out),
        }
    }
}
