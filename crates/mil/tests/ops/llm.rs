//! The language-model dialect against closed forms.

use mil::eval::Array;
use mil::{Literal, OpKind, TensorType};
use tensor::{Bytes, DType, Tensor, dequantize};

use crate::common::{In, assert_close, f32s, ints, one, refusal, value};

fn scalar(x: f32) -> In {
    Literal::scalar(x).into()
}

/// A `q4_0` matrix of `[2, 32]` as a literal, and its decoded values.
fn quantised() -> (Literal, Array) {
    let mut bytes = Vec::new();
    for block in 0..2u8 {
        bytes.extend(half::f16::from_f32(0.5 + f32::from(block)).to_le_bytes());
        bytes.extend((0..16).map(|i: u8| i.wrapping_mul(37).wrapping_add(block)));
    }
    let mut values = [0f32; 64];
    assert!(dequantize(DType::Q4_0, &bytes, &mut values));
    let tensor = Tensor::new(DType::Q4_0, &[2, 32], Bytes::copy_from(&bytes)).unwrap();
    (Literal::tensor(tensor), f32s(&[2, 32], values.map(f64::from)))
}

#[test]
fn rms_norm() {
    let y = value(
        OpKind::LlmRmsNorm,
        vec![
            ("x", f32s(&[1, 2, 2], [3.0, 4.0, 0.0, 0.0]).into()),
            ("weight", f32s(&[2], [1.0, 2.0]).into()),
            ("epsilon", scalar(0.5)),
        ],
    );
    let scale = 1.0 / 13f64.sqrt();
    assert_close(&y, &f32s(&[1, 2, 2], [3.0 * scale, 8.0 * scale, 0.0, 0.0]), 1e-15);
    let text = refusal(
        OpKind::LlmRmsNorm,
        vec![
            ("x", f32s(&[1, 2], [0.0; 2]).into()),
            ("weight", f32s(&[3], [0.0; 3]).into()),
            ("epsilon", scalar(0.5)),
        ],
    );
    assert!(text.contains("[3]") && text.contains("[1, 2]"), "{text}");
}

/// Two rows count, with even logits over two tokens and over logits `ln 3` apart.
#[test]
fn head_loss() {
    let args = |targets: [i64; 3]| -> Vec<(&str, In)> {
        let x = [1.0, 1.0, 3f64.ln(), 0.0, 5.0, 7.0];
        vec![
            ("x", f32s(&[3, 2], x).into()),
            ("weight", f32s(&[2, 2], [1.0, 0.0, 0.0, 1.0]).into()),
            ("targets", ints(&[3], targets).into()),
        ]
    };
    let loss = value(OpKind::LlmHeadLoss, args([0, 1, -1]));
    assert_close(&loss, &f32s(&[], [(2f64.ln() + 4f64.ln()) / 2.0]), 1e-15);
    assert_close(&value(OpKind::LlmHeadLoss, args([-1, -5, -1])), &f32s(&[], [0.0]), 0.0);
    let op = one(OpKind::LlmHeadLossGrad, args([0, 1, -1])).unwrap();
    let results = op.run(&mut Default::default()).unwrap();
    let [again, by_x, by_weight] = <[Array; 3]>::try_from(results).unwrap();
    assert_close(&again, &loss, 0.0);
    assert_close(&by_x, &f32s(&[3, 2], [-0.25, 0.25, 0.375, -0.375, 0.0, 0.0]), 1e-15);
    let first = -0.25 + 0.375 * 3f64.ln();
    assert_close(&by_weight, &f32s(&[2, 2], [first, -0.25, -first, 0.25]), 1e-15);
    let text = refusal(OpKind::LlmHeadLoss, args([0, 2, 0]));
    assert!(text.contains("target 2 of row 1") && text.contains("vocabulary of 2"), "{text}");
}

#[test]
fn attention_of_documents() {
    let args = |segments: Option<[i64; 4]>| -> Vec<(&str, In)> {
        let mut args: Vec<(&str, In)> = vec![
            ("query", f32s(&[1, 4, 1, 1], [0.0; 4]).into()),
            ("key", f32s(&[1, 4, 1, 1], [1.0; 4]).into()),
            ("value", f32s(&[1, 4, 1, 1], [1.0, 2.0, 3.0, 4.0]).into()),
            ("positions", ints(&[4], [0, 1, 2, 3]).into()),
            ("scale", scalar(1.0)),
        ];
        args.extend(segments.map(|s| ("segments", ints(&[1, 4], s).into())));
        args
    };
    let means = |values: [f64; 4]| f32s(&[1, 4, 1, 1], values);
    assert_close(&value(OpKind::LlmAttention, args(None)), &means([1.0, 1.5, 2.0, 2.5]), 1e-15);
    let cut = value(OpKind::LlmAttention, args(Some([0, 0, 1, 1])));
    assert_close(&cut, &means([1.0, 1.5, 3.0, 3.5]), 1e-15);
    let between = value(OpKind::LlmAttention, args(Some([0, 1, 0, 1])));
    assert_close(&between, &means([1.0, 2.0, 2.0, 3.0]), 1e-15);
}

