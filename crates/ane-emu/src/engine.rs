//! Evaluation in the engine's arithmetic.
//!
//! Sums of products go through [`product`], activation functions through [`Tables`]; every other
//! operation is what the reference interpreter says it is. Each result is rounded once. Where no
//! measurement tells otherwise, operations other than those two kinds are taken to be true floating
//! point: elementwise arithmetic is (751K), reductions and quotients are assumed to be.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use ane_model::Chip;
use ane_model::chip::Accumulator;
use cranelift_entity::SecondaryMap;
use half::f16;
use mil::eval::{self, Array, Data, States, Value};
use mil::{Arg, Error, Function, OpError, OpId, OpKind, OpView, Payload, ValueId};
use tensor::DType;

use crate::compiled::Compiled;
use crate::machine::Arithmetic;
use crate::products::{Left, Sum, product};
use crate::tables::Tables;

/// An engine's arithmetic.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    arithmetic: Arithmetic,
    sum: Sum,
    tables: Tables,
    /// Smaller magnitudes are lost.
    smallest: f64,
    /// Larger magnitudes become infinite in a slice along the width that does not start at 0.
    slice_offset_max: Option<f64>,
}

impl Engine {
    pub(crate) fn new(chip: &Chip, arithmetic: Arithmetic) -> Self {
        let numerics = &chip.numerics;
        if arithmetic != Arithmetic::Engine {
            return Engine {
                arithmetic,
                sum: Sum::Double,
                tables: Tables::default(),
                smallest: 0.0,
                slice_offset_max: None,
            };
        }
        let limit = numerics.saturation.as_ref().map_or(f64::INFINITY, |f| f.value);
        let sum = match numerics.accumulator.as_ref().map(|f| f.value) {
            Some(Accumulator::Q15_16) => {
                let bits = numerics.fraction_bits.as_ref().map_or(16, |f| f.value.min(16));
                Sum::Fixed { fraction: bits as u32, limit }
            }
            Some(Accumulator::Fp32Grouped) => Sum::Grouped { limit },
            None => Sum::Double,
        };
        Engine {
            arithmetic,
            sum,
            tables: Tables::of(chip),
            smallest: numerics.smallest.as_ref().map_or(0.0, |f| f.value),
            slice_offset_max: numerics.slice_offset_max.as_ref().map(|f| f.value),
        }
    }

    /// Runs a program; inputs and results by name.
    ///
    /// # Errors
    /// When an operation fails, which a verified program's can for values such as indices.
    pub(crate) fn run(
        &self,
        compiled: &Compiled,
        inputs: BTreeMap<ValueId, Array>,
    ) -> Result<BTreeMap<ValueId, Rc<Array>>, Error> {
        let function = &compiled.program.functions[&compiled.function];
        let mut run = Run { engine: self, compiled, function, values: SecondaryMap::new() };
        for (v, array) in inputs {
            run.values[v] = Some(self.given(array).into());
        }
        for &op in &function.body.ops {
            if function.ops[op].kind == OpKind::Const {
                continue;
            }
            for (&v, value) in function.ops[op].outputs.iter().zip(run.op(op)?) {
                run.values[v] = Some(value);
            }
        }
        let result =
            |&v: &ValueId| Ok((v, run.array_of(v).map_err(|e| Error::new(e.kind, e.message))?));
        function.body.outputs.iter().map(result).collect()
    }

    /// An input, or a result of the interpreter, as the engine holds it: of fp16 all but what is too small.
    fn given(&self, mut array: Array) -> Array {
        if array.dtype != DType::F16 {
            return self.rounded(array);
        }
        if let Data::Float(values) = &mut array.data {
            lose(values, self.smallest);
        }
        array
    }

    /// A result as its type holds it. The engine knows no float but fp16.
    fn rounded(&self, mut array: Array) -> Array {
        let dtype = match self.arithmetic {
            Arithmetic::Exact => return array,
            Arithmetic::Fp16 => array.dtype,
            Arithmetic::Engine => DType::F16,
        };
        if let Data::Float(values) = &mut array.data {
            eval::Arithmetic::Fp16.round_all(dtype, values);
            lose(values, self.smallest);
        }
        array
    }
}

