//! Operations with exponentials, logarithms or roots of sums: against values with 200 bits.

use mil::{Literal, OpKind};

use super::{constant, golden, halves, random, run, scalar};
use crate::common::In;
use half::f16;

#[test]
fn norms_and_reductions() {
    let x = random("x", &[2, 4, 8]);
    let mut seen = 0;
    for (name, _, expected) in golden() {
        let last = || -> In { Literal::vector(&[-1i32]).into() };
        let affine = |n: usize| {
            let constants =
                ["gamma", "beta"].map(|name| (name, constant(&random(name, &[n])).into()));
            constants.into_iter().chain([("epsilon", scalar(1e-3))])
        };
        let mut args: Vec<(&str, In)> = vec![("x", x.clone().into())];
        match name.as_str() {
            "softmax" => {}
            "cumsum" => args.push(("axis", Literal::scalar(-1i32).into())),
            "layer_norm" => {
                args.push(("axes", last()));
                args.extend(affine(8));
            }
            "instance_norm" => args.extend(affine(4)),
            "batch_norm" => {
                let of = |name| (name, constant(&random(name, &[4])).into());
                args.extend([of("mean"), of("variance")].into_iter().chain(affine(4)));
            }
            "reduce_log_sum" => {
                let magnitudes = x.floats().unwrap().iter().map(|v| f16::from_f64(v.abs()));
                args = vec![("x", halves(&x.shape, magnitudes).into()), ("axes", last())];
            }
            reduction if reduction.starts_with("reduce_") => args.push(("axes", last())),
            _ => continue,
        }
        let actual: Vec<String> = run(OpKind::from_name(&name).unwrap(), args)
            .iter()
            .map(|b| format!("{b:04x}"))
            .collect();
        assert_eq!(actual, expected, "{name}");
        seen += 1;
    }
    assert!(seen >= 14, "{seen} operations");
}
