//! The engine's form of plain MIL: every tensor of floats has four axes, leading ones added, and keeps
//! the order of its elements. What this has no form for runs on the host.

use std::collections::BTreeSet;

use ane_model::chip::Acceptance;
use mil::{
    Arg, Error, Function, Literal, OpError, OpId, OpKind, Operation, Result, TensorType, ValueId,
};
use tensor::{DType, Tensor};

use super::emitter::Emitter;
use super::lowering::{Lowering, bug, reshaped};

/// `ty` with leading ones, or without some, if it then has four axes of fixed size.
pub(super) fn embedded(ty: &TensorType) -> Option<[usize; 4]> {
    let shape = ty.fixed_shape().filter(|s| !s.contains(&0))?;
    let (more, kept) = shape.split_at(shape.len().saturating_sub(4));
    if more.iter().any(|&n| n != 1) {
        return None;
    }
    let mut four = [1; 4];
    four[4 - kept.len()..].copy_from_slice(kept);
    Some(four)
}

/// Whether a function computes in fp16 somewhere. What it computes in fp32 is then meant to be.
pub fn computes_in_half(function: &Function) -> bool {
    let made = |op: &Operation| {
        !matches!(op.kind, OpKind::Const | OpKind::Cast)
            && op
                .outputs
                .iter()
                .any(|&v| function.tensor_ty(v).is_some_and(|t| t.dtype == DType::F16))
    };
    function.body.ops.iter().any(|&op| made(&function.ops[op]))
}

/// How an operation is written for the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    /// As it is, on tensors of four axes.
    Elementwise,
    /// As it is, the axis counted among four.
    Softmax,
    /// As it is, on images `[N, C, H, W]` alone.
    Image,
    /// With all axes kept, then reshaped.
    Reduction,
    /// Elements stay where they are.
    View,
    Transpose,
    Slice,
    Split,
    Concat,
    Stack,
    Tile,
    Pad,
    Linear,
    Matmul,
    Conv,
    LayerNorm,
    Gelu,
    Silu,
    Rsqrt,
}

fn writing(kind: OpKind) -> Option<Writing> {
    use OpKind::*;
    Some(match kind {
        Add | Sub | Mul | RealDiv | Pow | Maximum | Minimum | Abs | Acos | Asin | Atan | Atanh
        | Ceil | Cos | Cosh | Erf | Exp | Exp2 | Floor | Relu | Relu6 | Round | Sigmoid | Sign
        | Sin | Sinh | Softplus | Softsign | Sqrt | Square | Tan | Tanh | Inverse | Log | Clip
        | ClampedRelu | Elu | LeakyRelu | LinearActivation | ScaledTanh | SigmoidHard
        | Threshold | ThresholdedRelu => Writing::Elementwise,
        OpKind::Softmax => Writing::Softmax,
        ConvTranspose
        | AvgPool
        | L2Pool
        | MaxPool
        | BatchNorm
        | InstanceNorm
        | L2Norm
        | LocalResponseNorm
        | Prelu
        | SoftplusParametric
        | DepthToSpace
        | SpaceToDepth
        | PixelShuffle
        | PixelUnshuffle
        | UpsampleNearestNeighbor
        | UpsampleBilinear
        | ResizeNearestNeighbor
        | ResizeBilinear
        | Resize
        | Crop => Writing::Image,
        ReduceL1Norm | ReduceL2Norm | ReduceLogSum | ReduceLogSumExp | ReduceMax | ReduceMean
        | ReduceMin | ReduceProd | ReduceSum | ReduceSumSquare => Writing::Reduction,
        Reshape | ExpandDims | Squeeze | Flatten2d | Identity | Cast => Writing::View,
        OpKind::Transpose => Writing::Transpose,
        SliceByIndex | SliceBySize => Writing::Slice,
        OpKind::Split => Writing::Split,
        OpKind::Concat => Writing::Concat,
        OpKind::Stack => Writing::Stack,
        OpKind::Tile => Writing::Tile,
        OpKind::Pad => Writing::Pad,
        OpKind::Linear => Writing::Linear,
        OpKind::Matmul => Writing::Matmul,
        OpKind::Conv => Writing::Conv,
        OpKind::LayerNorm => Writing::LayerNorm,
        OpKind::Gelu => Writing::Gelu,
        OpKind::Silu => Writing::Silu,
        OpKind::Rsqrt => Writing::Rsqrt,
        _ => return None,
    })
}