#[test]
fn linear() {
    let (weight, values) = quantised();
    let x: Vec<f64> = (0..32).map(|i| f64::from(i) - 7.0).collect();
    let y = value(
        OpKind::LlmLinear,
        vec![
            ("x", f32s(&[1, 1, 32], x.clone()).into()),
            ("weight", weight.into()),
            ("bias", f32s(&[2], [100.0, -1.0]).into()),
        ],
    );
    let w = values.floats().unwrap();
    let at = |o: usize| x.iter().zip(&w[o * 32..]).map(|(x, w)| x * w).sum::<f64>();
    assert_close(&y, &f32s(&[1, 1, 2], [at(0) + 100.0, at(1) - 1.0]), 1e-14);
    let text = refusal(
        OpKind::LlmLinear,
        vec![("x", f32s(&[1, 3], [0.0; 3]).into()), ("weight", f32s(&[2, 2], [0.0; 4]).into())],
    );
    assert!(text.contains("[2, 2]") && text.contains("[1, 3]"), "{text}");
}

#[test]
fn embedding() {
    let (weight, values) = quantised();
    let ids = ints(&[1, 3], [1, 0, 1]);
    let y =
        value(OpKind::LlmEmbedding, vec![("ids", ids.into()), ("weight", weight.clone().into())]);
    let w = values.floats().unwrap();
    assert_close(&y, &f32s(&[1, 3, 32], [&w[32..], &w[..32], &w[32..]].concat()), 0.0);
    let text = refusal(
        OpKind::LlmEmbedding,
        vec![("ids", ints(&[1], [2]).into()), ("weight", weight.into())],
    );
    assert!(text.contains("index 2"), "{text}");
}

#[test]
fn dequantize_weight() {
    let (weight, values) = quantised();
    let y = value(OpKind::LlmDequantize, vec![("x", weight.clone().into())]);
    assert_close(&y, &values, 0.0);
    let text = refusal(
        OpKind::LlmDequantize,
        vec![("x", weight.into()), ("dtype", Literal::string("int32").into())],
    );
    assert!(text.contains("int32"), "{text}");
}

#[test]
fn rope_rotates_pairs() {
    let rotate = |interleaved: bool| {
        value(
            OpKind::LlmRope,
            vec![
                ("x", f32s(&[1, 1, 1, 5], [1.0, 2.0, 3.0, 4.0, 5.0]).into()),
                ("positions", ints(&[1], [2]).into()),
                ("inv_freq", Literal::vector(&[1.0f32, 0.25]).into()),
                ("interleaved", Literal::bool(interleaved).into()),
            ],
        )
    };
    let turn = |a: f64, b: f64, angle: f64| {
        let (s, c) = angle.sin_cos();
        (a * c - b * s, a * s + b * c)
    };
    let ((a, b), (c, d)) = (turn(1.0, 2.0, 2.0), turn(3.0, 4.0, 0.5));
    assert_close(&rotate(true), &f32s(&[1, 1, 1, 5], [a, b, c, d, 5.0]), 1e-15);
    let ((a, c), (b, d)) = (turn(1.0, 3.0, 2.0), turn(2.0, 4.0, 0.5));
    assert_close(&rotate(false), &f32s(&[1, 1, 1, 5], [a, b, c, d, 5.0]), 1e-15);
    let text = refusal(
        OpKind::LlmRope,
        vec![
            ("x", f32s(&[1, 1, 1, 2], [0.0; 2]).into()),
            ("positions", ints(&[1], [2]).into()),
            ("inv_freq", Literal::vector(&[1.0f32, 0.25]).into()),
            ("interleaved", Literal::bool(true).into()),
        ],
    );
    assert!(text.contains("[1, 1, 1, 2]"), "{text}");
}