struct Run<'a> {
    engine: &'a Engine,
    compiled: &'a Compiled,
    function: &'a Function,
    values: SecondaryMap<ValueId, Option<Value>>,
}

impl<'a> Run<'a> {
    /// The rounded results of an operation.
    fn op(&self, id: OpId) -> Result<Vec<Value>, Error> {
        let function = self.function;
        let view = OpView::new(function, &self.compiled.program.weights, &function.ops[id]);
        let kind = function.ops[id].kind;
        let place = |e| Error::at_op(e, &self.compiled.function, function.describe(id));
        let own = match kind {
            OpKind::Conv => self.conv(id, &view),
            OpKind::Matmul => self.matmul(&view),
            OpKind::Linear => self.linear(&view),
            OpKind::Softmax if self.engine.tables.has(OpKind::Exp) => self.softmax(&view).map(Some),
            _ if self.engine.tables.has(kind) => self.activation(kind, &view).map(Some),
            _ => Ok(None),
        };
        if let Some(array) = own.map_err(place)? {
            return Ok(vec![self.engine.rounded(array).into()]);
        }
        let mut results = self.interpreted(id)?;
        if let (OpKind::SliceByIndex | OpKind::SliceBySize, Some(most)) =
            (kind, self.engine.slice_offset_max)
            && self.starts_inside(&view).map_err(place)?
        {
            results.iter_mut().for_each(|value| overflow(value, most));
        }
        Ok(results)
    }

    /// An operation as the reference interpreter has it.
    fn interpreted(&self, id: OpId) -> Result<Vec<Value>, Error> {
        let arithmetic = match self.engine.arithmetic {
            Arithmetic::Exact => eval::Arithmetic::Exact,
            Arithmetic::Fp16 | Arithmetic::Engine => eval::Arithmetic::Fp16,
        };
        let mut given = Vec::new();
        self.function.for_each_use(id, &mut |v| {
            if let Some(value) = &self.values[v] {
                given.push((v, value.clone()));
            }
        });
        let program = &self.compiled.program;
        let results = eval::run_op(
            program,
            &self.compiled.function,
            id,
            arithmetic,
            given,
            &mut States::new(),
        )?;
        Ok(results.into_iter().map(|value| self.rounded_value(value)).collect())
    }

    fn rounded_value(&self, value: Value) -> Value {
        match value {
            Value::Array(a) if self.engine.arithmetic == Arithmetic::Engine => {
                self.engine.given(Rc::unwrap_or_clone(a)).into()
            }
            other => other,
        }
    }

    fn array_of(&self, v: ValueId) -> Result<Rc<Array>, OpError> {
        if let Some(value) = &self.values[v] {
            return value.array().cloned();
        }
        let literal = self.function.const_of(v);
        let literal = literal.ok_or_else(|| {
            OpError::invalid(format!("{} is not made yet", self.function.values[v].name))
        })?;
        Value::from_literal(literal, &self.compiled.program.weights)?.array().cloned()
    }

    fn array(&self, view: &OpView<'a>, name: &str) -> Result<Rc<Array>, OpError> {
        match view.required(name)? {
            Arg::Value(v) => self.array_of(*v),
            Arg::Literal(l) => {
                Value::from_literal(l, &self.compiled.program.weights)?.array().cloned()
            }
            Arg::List(_) => Err(OpError::invalid(format!("\"{name}\" is a list"))),
        }
    }

