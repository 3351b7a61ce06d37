//! Every operation of the language-model dialect equals its decomposition into plain MIL.

use std::collections::BTreeMap;

use mil::eval::{Array, States, Value};
use mil::{Dim, FunctionBuilder, Literal, OpKind, Opset, Program, TensorType, Type};
use proptest::prelude::*;
use tensor::{Bytes, DType, Tensor};

use crate::common::{In, One, assert_close, assert_decomposes, f32s, ints, one};

/// Numbers in [-1, 1) from a seed.
fn noise(seed: u64, shape: &[usize]) -> Array {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let n = shape.iter().product();
    f32s(
        shape,
        (0..n).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            f64::from((state >> 40) as u32) / f64::from(1u32 << 23) - 1.0
        }),
    )
}

/// A constant matrix `[rows, 32 * blocks]`, block-quantised or not.
fn weight(seed: u64, rows: usize, blocks: usize, dtype: DType) -> Literal {
    let shape = [rows, 32 * blocks];
    let values = noise(seed, &shape);
    let tensor = match dtype {
        DType::Q8_0 => {
            let mut bytes = Vec::new();
            for block in values.floats().unwrap().chunks(32) {
                bytes.extend(half::f16::from_f32(1.0 / 128.0).to_le_bytes());
                bytes.extend(block.iter().map(|v| (v * 127.0) as i8 as u8));
            }
            Tensor::new(dtype, &shape, Bytes::copy_from(&bytes)).unwrap()
        }
        _ => {
            let mut values = values;
            values.dtype = dtype;
            values.to_tensor().unwrap()
        }
    };
    Literal::tensor(tensor)
}

fn storage() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::Q8_0)]
}

/// What an attention is made of.
#[derive(Clone, Copy, Debug)]
struct Shape {
    batch: usize,
    groups: usize,
    repeats: usize,
    width: usize,
    capacity: usize,
    window: Option<i32>,
    softcap: Option<f32>,
    cache: Option<DType>,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = (1usize..3, 1usize..3, 1usize..4, 1usize..5);
    let options = (
        prop::option::of(1i32..6),
        prop::option::of(0.5f32..4.0),
        prop::option::of(prop_oneof![Just(DType::F16), Just(DType::F32)]),
    );
    (sizes, 8usize..12, options).prop_map(
        |((batch, groups, repeats, width), capacity, (window, softcap, cache))| Shape {
            batch,
            groups,
            repeats,
            width,
            capacity,
            window,
            softcap,
            cache,
        },
    )
}

