//! What operations cost: a multiply-add is two flops, bytes are counted once.

use mil::{Cost, Literal, OpKind, OpView, TensorType, Type};
use tensor::{DType, Tensor};

use crate::common::{In, f32s, ints, one};

fn cost(kind: OpKind, args: Vec<(&str, In)>) -> Cost {
    let op = one(kind, args).unwrap();
    let main = &op.program.functions["main"];
    let id = main.body.ops.iter().copied().find(|&id| main.ops[id].kind == kind).unwrap();
    let view = OpView::new(main, &op.program.weights, &main.ops[id]);
    let types: Vec<Type> = main.ops[id].outputs.iter().map(|&v| main.ty(v).clone()).collect();
    kind.def().cost(&view, &types)
}

fn zeros(shape: &[usize]) -> In {
    f32s(shape, vec![0.0; shape.iter().product()]).into()
}

fn q4(shape: &[usize]) -> In {
    Literal::tensor(Tensor::zeros(DType::Q4_1, shape).unwrap()).into()
}

#[test]
fn products_count_two_for_each_weight_and_row() {
    let linear = cost(OpKind::LlmLinear, vec![("x", zeros(&[1, 3, 64])), ("weight", q4(&[8, 64]))]);
    // 20 bytes for each 32 weights; inputs and results of 4 bytes.
    let bytes = 8.0 * 64.0 * 20.0 / 32.0 + 4.0 * 3.0 * (64.0 + 8.0);
    assert_eq!(linear, Cost { flops: 2.0 * 3.0 * 64.0 * 8.0, bytes });
    let matmul = cost(OpKind::Matmul, vec![("x", zeros(&[2, 3, 4])), ("y", zeros(&[4, 5]))]);
    assert_eq!(matmul, Cost { flops: 2.0 * 30.0 * 4.0, bytes: 4.0 * (24.0 + 20.0 + 30.0) });
    let conv = cost(OpKind::Conv, vec![("x", zeros(&[1, 4, 8])), ("weight", zeros(&[6, 4, 3]))]);
    assert_eq!(conv, Cost { flops: 2.0 * 36.0 * 12.0, bytes: 4.0 * (32.0 + 72.0 + 36.0) });
}

#[test]
fn an_embedding_reads_only_its_rows() {
    let embedding = cost(
        OpKind::LlmEmbedding,
        vec![("ids", ints(&[1, 2], [0, 1]).into()), ("weight", q4(&[1000, 32]))],
    );
    assert_eq!(embedding, Cost { flops: 0.0, bytes: 2.0 * 4.0 + 2.0 * 20.0 + 64.0 * 4.0 });
}

#[test]
fn attention_reads_its_caches() {
    let cache = || In::State(TensorType::new(DType::F16, [1usize, 2, 100, 8]));
    let attention = cost(
        OpKind::LlmAttention,
        vec![
            ("query", zeros(&[1, 1, 4, 8])),
            ("key", zeros(&[1, 1, 2, 8])),
            ("value", zeros(&[1, 1, 2, 8])),
            ("positions", ints(&[1], [0]).into()),
            ("scale", Literal::scalar(1f32).into()),
            ("key_cache", cache()),
            ("value_cache", cache()),
        ],
    );
    assert_eq!(attention.flops, 4.0 * 32.0 * 100.0);
    let rows = 4.0 * (32.0 + 16.0 + 16.0 + 1.0 + 1.0 + 32.0);
    assert_eq!(attention.bytes, rows + 2.0 * 2.0 * 1600.0);
}

#[test]
fn moving_elements_costs_no_flops() {
    let args = vec![("x", zeros(&[2, 3])), ("perm", Literal::vector(&[1i32, 0]).into())];
    let bytes = 4.0 * (6.0 + 2.0 + 6.0);
    assert_eq!(cost(OpKind::Transpose, args), Cost { flops: 0.0, bytes });
}