    /// The fp16 weight that argument `name` is, as it lies in its file.
    fn halves(&self, view: &OpView<'a>, name: &str) -> Option<&'a [f16]> {
        let Payload::Weight(id) = &view.literal(name)?.payload else { return None };
        let weight = self.compiled.program.weights.get(*id)?;
        weight.tensor.as_slice::<f16>().ok()
    }

    fn conv(&self, id: OpId, view: &OpView<'a>) -> Result<Option<Array>, OpError> {
        let x = self.array(view, "x")?;
        let kernel = view.tensor("weight")?.fixed_shape();
        let result = self.function.tensor_ty(self.function.ops[id].outputs[0]);
        let (Some(kernel), Some(shape)) = (kernel, result.and_then(|t| t.fixed_shape())) else {
            return Ok(None);
        };
        let (&[batch, channels, height, width], &[out, inner, kh, kw], &[_, _, oh, ow]) =
            (&x.shape[..], &kernel[..], &shape[..])
        else {
            return Ok(None);
        };
        let two = |name: &str| -> Result<[usize; 2], OpError> {
            let given = view.ints(name)?.unwrap_or_else(|| vec![1, 1]);
            Ok([0, 1].map(|i| given.get(i).and_then(|&n| usize::try_from(n).ok()).unwrap_or(1)))
        };
        let (strides, dilations) = (two("strides")?, two("dilations")?);
        let extent = [(kh - 1) * dilations[0] + 1, (kw - 1) * dilations[1] + 1];
        let needed = [(oh - 1) * strides[0] + extent[0], (ow - 1) * strides[1] + extent[1]];
        let before = match view.str("pad_type")?.unwrap_or("valid") {
            "custom" => {
                let pad = view.ints("pad")?.unwrap_or_default();
                [0, 2].map(|i| pad.get(i).and_then(|&n| usize::try_from(n).ok()).unwrap_or(0))
            }
            "same" => {
                [(needed[0].saturating_sub(height)) / 2, (needed[1].saturating_sub(width)) / 2]
            }
            "same_lower" => [
                needed[0].saturating_sub(height).div_ceil(2),
                needed[1].saturating_sub(width).div_ceil(2),
            ],
            _ => [0, 0],
        };
        let groups = channels / inner.max(1);
        let rows = out / groups.max(1);
        let weights = self.halves(view, "weight");
        let dense = if weights.is_some() { None } else { Some(self.array(view, "weight")?) };
        let (x, plane) = (x.floats()?, oh * ow);
        let one = [kh, kw] == [1, 1] && strides == [1, 1] && plane == height * width;
        let taps = inner * kh * kw;
        let mut values = Vec::with_capacity(batch * out * plane);
        for (n, g) in (0..batch).flat_map(|n| (0..groups).map(move |g| (n, g))) {
            let source =
                &x[(n * channels + g * inner) * height * width..][..inner * height * width];
            let columns = if one {
                source.to_vec()
            } else {
                let mut columns = Vec::with_capacity(taps * plane);
                for tap in 0..taps {
                    let (c, ky, kx) = (tap / (kh * kw), tap / kw % kh, tap % kw);
                    for (y, x) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
                        let row = (y * strides[0] + ky * dilations[0]).checked_sub(before[0]);
                        let column = (x * strides[1] + kx * dilations[1]).checked_sub(before[1]);
                        let inside = row.filter(|&r| r < height).zip(column.filter(|&c| c < width));
                        columns.push(
                            inside.map_or(0.0, |(r, l)| source[(c * height + r) * width + l]),
                        );
                    }
                }
                columns
            };
            let range = g * rows * taps..(g + 1) * rows * taps;
            let left = match (&weights, &dense) {
                (Some(w), _) => Left::Halves(&w[range]),
                (None, Some(w)) => Left::Floats(&w.floats()?[range]),
                (None, None) => return Ok(None),
            };
            values.extend(product(self.engine.sum, left, &columns, [rows, taps, plane]));
        }
        if view.arg("bias").is_some() {
            let bias = self.array(view, "bias")?;
            for (channel, &b) in
                values.chunks_exact_mut(plane.max(1)).zip(bias.floats()?.iter().cycle())
            {
                channel.iter_mut().for_each(|x| *x += b);
            }
        }
        Ok(Some(Array {
            dtype: result.map_or(DType::F16, |t| t.dtype),
            shape,
            data: Data::Float(values),
        }))
    }