/// Attention of tokens at `positions`.
fn attention(s: Shape, seed: u64, positions: &[i64]) -> Vec<(&'static str, In)> {
    let (b, t, g, d) = (s.batch, positions.len(), s.groups, s.width);
    let mut args: Vec<(&str, In)> = vec![
        ("query", noise(seed, &[b, t, g * s.repeats, d]).into()),
        ("key", noise(seed + 1, &[b, t, g, d]).into()),
        ("value", noise(seed + 2, &[b, t, g, d]).into()),
        ("positions", ints(&[t], positions.iter().copied()).into()),
        ("scale", Literal::scalar(1.7f32).into()),
    ];
    args.extend(s.window.map(|w| ("window", Literal::scalar(w).into())));
    args.extend(s.softcap.map(|c| ("softcap", Literal::scalar(c).into())));
    if let Some(dtype) = s.cache {
        let state = || In::State(TensorType::new(dtype, [b, g, s.capacity, d]));
        args.extend([("key_cache", state()), ("value_cache", state())]);
    }
    args
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rms_norm(seed: u64, rows in 1usize..4, dtype in storage()) {
        let weight = weight(seed ^ 1, 1, 1, dtype);
        let flat = weight.resolve(&Default::default()).unwrap().reshaped(&[32]).unwrap();
        let op = one(OpKind::LlmRmsNorm, vec![
            ("x", noise(seed, &[1, rows, 32]).into()),
            ("weight", Literal::tensor(flat).into()),
            ("epsilon", Literal::scalar(1e-5f32).into()),
        ]).unwrap();
        assert_decomposes(&op, &States::new(), 1e-4);
    }

    #[test]
    fn rms_norm_grad(seed: u64, rows in 1usize..4, half: bool) {
        let stored = if half { DType::F16 } else { DType::F32 };
        let flat = weight(seed ^ 1, 1, 1, stored);
        let flat = flat.resolve(&Default::default()).unwrap().reshaped(&[32]).unwrap();
        let op = one(OpKind::LlmRmsNormGrad, vec![
            ("x", noise(seed, &[1, rows, 32]).into()),
            ("weight", Literal::tensor(flat).into()),
            ("grad", noise(seed ^ 2, &[1, rows, 32]).into()),
            ("epsilon", Literal::scalar(1e-5f32).into()),
        ]).unwrap();
        assert_decomposes(&op, &States::new(), 1e-2);
    }

    #[test]
    fn attention_grad(s in shapes(), seed: u32, tokens in 1usize..6, documents: bool) {
        let (s, seed) = (Shape { cache: None, ..s }, u64::from(seed));
        let positions: Vec<i64> = (3..3 + tokens as i64).collect();
        let args = || {
            let mut args = attention(s, seed, &positions);
            if documents {
                let segments = (0..s.batch * tokens).map(|i| (seed >> i) as i64 & 1);
                args.push(("segments", ints(&[s.batch, tokens], segments).into()));
            }
            args
        };
        let forward = one(OpKind::LlmAttention, args()).unwrap();
        assert_decomposes(&forward, &States::new(), 1e-4);
        let grad = noise(seed + 9, &[s.batch, tokens, s.groups * s.repeats, s.width]);
        let backward = [args(), vec![("grad", grad.into())]].into_iter().flatten().collect();
        assert_decomposes(&one(OpKind::LlmAttentionGrad, backward).unwrap(), &States::new(), 1e-4);
    }

    #[test]
    fn head_loss(
        seed: u64,
        (batch, tokens, vocab) in (1usize..3, 1usize..4, 1usize..6),
        targets in prop::collection::vec(-2i64..6, 6),
        chunk in 1i32..8,
        softcap in prop::option::of(0.5f32..4.0),
        dtype in storage(),
        bias: bool,
    ) {
        let targets = targets.into_iter().take(batch * tokens).map(|t| t.min(vocab as i64 - 1));
        let args = || {
            let mut args: Vec<(&str, In)> = vec![
                ("x", noise(seed, &[batch, tokens, 32]).into()),
                ("weight", weight(seed ^ 1, vocab, 1, dtype).into()),
                ("targets", ints(&[batch, tokens], targets.clone()).into()),
                ("chunk", Literal::scalar(chunk).into()),
            ];
            args.extend(softcap.map(|c| ("softcap", Literal::scalar(c).into())));
            if bias {
                args.push(("bias", noise(seed ^ 2, &[vocab]).into()));
            }
            args
        };
        assert_decomposes(&one(OpKind::LlmHeadLoss, args()).unwrap(), &States::new(), 1e-3);
        let mut args = args();
        args.push(("by_weight", Literal::bool(dtype != DType::Q8_0).into()));
        args.push(("grad", f32s(&[], [2.5]).into()));
        assert_decomposes(&one(OpKind::LlmHeadLossGrad, args).unwrap(), &States::new(), 1e-2);
    }

    #[test]
    fn linear(seed: u64, rows in 1usize..4, out in 1usize..5, dtype in storage(), bias: bool) {
        let mut args: Vec<(&str, In)> = vec![
            ("x", noise(seed, &[1, rows, 64]).into()),
            ("weight", weight(seed ^ 1, out, 2, dtype).into()),
        ];
        if bias {
            args.push(("bias", noise(seed ^ 2, &[out]).into()));
        }
        assert_decomposes(&one(OpKind::LlmLinear, args).unwrap(), &States::new(), 1e-4);
    }

    #[test]
    fn embedding(seed: u64, ids in prop::collection::vec(0i64..5, 1..5), dtype in storage()) {
        let op = one(OpKind::LlmEmbedding, vec![
            ("ids", ints(&[1, ids.len()], ids).into()),
            ("weight", weight(seed, 5, 1, dtype).into()),
        ]).unwrap();
        assert_decomposes(&op, &States::new(), 1e-4);
    }

    #[test]
    fn dequantize(seed: u64, rows in 1usize..4, dtype in storage(), half: bool) {
        let out = if half { "fp16" } else { "fp32" };
        let op = one(OpKind::LlmDequantize, vec![
            ("x", weight(seed, rows, 1, dtype).into()),
            ("dtype", Literal::string(out).into()),
        ]).unwrap();
        // Folding rounds to fp16 what exact arithmetic leaves as it is.
        if !half || dtype == DType::F16 {
            assert_decomposes(&op, &States::new(), 1e-3);
        }
    }

    #[test]
    fn gated_mlp(
        seed: u64,
        rows in 1usize..4,
        dtype in storage(),
        activation in prop::sample::select(vec!["silu", "gelu", "gelu_tanh"]),
    ) {
        let op = one(OpKind::LlmGatedMlp, vec![
            ("x", noise(seed, &[1, rows, 32]).into()),
            ("gate", weight(seed ^ 1, 64, 1, dtype).into()),
            ("up", weight(seed ^ 2, 64, 1, dtype).into()),
            ("down", weight(seed ^ 3, 32, 2, dtype).into()),
            ("activation", Literal::string(activation).into()),
        ]).unwrap();
        assert_decomposes(&op, &States::new(), 1e-3);
    }

    #[test]
    fn rope(
        seed: u64,
        heads in 1usize..3,
        pairs in 1usize..4,
        rest in 0usize..4,
        positions in prop::collection::vec(0i64..5000, 1..4),
        interleaved: bool,
    ) {
        let inv_freq: Vec<f32> = (0..pairs).map(|i| 0.3f32.powi(i as i32)).collect();
        let op = one(OpKind::LlmRope, vec![
            ("x", noise(seed, &[2, positions.len(), heads, 2 * pairs + rest]).into()),
            ("positions", ints(&[positions.len()], positions).into()),
            ("inv_freq", Literal::vector(&inv_freq).into()),
            ("interleaved", Literal::bool(interleaved).into()),
        ]).unwrap();
        // An fp32 angle of 5000 is off by up to 2.5e-4.
        let simple = op.decomposed();
        let whole = op.run(&mut States::new()).unwrap();
        assert_close(&simple.run(&mut States::new()).unwrap()[0], &whole[0], 1e-12);
        let single = simple.run_in(mil::eval::Arithmetic::F32, &mut States::new());
        assert_close(&single[0], &whole[0], 1e-3);
    }

    /// A prompt, then tokens one by one, over the same states.
    #[test]
    fn attention_prefills_and_decodes(s in shapes(), seed: u32, prompt in 1usize..6, steps in 0usize..3) {
        let seed = u64::from(seed);
        let first: Vec<i64> = (0..prompt as i64).collect();
        let op = one(OpKind::LlmAttention, attention(s, seed, &first)).unwrap();
        let mut states = assert_decomposes(&op, &op.states(), 2e-2);
        for step in 0..steps {
            let position = (prompt + step) as i64;
            let op = one(OpKind::LlmAttention, attention(s, seed + 3, &[position])).unwrap();
            states = assert_decomposes(&op, &states, 2e-2);
        }
    }
}

