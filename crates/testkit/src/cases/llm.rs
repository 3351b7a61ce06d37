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
    ]);
    let plain = Attention { heads: 2, groups: 2, window: None, softcap: None };
    let grouped = Attention { heads: 6, groups: 2, window: None, softcap: None };
    for attention in [
        plain,
        grouped,
        Attention { window: Some(2), ..grouped },
        Attention { softcap: Some(3.0), ..grouped },
    ] {
        cases.push(attention.uncached());
        cases.extend([DType::F32, DType::F16].map(|cache| attention.cached(cache)));
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
        [query, key, value, positions]: [ValueId; 4],
        caches: Option<[ValueId; 2]>,
    ) -> mil::Result<ValueId> {
        f.op(OpKind::LlmAttention)
            .arg("query", query)
            .arg("key", key)
            .arg("value", value)
            .arg("positions", positions)
            .arg("scale", Literal::scalar(0.5f32))
            .opt_arg("key_cache", caches.map(|c| c[0]))
            .opt_arg("value_cache", caches.map(|c| c[1]))
            .opt_arg("window", self.window.map(Literal::scalar))
            .opt_arg("softcap", self.softcap.map(Literal::scalar))
            .name("y")
            .result()
    }

    fn uncached(self) -> Case {
        case(&self.name("uncached"), |c: &mut CaseBuilder<'_>| {
            let query = c.float("query", &[1, 4, self.heads, HEAD]);
            let key = c.float("key", &[1, 4, self.groups, HEAD]);
            let value = c.float("value", &[1, 4, self.groups, HEAD]);
            let positions = c.ints("positions", &[4], &[0, 1, 2, 3]);
            Ok(vec![self.emit(&mut c.f, [query, key, value, positions], None)?])
        })
    }

    /// Three rows at once, then two single ones, over a cache; the number of rows is a symbol.
    fn cached(self, dtype: DType) -> Case {
        let mut program = Program::default();
        let mut f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
        let rows = |n: usize| {
            let dims = [1.into(), mil::Dim::symbol("seq"), n.into(), HEAD.into()];
            TensorType { dtype: DType::F32, shape: dims.into() }
        };
        let query = f.input("query", rows(self.heads));
        let key = f.input("key", rows(self.groups));
        let value = f.input("value", rows(self.groups));
        let positions = TensorType { dtype: DType::I32, shape: vec![mil::Dim::symbol("seq")] };
        let positions = f.input("positions", positions);
        let cache = TensorType::new(dtype, [1, self.groups, SLOTS, HEAD]);
        let caches = ["k_cache", "v_cache"].map(|n| f.input(n, Type::State(cache.clone())));
        let output = self
            .emit(&mut f, [query, key, value, positions], Some(caches))
            .expect("a case is right by construction");
        let function = f.finish(vec![output]);
        program.functions.insert("main".into(), function);
        let steps = [(0, 3), (3, 1), (4, 1)].map(|(first, n)| self.step(first, n)).into();
        let tolerance = if dtype == DType::F16 { Tolerance::F16 } else { Tolerance::F32 };
        Case { name: self.name(dtype.name()), program, steps, tolerance }
    }

    /// A call with `n` rows from position `first`.
    fn step(self, first: usize, n: usize) -> Step {
        let mut inputs = Tensors::new();
        for (name, heads) in [("query", self.heads), ("key", self.groups), ("value", self.groups)] {
            let values = seeded::tensor(first as u64, name, n * heads * HEAD, 2.0);
            let tensor = Tensor::from_slice(&[1, n, heads, HEAD], &values);
            inputs.insert(name.into(), tensor.expect("as many values"));
        }
        let positions: Vec<i32> = (first..first + n).map(|p| p as i32).collect();
        let tensor = Tensor::from_slice(&[n], &positions).expect("as many values");
        inputs.insert("positions".into(), tensor);
        Step { function: "main".into(), inputs }
    }
}