    fn matmul(&self, view: &OpView<'a>) -> Result<Option<Array>, OpError> {
        let (x, y) = (self.array(view, "x")?, self.array(view, "y")?);
        if x.shape.len() < 2 || y.shape.len() < 2 || !matches!(x.data, Data::Float(_)) {
            return Ok(None);
        }
        let (x, y) = (
            Batch::new(&x, view.bool_or("transpose_x", false)?)?,
            Batch::new(&y, view.bool_or("transpose_y", false)?)?,
        );
        let ([m, k], [_, n]) = (x.matrix, y.matrix);
        let rank = x.batch.len().max(y.batch.len());
        let size = |b: &[usize], i: usize| (i + b.len()).checked_sub(rank).map_or(1, |i| b[i]);
        let batch: Vec<usize> =
            (0..rank).map(|i| size(&x.batch, i).max(size(&y.batch, i))).collect();
        let count: usize = batch.iter().product();
        let mut values = Vec::with_capacity(count * m * n);
        for i in 0..count {
            let (a, b) = (x.at(&batch, i), y.at(&batch, i));
            values.extend(product(self.engine.sum, Left::Floats(a), b, [m, k, n]));
        }
        let shape = [&batch[..], &[m, n]].concat();
        Ok(Some(Array { dtype: x.dtype, shape, data: Data::Float(values) }))
    }

    fn linear(&self, view: &OpView<'a>) -> Result<Option<Array>, OpError> {
        let x = self.array(view, "x")?;
        let Some(&[out, inner]) = view.tensor("weight")?.fixed_shape().as_deref() else {
            return Ok(None);
        };
        let rows = x.len() / inner.max(1);
        let columns = transposed(x.floats()?, rows, inner);
        let sums = match self.halves(view, "weight") {
            Some(w) => product(self.engine.sum, Left::Halves(w), &columns, [out, inner, rows]),
            None => {
                let w = self.array(view, "weight")?;
                product(self.engine.sum, Left::Floats(w.floats()?), &columns, [out, inner, rows])
            }
        };
        let mut values = transposed(&sums, out, rows);
        if view.arg("bias").is_some() {
            let bias = self.array(view, "bias")?;
            for row in values.chunks_exact_mut(out.max(1)) {
                row.iter_mut().zip(bias.floats()?).for_each(|(x, &b)| *x += b);
            }
        }
        let shape = [&x.shape[..x.shape.len().saturating_sub(1)], &[out]].concat();
        Ok(Some(Array { dtype: x.dtype, shape, data: Data::Float(values) }))
    }

    /// `exp` and the reciprocal of the sum come from tables.
    fn softmax(&self, view: &OpView<'a>) -> Result<Array, OpError> {
        let x = self.array(view, "x")?;
        let axis = view.axis(view.int("axis")?.unwrap_or(-1), x.shape.len())?;
        let (length, inner) = (x.shape[axis], x.shape[axis + 1..].iter().product::<usize>());
        let tables = &self.engine.tables;
        let mut values = x.floats()?.to_vec();
        for slab in values.chunks_exact_mut((length * inner).max(1)) {
            for at in 0..inner {
                let lane = || (0..length).map(|i| i * inner + at);
                let largest = lane().map(|i| slab[i]).fold(f64::NEG_INFINITY, f64::max);
                let mut sum = 0.0;
                for i in lane() {
                    slab[i] = tables.eval(OpKind::Exp, slab[i] - largest).unwrap_or(f64::NAN);
                    sum += slab[i];
                }
                let scale = tables.eval(OpKind::Inverse, sum).unwrap_or_else(|| sum.recip());
                lane().for_each(|i| slab[i] *= scale);
            }
        }
        Ok(x.with_floats(values))
    }

