//! Cases of the language-model dialect.

use exec::Tensors;
use mil::{FunctionBuilder, Literal, OpKind, Opset, Program, TensorType, Type, ValueId};
use tensor::{DType, Tensor};

use crate::case::{CaseBuilder, Step};
use crate::{Case, Tolerance, case, seeded};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![rms_norm()];
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        cases.extend([linear(dtype, true), embedding(dtype), gated_mlp(dtype, "silu")]);
    }
    for &dtype in DType::ALL.iter().filter(|d| d.is_block_quantized()) {
        cases.extend([linear(dtype, false), embedding(dtype), dequantize(dtype)]);
    }
    cases.extend([
        gated_mlp(DType::Q4_1, "silu"),
        gated_mlp(DType::Q4K, "gelu_tanh"),
        gated_mlp(DType::F32, "gelu"),
        rope(false, 8),
        rope(true, 8),
        rope(false, 4),
        rope(true, 4),
        rms_norm_grad(),
    ]);
    for (dtype, softcap) in [(DType::F32, None), (DType::F32, Some(2.0)), (DType::Q8_0, None)] {
        cases.extend([head_loss(dtype, softcap), head_loss_grad(dtype, softcap)]);
    }
    let plain = Attention { heads: 2, groups: 2, window: None, softcap: None };
    let grouped = Attention { heads: 6, groups: 2, window: None, softcap: None };
    for attention in [
        plain,
        grouped,
        Attention { window: Some(2), ..grouped },
        Attention { softcap: Some(3.0), ..grouped },
    ] {
        cases.extend([attention.uncached(false), attention.uncached(true)]);
        cases.extend([attention.grad(false), attention.grad(true)]);
        cases.extend([DType::F32, DType::F16].map(|cache| attention.cached(1, cache)));
        cases.push(attention.cached(3, DType::F16));
    }
    cases
}

fn rms_norm() -> Case {
    case("rms_norm", |c| {
        let (x, w) = (c.float("x", &[1, 3, 8]), c.weight("norm", DType::F32, &[8])?);
        let norm = c.f.op(OpKind::LlmRmsNorm).arg("x", x).arg("weight", w);
        Ok(vec![norm.arg("epsilon", Literal::scalar(1e-5f32)).name("y").result()?])
    })
}

fn rms_norm_grad() -> Case {
    case("rms_norm_grad", |c| {
        let (x, w) = (c.float("x", &[1, 3, 8]), c.weight("norm", DType::F32, &[8])?);
        let grad = c.float("grad", &[1, 3, 8]);
        let norm = c.f.op(OpKind::LlmRmsNormGrad).arg("x", x).arg("weight", w).arg("grad", grad);
        norm.arg("epsilon", Literal::scalar(1e-5f32)).name("y").results()
    })
}

/// The arguments of a loss over an output layer of `dtype`; one row does not count.
fn head<'b, 'w>(
    c: &'b mut CaseBuilder<'w>,
    kind: OpKind,
    dtype: DType,
    softcap: Option<f32>,
) -> mil::Result<mil::OpBuilder<'b, 'w>> {
    c.tolerance(Tolerance { abs: 1e-4, rel: 1e-4 });
    let (x, w) = (c.float_in("x", &[2, 2, 32], -0.5, 0.5), c.weight("head", dtype, &[7, 32])?);
    let bias = if dtype == DType::F32 { Some(c.weight("bias", dtype, &[7])?) } else { None };
    let targets = c.ints("targets", &[2, 2], &[3, -1, 0, 6]);
    let op = c.f.op(kind).arg("x", x).arg("weight", w).arg("targets", targets);
    let op = op.opt_arg("bias", bias).opt_arg("softcap", softcap.map(Literal::scalar));
    Ok(op.arg("chunk", Literal::scalar(3i32)).name("y"))
}

fn head_loss(dtype: DType, softcap: Option<f32>) -> Case {
    let capped = if softcap.is_some() { "_capped" } else { "" };
    case(&format!("head_loss_{dtype}{capped}"), |c| {
        Ok(vec![head(c, OpKind::LlmHeadLoss, dtype, softcap)?.result()?])
    })
}

/// With gradients by the output layer if it is of floats.
fn head_loss_grad(dtype: DType, softcap: Option<f32>) -> Case {
    let capped = if softcap.is_some() { "_capped" } else { "" };
    case(&format!("head_loss_grad_{dtype}{capped}"), |c| {
        let grad = c.float_in("grad", &[], 1.5, 2.0);
        let op = head(c, OpKind::LlmHeadLossGrad, dtype, softcap)?.arg("grad", grad);
        op.arg("by_weight", Literal::bool(dtype == DType::F32)).results()
    })
}

