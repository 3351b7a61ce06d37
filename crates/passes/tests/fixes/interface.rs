//! Fixes that make inputs, outputs and states longer: compared without what is new.

use ane_model::{Fix, Path};
use mil::{Arg, FunctionBuilder, Literal, OpKind, TensorType, Type, ValueId};
use proptest::prelude::*;
use rigel_passes::fixes::{Part, Why};
use tensor::DType;

use crate::harness::{ORDER, Subject, around, weight};

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::F16, DType::F32, DType::F64])
}

/// How a state is written.
#[derive(Clone, Copy, Debug)]
enum Write {
    /// All of it is computed.
    Whole,
    /// A row whose place is a constant.
    Row(usize),
    /// As many rows as an input has, from a place that is an input.
    Rows,
    /// The same, of one head, whose axis is squeezed.
    Head,
    /// Columns from a place on, to the end.
    Columns(usize),
    /// A row counted from the end.
    FromTheEnd,
}

fn writes() -> impl Strategy<Value = Write> {
    prop_oneof![
        Just(Write::Whole),
        (0..20usize).prop_map(Write::Row),
        Just(Write::Rows),
        Just(Write::Head),
        (0..20usize).prop_map(Write::Columns),
        Just(Write::FromTheEnd),
    ]
}

fn constant(f: &mut FunctionBuilder<'_>, values: &[i32]) -> ValueId {
    f.constant("numbers", Literal::vector(values))
}

fn flags(f: &mut FunctionBuilder<'_>, values: &[bool]) -> ValueId {
    f.constant("flags", Literal::bool_vector(values))
}

/// A vector with the input `position`, plus `more`, in the place of each -1.
fn computed(
    f: &mut FunctionBuilder<'_>,
    position: ValueId,
    more: i32,
    at: &[i32],
) -> mil::Result<ValueId> {
    let more = constant(f, &[more]);
    let moved = f.op(OpKind::Add).arg("x", position).arg("y", more).result()?;
    let parts: Vec<ValueId> =
        at.iter().map(|&n| if n < 0 { moved } else { constant(f, &[n]) }).collect();
    let axis = f.constant("axis", Literal::scalar(0i32));
    let op = f.op(OpKind::Concat).arg("values", Arg::from(parts)).arg("axis", axis);
    op.arg("interleave", Literal::bool(false)).result()
}

/// The content after a write of `x`, which is as large as the state.
fn written(
    f: &mut FunctionBuilder<'_>,
    write: Write,
    (content, x, position): (ValueId, ValueId, ValueId),
    [heads, rows, width]: [usize; 3],
) -> mil::Result<ValueId> {
    let part = |f: &mut FunctionBuilder<'_>, begin: [usize; 3], end: [usize; 3]| {
        let [begin, end] = [begin, end].map(|at| constant(f, &at.map(|n| n as i32)));
        f.op(OpKind::SliceByIndex).arg("x", x).arg("begin", begin).arg("end", end).result()
    };
    let (h, w) = (heads as i32, width as i32);
    let mut squeeze = None;
    let (update, begin, end, masks) = match write {
        Write::Whole => {
            return f.op(OpKind::Add).arg("x", content).arg("y", x).result();
        }
        Write::Row(row) => {
            let row = row % rows;
            let update = part(f, [0, row, 0], [heads, row + 1, width])?;
            let (begin, end) = ([0, row as i32, 0], [h, row as i32 + 1, w]);
            (update, constant(f, &begin), constant(f, &end), [false, false, row % 2 == 0])
        }
        Write::Rows => {
            // Positions are 0, 1, 2.
            let count = rows - 2;
            let update = part(f, [0, 0, 0], [heads, count, width])?;
            let begin = computed(f, position, 0, &[0, -1, 0])?;
            let end = computed(f, position, count as i32, &[0, -1, 0])?;
            (update, begin, end, [true, false, true])
        }
        Write::Head => {
            let update = part(f, [0, 0, 0], [1, 1, width])?;
            let shape = constant(f, &[1, w]);
            let update = f.op(OpKind::Reshape).arg("x", update).arg("shape", shape).result()?;
            squeeze = Some(flags(f, &[true, false, false]));
            let begin = computed(f, position, 0, &[0, -1, 0])?;
            let end = computed(f, position, 1, &[1, -1, 0])?;
            (update, begin, end, [false, false, true])
        }
        Write::Columns(column) => {
            let column = column % width;
            let update = part(f, [0, 0, column], [heads, rows, width])?;
            let begin = constant(f, &[0, 0, column as i32]);
            let end = constant(f, &[0, 0, 0]);
            let mask = flags(f, &[true, true, false]);
            let all = flags(f, &[true; 3]);
            let op = f.op(OpKind::SliceUpdate).arg("x", content).arg("update", update);
            let op = op.arg("begin", begin).arg("end", end);
            return op.arg("begin_mask", mask).arg("end_mask", all).result();
        }
        Write::FromTheEnd => {
            let update = part(f, [0, 0, 0], [heads, 1, width])?;
            let (begin, end) = ([0, -2, 0], [h, -1, w]);
            (update, constant(f, &begin), constant(f, &end), [false; 3])
        }
    };
    let masks = flags(f, &masks);
    let op = f.op(OpKind::SliceUpdate).arg("x", content).arg("update", update);
    let op = op.arg("begin", begin).arg("end", end).arg("begin_mask", masks);
    op.arg("end_mask", masks).opt_arg("squeeze_mask", squeeze).result()
}