/// Why the engine has no form for operation `id`, unless it may have one. `half`: only of what is in fp16.
pub(super) fn unfit(
    function: &Function,
    id: OpId,
    half: bool,
    on_engine: &BTreeSet<ValueId>,
) -> Option<String> {
    let op = &function.ops[id];
    let Some(writing) = writing(op.kind).filter(|_| op.blocks.is_empty()) else {
        return Some(format!("there is no {} on the engine", op.kind.name()));
    };
    let misfit = |v: ValueId| {
        let (name, ty) = (&function.values[v].name, function.ty(v));
        let Some(tensor) = ty.as_tensor() else {
            return Some(format!("{name} is a {ty}"));
        };
        let floats = tensor.dtype == DType::F16 || !half && tensor.dtype == DType::F32;
        let why = match tensor.fixed_shape() {
            _ if embedded(tensor).is_some() && floats => return None,
            _ if !floats && half => "where the engine takes fp16",
            _ if !floats => "where the engine takes floats",
            None => "whose size is not known before it runs",
            Some(shape) if shape.contains(&0) => "which has no elements",
            Some(_) => "which has more than four axes",
        };
        Some(format!("{name} is {tensor}, {why}"))
    };
    let mut misfits = op.outputs.iter().find_map(|&v| misfit(v));
    let mut there = false;
    op.for_each_arg_value(|v| {
        if misfits.is_none() && function.const_of(v).is_none() {
            misfits = misfit(v);
        }
        there |= on_engine.contains(&v);
    });
    let moves = || "it only moves elements, which are on the host".to_owned();
    misfits.or_else(|| (writing == Writing::View && !there).then(moves))
}

/// A change of an integer argument from the source's axes to four.
type Shift<'s> = &'s dyn Fn(&str, Vec<i64>) -> Vec<i64>;