fn linear(dtype: DType, bias: bool) -> Case {
    case(&format!("linear_{dtype}"), |c| {
        c.tolerance(Tolerance { abs: 1e-4, rel: 1e-4 });
        let (x, w) = (c.float("x", &[1, 3, 256]), c.weight("w", dtype, &[5, 256])?);
        let bias = if bias { Some(c.weight("bias", DType::F32, &[5])?) } else { None };
        let linear = c.f.op(OpKind::LlmLinear).arg("x", x).arg("weight", w);
        Ok(vec![linear.opt_arg("bias", bias).name("y").result()?])
    })
}

fn embedding(dtype: DType) -> Case {
    case(&format!("embedding_{dtype}"), |c| {
        let ids = c.ints("ids", &[1, 4], &[6, 0, 3, 6]);
        let w = c.weight("table", dtype, &[7, 256])?;
        let op = c.f.op(OpKind::LlmEmbedding).arg("ids", ids).arg("weight", w);
        Ok(vec![op.name("y").result()?])
    })
}

fn dequantize(dtype: DType) -> Case {
    case(&format!("dequantize_{dtype}"), |c| {
        let w = c.weight("w", dtype, &[2, 256])?;
        let y = c.f.op(OpKind::LlmDequantize).arg("x", w).name("w_float").result()?;
        let x = c.float("x", &[256]);
        Ok(vec![c.f.op(OpKind::Add).arg("x", y).arg("y", x).name("y").result()?])
    })
}

fn gated_mlp(dtype: DType, activation: &str) -> Case {
    case(&format!("gated_mlp_{dtype}_{activation}"), |c| {
        c.tolerance(Tolerance { abs: 1e-3, rel: 1e-3 });
        let x = c.float_in("x", &[1, 3, 256], -0.2, 0.2);
        let gate = c.weight("gate", dtype, &[512, 256])?;
        let up = c.weight("up", dtype, &[512, 256])?;
        let down = c.weight("down", dtype, &[256, 512])?;
        let op = c.f.op(OpKind::LlmGatedMlp).arg("x", x).arg("gate", gate).arg("up", up);
        let op = op.arg("down", down).arg("activation", Literal::string(activation));
        Ok(vec![op.name("y").result()?])
    })
}

/// Heads of 8 elements, of which the first `rotated` turn.
fn rope(interleaved: bool, rotated: usize) -> Case {
    let pairing = if interleaved { "pairs" } else { "halves" };
    case(&format!("rope_{pairing}_{rotated}_of_8"), |c| {
        let x = c.float("x", &[1, 3, 2, 8]);
        let positions = c.ints("positions", &[3], &[0, 1, 100]);
        let frequencies: Vec<f32> =
            (0..rotated / 2).map(|i| 10_000f32.powf(-2.0 * i as f32 / rotated as f32)).collect();
        let op = c.f.op(OpKind::LlmRope).arg("x", x).arg("positions", positions);
        let op = op.arg("inv_freq", Literal::vector(&frequencies));
        Ok(vec![op.arg("interleaved", Literal::bool(interleaved)).name("y").result()?])
    })
}

/// A form of attention; heads have 4 elements.
#[derive(Clone, Copy)]
struct Attention {
    heads: usize,
    groups: usize,
    window: Option<i32>,
    softcap: Option<f32>,
}

const HEAD: usize = 4;
const SLOTS: usize = 6;

impl Attention {
    fn name(self, cache: &str) -> String {
        let Attention { heads, groups, window, softcap } = self;
        let window = window.map(|w| format!("_window_{w}")).unwrap_or_default();
        let softcap = softcap.map(|s| format!("_softcap_{s}")).unwrap_or_default();
        format!("attention_{heads}_{groups}{window}{softcap}_{cache}")
    }

    /// Emits the operation; `caches` are the states of keys and values.
    fn emit(
        self,
        f: &mut FunctionBuilder<'_>,
        rows: [ValueId; 4],
        caches: [ValueId; 2],
    ) -> mil::Result<ValueId> {
        self.op(f, OpKind::LlmAttention, rows)
            .arg("key_cache", caches[0])
            .arg("value_cache", caches[1])
            .name("y")
            .result()
    }