#[test]
fn gated_mlp() {
    for (name, act) in [
        ("silu", 2.0 / (1.0 + (-2f64).exp())),
        // 2 * P(X <= 2) for a standard normal X.
        ("gelu", 2.0 * 0.977_249_868_051_820_8),
        ("gelu_tanh", 1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (2.0 + 0.044715 * 8.0)).tanh()),
    ] {
        let y = value(
            OpKind::LlmGatedMlp,
            vec![
                ("x", f32s(&[1, 2], [1.0, 1.0]).into()),
                ("gate", f32s(&[1, 2], [1.5, 0.5]).into()),
                ("up", f32s(&[1, 2], [1.0, 2.0]).into()),
                ("down", f32s(&[2, 1], [1.0, -1.0]).into()),
                ("activation", Literal::string(name).into()),
            ],
        );
        assert_close(&y, &f32s(&[1, 2], [3.0 * act, -3.0 * act]), 1e-14);
    }
    let text = refusal(
        OpKind::LlmGatedMlp,
        vec![
            ("x", f32s(&[1, 2], [1.0, 1.0]).into()),
            ("gate", f32s(&[1, 2], [1.5, 0.5]).into()),
            ("up", f32s(&[3, 2], [0.0; 6]).into()),
            ("down", f32s(&[2, 1], [1.0, -1.0]).into()),
            ("activation", Literal::string("silu").into()),
        ],
    );
    assert!(text.contains("[3, 2]"), "{text}");
}

/// With zero queries all visible rows weigh the same, so that the result is their mean.
#[test]
fn attention_sees_earlier_positions_within_the_window() {
    let mean = |window: Option<i32>| {
        let mut args: Vec<(&str, In)> = vec![
            ("query", f32s(&[1, 3, 2, 1], [0.0; 6]).into()),
            ("key", f32s(&[1, 3, 1, 1], [1.0; 3]).into()),
            ("value", f32s(&[1, 3, 1, 1], [6.0, 2.0, 10.0]).into()),
            ("positions", ints(&[3], [4, 5, 3]).into()),
            ("scale", scalar(1.0)),
        ];
        args.extend(window.map(|w| ("window", Literal::scalar(w).into())));
        value(OpKind::LlmAttention, args)
    };
    // Positions 3, 4, 5 have the values 10, 6, 2.
    assert_close(&mean(None), &f32s(&[1, 3, 2, 1], [8.0, 8.0, 6.0, 6.0, 10.0, 10.0]), 1e-15);
    assert_close(&mean(Some(2)), &f32s(&[1, 3, 2, 1], [8.0, 8.0, 4.0, 4.0, 10.0, 10.0]), 1e-15);
}

#[test]
fn attention_groups_scales_and_caps() {
    // One position: two query heads for each of two key-value heads; the second row of keys scores
    // `scale * q k`, capped.
    let y = value(
        OpKind::LlmAttention,
        vec![
            ("query", f32s(&[1, 2, 2, 1], [0.0, 0.0, 3.0, -1.0]).into()),
            ("key", f32s(&[1, 2, 2, 1], [0.0, 0.0, 2.0, 4.0]).into()),
            ("value", f32s(&[1, 2, 2, 1], [0.0, 0.0, 1.0, 1.0]).into()),
            ("positions", ints(&[2], [0, 1]).into()),
            ("scale", scalar(0.5)),
            ("softcap", scalar(2.0)),
        ],
    );
    let p = |s: f64| {
        let e = (2.0 * (s / 2.0).tanh()).exp();
        e / (1.0 + e)
    };
    assert_close(&y, &f32s(&[1, 2, 2, 1], [0.0, 0.0, p(3.0), p(-2.0)]), 1e-14);
}

#[test]
fn attention_over_a_cache() {
    let cache = || In::State(TensorType::new(DType::F16, [1usize, 1, 4, 1]));
    let args = |position: i64, v: f64| -> Vec<(&'static str, In)> {
        vec![
            ("query", f32s(&[1, 1, 1, 1], [0.0]).into()),
            ("key", f32s(&[1, 1, 1, 1], [1.0]).into()),
            ("value", f32s(&[1, 1, 1, 1], [v]).into()),
            ("positions", ints(&[1], [position]).into()),
            ("scale", scalar(1.0)),
            ("key_cache", cache()),
            ("value_cache", cache()),
        ]
    };
    let first = one(OpKind::LlmAttention, args(0, 5.0)).unwrap();
    let mut states = first.states();
    assert_close(&first.run(&mut states).unwrap()[0], &f32s(&[1, 1, 1, 1], [5.0]), 0.0);
    let second = one(OpKind::LlmAttention, args(1, 7.0)).unwrap();
    assert_close(&second.run(&mut states).unwrap()[0], &f32s(&[1, 1, 1, 1], [6.0]), 0.0);
    assert_eq!(states["value_cache"].floats().unwrap(), [5.0, 7.0, 0.0, 0.0]);
    let text = refusal(OpKind::LlmAttention, args(4, 0.0));
    assert!(text.contains("position 4"), "{text}");
    let text = refusal(OpKind::LlmAttention, args(0, 0.0).into_iter().take(6).collect());
    assert!(text.contains("only together"), "{text}");
}