impl Lowering<'_> {
    pub(super) fn emit_plain(&mut self, e: &mut Emitter<'_>, id: OpId) -> Result<()> {
        let op = &self.function.ops[id];
        let outputs = op.outputs.clone();
        let name = self.function.values[outputs[0]].name.clone();
        let name = name.as_str();
        let writing = writing(op.kind)
            .ok_or_else(|| bug(format!("{} has no form on the engine", op.kind.name())))?;
        if writing == Writing::Split {
            return self.split(e, id, name);
        }
        let made = match writing {
            Writing::Elementwise => self.same(e, id, name, &|_, list| list)?,
            Writing::Softmax => {
                let axis = self.ints_or(id, "axis", -1)?;
                let axis = self.axis(id, axis, self.rank(id, "x")?)? as i64;
                self.same(e, id, name, &move |_, _| vec![axis])?
            }
            Writing::Image => {
                if self.rank(id, "x")? != 4 {
                    return Err(self.unsupported(id, "the engine has it for four axes"));
                }
                let y = self.same(e, id, name, &|_, list| list)?;
                self.biased(e, id, y, name)?
            }
            Writing::Reduction => self.reduction(e, id, name)?,
            Writing::View => self.operand(e, id, "x")?,
            Writing::Transpose => {
                let x = self.operand(e, id, "x")?;
                let rank = self.rank(id, "x")?;
                let mut perm = [0, 1, 2, 3];
                let given = self.ints(id, "perm")?;
                for (to, axis) in perm.iter_mut().rev().zip(given.into_iter().rev()) {
                    *to = self.axis(id, axis, rank)? as i32;
                }
                e.transpose(x, perm, name)?
            }
            Writing::Slice => self.cut_out(e, id, name)?,
            Writing::Concat => self.concat(e, id, name)?,
            Writing::Stack => self.stack(e, id, name)?,
            Writing::Tile => self.tile(e, id, name)?,
            Writing::Pad => self.pad(e, id, name)?,
            Writing::Linear => {
                let x = self.operand(e, id, "x")?;
                let kernel = self.matrix(id, "weight")?;
                self.row_product(e, id, (x, kernel), name)?
            }
            Writing::Matmul => self.matmul(e, id, name)?,
            Writing::Conv => self.conv(e, id, name)?,
            Writing::LayerNorm => self.layer_norm(e, id, name)?,
            Writing::Gelu => {
                let x = self.operand(e, id, "x")?;
                self.gelu(e, id, x, name)?
            }
            Writing::Silu => {
                let x = self.operand(e, id, "x")?;
                e.silu(x, name)?
            }
            Writing::Rsqrt => {
                let mut x = self.operand(e, id, "x")?;
                let epsilon = self.view(id).float("epsilon").map_err(|e| self.place(id, e))?;
                let epsilon = epsilon.or(OpKind::Rsqrt.default_epsilon()).unwrap_or(0.0);
                if half::f16::from_f64(epsilon).to_f64() != 0.0 {
                    let epsilon = e.scalar(epsilon);
                    x = e.binary(OpKind::Add, x, epsilon, &format!("{name}_shifted"))?;
                }
                let mut root = e.unary(OpKind::Sqrt, x, &format!("{name}_root"))?;
                if epsilon > 0.0 {
                    // What the sum loses in fp16 the root keeps: it is exact at zero.
                    let least = e.scalar(self.held(id, "epsilon", epsilon.sqrt())?);
                    root = e.binary(OpKind::Maximum, root, least, &format!("{name}_least"))?;
                }
                let one = e.scalar(1.0);
                e.binary(OpKind::RealDiv, one, root, name)?
            }
            Writing::Split => return Err(bug("a split has several results")),
        };
        let shape = self.shape(outputs[0])?;
        let made = match writing {
            Writing::Elementwise | Writing::Softmax | Writing::Image => made,
            _ => e.shaped(made, shape, &format!("{name}_shaped"))?,
        };
        if e.shape(made)? != shape {
            let is = e.shape(made)?;
            return Err(self.unsupported(id, format!("it is {is:?} in fp16, not {shape:?}")));
        }
        e.values.insert(outputs[0], made);
        Ok(())
    }

    fn place(&self, id: OpId, e: OpError) -> Error {
        Error::at_op(e, self.name, self.function.describe(id))
    }

    /// The four axes of a value.
    fn shape(&self, v: ValueId) -> Result<[usize; 4]> {
        let shape = self.function.tensor_ty(v).and_then(embedded);
        shape.ok_or_else(|| bug(format!("{} has no four axes", self.function.values[v].name)))
    }

    fn rank(&self, id: OpId, name: &str) -> Result<usize> {
        let ty = self.view(id).tensor(name).map_err(|e| self.place(id, e))?;
        Ok(ty.rank())
    }

    /// Where axis `axis` of `rank` is among four.
    fn axis(&self, id: OpId, axis: i64, rank: usize) -> Result<usize> {
        let axis = self.view(id).axis(axis, rank).map_err(|e| self.place(id, e))?;
        (axis + 4).checked_sub(rank).ok_or_else(|| self.unsupported(id, "it is about a fifth axis"))
    }

    /// Constant integers.
    fn ints(&self, id: OpId, name: &str) -> Result<Vec<i64>> {
        self.opt_ints(id, name)?.ok_or_else(|| self.unsupported(id, format!("{name} is computed")))
    }

    /// A constant integer.
    fn ints_or(&self, id: OpId, name: &str, default: i64) -> Result<i64> {
        let given = self.opt_ints(id, name)?;
        Ok(given.and_then(|list| list.first().copied()).unwrap_or(default))
    }

    fn opt_ints(&self, id: OpId, name: &str) -> Result<Option<Vec<i64>>> {
        let view = self.view(id);
        if view.arg(name).is_some() && view.literal(name).is_none() {
            return Err(self.unsupported(id, format!("{name} is computed")));
        }
        view.ints(name).map_err(|e| self.place(id, e))
    }

    /// The engine's form of a value that is no constant.
    fn given(&mut self, e: &mut Emitter<'_>, v: ValueId) -> Result<ValueId> {
        if let Some(&known) = e.values.get(&v) {
            return Ok(known);
        }
        let (shape, wire) = (self.shape(v)?, self.wire(v)?);
        let made = e.unrowed(shape, wire, &self.function.values[v].name)?;
        e.values.insert(v, made);
        Ok(made)
    }

    /// Argument `name`, a tensor of floats, as one of four axes.
    fn operand(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let op = &self.function.ops[id];
        match op.arg(name) {
            Some(&Arg::Value(v)) if self.function.const_of(v).is_none() => self.given(e, v),
            Some(Arg::Value(_) | Arg::Literal(_)) => {
                let label = self.function.values[op.outputs[0]].name.clone();
                let tensor = self.half(id, name)?;
                if let Some(Ok(Some(x))) = (tensor.len() == 1).then(|| self.view(id).float(name)) {
                    self.held(id, name, x)?;
                }
                let known = match op.arg(name) {
                    Some(&Arg::Value(v)) => Some(v),
                    _ => None,
                };
                if let Some(&made) = known.and_then(|v| e.values.get(&v)) {
                    return Ok(made);
                }
                let made = constant_operand(e, &tensor, &format!("{label}_{name}"))?;
                e.values.extend(known.map(|v| (v, made)));
                Ok(made)
            }
            _ => Err(bug(format!("{}: {name} is no tensor", self.function.describe(id)))),
        }
    }

    /// The operation as it is, without its bias, integers changed by `shift`.
    fn same(
        &mut self,
        e: &mut Emitter<'_>,
        id: OpId,
        name: &str,
        shift: Shift<'_>,
    ) -> Result<ValueId> {
        let op = &self.function.ops[id];
        let kind = op.kind;
        let mut args = Vec::new();
        for (param, arg) in kind.def().params().iter().zip(&op.args) {
            if arg.is_none() || param.name == "bias" {
                continue;
            }
            let literal = self.view(id).literal(param.name);
            let value = match literal {
                Some(literal) if param.constant || !is_float(literal) => {
                    self.setting(e, id, param.name, literal, shift)?
                }
                _ => self.operand(e, id, param.name)?,
            };
            args.push((param.name, value));
        }
        // The engine's compiler wants what Core ML adds by itself.
        let missing = kind.default_epsilon().filter(|_| op.arg("epsilon").is_none());
        if let Some(epsilon) = missing {
            args.push(("epsilon", e.scalar(epsilon)));
        }
        let written = e.b.op(kind).name(name);
        args.into_iter().fold(written, |op, (name, value)| op.arg(name, value)).result()
    }

    /// A constant that says how an operation works: kept in its own shape.
    fn setting(
        &mut self,
        e: &mut Emitter<'_>,
        id: OpId,
        name: &str,
        literal: &Literal,
        shift: Shift<'_>,
    ) -> Result<ValueId> {
        let view = self.view(id);
        let place = |error| self.place(id, error);
        let scalar = literal.ty.as_tensor().is_some_and(|t| t.rank() == 0);
        if let Some(text) = literal.as_str() {
            return Ok(e.constant(format!("c_s_{text}"), Literal::string(text)));
        }
        if is_float(literal) {
            if scalar {
                let value = view.float(name).map_err(place)?.unwrap_or(0.0);
                return Ok(e.scalar(self.held(id, name, value)?));
            }
            let label = format!("{}_{name}", self.function.values[self.result(id)].name);
            let tensor = self.half(id, name)?;
            return e.weight(&label, tensor);
        }
        if let Ok(Some(flags)) = view.bools(name) {
            let key: String = flags.iter().map(|&b| if b { "_t" } else { "_f" }).collect();
            return Ok(match scalar {
                true => e.flag(flags.first() == Some(&true)),
                false => e.constant(format!("c{key}"), Literal::bool_vector(&flags)),
            });
        }
        let values = shift(name, self.ints(id, name)?);
        let values: Option<Vec<i32>> = values.iter().map(|&x| i32::try_from(x).ok()).collect();
        let values =
            values.ok_or_else(|| self.unsupported(id, format!("{name} is beyond int32")))?;
        Ok(match (scalar, values.first()) {
            (true, Some(&value)) => e.int(value),
            _ => e.ints(&values),
        })
    }

    /// A number that fp16 holds as one of its own: not as infinity, nor as zero.
    fn held(&self, id: OpId, name: &str, x: f64) -> Result<f64> {
        let half = half::f16::from_f64(x).to_f64();
        if (x.is_finite() && !half.is_finite()) || (x != 0.0 && half == 0.0) {
            return Err(self.unsupported(id, format!("{name} is {x}, which fp16 does not hold")));
        }
        Ok(x)
    }

    fn result(&self, id: OpId) -> ValueId {
        self.function.ops[id].outputs[0]
    }

    fn reduction(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let (x, rank) = (self.operand(e, id, "x")?, self.rank(id, "x")?);
        let all = || (0..rank as i64).collect();
        let axes = self.opt_ints(id, "axes")?.unwrap_or_else(all);
        let axes: Vec<i32> =
            axes.into_iter().map(|a| Ok(self.axis(id, a, rank)? as i32)).collect::<Result<_>>()?;
        if axes.is_empty() {
            return Err(self.unsupported(id, "it reduces no axis"));
        }
        let (axes, keep) = (e.ints(&axes), e.flag(true));
        let op = e.b.op(self.function.ops[id].kind).arg("x", x).arg("axes", axes);
        op.arg("keep_dims", keep).name(name).result()
    }

    /// Begin, end and stride of a slice, on four axes.
    fn cut_out(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let (x, rank) = (self.operand(e, id, "x")?, self.rank(id, "x")?);
        let sizes = e.shape(x)?;
        let begin = self.ints(id, "begin")?;
        let by_size = self.function.ops[id].kind == OpKind::SliceBySize;
        let last = self.ints(id, if by_size { "size" } else { "end" })?;
        let stride = if by_size { None } else { self.opt_ints(id, "stride")? };
        let mask = |name: &str| -> Result<Vec<bool>> {
            let given = if by_size {
                None
            } else {
                self.view(id).bools(name).map_err(|e| self.place(id, e))?
            };
            Ok(given.unwrap_or_else(|| vec![false; rank]))
        };
        let (from_start, to_end, squeeze) =
            (mask("begin_mask")?, mask("end_mask")?, mask("squeeze_mask")?);
        let (mut first, mut end, mut step) = ([0; 4], sizes, [1; 4]);
        for axis in rank.saturating_sub(4)..rank {
            let at = axis + 4 - rank;
            let size = sizes[at] as i64;
            let stride = stride.as_ref().map_or(1, |s| s[axis]);
            if stride < 1 {
                return Err(self.unsupported(id, "it goes backwards"));
            }
            let counted = |x: i64| if x < 0 { x + size } else { x }.clamp(0, size);
            let b = if from_start[axis] { 0 } else { counted(begin[axis]) };
            let to = match (by_size, squeeze[axis]) {
                (_, true) => b + 1,
                (true, _) if last[axis] < 0 => size,
                (true, _) => b + last[axis],
                (false, _) if to_end[axis] => size,
                (false, _) => counted(last[axis]),
            };
            (first[at], end[at], step[at]) = (b as usize, to as usize, stride as usize);
        }
        self.keeps_large(id, first[3])?;
        e.slice(x, first, end, step, name)
    }

    /// Refuses a slice that begins inside of a row on chips that lose large values there.
    fn keeps_large(&self, id: OpId, begin: usize) -> Result<()> {
        match self.target.chip.numerics.slice_offset_max {
            Some(_) if begin != 0 => {
                Err(self.unsupported(id, "this chip loses large values of a slice inside of a row"))
            }
            _ => Ok(()),
        }
    }

    /// A slice for each part.
    fn split(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<()> {
        let (x, rank) = (self.operand(e, id, "x")?, self.rank(id, "x")?);
        let axis = self.ints_or(id, "axis", 0)?;
        let axis = self.axis(id, axis, rank)?;
        let whole = e.shape(x)?;
        let mut at = 0;
        for (i, v) in self.function.ops[id].outputs.clone().into_iter().enumerate() {
            let size = self.shape(v)?[axis];
            let (mut begin, mut end) = ([0; 4], whole);
            (begin[axis], end[axis]) = (at, at + size);
            self.keeps_large(id, begin[3])?;
            at += size;
            let part = e.slice(x, begin, end, [1; 4], &format!("{name}_part_{i}"))?;
            e.values.insert(v, part);
        }
        Ok(())
    }

    /// The tensors of argument `values`.
    fn values(&mut self, e: &mut Emitter<'_>, id: OpId) -> Result<Vec<ValueId>> {
        let items = match self.function.ops[id].arg("values") {
            Some(Arg::List(items)) => items.clone(),
            Some(single) => vec![single.clone()],
            None => Vec::new(),
        };
        let mut values = Vec::new();
        for (i, item) in items.iter().enumerate() {
            values.push(match self.function.const_arg(item) {
                None => match item {
                    Arg::Value(v) => self.given(e, *v)?,
                    _ => return Err(self.unsupported(id, "a value is no tensor")),
                },
                Some(literal) => {
                    let tensor = literal.resolve(&self.program.weights);
                    let tensor = tensor.ok_or_else(|| self.unsupported(id, "no tensor"))?;
                    let label = format!("{}_value_{i}", self.function.values[self.result(id)].name);
                    let tensor = super::weights::halves(tensor, &label)?;
                    constant_operand(e, &tensor, &label)?
                }
            });
        }
        Ok(values)
    }

    fn concat(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        if self.view(id).bool_or("interleave", false).map_err(|e| self.place(id, e))? {
            return Err(self.unsupported(id, "it interleaves"));
        }
        let rank = self.function.tensor_ty(self.result(id)).map_or(0, TensorType::rank);
        let axis = self.ints_or(id, "axis", 0)?;
        let axis = self.axis(id, axis, rank)?;
        let values = self.values(e, id)?;
        self.join(e, &values, axis, name)
    }

    fn stack(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let result = self.result(id);
        let rank = self.function.tensor_ty(result).map_or(0, TensorType::rank);
        let axis = self.ints_or(id, "axis", 0)?;
        let axis = self.axis(id, axis, rank)?;
        let mut one = self.shape(result)?;
        one[axis] = 1;
        let mut values = self.values(e, id)?;
        for (i, v) in values.iter_mut().enumerate() {
            *v = e.shaped(*v, one, &format!("{name}_layer_{i}"))?;
        }
        self.join(e, &values, axis, name)
    }

    /// Tensors one after another along an axis: where the chip refuses `concat`, the sum of all, each
    /// among zeros.
    fn join(
        &self,
        e: &mut Emitter<'_>,
        values: &[ValueId],
        axis: usize,
        name: &str,
    ) -> Result<ValueId> {
        let concat = self.target.chip.switches.concat.as_ref().map(|s| s.value);
        if concat != Some(Acceptance::Refused) {
            let (at, interleave) = (e.int(axis as i32), e.flag(false));
            let op = e.b.op(OpKind::Concat).arg("values", values.to_vec()).arg("axis", at);
            return op.arg("interleave", interleave).name(name).result();
        }
        let sizes: Vec<usize> =
            values.iter().map(|&v| Ok(e.shape(v)?[axis])).collect::<Result<_>>()?;
        let total: usize = sizes.iter().sum();
        let (mut at, mut sum) = (0, None);
        for (i, (&v, size)) in values.iter().zip(sizes).enumerate() {
            let mut widths = [[0; 2]; 4];
            widths[axis] = [at, total - at - size];
            at += size;
            let placed = e.pad(v, widths, 0.0, &format!("{name}_placed_{i}"))?;
            sum = Some(match sum {
                None => placed,
                Some(sum) => e.binary(OpKind::Add, sum, placed, &format!("{name}_sum_{i}"))?,
            });
        }
        sum.ok_or_else(|| bug("nothing is joined"))
    }

    fn pad(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let x = self.operand(e, id, "x")?;
        let view = self.view(id);
        let mode = view.str("mode").map_err(|e| self.place(id, e))?.unwrap_or("constant");
        if mode != "constant" {
            return Err(self.unsupported(id, format!("mode {mode}")));
        }
        let value = view.float("constant_val").map_err(|e| self.place(id, e))?.unwrap_or(0.0);
        let value = self.held(id, "constant_val", value)?;
        let given = self.ints(id, "pad")?;
        let (dropped, given) = given.split_at(given.len().saturating_sub(8));
        if dropped.iter().any(|&n| n != 0) {
            return Err(self.unsupported(id, "it is about a fifth axis"));
        }
        let mut widths = [[0; 2]; 4];
        let from = 4usize.saturating_sub(given.len() / 2);
        for (width, pair) in widths[from..].iter_mut().zip(given.chunks_exact(2)) {
            *width = [pair[0], pair[1]].map(|n| usize::try_from(n).unwrap_or(0));
        }
        e.pad(x, widths, value, name)
    }

    /// Rows of `x` times a kernel `[out, in, 1, 1]`, as a convolution over channels.
    fn row_product(
        &mut self,
        e: &mut Emitter<'_>,
        id: OpId,
        (x, kernel): (ValueId, Tensor),
        name: &str,
    ) -> Result<ValueId> {
        let [a, b, c, inner] = e.shape(x)?;
        let rows = a * b * c;
        let x = e.shaped(x, [1, 1, rows, inner], &format!("{name}_rows"))?;
        let x = e.transpose(x, [0, 3, 1, 2], &format!("{name}_channels"))?;
        let y = self.affine(e, id, (x, kernel), &format!("{name}_product"))?;
        e.transpose(y, [0, 2, 3, 1], name)
    }

    fn matmul(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let view = self.view(id);
        let flag = |name: &str| view.bool_or(name, false).map_err(|e| self.place(id, e));
        let turned = [flag("transpose_x")?, flag("transpose_y")?];
        let (x_rank, y_rank) = (self.rank(id, "x")?, self.rank(id, "y")?);
        if x_rank < 2 || y_rank < 2 {
            return Err(self.unsupported(id, "an operand is a vector"));
        }
        let x = self.operand(e, id, "x")?;
        if y_rank == 2 && !turned[0] && view.literal("y").is_some() {
            let y = self.half(id, "y")?;
            let kernel = if turned[1] { y } else { transposed(&y)? };
            let (out, inner) = (kernel.shape()[0], kernel.shape()[1]);
            return self.row_product(e, id, (x, reshaped(&kernel, [out, inner, 1, 1])?), name);
        }
        let y = self.operand(e, id, "y")?;
        let inner = e.shape(x)?[if turned[0] { 2 } else { 3 }];
        let any = self.target.chip.switches.matmul_any_length.as_ref().map(|s| s.value);
        if any == Some(Acceptance::Refused) && !inner.is_multiple_of(32) {
            return Err(
                self.unsupported(id, format!("its inner length {inner} is no multiple of 32"))
            );
        }
        e.matmul(x, y, turned, name)
    }

    /// A convolution over one axis or two.
    fn conv(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let rank = self.rank(id, "x")?;
        if !(3..=4).contains(&rank) {
            return Err(self.unsupported(id, "the engine has it for four axes"));
        }
        let mut x = self.operand(e, id, "x")?;
        let weight = match self.view(id).literal("weight") {
            None if rank == 4 => self.operand(e, id, "weight")?,
            None => return Err(self.unsupported(id, "its weight is computed")),
            Some(_) => {
                let kernel = self.half(id, "weight")?;
                let shape = match *kernel.shape() {
                    [a, b, c] => [a, b, 1, c],
                    [a, b, c, d] => [a, b, c, d],
                    _ => return Err(bug("a kernel of other axes")),
                };
                e.weight(&format!("{name}_weight"), reshaped(&kernel, shape)?)?
            }
        };
        if rank == 3 {
            let [_, batch, channels, length] = e.shape(x)?;
            x = e.shaped(x, [batch, channels, 1, length], &format!("{name}_flat"))?;
        }
        let two = |e: &mut Emitter<'_>, name: &str, before: &[i32]| -> Result<ValueId> {
            let given = self.opt_ints(id, name)?;
            let given = given.map(|list| list.into_iter().map(|x| x as i32).collect::<Vec<_>>());
            let default = vec![before.first().copied().unwrap_or(1); before.len() * (rank - 2)];
            let given = given.unwrap_or(default);
            let lead = if rank == 3 { before } else { &[] };
            Ok(e.ints(&[lead, &given].concat()))
        };
        let (strides, dilations) = (two(e, "strides", &[1])?, two(e, "dilations", &[1])?);
        let pad = two(e, "pad", &[0, 0])?;
        let view = self.view(id);
        let groups = view.int("groups").map_err(|e| self.place(id, e))?.unwrap_or(1);
        let kind = view.str("pad_type").map_err(|e| self.place(id, e))?.unwrap_or("valid");
        let (groups, kind) =
            (e.int(groups as i32), e.constant(format!("c_s_{kind}"), Literal::string(kind)));
        let op = e.b.op(OpKind::Conv).arg("x", x).arg("weight", weight).arg("strides", strides);
        let op = op.arg("pad_type", kind).arg("pad", pad).arg("dilations", dilations);
        let y = op.arg("groups", groups).name(name).result()?;
        self.biased(e, id, y, name)
    }

    /// Over one axis, or the last ones.
    fn layer_norm(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let (x, rank) = (self.operand(e, id, "x")?, self.rank(id, "x")?);
        let given = self.opt_ints(id, "axes")?.unwrap_or_else(|| (0..rank as i64).collect());
        let mut axes = given.iter().map(|&a| self.axis(id, a, rank)).collect::<Result<Vec<_>>>()?;
        axes.sort_unstable();
        let sizes = e.shape(x)?;
        let (shape, axis) = match axes[..] {
            [axis] => (sizes, axis),
            [first, ..] if axes.iter().copied().eq(first..4) => {
                let width: usize = sizes[first..].iter().product();
                ([1, 1, sizes.iter().product::<usize>() / width, width], 3)
            }
            _ => return Err(self.unsupported(id, "it normalises other than the last axes")),
        };
        let x = e.shaped(x, shape, &format!("{name}_rows"))?;
        let epsilon = self.view(id).float("epsilon").map_err(|e| self.place(id, e))?;
        let mut scale = [1; 4];
        scale[axis] = shape[axis];
        let scale = self.scale_and_shift(id, scale)?;
        let centred = e.centre(x, axis as i32, name)?;
        e.normalise(centred, axis as i32, scale, epsilon.unwrap_or(1e-5), name)
    }

    /// Copies along axes, one axis after another, each by a product with ones.
    fn tile(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let (mut x, rank) = (self.operand(e, id, "x")?, self.rank(id, "x")?);
        for (i, times) in self.ints(id, "reps")?.into_iter().enumerate() {
            let times = usize::try_from(times).unwrap_or(0);
            if times == 1 {
                continue;
            }
            let axis = self.axis(id, i as i64, rank)?;
            let mut sizes = e.shape(x)?;
            let outer = sizes[..axis].iter().product();
            let each = sizes[axis..].iter().product();
            let flat = e.shaped(x, [1, outer, 1, each], &format!("{name}_{i}_flat"))?;
            let ones = Tensor::from_slice(&[1, 1, times, 1], &vec![half::f16::ONE; times]);
            let ones = ones.map_err(|e| bug(e.to_string()))?;
            let ones = e.shared(&format!("ones_{times}"), ones)?;
            let copies = e.binary(OpKind::Mul, flat, ones, &format!("{name}_{i}_copies"))?;
            sizes[axis] *= times;
            x = e.shaped(copies, sizes, &format!("{name}_{i}"))?;
        }
        Ok(x)
    }
}