    fn activation(&self, kind: OpKind, view: &OpView<'a>) -> Result<Array, OpError> {
        let x = self.array(view, "x")?;
        let shift = match kind {
            OpKind::Rsqrt | OpKind::Inverse | OpKind::Log => view.float("epsilon")?,
            _ => None,
        };
        // The interpreter's default is that of the operation set.
        let shift = match (kind, shift) {
            (_, Some(epsilon)) => epsilon,
            (kind, None) => kind.default_epsilon().unwrap_or(0.0),
        };
        let exact = |x: f64| match kind {
            OpKind::Sqrt => x.sqrt(),
            OpKind::Rsqrt => x.sqrt().recip(),
            OpKind::Inverse => match x < 0.0 {
                true => -self.engine.tables.eval(kind, -x).unwrap_or_else(|| (-x).recip()),
                false => x.recip(),
            },
            OpKind::Log => x.ln(),
            _ => f64::NAN,
        };
        let at = |&x: &f64| {
            let x = x + shift;
            self.engine.tables.eval(kind, x).unwrap_or_else(|| exact(x))
        };
        Ok(x.with_floats(x.floats()?.iter().map(at).collect()))
    }

    /// Whether a slice begins inside of the last axis.
    fn starts_inside(&self, view: &OpView<'a>) -> Result<bool, OpError> {
        if let Some([.., last]) = view.bools("begin_mask")?.as_deref()
            && *last
        {
            return Ok(false);
        }
        let begin = self.array(view, "begin")?;
        Ok(begin.ints()?.last().is_some_and(|&b| b != 0))
    }
}

/// Magnitudes below `smallest` become zero.
fn lose(values: &mut [f64], smallest: f64) {
    if smallest > 0.0 {
        let kept = |x: f64| if x.abs() < smallest { 0.0f64.copysign(x) } else { x };
        values.iter_mut().for_each(|x| *x = kept(*x));
    }
}

/// Magnitudes above `most` become infinite.
fn overflow(value: &mut Value, most: f64) {
    if let Value::Array(a) = value
        && let Data::Float(values) = &mut Rc::make_mut(a).data
    {
        let beyond = values.iter_mut().filter(|x| x.abs() > most);
        beyond.for_each(|x| *x = f64::INFINITY.copysign(*x));
    }
}

/// `[rows, columns]` as `[columns, rows]`.
fn transposed(x: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for c in 0..columns {
        out.extend((0..rows).map(|r| x[r * columns + c]));
    }
    out
}

/// Matrices in the last two axes of an array.
struct Batch<'a> {
    dtype: DType,
    batch: Vec<usize>,
    matrix: [usize; 2],
    values: Cow<'a, [f64]>,
}

impl<'a> Batch<'a> {
    fn new(a: &'a Array, transpose: bool) -> Result<Self, OpError> {
        let (batch, matrix) = a.shape.split_at(a.shape.len() - 2);
        let [rows, columns] = [matrix[0], matrix[1]];
        let values = a.floats()?;
        let (matrix, values) = match transpose {
            false => ([rows, columns], Cow::Borrowed(values)),
            true => {
                let each = values.chunks_exact((rows * columns).max(1));
                let turned: Vec<f64> = each.flat_map(|m| transposed(m, rows, columns)).collect();
                ([columns, rows], Cow::Owned(turned))
            }
        };
        Ok(Batch { dtype: a.dtype, batch: batch.to_vec(), matrix, values })
    }

    /// Matrix `index` of a batch that these broadcast to.
    fn at(&self, batch: &[usize], mut index: usize) -> &[f64] {
        let (mut own, mut stride) = (0, 1);
        for (i, &size) in batch.iter().enumerate().rev() {
            let position = index % size;
            index /= size;
            if let Some(i) = (i + self.batch.len()).checked_sub(batch.len()) {
                own += (position % self.batch[i]) * stride;
                stride *= self.batch[i];
            }
        }
        let len = self.matrix[0] * self.matrix[1];
        &self.values[own * len..][..len]
    }
}