fn stateful(write: Write, sizes: [usize; 3], dtype: DType, after: usize) -> Subject {
    let mut subject = Subject::new("m4", |f| {
        let ty = TensorType::new(dtype, sizes);
        let state = f.input("cache", Type::State(ty.clone()));
        let x = f.input("x", ty);
        let position = f.input("position", TensorType::new(DType::I32, [1usize]));
        let content = f.op(OpKind::ReadState).arg("input", state).result()?;
        let new = written(f, write, (content, x, position), sizes)?;
        f.op(OpKind::WriteState).arg("input", state).arg("data", new).results()?;
        let read = if after.is_multiple_of(2) {
            f.op(OpKind::ReadState).arg("input", state).result()?
        } else {
            new
        };
        let y = f.op(OpKind::Sub).arg("x", read).arg("y", content).result()?;
        Ok(vec![around(f, y, after)?, around(f, read, after / 2 * 4 + 1)?])
    });
    subject.path = Path::CoreMl;
    subject.interface = true;
    subject
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn pad_state(
        write in writes(),
        sizes in [1..4usize, 3..40, 2..40],
        dtype in dtypes(),
        after in 0..1000usize,
    ) {
        prop_assume!(sizes[1..].iter().any(|n| n % 32 != 0));
        let proof = stateful(write, sizes, dtype, after).prove(Fix::PadState, ORDER);
        prop_assert!(proof.is_ok(), "{proof:?}");
    }

    #[test]
    fn uniform_surfaces(
        shapes in prop::collection::vec([1..4usize, 1..4, 1..5], 2..4),
        dtype in dtypes(),
        after in 0..1000usize,
    ) {
        let bytes = |s: &[usize; 3]| s.iter().product::<usize>();
        let largest = shapes.iter().map(bytes).max().unwrap();
        prop_assume!(shapes.iter().any(|s| bytes(s) < largest));
        // An axis of each must be able to make up for what is missing.
        prop_assume!(shapes.iter().all(|s| (0..3).any(|a| largest % (bytes(s) / s[a]) == 0)));
        let mut subject = Subject::new("m4", |f| {
            let mut outputs = Vec::new();
            for (i, shape) in shapes.iter().enumerate() {
                let shape = [vec![1], shape.to_vec()].concat();
                let x = f.input(&format!("x{i}"), TensorType::new(dtype, shape.clone()));
                let w = weight(f, dtype, &format!("w{i}"), &shape, 1.0);
                let y = f.op(OpKind::Mul).arg("x", x).arg("y", w).result()?;
                let y = around(f, y, after)?;
                outputs.push(f.op(OpKind::Add).arg("x", y).arg("y", w).name(format!("y{i}")).result()?);
            }
            Ok(outputs)
        });
        subject.interface = true;
        for kind in [Fix::UniformInputs, Fix::UniformOutputs] {
            let proof = subject.prove(kind, ORDER);
            prop_assert!(proof.is_ok(), "{proof:?}");
        }
    }
}

#[test]
fn an_interface_stays_unless_it_may_change() {
    let mut subject = stateful(Write::Rows, [2, 20, 30], DType::F16, 0);
    subject.interface = false;
    let (after, fixed) = subject.fixed();
    let unchanged = |name: &str| {
        let ty = |p: &mil::Program| {
            p.functions["main"].ty(p.functions["main"].input(name).unwrap()).clone()
        };
        ty(&after) == ty(&subject.program)
    };
    assert!(fixed.interface.is_empty() && unchanged("cache") && unchanged("x"));
    assert!(fixed.left.iter().any(|l| l.why == Why::Interface));
}

#[test]
fn updates_in_place_stay_in_place() {
    let subject = stateful(Write::Rows, [2, 20, 30], DType::F16, 0);
    let (after, fixed) = subject.fixed();
    assert_eq!((fixed.interface[0].part, &*fixed.interface[0].name), (Part::State, "cache"));
    let main = &after.functions["main"];
    let write = main.ops.values().find(|op| op.kind == OpKind::WriteState).unwrap();
    let Some(Arg::Value(data)) = write.arg("data") else { panic!() };
    let mil::ValueDef::Result(maker, _) = main.values[*data].def else { panic!() };
    assert_eq!(main.ops[maker].kind, OpKind::SliceUpdate);
    assert!(fixed.applied[0].what.contains("count from the front"), "{:?}", fixed.applied);
}
