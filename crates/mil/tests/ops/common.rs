//! Building one operation, running it, and comparing.

use std::collections::BTreeMap;

use mil::eval::{self, Arithmetic, Array, Data, States, Value};
use mil::{
    Arg, Error, FunctionBuilder, Literal, OpKind, OpView, Opset, Program, TensorType, Type, ValueId,
};
use tensor::DType;

/// An argument of an operation under test.
pub(crate) enum In {
    /// A value given when running.
    Run(Array),
    /// A constant.
    Const(Literal),
    /// Several constants.
    Consts(Vec<Literal>),
    /// A state of that type, zeroed.
    State(TensorType),
    /// Several values given when running.
    Runs(Vec<Array>),
}

impl From<Array> for In {
    fn from(a: Array) -> Self {
        In::Run(a)
    }
}

impl From<Vec<Array>> for In {
    fn from(a: Vec<Array>) -> Self {
        In::Runs(a)
    }
}

impl From<Literal> for In {
    fn from(l: Literal) -> Self {
        In::Const(l)
    }
}

/// An `fp32` array.
pub(crate) fn f32s(shape: &[usize], values: impl IntoIterator<Item = f64>) -> Array {
    array(DType::F32, shape, Data::Float(values.into_iter().collect()))
}

/// An `int32` array.
pub(crate) fn ints(shape: &[usize], values: impl IntoIterator<Item = i64>) -> Array {
    array(DType::I32, shape, Data::Int(values.into_iter().collect()))
}

fn array(dtype: DType, shape: &[usize], data: Data) -> Array {
    let n = match &data {
        Data::Float(v) => v.len(),
        Data::Int(v) => v.len(),
        Data::Bool(v) => v.len(),
        Data::Str(v) => v.len(),
    };
    assert_eq!(n, shape.iter().product::<usize>(), "wrong number of values for {shape:?}");
    Array { dtype, shape: shape.to_vec(), data }
}

/// A program whose function `main` is the one operation.
pub(crate) struct One {
    pub(crate) program: Program,
    pub(crate) inputs: BTreeMap<String, Value>,
}

/// Builds the operation `kind` with `args` into a program.
pub(crate) fn one(kind: OpKind, args: Vec<(&str, In)>) -> Result<One, Error> {
    let mut program = Program::default();
    let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let mut inputs = BTreeMap::new();
    let mut given: Vec<(String, Arg)> = Vec::new();
    for (name, arg) in args {
        let mut run = |b: &mut FunctionBuilder<'_>, name: &str, a: Array| {
            let v = b.input(name, TensorType::new(a.dtype, a.shape.iter().copied()));
            inputs.insert(b.function().values[v].name.clone(), Value::from(a));
            v
        };
        let arg = match arg {
            In::Run(a) => run(&mut b, name, a).into(),
            In::Runs(arrays) => {
                arrays.into_iter().map(|a| run(&mut b, name, a)).collect::<Vec<_>>().into()
            }
            In::Const(l) => b.constant(name, l).into(),
            In::Consts(all) => {
                all.into_iter().map(|l| b.constant(name, l)).collect::<Vec<_>>().into()
            }
            In::State(t) => b.input(name, Type::State(t)).into(),
        };
        given.push((name.to_owned(), arg));
    }
    let mut op = b.op(kind);
    for (name, arg) in given {
        op = op.arg(&name, arg);
    }
    let results = op.results()?;
    let function = b.finish(results);
    program.functions.insert("main".into(), function);
    Ok(One { program, inputs })
}

impl One {
    /// Fresh states.
    pub(crate) fn states(&self) -> States {
        eval::new_states(&self.program, "main").unwrap()
    }

    /// Runs in exact arithmetic.
    pub(crate) fn run(&self, states: &mut States) -> Result<Vec<Array>, Error> {
        let out = eval::run(&self.program, "main", Arithmetic::Exact, &self.inputs, states)?;
        let main = &self.program.functions["main"];
        for (&v, value) in main.body.outputs.iter().zip(&out) {
            let a = value.array().unwrap();
            let ty = TensorType::new(a.dtype, a.shape.iter().copied());
            assert!(
                main.ty(v).compatible(&ty.clone().into()),
                "{} inferred, {ty} made",
                main.ty(v)
            );
        }
        Ok(out.iter().map(|v| v.array().unwrap().as_ref().clone()).collect())
    }
}

