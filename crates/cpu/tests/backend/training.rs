//! What a training step is made of: batches of sequences, gradients, losses, chains, memory used again.

use exec::{Backend, Tensors};
use mil::{FunctionBuilder, Literal, OpKind, Opset, Program, TensorType, ValueId};
use proptest::prelude::*;
use rigel_cpu::CpuBackend;
use tensor::{DType, Tensor};
use testkit::{Case, Tolerance, case, check_case};

fn check(case: &Case) -> Result<(), TestCaseError> {
    prop_assert_eq!(check_case(&CpuBackend::new(2), case), Ok(()));
    Ok(())
}

/// Sizes and options of an attention.
#[derive(Clone, Debug)]
struct Attention {
    batch: usize,
    rows: usize,
    groups: usize,
    heads: usize,
    dim: usize,
    window: Option<i32>,
    softcap: Option<f32>,
    positions: Vec<i32>,
    segments: Option<Vec<i32>>,
}

fn attention() -> impl Strategy<Value = Attention> {
    let sizes = (1usize..4, 1usize..20, 1usize..3, 1usize..4, 1usize..20);
    let options = (prop::option::of(1..6), prop::option::of(Just(1.5f32)), any::<bool>());
    (sizes, options).prop_flat_map(|((batch, rows, groups, group, dim), options)| {
        let (window, softcap, documents) = options;
        let positions = prop::collection::vec(0..30, rows);
        let segments = prop::collection::vec(-1..3, batch * rows);
        (positions, segments).prop_map(move |(positions, segments)| Attention {
            batch,
            rows,
            groups,
            heads: groups * group,
            dim,
            window,
            softcap,
            positions,
            segments: documents.then_some(segments),
        })
    })
}

impl Attention {
    fn case(&self, grad: bool) -> Case {
        let Attention { batch, rows, groups, heads, dim, .. } = *self;
        case("attention", |c| {
            c.tolerance(Tolerance { abs: 1e-4, rel: 1e-4 });
            let query = c.float("query", &[batch, rows, heads, dim]);
            let key = c.float("key", &[batch, rows, groups, dim]);
            let value = c.float("value", &[batch, rows, groups, dim]);
            let positions = c.ints("positions", &[rows], &self.positions);
            let segments = self.segments.as_ref().map(|s| c.ints("segments", &[batch, rows], s));
            let by = grad.then(|| c.float("grad", &[batch, rows, heads, dim]));
            let kind = if grad { OpKind::LlmAttentionGrad } else { OpKind::LlmAttention };
            let op = c.f.op(kind).arg("query", query).arg("key", key).arg("value", value);
            let op = op.arg("positions", positions).arg("scale", Literal::scalar(0.7f32));
            let op = op.opt_arg("window", self.window.map(Literal::scalar)).opt_arg("grad", by);
            let op = op.opt_arg("softcap", self.softcap.map(Literal::scalar));
            op.opt_arg("segments", segments).name("y").results()
        })
    }
}

/// One of the operations that a chain is made of.
#[derive(Clone, Copy, Debug)]
enum Link {
    /// Of the values of these numbers, counted from the last.
    Two(OpKind, usize, usize),
    /// Of a value and a number, in this order or the other.
    Number(OpKind, usize, f32, bool),
    One(OpKind, usize),
}

fn link() -> impl Strategy<Value = Link> {
    let two = prop::sample::select(vec![OpKind::Add, OpKind::Sub, OpKind::Mul]);
    let one = vec![OpKind::Silu, OpKind::Sigmoid, OpKind::Tanh, OpKind::Relu, OpKind::Gelu];
    let from = 0usize..5;
    prop_oneof![
        (two.clone(), from.clone(), from.clone()).prop_map(|(k, a, b)| Link::Two(k, a, b)),
        (two, from.clone(), -2f32..2.0, any::<bool>())
            .prop_map(|(k, a, n, first)| Link::Number(k, a, n, first)),
        (prop::sample::select(one), from).prop_map(|(k, a)| Link::One(k, a)),
    ]
}

