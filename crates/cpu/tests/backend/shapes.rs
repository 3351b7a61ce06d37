//! Operations of random shapes and options, on one thread and on more.

use mil::{Literal, OpKind, ValueId};
use proptest::prelude::*;
use rigel_cpu::CpuBackend;
use testkit::{Case, CaseBuilder, case, check_case, run_case};

/// Checks the case against the interpreter, and that the number of threads does not change a bit.
fn check(case: &Case) -> Result<(), TestCaseError> {
    prop_assert_eq!(check_case(&CpuBackend::new(1), case), Ok(()));
    let bits = [1, 2, 3].map(|threads| {
        let outcome = run_case(&CpuBackend::new(threads), case).unwrap();
        let tensors = outcome.outputs.into_iter().flatten();
        tensors.map(|(_, t)| t.bytes().to_vec()).collect::<Vec<_>>()
    });
    prop_assert!(bits[0] == bits[1] && bits[0] == bits[2], "threads change {}", case.name);
    Ok(())
}

fn numbers(values: &[usize]) -> Literal {
    Literal::vector(&values.iter().map(|&v| v as i32).collect::<Vec<_>>())
}

/// Shapes that broadcast to `shape`: axes where the mask has a bit are 1.
fn narrowed(shape: &[usize], mask: u8) -> Vec<usize> {
    shape.iter().enumerate().map(|(i, &n)| if mask >> i & 1 == 1 { 1 } else { n }).collect()
}

/// Windows, kernel, stride, dilation, padding before and after of an axis.
type Axis = (usize, usize, usize, usize, usize, usize);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn convolutions(
        (batch, groups, inputs, outputs) in (1..3usize, 1..4usize, 1..5usize, 1..12usize),
        axes in prop::collection::vec((1..9usize, 1..4usize, 1..4usize, 1..3usize, 0..3usize, 0..3usize), 1..4),
        pad_type in prop::sample::select(vec!["valid", "custom", "same", "same_lower"]),
        biased in any::<bool>(),
    ) {
        let of = |f: fn(&Axis) -> usize| {
            axes.iter().map(f).collect::<Vec<_>>()
        };
        // Every axis holds at least one window.
        let sizes = of(|a| a.0 + (a.1 - 1) * a.3);
        let pad: Vec<usize> = axes.iter().flat_map(|a| [a.4, a.5]).collect();
        let shape = [&[batch, groups * inputs][..], &sizes].concat();
        let weight = [&[groups * outputs, inputs][..], &of(|a| a.1)].concat();
        check(&case("conv", |c: &mut CaseBuilder<'_>| {
            let x = c.float("x", &shape);
            let w = c.float_in("w", &weight, -1.0, 1.0);
            let b = biased.then(|| c.float("b", &[groups * outputs]));
            let op = c.f.op(OpKind::Conv).arg("x", x).arg("weight", w);
            let op = op.arg("strides", numbers(&of(|a| a.2))).arg("dilations", numbers(&of(|a| a.3)));
            let op = op.arg("groups", Literal::scalar(groups as i32));
            let op = op.arg("pad_type", Literal::string(pad_type)).arg("pad", numbers(&pad));
            Ok(vec![match b {
                Some(b) => op.arg("bias", b).result()?,
                None => op.result()?,
            }])
        }))?;
    }

    #[test]
    fn paddings(
        shape in prop::collection::vec(1..5usize, 1..5),
        amounts in prop::collection::vec((0..3usize, 0..3usize), 4),
        mode in prop::sample::select(vec!["constant", "reflect", "replicate"]),
    ) {
        let pad: Vec<usize> = shape.iter().zip(&amounts).flat_map(|(&n, &(a, b))| {
            if mode == "reflect" { [a.min(n - 1), b.min(n - 1)] } else { [a, b] }
        }).collect();
        check(&case("pad", |c: &mut CaseBuilder<'_>| {
            let x = c.float("x", &shape);
            let op = c.f.op(OpKind::Pad).arg("x", x).arg("pad", numbers(&pad));
            Ok(vec![op.arg("mode", Literal::string(mode)).result()?])
        }))?;
    }

    #[test]
    fn choices(
        shape in prop::collection::vec(0..6usize, 0..5),
        masks in (any::<u8>(), any::<u8>(), any::<u8>()),
    ) {
        // One of the three has every axis whole.
        let shapes = [narrowed(&shape, masks.0), narrowed(&shape, masks.1 & !masks.0), narrowed(&shape, masks.2)];
        check(&case("select", |c: &mut CaseBuilder<'_>| {
            let [x, a, b]: [ValueId; 3] =
                [("x", 0), ("a", 1), ("b", 2)].map(|(name, i)| c.float(name, &shapes[i]));
            let op = c.f.op(OpKind::Greater).arg("x", x).arg("y", Literal::scalar(0f32));
            let cond = op.result()?;
            let op = c.f.op(OpKind::Select).arg("cond", cond).arg("a", a).arg("b", b);
            Ok(vec![op.result()?])
        }))?;
    }

    #[test]
    fn windows(
        planes in (1..3usize, 1..4usize),
        axes in prop::collection::vec((1..9usize, 1..4usize, 1..4usize, 0..2usize), 1..3),
        kind in prop::sample::select(vec![OpKind::MaxPool, OpKind::AvgPool, OpKind::L2Pool]),
        (ceil, exclude) in any::<(bool, bool)>(),
    ) {
        let sizes: Vec<usize> = axes.iter().map(|a| a.0 + a.1).collect();
        let kernels: Vec<usize> = axes.iter().map(|a| a.1).collect();
        let pad: Vec<usize> = axes.iter().flat_map(|a| [a.3.min(a.1 - 1); 2]).collect();
        let shape = [&[planes.0, planes.1][..], &sizes].concat();
        check(&case("pool", |c: &mut CaseBuilder<'_>| {
            let x = c.float("x", &shape);
            let op = c.f.op(kind).arg("x", x).arg("kernel_sizes", numbers(&kernels));
            let op = op.arg("strides", numbers(&axes.iter().map(|a| a.2).collect::<Vec<_>>()));
            let op = op.arg("pad_type", Literal::string("custom")).arg("pad", numbers(&pad));
            let op = op.arg("ceil_mode", Literal::bool(ceil));
            Ok(vec![match kind {
                OpKind::AvgPool => {
                    op.arg("exclude_padding_from_average", Literal::bool(exclude)).result()?
                }
                _ => op.result()?,
            }])
        }))?;
    }
}
