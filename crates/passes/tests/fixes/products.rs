//! Fixes of convolutions and products of matrices.

use ane_model::chip::Fact;
use ane_model::{Chip, Fix, Path};
use mil::{Arg, FunctionBuilder, Literal, OpKind, TensorType, ValueId};
use proptest::prelude::*;
use tensor::DType;

use crate::harness::{ORDER, Subject, around, literal, weight};

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::F16, DType::F32, DType::F64])
}

/// What a random convolution is made of.
#[derive(Clone, Debug)]
struct Conv {
    transposed: bool,
    groups: usize,
    inner: usize,
    outer: usize,
    spatial: Vec<usize>,
    taps: usize,
    same: bool,
    dtype: DType,
}

fn convs() -> impl Strategy<Value = Conv> {
    let spatial = prop::collection::vec(2..6usize, 1..4);
    let flags = (any::<bool>(), any::<bool>());
    (flags, 1..3usize, 1..4usize, 1..4usize, spatial, 1..3usize, dtypes()).prop_map(
        |((transposed, same), groups, inner, outer, spatial, taps, dtype)| Conv {
            transposed,
            groups,
            inner,
            outer,
            spatial,
            taps,
            same,
            dtype,
        },
    )
}

impl Conv {
    fn build(&self, f: &mut FunctionBuilder<'_>, x: ValueId, bias: Arg) -> mil::Result<ValueId> {
        let Conv { groups, inner, outer, taps, .. } = *self;
        let lead = if self.transposed { [inner * groups, outer] } else { [outer * groups, inner] };
        let shape = [lead.to_vec(), vec![taps; self.spatial.len()]].concat();
        let w = weight(f, self.dtype, "w", &shape, 1.0);
        let kind = if self.transposed { OpKind::ConvTranspose } else { OpKind::Conv };
        let groups = f.constant("groups", Literal::scalar(groups as i32));
        let pad = f.constant("pad", Literal::string(if self.same { "same" } else { "valid" }));
        let op = f.op(kind).arg("x", x).arg("weight", w).arg("bias", bias).arg("groups", groups);
        op.arg("pad_type", pad).name("layer").result()
    }

    fn input(&self, f: &mut FunctionBuilder<'_>) -> ValueId {
        let shape = [vec![1, self.inner * self.groups], self.spatial.clone()].concat();
        f.input("x", TensorType::new(self.dtype, shape))
    }
}

/// A chip whose notch, and whose limits, are at sizes that a test can compute.
fn small_chip(period: u64) -> Chip {
    let mut chip = Chip::find("m4").unwrap().clone();
    let with = |fact: &Option<Fact<u64>>, value| {
        fact.clone().map(|f| Fact { claims: Vec::new(), ..f }.with(value))
    };
    chip.rates.notch_period = with(&chip.rates.notch_period, period);
    chip.rates.notch_tolerance = with(&chip.rates.notch_tolerance, 8);
    chip.limits.reduction = with(&chip.limits.reduction, 96);
    chip.limits.direct_conv_inputs_refused = with(&chip.limits.direct_conv_inputs_refused, 96);
    chip
}

/// A product that sums over `k`.
fn product(
    f: &mut FunctionBuilder<'_>,
    form: usize,
    (k, outputs, rows): (usize, usize, usize),
    dtype: DType,
) -> mil::Result<ValueId> {
    let bias = literal(dtype, "bias", &[outputs], 1.0);
    match form {
        0 => {
            let x = f.input("x", TensorType::new(dtype, [1, k, 1, rows]));
            let w = weight(f, dtype, "w", &[outputs, k, 1, 1], 0.2);
            let bias = f.constant("bias", bias);
            f.op(OpKind::Conv).arg("x", x).arg("weight", w).arg("bias", bias).result()
        }
        1 => {
            let x = f.input("x", TensorType::new(dtype, [2, rows, k]));
            let w = weight(f, dtype, "w", &[outputs, k], 0.2);
            let bias = f.constant("bias", bias);
            f.op(OpKind::Linear).arg("x", x).arg("weight", w).arg("bias", bias).result()
        }
        _ => {
            let (turn_x, turn_y) = (form & 1 == 1, form & 2 == 2);
            let shape = if turn_x { [2, k, rows] } else { [2, rows, k] };
            let x = f.input("x", TensorType::new(dtype, shape));
            let shape = if turn_y { [outputs, k] } else { [k, outputs] };
            let y = weight(f, dtype, "w", &shape, 0.2);
            let [turn_x, turn_y] =
                [turn_x, turn_y].map(|turn| f.constant("turn", Literal::bool(turn)));
            let op = f.op(OpKind::Matmul).arg("x", x).arg("y", y);
            op.arg("transpose_x", turn_x).arg("transpose_y", turn_y).result()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn conv_bias(conv in convs(), computed in any::<bool>(), after in 0..1000usize) {
        let subject = Subject::new("m4", |f| {
            let x = conv.input(f);
            let n = conv.outer * conv.groups;
            let bias = if computed {
                f.input("bias", TensorType::new(conv.dtype, [n]))
            } else if after % 2 == 0 {
                weight(f, conv.dtype, "bias", &[n], 1.0)
            } else {
                f.constant("bias", literal(conv.dtype, "bias", &[n], 1.0))
            };
            let y = conv.build(f, x, bias.into())?;
            Ok(vec![around(f, y, after)?])
        });
        let proof = subject.prove(Fix::ConvBias, ORDER);
        prop_assert!(proof.is_ok(), "{proof:?}");
    }

    /// 16 outputs of `k` inputs are `2 k` bytes a core.
    #[test]
    fn split_at_the_notch(
        form in 0..6usize,
        k in 30..90usize,
        rows in 1..5usize,
        outputs in 1..17usize,
        dtype in dtypes(),
        after in 0..1000usize,
        coreml in any::<bool>(),
    ) {
        let mut subject = Subject::new("m4", |f| {
            let y = product(f, form, (k, outputs, rows), dtype)?;
            Ok(vec![around(f, y, after)?])
        });
        subject.chip = small_chip(2 * k as u64);
        subject.path = if coreml { Path::CoreMl } else { Path::Direct };
        let proof = subject.prove(Fix::SplitReduction, ORDER);
        prop_assert!(proof.is_ok(), "{proof:?}");
    }

    #[test]
    fn split_a_long_sum(
        form in 0..6usize,
        k in 97..400usize,
        rows in 1..5usize,
        dtype in dtypes(),
        after in 0..1000usize,
    ) {
        let mut subject = Subject::new("m4", |f| {
            let y = product(f, form, (k, 3, rows), dtype)?;
            Ok(vec![around(f, y, after)?])
        });
        subject.chip = small_chip(1 << 20);
        let proof = subject.prove(Fix::SplitReduction, ORDER);
        prop_assert!(proof.is_ok(), "{proof:?}");
    }
}
