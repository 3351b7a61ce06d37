//! Packing weights into fewer slots.

use ane_model::Fix;
use ane_model::chip::SlotUnit;
use mil::{Literal, OpKind, TensorType};
use proptest::prelude::*;
use rigel_passes::fixes::Why;
use tensor::DType;

use crate::harness::{ORDER, Subject, around, weight};

/// Layers of one input each: two or three convolutions of it, scaled and shifted by channel.
fn layers(counts: &[usize], inputs: usize, columns: usize, dtype: DType, after: usize) -> Subject {
    Subject::new("m4", |f| {
        let mut x = f.input("x", TensorType::new(dtype, [1, inputs, 1, columns]));
        for (i, &count) in counts.iter().enumerate() {
            let mut sum = None;
            for j in 0..count {
                let w = weight(f, dtype, &format!("w{i}_{j}"), &[inputs, inputs, 1, 1], 0.3);
                let pad = f.constant("pad", Literal::string("valid"));
                let op = f.op(OpKind::Conv).arg("x", x).arg("weight", w).arg("pad_type", pad);
                let y = op.result()?;
                let y = around(f, y, after)?;
                let scale = weight(f, dtype, &format!("scale{i}_{j}"), &[1, inputs, 1, 1], 1.0);
                let y = f.op(OpKind::Mul).arg("x", y).arg("y", scale).result()?;
                sum = Some(match sum {
                    None => y,
                    Some(sum) => f.op(OpKind::Add).arg("x", sum).arg("y", y).result()?,
                });
            }
            x = sum.unwrap_or(x);
        }
        Ok(vec![f.op(OpKind::Relu).arg("x", x).result()?])
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn weights_fit_the_slots(
        counts in prop::collection::vec(1..4usize, 4..8),
        inputs in 2..5usize,
        columns in 1..5usize,
        dtype in prop::sample::select(vec![DType::F16, DType::F32, DType::F64]),
        after in 0..1000usize,
    ) {
        prop_assume!(counts.iter().sum::<usize>() > 8);
        let proof = layers(&counts, inputs, columns, dtype, after).prove(Fix::PackWeights, ORDER);
        prop_assert!(proof.is_ok(), "{proof:?}");
    }
}

#[test]
fn one_file_is_enough_where_files_count() {
    let mut subject = layers(&[3; 6], 2, 2, DType::F16, 0);
    let unit = &mut subject.chip.switches.slot_unit;
    *unit = unit.clone().map(|u| u.with(SlotUnit::Files));
    let ids: Vec<_> = subject.program.weights.iter().map(|(id, _)| id).collect();
    for id in ids {
        let path = format!("@model_path/weights/{}.bin", id.to_string().replace('/', "_"));
        subject.program.blobs[id] = Some(mil::BlobRef { path: path.into(), offset: 64 });
    }
    assert_eq!(subject.prove(Fix::PackWeights, 0.0), Ok(0.0));
}

#[test]
fn weights_that_do_not_fit_together_are_left() {
    let subject = Subject::new("m4", |f| {
        let mut x = f.input("x", TensorType::new(DType::F16, [1usize, 4, 1, 4]));
        for i in 0..20usize {
            // Each of another shape.
            let w = weight(f, DType::F16, &format!("w{i}"), &[4, 4, 1, 2 * i + 1], 0.3);
            let pad = f.constant("pad", Literal::string("same"));
            let op = f.op(OpKind::Conv).arg("x", x).arg("weight", w).arg("pad_type", pad);
            x = op.result()?;
        }
        Ok(vec![x])
    });
    let (_, fixed) = subject.fixed();
    assert!(fixed.applied.is_empty());
    let left = fixed.left.iter().find(|l| l.finding.rule.id == "ane-weight-slots").unwrap();
    let Why::Impossible(why) = &left.why else { panic!() };
    assert!(why.contains("cut the program"), "{why}");
}
