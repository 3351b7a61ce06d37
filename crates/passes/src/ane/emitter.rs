//! A program for the engine under construction, and the forms that dialect and plain MIL share.

use std::collections::HashMap;

use half::f16;
use mil::{FunctionBuilder, Literal, OpKind, Result, TensorType, ValueDef, ValueId};
use tensor::{DType, Tensor};

use super::lowering::bug;
use super::{Source, Wire};

/// One program. Every constant argument is a named constant.
pub(super) struct Emitter<'w> {
    pub(super) b: FunctionBuilder<'w>,
    pub(super) columns: usize,
    /// What widths of inputs and outputs are multiples of.
    multiple: usize,
    /// The engine's form of the source's values.
    pub(super) values: HashMap<ValueId, ValueId>,
    constants: HashMap<String, ValueId>,
    pub(super) inputs: Vec<(ValueId, Source)>,
    pub(super) outputs: Vec<(ValueId, Source)>,
}

impl<'w> Emitter<'w> {
    pub(super) fn new(b: FunctionBuilder<'w>, columns: usize, multiple: usize) -> Self {
        Emitter {
            b,
            columns,
            multiple,
            values: HashMap::new(),
            constants: HashMap::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }

    pub(super) fn input(&mut self, name: &str, shape: [usize; 4], source: Source) -> ValueId {
        let dims = shape.map(mil::Dim::Fixed);
        let v = self.b.input(name, TensorType::new(DType::F16, dims));
        self.inputs.push((v, source));
        v
    }

    /// An input that several operations share.
    pub(super) fn raw(&mut self, name: &str, shape: [usize; 4], wire: Wire) -> ValueId {
        let known = self.inputs.iter().find(|(_, source)| *source == Source::Raw(wire));
        match known {
            Some(&(v, _)) => v,
            None => self.input(name, shape, Source::Raw(wire)),
        }
    }

    /// Makes `v` an output. What is one already, is an input, or is made by an operation that moves
    /// nothing (the compiler drops it) is copied first.
    pub(super) fn output(&mut self, v: ValueId, name: &str, source: Source) -> Result<()> {
        let dropped = match self.b.function().values[v].def {
            ValueDef::Param => true,
            ValueDef::Result(op, _) => {
                let kind = self.b.function().ops[op].kind;
                use OpKind::{Cast, Identity, Reshape, Transpose};
                matches!(kind, Reshape | Identity | Cast | Transpose)
            }
        };
        let v = if dropped || self.outputs.iter().any(|(o, _)| *o == v) {
            let one = self.scalar(1.0);
            self.binary(OpKind::Mul, v, one, &format!("{name}_copy"))?
        } else {
            v
        };
        self.b.rename(v, name);
        self.outputs.push((v, source));
        Ok(())
    }

    pub(super) fn shape(&self, v: ValueId) -> Result<[usize; 4]> {
        let shape = self.b.function().tensor_ty(v).and_then(TensorType::fixed_shape);
        let shape = shape.and_then(|s| s.try_into().ok());
        shape.ok_or_else(|| bug("a tensor on the engine is not of rank 4"))
    }

    /// `x` in `shape`, as it is if it has it.
    pub(super) fn shaped(&mut self, x: ValueId, shape: [usize; 4], name: &str) -> Result<ValueId> {
        if self.shape(x)? == shape {
            return Ok(x);
        }
        self.reshape(x, shape, name)
    }

    /// The rows of a tensor as they cross to the host: `[1, R, 1, W]`, `W` a width that surfaces may
    /// have, filled up with zeros.
    pub(super) fn rows(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let [a, b, c, width] = self.shape(x)?;
        let rows = self.shaped(x, [1, a * b * c, 1, width], &format!("{name}_rows"))?;
        let more = width.next_multiple_of(self.multiple) - width;
        if more == 0 {
            return Ok(rows);
        }
        self.pad(rows, [[0; 2], [0; 2], [0; 2], [0, more]], 0.0, &format!("{name}_filled"))
    }

    /// An input of rows `[1, R, 1, W]` as a tensor of `shape`.
    pub(super) fn unrowed(&mut self, shape: [usize; 4], wire: Wire, name: &str) -> Result<ValueId> {
        let [a, b, c, width] = shape;
        let filled = width.next_multiple_of(self.multiple);
        let rows = self.input(&format!("in_{name}"), [1, a * b * c, 1, filled], Source::Rows(wire));
        let rows = match filled == width {
            true => rows,
            false => {
                let end = [1, a * b * c, 1, width];
                self.slice(rows, [0; 4], end, [1; 4], &format!("{name}_columns"))?
            }
        };
        self.shaped(rows, shape, &format!("{name}_given"))
    }

    /// `x` with `value` before and after along each axis.
    pub(super) fn pad(
        &mut self,
        x: ValueId,
        widths: [[usize; 2]; 4],
        value: f64,
        name: &str,
    ) -> Result<ValueId> {
        let widths: Vec<i32> = widths.iter().flatten().map(|&n| n as i32).collect();
        let (widths, value) = (self.ints(&widths), self.scalar(value));
        let constant = self.constant("c_s_constant".to_owned(), Literal::string("constant"));
        let op = self.b.op(OpKind::Pad).arg("x", x).arg("pad", widths).arg("mode", constant);
        op.arg("constant_val", value).name(name).result()
    }

    pub(super) fn slice(
        &mut self,
        x: ValueId,
        begin: [usize; 4],
        end: [usize; 4],
        stride: [usize; 4],
        name: &str,
    ) -> Result<ValueId> {
        let [begin, end, stride] =
            [begin, end, stride].map(|list| self.ints(&list.map(|n| n as i32)));
        let op = self.b.op(OpKind::SliceByIndex).arg("x", x).arg("begin", begin);
        op.arg("end", end).arg("stride", stride).name(name).result()
    }

    pub(super) fn constant(&mut self, key: String, literal: Literal) -> ValueId {
        if let Some(&v) = self.constants.get(&key) {
            return v;
        }
        let v = self.b.constant(&key, literal);
        self.constants.insert(key, v);
        v
    }

    pub(super) fn scalar(&mut self, x: f64) -> ValueId {
        let half = f16::from_f64(x);
        self.constant(format!("c_h{:04x}", half.to_bits()), Literal::scalar(half))
    }

    pub(super) fn flag(&mut self, flag: bool) -> ValueId {
        self.constant(format!("c_{flag}"), Literal::bool(flag))
    }

    pub(super) fn ints(&mut self, values: &[i32]) -> ValueId {
        let words: Vec<String> = values.iter().map(|v| v.to_string().replace('-', "m")).collect();
        self.constant(format!("c_{}", words.join("_")), Literal::vector(values))
    }

    pub(super) fn int(&mut self, value: i32) -> ValueId {
        let key = format!("c_int_{}", value.to_string().replace('-', "m"));
        self.constant(key, Literal::scalar(value))
    }

    pub(super) fn weight(&mut self, name: &str, tensor: Tensor) -> Result<ValueId> {
        self.b.new_weight(name, tensor)
    }

    pub(super) fn shared(&mut self, key: &str, tensor: Tensor) -> Result<ValueId> {
        if let Some(&v) = self.constants.get(key) {
            return Ok(v);
        }
        let v = self.weight(key, tensor)?;
        self.constants.insert(key.to_owned(), v);
        Ok(v)
    }

    pub(super) fn unary(&mut self, kind: OpKind, x: ValueId, name: &str) -> Result<ValueId> {
        self.b.op(kind).arg("x", x).name(name).result()
    }

    pub(super) fn binary(
        &mut self,
        kind: OpKind,
        x: ValueId,
        y: ValueId,
        name: &str,
    ) -> Result<ValueId> {
        self.b.op(kind).arg("x", x).arg("y", y).name(name).result()
    }

    pub(super) fn reshape(&mut self, x: ValueId, shape: [usize; 4], name: &str) -> Result<ValueId> {
        let shape = self.ints(&shape.map(|n| n as i32));
        self.b.op(OpKind::Reshape).arg("x", x).arg("shape", shape).name(name).result()
    }

    pub(super) fn transpose(&mut self, x: ValueId, perm: [i32; 4], name: &str) -> Result<ValueId> {
        let perm = self.ints(&perm);
        self.b.op(OpKind::Transpose).arg("x", x).arg("perm", perm).name(name).result()
    }

    pub(super) fn matmul(
        &mut self,
        x: ValueId,
        y: ValueId,
        turned: [bool; 2],
        name: &str,
    ) -> Result<ValueId> {
        let [tx, ty] = turned.map(|t| self.flag(t));
        let op = self.b.op(OpKind::Matmul).arg("x", x).arg("y", y);
        op.arg("transpose_x", tx).arg("transpose_y", ty).name(name).result()
    }

    pub(super) fn softmax(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let axis = self.int(-1);
        self.b.op(OpKind::Softmax).arg("x", x).arg("axis", axis).name(name).result()
    }

    pub(super) fn reduce(
        &mut self,
        kind: OpKind,
        x: ValueId,
        axis: i32,
        name: &str,
    ) -> Result<ValueId> {
        let (axes, keep) = (self.ints(&[axis]), self.flag(true));
        self.b.op(kind).arg("x", x).arg("axes", axes).arg("keep_dims", keep).name(name).result()
    }

    pub(super) fn conv(&mut self, x: ValueId, kernel: Tensor, name: &str) -> Result<ValueId> {
        let weight = self.weight(&format!("{name}_weight"), kernel)?;
        let (ones, zeros) = (self.ints(&[1, 1]), self.ints(&[0, 0, 0, 0]));
        let groups = self.int(1);
        let valid = self.constant("c_s_valid".to_owned(), Literal::string("valid"));
        let op = self.b.op(OpKind::Conv).arg("x", x).arg("weight", weight).arg("strides", ones);
        let op = op.arg("pad_type", valid).arg("pad", zeros).arg("dilations", ones);
        op.arg("groups", groups).name(name).result()
    }

    /// `x` less its mean over an axis.
    pub(super) fn centre(&mut self, x: ValueId, axis: i32, name: &str) -> Result<ValueId> {
        let mean = self.reduce(OpKind::ReduceMean, x, axis, &format!("{name}_mean"))?;
        self.binary(OpKind::Sub, x, mean, &format!("{name}_centred"))
    }

    /// `x / sqrt(mean(x^2) + epsilon) * gamma + beta` over an axis. Squares of large activations leave
    /// the range of fp16 and of the accumulator, squares of small ones are lost, hence `x` is divided by
    /// its largest magnitude first; `epsilon` is below what fp16 holds well, its root is not.
    pub(super) fn normalise(
        &mut self,
        x: ValueId,
        axis: i32,
        [gamma, beta]: [Option<Tensor>; 2],
        epsilon: f64,
        name: &str,
    ) -> Result<ValueId> {
        let magnitude = self.unary(OpKind::Abs, x, &format!("{name}_abs"))?;
        let largest =
            self.reduce(OpKind::ReduceMax, magnitude, axis, &format!("{name}_largest"))?;
        let least = self.scalar((-7f64).exp2());
        let largest = self.binary(OpKind::Maximum, largest, least, &format!("{name}_divisor"))?;
        let y = self.binary(OpKind::RealDiv, x, largest, &format!("{name}_unit"))?;
        let square = self.binary(OpKind::Mul, y, y, &format!("{name}_squares"))?;
        let mean = self.reduce(OpKind::ReduceMean, square, axis, &format!("{name}_mean_square"))?;
        let root = self.scalar(epsilon.sqrt());
        let root = self.binary(OpKind::RealDiv, root, largest, &format!("{name}_epsilon_root"))?;
        let added = self.binary(OpKind::Mul, root, root, &format!("{name}_epsilon"))?;
        let sum = self.binary(OpKind::Add, mean, added, &format!("{name}_sum"))?;
        let deviation = self.unary(OpKind::Sqrt, sum, &format!("{name}_root"))?;
        let mut y = self.binary(OpKind::RealDiv, y, deviation, &format!("{name}_normal"))?;
        if let Some(gamma) = gamma {
            let gamma = self.weight(&format!("{name}_gamma"), gamma)?;
            y = self.binary(OpKind::Mul, y, gamma, &format!("{name}_scaled"))?;
        }
        if let Some(beta) = beta {
            let beta = self.weight(&format!("{name}_beta"), beta)?;
            y = self.binary(OpKind::Add, y, beta, &format!("{name}_shifted"))?;
        }
        Ok(y)
    }

    /// `x sigmoid(x)`.
    pub(super) fn silu(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let gate = self.unary(OpKind::Sigmoid, x, &format!("{name}_sigmoid"))?;
        self.binary(OpKind::Mul, x, gate, &format!("{name}_silu"))
    }

    /// `x/2 (1 + erf(x / sqrt 2))`, or with `tanh(x (a + b x^2))`, whose square stays in range where
    /// the usual cube does not.
    pub(super) fn gelu(&mut self, x: ValueId, exact: bool, name: &str) -> Result<ValueId> {
        let inner = if exact {
            let factor = self.scalar(std::f64::consts::FRAC_1_SQRT_2);
            let scaled = self.binary(OpKind::Mul, x, factor, &format!("{name}_scaled"))?;
            self.unary(OpKind::Erf, scaled, &format!("{name}_erf"))?
        } else {
            let a = (2.0 / std::f64::consts::PI).sqrt();
            let (a, b) = (self.scalar(a), self.scalar(a * 0.044_715));
            let square = self.binary(OpKind::Mul, x, x, &format!("{name}_square"))?;
            let slope = self.binary(OpKind::Mul, square, b, &format!("{name}_slope"))?;
            let slope = self.binary(OpKind::Add, slope, a, &format!("{name}_steeper"))?;
            let scaled = self.binary(OpKind::Mul, x, slope, &format!("{name}_argument"))?;
            self.unary(OpKind::Tanh, scaled, &format!("{name}_tanh"))?
        };
        let (one, half) = (self.scalar(1.0), self.scalar(0.5));
        let inner = self.binary(OpKind::Add, inner, one, &format!("{name}_one"))?;
        let x = self.binary(OpKind::Mul, x, half, &format!("{name}_half"))?;
        self.binary(OpKind::Mul, x, inner, &format!("{name}_gelu"))
    }
}
