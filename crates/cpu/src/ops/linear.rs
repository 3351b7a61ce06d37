//! Linear layers, gated MLP, matrix products, embedding, dequantisation.

use kernels::{Activation, Linear, Matrix};
use mil::{ErrorKind, OpError};
use tensor::DType;

use crate::kernel::{Kernel, Native, Operand, RunCx, f32s, f32s_mut, i32s};
use crate::op_cx::{Bind, OpCx};

/// Type and size of a weight matrix `[rows, cols]`.
#[derive(Clone, Copy)]
pub(super) struct MatrixType {
    dtype: DType,
    pub(super) rows: usize,
    cols: usize,
}

impl MatrixType {
    pub(super) fn of(weight: &Operand) -> Bind<Self> {
        let &[rows, cols] = &weight.shape[..] else {
            return Err("a weight that is not of rank 2".into());
        };
        let dtype = weight.dtype;
        if cols == 0 {
            return Err("a weight without columns".into());
        }
        if !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) && !dtype.is_block_quantized() {
            return Err(format!("a weight of {dtype}").into());
        }
        Ok(MatrixType { dtype, rows, cols })
    }

    /// The matrix of `bytes`, which the plan made sure are as many as it needs.
    pub(super) fn over(self, bytes: &[u8]) -> Result<Matrix<'_>, OpError> {
        Matrix::new(self.dtype, self.rows, self.cols, bytes)
            .map_err(|e| OpError { kind: ErrorKind::Bug, message: e.to_string() })
    }
}

/// One linear layer: `x`, weight, and bias if it has one.
pub(crate) struct LinearParts {
    /// Input `[.., K]`.
    pub(crate) x: Operand,
    /// Weight `[N, K]`.
    pub(crate) weight: Operand,
    /// Bias `[N]`.
    pub(crate) bias: Option<Operand>,
}

/// The parts of `llm.linear` or `linear`.
pub(crate) fn parts(cx: &mut OpCx<'_>) -> Bind<LinearParts> {
    let (x, weight, bias) = (cx.float("x")?, cx.get("weight")?, cx.opt_float("bias")?);
    MatrixType::of(&weight)?;
    Ok(LinearParts { x, weight, bias })
}

/// Binds linear layers that share their input.
pub(crate) fn linears(layers: Vec<LinearParts>) -> Bind<Native> {
    let mut inputs = Vec::new();
    let mut products = Vec::new();
    for layer in layers {
        if inputs.is_empty() {
            inputs.push(layer.x);
        }
        let matrix = MatrixType::of(&layer.weight)?;
        products.push(Product { matrix, weight: inputs.len(), bias: layer.bias.is_some() });
        inputs.push(layer.weight);
        inputs.extend(layer.bias);
    }
    Ok(Native::floats(Linears { products }, inputs))
}

struct Product {
    matrix: MatrixType,
    /// Which input is the weight; a bias is the next one.
    weight: usize,
    bias: bool,
}

struct Linears {
    products: Vec<Product>,
}

impl Kernel for Linears {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let mut layers = Vec::with_capacity(self.products.len());
        for (p, out) in self.products.iter().zip(outs) {
            let weight = p.matrix.over(ins[p.weight])?;
            let bias = p.bias.then(|| f32s(ins[p.weight + 1]));
            layers.push(Linear { weight, bias, out: f32s_mut(out) });
        }
        kernels::matmul_many(cx.pool, f32s(ins[0]), &mut layers);
        Ok(())
    }
}

/// Binds `llm.gated_mlp`.
pub(crate) fn gated_mlp(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x = cx.float("x")?;
    let weights = [cx.get("gate")?, cx.get("up")?, cx.get("down")?];
    let [gate, up, down] = [0, 1, 2].map(|i| MatrixType::of(&weights[i]));
    let activation = match cx.view.str("activation")? {
        Some("silu") => Activation::Silu,
        Some("gelu_tanh") => Activation::GeluTanh,
        Some("gelu") => Activation::GeluErf,
        other => return Err(format!("activation {other:?}").into()),
    };
    let kernel = GatedMlp { gate: gate?, up: up?, down: down?, activation };
    let hidden = x.len() / kernel.gate.cols * kernel.gate.rows;
    let inputs = std::iter::once(x).chain(weights).collect();
    Ok(Native::floats(kernel, inputs).with_scratch(&[hidden, hidden]))
}

struct GatedMlp {
    gate: MatrixType,
    up: MatrixType,
    down: MatrixType,
    activation: Activation,
}

impl Kernel for GatedMlp {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let [out, gate, up] = outs else { return Ok(()) };
        let (gate, up) = (f32s_mut(gate), f32s_mut(up));
        let mut layers = [
            Linear { weight: self.gate.over(ins[1])?, bias: None, out: gate },
            Linear { weight: self.up.over(ins[2])?, bias: None, out: up },
        ];
        kernels::matmul_many(cx.pool, f32s(ins[0]), &mut layers);
        kernels::gate_in_place(cx.pool, self.activation, gate, up);
        kernels::matmul(cx.pool, gate, self.down.over(ins[3])?, None, f32s_mut(out));
        Ok(())
    }
}

/// Binds `llm.embedding`.
pub(crate) fn embedding(cx: &mut OpCx<'_>) -> Bind<Native> {
    let (ids, weight) = (cx.get("ids")?, cx.get("weight")?);
    if ids.dtype != DType::I32 {
        return Err(format!("ids of {}", ids.dtype).into());
    }
    let kernel = Embedding { table: MatrixType::of(&weight)? };
    Ok(Native::floats(kernel, vec![ids, weight]))
}

struct Embedding {
    table: MatrixType,
}

impl Kernel for Embedding {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let table = self.table.over(ins[1])?;
        kernels::gather(cx.pool, table, i32s(ins[0]), f32s_mut(outs[0]))
            .map_err(|e| OpError::invalid(e.to_string()))
    }
}

/// Binds `llm.dequantize`.
pub(crate) fn dequantize(cx: &mut OpCx<'_>) -> Bind<Native> {
    let mut x = cx.get("x")?;
    let cols = x.shape.last().copied().unwrap_or(1);
    x.shape = vec![x.len().checked_div(cols).unwrap_or(0), cols];
    let kernel = Dequantize { matrix: MatrixType::of(&x)? };
    Ok(Native::floats(kernel, vec![x]))
}

struct Dequantize {
    matrix: MatrixType,
}

impl Kernel for Dequantize {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        kernels::decode(cx.pool, self.matrix.over(ins[0])?, f32s_mut(outs[0]));
        Ok(())
    }
}
