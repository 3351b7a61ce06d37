//! A transformer of two small layers in the dialect, with the functions of a language model.

use std::collections::BTreeMap;

use exec::Tensors;
use mil::{Dim, FunctionBuilder, Literal, OpKind, Opset, Program, TensorType, Type, ValueId};
use tensor::{DType, Tensor, WeightId};
use testkit::seeded_tensor;

pub(crate) const VOCAB: usize = 50;
pub(crate) const CAPACITY: usize = 24;
const D: usize = 64;
const HEADS: usize = 4;
const GROUPS: usize = 2;
const DIM: usize = 16;
const HIDDEN: usize = 96;
const LAYERS: usize = 2;

/// Makes a weight by name.
fn weight(
    f: &mut FunctionBuilder<'_>,
    ids: &mut BTreeMap<String, WeightId>,
    name: &str,
    dtype: DType,
    shape: &[usize],
) -> ValueId {
    let id = *ids.entry(name.to_owned()).or_insert_with(|| {
        let tensor = seeded_tensor(dtype, name, shape);
        f.weights_mut().insert(name, tensor)
    });
    f.weight(id).unwrap()
}

struct Builder<'a, 'w> {
    f: FunctionBuilder<'w>,
    ids: &'a mut BTreeMap<String, WeightId>,
    positions: ValueId,
    seq: Dim,
}

impl Builder<'_, '_> {
    fn weight(&mut self, name: &str, dtype: DType, shape: &[usize]) -> ValueId {
        weight(&mut self.f, self.ids, name, dtype, shape)
    }

    fn norm(&mut self, name: &str, x: ValueId, dim: usize) -> ValueId {
        let w = self.weight(name, DType::F16, &[dim]);
        let op = self.f.op(OpKind::LlmRmsNorm).arg("x", x).arg("weight", w);
        op.arg("epsilon", Literal::scalar(1e-5f32)).result().unwrap()
    }

    /// A linear layer whose result is taken apart into heads.
    fn heads(&mut self, name: &str, x: ValueId, heads: usize) -> ValueId {
        let w = self.weight(name, DType::Q4_1, &[heads * DIM, D]);
        let y = self.f.op(OpKind::LlmLinear).arg("x", x).arg("weight", w).result().unwrap();
        let shape = Literal::vector(&[1, -1, heads as i32, DIM as i32]);
        self.f.op(OpKind::Reshape).arg("x", y).arg("shape", shape).result().unwrap()
    }

    fn rope(&mut self, x: ValueId) -> ValueId {
        let inv: Vec<f32> =
            (0..DIM / 2).map(|i| 100f32.powf(-(2.0 * i as f32) / DIM as f32)).collect();
        let op = self.f.op(OpKind::LlmRope).arg("x", x).arg("positions", self.positions);
        let op = op.arg("inv_freq", Literal::vector(&inv));
        op.arg("interleaved", Literal::bool(false)).result().unwrap()
    }

    fn add(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.f.op(OpKind::Add).arg("x", x).arg("y", y).result().unwrap()
    }

    fn attention(&mut self, layer: usize, x: ValueId, caches: Option<[ValueId; 2]>) -> ValueId {
        let [q, k, v] = [("q", HEADS), ("k", GROUPS), ("v", GROUPS)]
            .map(|(name, heads)| self.heads(&format!("{name}{layer}"), x, heads));
        let (q, k) = (self.rope(q), self.rope(k));
        let op = self.f.op(OpKind::LlmAttention).arg("query", q).arg("key", k).arg("value", v);
        let op = op.arg("positions", self.positions).arg("scale", Literal::scalar(0.25f32));
        let op = op.opt_arg("window", (layer == 1).then(|| Literal::scalar(5i32)));
        let [kc, vc] = caches.map_or([None, None], |c| c.map(Some));
        let y = op.opt_arg("key_cache", kc).opt_arg("value_cache", vc).result().unwrap();
        let shape = Literal::vector(&[1, -1, (HEADS * DIM) as i32]);
        let y = self.f.op(OpKind::Reshape).arg("x", y).arg("shape", shape).result().unwrap();
        let o = self.weight(&format!("o{layer}"), DType::Q8_0, &[D, HEADS * DIM]);
        self.f.op(OpKind::LlmLinear).arg("x", y).arg("weight", o).result().unwrap()
    }

    fn mlp(&mut self, layer: usize, x: ValueId) -> ValueId {
        let gate = self.weight(&format!("gate{layer}"), DType::Q4_1, &[HIDDEN, D]);
        let up = self.weight(&format!("up{layer}"), DType::Q4_1, &[HIDDEN, D]);
        let down = self.weight(&format!("down{layer}"), DType::F16, &[D, HIDDEN]);
        let op = self.f.op(OpKind::LlmGatedMlp).arg("x", x).arg("gate", gate).arg("up", up);
        op.arg("down", down).arg("activation", Literal::string("silu")).result().unwrap()
    }
}

/// Functions `score` (no cache), `prefill` (over caches), `decode` (over caches, one position), each
/// with the logits of all its positions.
pub(crate) fn program() -> Program {
    let mut program = Program::default();
    let mut ids = BTreeMap::new();
    for (name, cached) in [("score", false), ("prefill", true), ("decode", true)] {
        let seq = if name == "decode" { Dim::Fixed(1) } else { Dim::symbol("seq") };
        let mut f = FunctionBuilder::new(name, Opset::Ios18, &mut program.weights);
        let tokens = f.input("ids", TensorType::new(DType::I32, [Dim::Fixed(1), seq.clone()]));
        let positions = f.input("positions", TensorType::new(DType::I32, [seq.clone()]));
        let mut b = Builder { f, ids: &mut ids, positions, seq };
        let logits = body(&mut b, tokens, cached);
        let function = b.f.finish(vec![logits]);
        program.functions.insert(name.to_owned(), function);
    }
    program
}

fn body(b: &mut Builder<'_, '_>, tokens: ValueId, cached: bool) -> ValueId {
    let table = b.weight("embedding", DType::Q8_0, &[VOCAB, D]);
    let op = b.f.op(OpKind::LlmEmbedding).arg("ids", tokens).arg("weight", table);
    let mut x = op.result().unwrap();
    assert_eq!(b.f.ty(x).as_tensor().unwrap().shape[1], b.seq);
    for layer in 0..LAYERS {
        let caches = cached.then(|| {
            ["k", "v"].map(|kind| {
                let ty = TensorType::new(DType::F16, [1, GROUPS, CAPACITY, DIM]);
                b.f.input(&format!("{kind}_cache_{layer}"), Type::State(ty))
            })
        });
        let n = b.norm(&format!("norm{layer}"), x, D);
        let y = b.attention(layer, n, caches);
        x = b.add(x, y);
        let n = b.norm(&format!("mlp_norm{layer}"), x, D);
        let y = b.mlp(layer, n);
        x = b.add(x, y);
    }
    let x = b.norm("last_norm", x, D);
    b.f.op(OpKind::LlmLinear).arg("x", x).arg("weight", table).name("logits").result().unwrap()
}

/// Inputs for tokens from position `start` on.
pub(crate) fn inputs(ids: &[i32], start: i32) -> Tensors {
    let positions: Vec<i32> = (0..ids.len() as i32).map(|i| start + i).collect();
    Tensors::from([
        ("ids".to_owned(), Tensor::from_slice(&[1, ids.len()], ids).unwrap()),
        ("positions".to_owned(), Tensor::from_slice(&[ids.len()], &positions).unwrap()),
    ])
}