fn is_float(literal: &Literal) -> bool {
    literal.ty.as_tensor().is_some_and(|t| t.dtype.is_float())
}

/// A constant as an operand of four axes; one of a single element as a scalar.
fn constant_operand(e: &mut Emitter<'_>, tensor: &Tensor, label: &str) -> Result<ValueId> {
    if let ([], [x]) = (tensor.shape(), tensor.as_slice::<half::f16>().unwrap_or_default()) {
        return Ok(e.scalar(x.to_f64()));
    }
    let ty = TensorType::new(DType::F16, tensor.shape().iter().copied());
    let shape = embedded(&ty).ok_or_else(|| {
        let message = format!("{label} has no four axes: {ty}");
        Error::new(mil::ErrorKind::Unsupported, message)
    })?;
    e.weight(label, reshaped(tensor, shape)?)
}

/// A matrix of fp16 with rows and columns exchanged.
fn transposed(tensor: &Tensor) -> Result<Tensor> {
    let (&[rows, columns], Ok(from)) = (tensor.shape(), tensor.as_slice::<half::f16>()) else {
        return Err(bug("no matrix of fp16"));
    };
    let turned: Vec<half::f16> =
        (0..columns).flat_map(|c| (0..rows).map(move |r| from[r * columns + c])).collect();
    Tensor::from_slice(&[columns, rows], &turned).map_err(|e| bug(e.to_string()))
}