fn chain(links: &[Link], outputs: usize) -> Case {
    case("chain", |c| {
        c.tolerance(Tolerance { abs: 1e-3, rel: 1e-4 });
        let mut values: Vec<ValueId> =
            ["a", "b"].into_iter().map(|name| c.float(name, &[3, 7])).collect();
        values.push(c.weight("w", DType::F32, &[3, 7])?);
        for link in links {
            let from = |n: usize| values[values.len() - 1 - n % values.len()];
            let made = match *link {
                Link::Two(kind, a, b) => c.f.op(kind).arg("x", from(a)).arg("y", from(b)).result(),
                Link::Number(kind, a, n, true) => {
                    c.f.op(kind).arg("x", Literal::scalar(n)).arg("y", from(a)).result()
                }
                Link::Number(kind, a, n, false) => {
                    c.f.op(kind).arg("x", from(a)).arg("y", Literal::scalar(n)).result()
                }
                Link::One(kind, a) => c.f.op(kind).arg("x", from(a)).result(),
            };
            values.push(made?);
        }
        Ok(values.split_off(values.len() - outputs))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn attention_of_any_rows(attention in attention(), grad: bool) {
        check(&attention.case(grad))?;
    }

    #[test]
    fn chains_of_any_links(links in prop::collection::vec(link(), 1..20), outputs in 1usize..4) {
        check(&chain(&links, outputs.min(links.len())))?;
    }

    #[test]
    fn rotations_of_batches(batch in 1usize..4, rows in 1usize..6, heads in 1usize..4, pairs: bool) {
        check(&case("rope", |c| {
            let x = c.float("x", &[batch, rows, heads, 6]);
            let at: Vec<i32> = (0..rows as i32).map(|n| n * n).collect();
            let positions = c.ints("positions", &[rows], &at);
            let op = c.f.op(OpKind::LlmRope).arg("x", x).arg("positions", positions);
            let op = op.arg("inv_freq", Literal::vector(&[1f32, 0.1]));
            Ok(vec![op.arg("interleaved", Literal::bool(pairs)).result()?])
        }))?;
    }

    #[test]
    fn losses(
        rows in 1usize..20,
        vocab in 2usize..40,
        kind in prop::sample::select(vec![DType::F32, DType::F16, DType::Q8_0]),
        softcap in prop::option::of(Just(2f32)),
        grad: bool,
        biased: bool,
        seed in 0i32..1000,
    ) {
        let floats = kind.is_float();
        check(&case("loss", |c| {
            c.tolerance(Tolerance { abs: 2e-3, rel: 2e-3 });
            let x = c.float("x", &[rows, 32]);
            let w = c.weight("w", kind, &[vocab, 32])?;
            let bias = if biased { Some(c.weight("bias", DType::F32, &[vocab])?) } else { None };
            let next = |n: i32| (seed + n * 7919) % (vocab as i32 + 1) - 1;
            let targets: Vec<i32> = (0..rows as i32).map(next).collect();
            let targets = c.ints("targets", &[rows], &targets);
            let by = grad.then(|| c.float("grad", &[]));
            let op = if grad { OpKind::LlmHeadLossGrad } else { OpKind::LlmHeadLoss };
            let op = c.f.op(op).arg("x", x).arg("weight", w).arg("targets", targets);
            let op = op.opt_arg("bias", bias).opt_arg("grad", by);
            let op = op.opt_arg("softcap", softcap.map(Literal::scalar));
            op.opt_arg("by_weight", grad.then(|| Literal::bool(floats))).name("y").results()
        }))?;
    }

    /// Rows of an embedding's gradient are added where several are of one token.
    #[test]
    fn scattering(ids in prop::collection::vec(0i32..5, 1..12)) {
        check(&case("scatter", |c| {
            let shape = Literal::vector(&[5i32, 3]);
            let zeros = c.f.op(OpKind::Fill).arg("shape", shape).arg("value", Literal::scalar(0.5f32));
            let zeros = zeros.result()?;
            let rows = c.float("rows", &[ids.len(), 3]);
            let ids = c.ints("ids", &[ids.len()], &ids);
            let op = c.f.op(OpKind::Scatter).arg("data", zeros).arg("indices", ids);
            let op = op.arg("updates", rows).arg("axis", Literal::scalar(0i32));
            Ok(vec![op.arg("mode", Literal::string("add")).result()?])
        }))?;
    }
}

/// The memory of large results is used again, but not while someone holds them.
#[test]
fn results_stay_what_they_are() {
    const LEN: usize = 1 << 19;
    let mut program = Program::default();
    let mut f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let x = f.input("x", TensorType::new(DType::F32, [LEN]));
    let y =
        f.op(OpKind::Add).arg("x", x).arg("y", Literal::scalar(1f32)).name("y").result().unwrap();
    let z = f.op(OpKind::Mul).arg("x", y).arg("y", y).name("z").result().unwrap();
    let function = f.finish(vec![y, z]);
    program.functions.insert("main".into(), function);
    let mut runnable = CpuBackend::new(2).prepare(&program).unwrap();
    let mut state = runnable.new_state().unwrap();
    let mut run = |value: f32| {
        let x = Tensor::from_slice(&[LEN], &vec![value; LEN]).unwrap();
        runnable.run("main", &Tensors::from([("x".into(), x)]), &mut state).unwrap()
    };
    let all = |results: &Tensors, name: &str, value: f32| {
        results[name].as_slice::<f32>().unwrap().iter().all(|&v| v == value)
    };
    let first = run(1.0);
    let held = first["z"].clone();
    let place = first["y"].bytes().as_ptr();
    drop(first);
    let second = run(2.0);
    assert!(all(&second, "y", 3.0) && all(&second, "z", 9.0));
    assert!(held.as_slice::<f32>().unwrap().iter().all(|&v| v == 4.0));
    let places: Vec<_> = second.values().map(|t| t.bytes().as_ptr()).collect();
    assert!(places.contains(&place), "memory that nothing holds is used again");
    let third = run(3.0);
    assert!(all(&second, "y", 3.0) && all(&third, "y", 4.0));
}

/// What is done is given before the operations behind it run: here one of them fails.
#[test]
fn results_are_given_as_they_come() {
    let mut program = Program::default();
    let mut f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let [x, table] = [("x", 4), ("table", 6)].map(|(name, rows)| {
        let ty = TensorType::new(DType::F32, [rows, 2]);
        f.input(name, ty)
    });
    let ids = f.input("ids", TensorType::new(DType::I32, [3]));
    let op = |f: &mut FunctionBuilder<'_>, kind, [x, y]: [ValueId; 2], name| {
        f.op(kind).arg("x", x).arg("y", y).name(name).result().unwrap()
    };
    let first = op(&mut f, OpKind::Mul, [x, x], "first");
    // Reads the first, which is not done before it.
    let second = op(&mut f, OpKind::Add, [first, x], "second");
    let rows = f.op(OpKind::LlmEmbedding).arg("ids", ids).arg("weight", table);
    let rows = rows.name("rows").result().unwrap();
    let last = op(&mut f, OpKind::Add, [rows, rows], "last");
    let function = f.finish(vec![last, second, x, first]);
    program.functions.insert("main".into(), function);
    let mut runnable = CpuBackend::new(1).prepare(&program).unwrap();
    let mut state = runnable.new_state().unwrap();
    let mut run = |id: i32| {
        let floats = |rows: usize| Tensor::from_slice(&[rows, 2], &vec![3f32; rows * 2]).unwrap();
        let ids = Tensor::from_slice(&[3], &[0, 1, id]).unwrap();
        let inputs = [("x", floats(4)), ("table", floats(6)), ("ids", ids)];
        let inputs = inputs.map(|(name, tensor)| (name.to_owned(), tensor)).into();
        let mut given = Vec::new();
        let result = runnable.run_giving("main", &inputs, &mut state, &mut |name, tensor| {
            given.push((name, tensor.as_slice::<f32>().unwrap()[0]));
        });
        let given: Vec<(&str, f32)> = given.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        (result.is_ok(), format!("{given:?}"))
    };
    let all = r#"[("second", 12.0), ("first", 9.0), ("last", 6.0), ("x", 3.0)]"#;
    assert_eq!(run(5), (true, all.to_owned()));
    assert_eq!(run(6), (false, r#"[("second", 12.0), ("first", 9.0)]"#.to_owned()));
}