/// Sequence and context may stay symbols: the decomposition says so too, and runs at any size.
#[test]
fn sizes_may_stay_symbols() {
    let dims = |sizes: [Dim; 4]| TensorType { dtype: DType::F32, shape: sizes.to_vec() };
    let (seq, context) = (Dim::symbol("seq"), Dim::symbol("context"));
    let mut program = Program::default();
    let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let rows = |heads: usize| dims([1.into(), seq.clone(), heads.into(), 4.into()]);
    let query = b.input("query", rows(4));
    let key = b.input("key", rows(2));
    let value = b.input("value", rows(2));
    let positions = b.input("positions", TensorType::new(DType::I32, [seq.clone()]));
    let cache = dims([1.into(), 2.into(), context, 4.into()]);
    let key_cache = b.input("key_cache", Type::State(cache.clone()));
    let value_cache = b.input("value_cache", Type::State(cache));
    let frequencies = b.constant("inv_freq", Literal::vector(&[1.0f32, 0.1]));
    let interleaved = b.constant("interleaved", Literal::bool(true));
    let rope = b
        .op(OpKind::LlmRope)
        .arg("x", query)
        .arg("positions", positions)
        .arg("inv_freq", frequencies)
        .arg("interleaved", interleaved);
    let query = rope.result().unwrap();
    let scale = b.constant("scale", Literal::scalar(0.5f32));
    let attention = b
        .op(OpKind::LlmAttention)
        .arg("query", query)
        .arg("key", key)
        .arg("value", value)
        .arg("positions", positions)
        .arg("scale", scale)
        .arg("key_cache", key_cache)
        .arg("value_cache", value_cache);
    let result = attention.result().unwrap();
    let function = b.finish(vec![result]);
    assert_eq!(function.ty(result).to_string(), "tensor<fp32, [1, seq, 4, 4]>");
    program.functions.insert("main".into(), function);

    for (seq, context) in [(1, 3), (3, 5)] {
        let inputs = [
            ("query", noise(1, &[1, seq, 4, 4])),
            ("key", noise(2, &[1, seq, 2, 4])),
            ("value", noise(3, &[1, seq, 2, 4])),
            ("positions", ints(&[seq], 0..seq as i64)),
        ];
        let inputs: BTreeMap<String, Value> =
            inputs.into_iter().map(|(name, a)| (name.to_owned(), a.into())).collect();
        let one = One { program: program.clone(), inputs };
        let simple = one.decomposed();
        let ty = |p: &Program| p.functions["main"].ty(p.functions["main"].body.outputs[0]).clone();
        assert_eq!(ty(&simple.program), ty(&program));
        let fixed = [("context".to_owned(), context)].into();
        let run = |mut one: One| {
            one.program = one.program.specialize(&fixed).unwrap();
            let mut states = one.states();
            (one.run(&mut states).unwrap(), states)
        };
        let ((whole, whole_states), (parts, part_states)) = (run(one), run(simple));
        assert_close(&parts[0], &whole[0], 1e-12);
        assert_eq!(whole_states, part_states);
    }
}

#[test]
fn inputs_must_have_their_types() {
    let program = one(
        OpKind::LlmAttention,
        attention(
            Shape {
                batch: 1,
                groups: 1,
                repeats: 1,
                width: 2,
                capacity: 4,
                window: None,
                softcap: None,
                cache: None,
            },
            0,
            &[0, 1],
        ),
    );
    let mut program = program.unwrap();
    program.inputs.insert("key".into(), noise(0, &[1, 3, 1, 2]).into());
    let text = program.run(&mut States::new()).unwrap_err().to_string();
    assert_eq!(
        text,
        "function main: input key: fp32 [1, 3, 1, 2] is not tensor<fp32, [1, 2, 1, 2]>"
    );
}