    /// An attention, or its gradient, of query, key, value and positions.
    fn op<'b, 'w>(
        self,
        f: &'b mut FunctionBuilder<'w>,
        kind: OpKind,
        [query, key, value, positions]: [ValueId; 4],
    ) -> mil::OpBuilder<'b, 'w> {
        f.op(kind)
            .arg("query", query)
            .arg("key", key)
            .arg("value", value)
            .arg("positions", positions)
            .arg("scale", Literal::scalar(0.5f32))
            .opt_arg("window", self.window.map(Literal::scalar))
            .opt_arg("softcap", self.softcap.map(Literal::scalar))
    }

    /// One sequence, or two of two documents each.
    fn uncached(self, documents: bool) -> Case {
        let name = if documents { "documents" } else { "uncached" };
        case(&self.name(name), |c: &mut CaseBuilder<'_>| {
            let (rows, segments) = self.rows(c, documents);
            let attention = self.op(&mut c.f, OpKind::LlmAttention, rows);
            Ok(vec![attention.opt_arg("segments", segments).name("y").result()?])
        })
    }

    /// The gradient of [`Attention::uncached`].
    fn grad(self, documents: bool) -> Case {
        let name = if documents { "documents_grad" } else { "grad" };
        case(&self.name(name), |c: &mut CaseBuilder<'_>| {
            let (rows, segments) = self.rows(c, documents);
            let batch = if documents { 2 } else { 1 };
            let grad = c.float("grad", &[batch, 4, self.heads, HEAD]);
            let attention = self.op(&mut c.f, OpKind::LlmAttentionGrad, rows).arg("grad", grad);
            attention.opt_arg("segments", segments).name("y").results()
        })
    }

    /// Query, key, value and positions of four rows, and which document each is of.
    fn rows(self, c: &mut CaseBuilder<'_>, documents: bool) -> ([ValueId; 4], Option<ValueId>) {
        let batch = if documents { 2 } else { 1 };
        let query = c.float("query", &[batch, 4, self.heads, HEAD]);
        let key = c.float("key", &[batch, 4, self.groups, HEAD]);
        let value = c.float("value", &[batch, 4, self.groups, HEAD]);
        let positions = c.ints("positions", &[4], &[0, 1, 2, 3]);
        let segments = documents.then(|| c.ints("segments", &[2, 4], &[0, 0, 1, 1, 5, 5, 5, 2]));
        ([query, key, value, positions], segments)
    }

    /// Three rows at once, then two single ones, over a cache of `batch` sequences; the number of rows is a
    /// symbol.
    fn cached(self, batch: usize, dtype: DType) -> Case {
        let mut program = Program::default();
        let mut f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
        let rows = |n: usize| {
            let dims = [batch.into(), mil::Dim::symbol("seq"), n.into(), HEAD.into()];
            TensorType { dtype: DType::F32, shape: dims.into() }
        };
        let query = f.input("query", rows(self.heads));
        let key = f.input("key", rows(self.groups));
        let value = f.input("value", rows(self.groups));
        let positions = TensorType { dtype: DType::I32, shape: vec![mil::Dim::symbol("seq")] };
        let positions = f.input("positions", positions);
        let cache = TensorType::new(dtype, [batch, self.groups, SLOTS, HEAD]);
        let caches = ["k_cache", "v_cache"].map(|n| f.input(n, Type::State(cache.clone())));
        let output = self
            .emit(&mut f, [query, key, value, positions], caches)
            .expect("a case is right by construction");
        let function = f.finish(vec![output]);
        program.functions.insert("main".into(), function);
        let steps = [(0, 3), (3, 1), (4, 1)].map(|(first, n)| self.step(batch, first, n)).into();
        let tolerance = if dtype == DType::F16 { Tolerance::F16 } else { Tolerance::F32 };
        let several = if batch > 1 { "_several" } else { "" };
        Case { name: self.name(&format!("{}{several}", dtype.name())), program, steps, tolerance }
    }

    /// A call with `n` rows of each of `batch` sequences from position `first`.
    fn step(self, batch: usize, first: usize, n: usize) -> Step {
        let mut inputs = Tensors::new();
        for (name, heads) in [("query", self.heads), ("key", self.groups), ("value", self.groups)] {
            let values = seeded::tensor(first as u64, name, batch * n * heads * HEAD, 2.0);
            let tensor = Tensor::from_slice(&[batch, n, heads, HEAD], &values);
            inputs.insert(name.into(), tensor.expect("as many values"));
        }
        let positions: Vec<i32> = (first..first + n).map(|p| p as i32).collect();
        let tensor = Tensor::from_slice(&[n], &positions).expect("as many values");
        inputs.insert("positions".into(), tensor);
        Step { function: "main".into(), inputs }
    }
}