/// The single result of one operation without states, in exact arithmetic.
pub(crate) fn value(kind: OpKind, args: Vec<(&str, In)>) -> Array {
    let results = one(kind, args).unwrap().run(&mut States::new()).unwrap();
    let [result] = <[Array; 1]>::try_from(results).unwrap();
    result
}

/// What the builder or the interpreter says against one operation. It must name the operation.
pub(crate) fn refusal(kind: OpKind, args: Vec<(&str, In)>) -> String {
    let error = match one(kind, args) {
        Err(e) => e,
        Ok(one) => one.run(&mut one.states()).unwrap_err(),
    };
    let text = error.to_string();
    assert!(text.contains(kind.name()), "{text:?} does not name {}", kind.name());
    text
}

/// Asserts equal type, shape and values within `tolerance`, relative above 1.
pub(crate) fn assert_close(actual: &Array, expected: &Array, tolerance: f64) {
    assert_eq!((actual.dtype, &actual.shape), (expected.dtype, &expected.shape));
    match (&actual.data, &expected.data) {
        (Data::Float(a), Data::Float(e)) => {
            for (i, (a, e)) in a.iter().zip(e).enumerate() {
                let close = (a - e).abs() <= tolerance * e.abs().max(1.0);
                assert!(close || a == e || (a.is_nan() && e.is_nan()), "at {i}: {a} for {e}");
            }
        }
        (a, e) => assert_eq!(a, e),
    }
}

impl One {
    /// The same with the operation replaced by its decomposition.
    pub(crate) fn decomposed(&self) -> One {
        let old = self.program.functions["main"].clone();
        let mut program = self.program.clone();
        let mut b = FunctionBuilder::reopen("main", old.clone(), &mut program.weights);
        let mut replaced: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        let mut ops = old.clone();
        for &id in &old.body.ops {
            for arg in ops.ops[id].args.iter_mut().flatten() {
                arg.for_each_value_mut(&mut |v| *v = *replaced.get(v).unwrap_or(v));
            }
            let def = old.ops[id].kind.def();
            if def.is_composite() {
                // The arguments may be values that replaced others, which only the builder knows.
                let known = b.function().clone();
                let view = OpView::new(&known, &self.program.weights, &ops.ops[id]);
                let results = def.decompose(&view, &mut b).unwrap();
                replaced.extend(old.ops[id].outputs.iter().copied().zip(results));
            } else {
                b.keep(id);
            }
        }
        let outputs: Vec<ValueId> =
            old.body.outputs.iter().map(|v| *replaced.get(v).unwrap_or(v)).collect();
        let types: Vec<&Type> = old.body.outputs.iter().map(|&v| old.ty(v)).collect();
        for (&v, ty) in outputs.iter().zip(types) {
            assert!(b.ty(v).compatible(ty), "{} decomposed, {ty} whole", b.ty(v));
        }
        let function = b.finish(outputs);
        program.functions.insert("main".into(), function);
        mil::verify(&program).unwrap();
        One { program, inputs: self.inputs.clone() }
    }

    /// Runs in the given arithmetic.
    pub(crate) fn run_in(&self, arithmetic: Arithmetic, states: &mut States) -> Vec<Array> {
        let out = eval::run(&self.program, "main", arithmetic, &self.inputs, states).unwrap();
        out.iter().map(|v| v.array().unwrap().as_ref().clone()).collect()
    }
}

/// Asserts that the operation and its decomposition agree: within 1e-12 in exact arithmetic, within
/// `tolerance` of exact arithmetic in single and within `half` in half precision. `states` are the
/// contents before; those after are returned.
pub(crate) fn assert_decomposes(one: &One, states: &States, half: f64) -> States {
    let simple = one.decomposed();
    let (mut whole_states, mut simple_states) = (states.clone(), states.clone());
    let expected = one.run_in(Arithmetic::Exact, &mut whole_states);
    let actual = simple.run_in(Arithmetic::Exact, &mut simple_states);
    for (a, e) in actual.iter().zip(&expected) {
        assert_close(a, e, 1e-12);
    }
    for (name, state) in &whole_states {
        assert_close(&simple_states[name], state, 1e-12);
    }
    for (arithmetic, tolerance) in [(Arithmetic::F32, 1e-4), (Arithmetic::Fp16, half)] {
        let actual = simple.run_in(arithmetic, &mut states.clone());
        for (a, e) in actual.iter().zip(&expected) {
            assert_close(a, e, tolerance);
        }
    }
    whole_states
}
