//! Building a case with a scalar loss, and holding its gradients against central finite differences.

use std::collections::{BTreeMap, BTreeSet};

use exec::Tensors;
use mil::eval::{self, Arithmetic, Array, Data, States, Value};
use mil::{Arg, FunctionBuilder, Literal, OpKind, Opset, Program, TensorType, ValueId};
use passes::Pass;
use passes::grad::{By, Gradients, Request, differentiate};
use tensor::Tensor;
use testkit::seeded;

/// A program whose function `main` has inputs and one output, `loss`.
pub(crate) struct Made {
    name: &'static str,
    pub(crate) program: Program,
    pub(crate) inputs: BTreeMap<String, Value>,
}

impl Made {
    pub(crate) fn new(
        name: &'static str,
        program: Program,
        inputs: BTreeMap<String, Value>,
    ) -> Self {
        Made { name, program, inputs }
    }

    pub(crate) fn name(&self) -> String {
        self.name.to_owned()
    }

    /// The kinds of its operations.
    pub(crate) fn kinds(&self) -> BTreeSet<OpKind> {
        self.program.functions["main"].ops.values().map(|op| op.kind).collect()
    }
}

/// Makes a case; sizes and values follow from the seed.
pub(crate) struct Maker<'w> {
    pub(crate) f: FunctionBuilder<'w>,
    inputs: Tensors,
    seed: u64,
    draws: u64,
}

impl Maker<'_> {
    /// A number from 1 to `most`.
    pub(crate) fn size(&mut self, most: usize) -> usize {
        self.draws += 1;
        let u = seeded::tensor(self.seed, &format!("size{}", self.draws), 1, 1.0)[0];
        1 + ((f64::from(u) + 1.0) / 2.0 * most as f64) as usize % most
    }

    /// A float input with values in [-1.5, 1.5).
    pub(crate) fn float(&mut self, shape: &[usize]) -> ValueId {
        self.float_in(shape, -1.5, 1.5)
    }

    /// A float input with values in [low, high).
    pub(crate) fn float_in(&mut self, shape: &[usize], low: f32, high: f32) -> ValueId {
        let name = format!("x{}", self.inputs.len());
        let values: Vec<f32> = seeded::tensor(self.seed, &name, shape.iter().product(), 1.0)
            .into_iter()
            .map(|u| low + (u + 1.0) / 2.0 * (high - low))
            .collect();
        self.given(Tensor::from_slice(shape, &values).unwrap())
    }

    /// An input of integers.
    pub(crate) fn ints(&mut self, shape: &[usize], values: &[i32]) -> ValueId {
        self.given(Tensor::from_slice(shape, values).unwrap())
    }

    /// An input of integers from `low` to below `high`.
    pub(crate) fn ints_in(&mut self, shape: &[usize], low: i32, high: i32) -> ValueId {
        let values: Vec<i32> = (0..shape.iter().product::<usize>())
            .map(|_| low + (self.size((high - low) as usize) as i32 - 1))
            .collect();
        self.ints(shape, &values)
    }

    fn given(&mut self, tensor: Tensor) -> ValueId {
        let name = format!("x{}", self.inputs.len());
        let ty = TensorType::new(tensor.dtype(), tensor.shape().iter().copied());
        self.inputs.insert(name.clone(), tensor);
        self.f.input(&name, ty)
    }

    /// The results of an operation.
    pub(crate) fn op(&mut self, kind: OpKind, args: Vec<(&str, Arg)>) -> Vec<ValueId> {
        let mut op = self.f.op(kind);
        for (name, arg) in args {
            op = op.arg(name, arg);
        }
        op.results().unwrap_or_else(|e| panic!("{e}"))
    }

    /// The sum of all elements of `values`, each times a number of its own.
    fn loss(&mut self, values: &[ValueId]) -> ValueId {
        let mut sum: Option<ValueId> = None;
        for (i, &v) in values.iter().enumerate() {
            let Some(ty) = self.f.function().tensor_ty(v).filter(|t| t.dtype.is_float()) else {
                continue;
            };
            let shape = ty.fixed_shape().unwrap();
            let single = vec![("x", v.into()), ("dtype", Literal::string("fp32").into())];
            let v = self.op(OpKind::Cast, single)[0];
            let weights = seeded::tensor(self.seed, &format!("w{i}"), shape.iter().product(), 1.0);
            let weights = Literal::tensor(Tensor::from_slice(&shape, &weights).unwrap());
            let product = self.op(OpKind::Mul, vec![("x", v.into()), ("y", weights.into())])[0];
            let part = self.op(OpKind::ReduceSum, vec![("x", product.into())])[0];
            sum = Some(match sum {
                Some(sum) => self.op(OpKind::Add, vec![("x", sum.into()), ("y", part.into())])[0],
                None => part,
            });
        }
        sum.unwrap()
    }
}

/// Makes the case `name`; `build` returns values whose weighted sum is the loss.
pub(crate) fn made(
    name: &'static str,
    seed: u64,
    build: impl FnOnce(&mut Maker<'_>) -> Vec<ValueId>,
) -> Made {
    let mut program = Program::default();
    let f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
    let mut maker = Maker { f, inputs: Tensors::new(), seed, draws: 0 };
    let values = build(&mut maker);
    let loss = maker.loss(&values);
    let Maker { mut f, inputs, .. } = maker;
    f.rename(loss, "loss");
    let function = f.finish(vec![loss]);
    program.functions.insert("main".to_owned(), function);
    let value = |t: &Tensor| Value::from(Array::from_tensor(t).unwrap());
    let inputs = inputs.iter().map(|(n, t)| (n.clone(), value(t))).collect();
    Made { name, program, inputs }
}

/// The names of the inputs of floats.
pub(crate) fn float_inputs(inputs: &BTreeMap<String, Value>) -> Vec<&str> {
    let float = |v: &Value| matches!(v.array().unwrap().data, Data::Float(_));
    inputs.iter().filter(|(_, v)| float(v)).map(|(n, _)| n.as_str()).collect()
}

pub(crate) fn run(
    program: &Program,
    function: &str,
    inputs: &BTreeMap<String, Value>,
) -> Vec<Vec<f64>> {
    let values = eval::run(program, function, Arithmetic::Exact, inputs, &mut States::new())
        .unwrap_or_else(|e| panic!("{e}"));
    values.iter().map(|v| v.array().unwrap().floats().unwrap().to_vec()).collect()
}

/// The request for the gradients of `main`'s `loss` by `inputs`.
pub(crate) fn request<'a>(inputs: &'a [&'a str], checkpoints: &'a [String]) -> Request<'a> {
    let by = By::Inputs(inputs);
    Request { function: "main", loss: "loss", by, checkpoints, scaled: false }
}

/// Differentiates a case by all its inputs of floats, runs it through `pipeline`, and compares with
/// finite differences. Returns the largest difference relative to the largest element of its gradient.
pub(crate) fn check(made: &Made, pipeline: &[&dyn Pass]) -> Result<f64, String> {
    let names = float_inputs(&made.inputs);
    let gradients =
        differentiate(&made.program, &request(&names, &[])).map_err(|e| e.to_string())?;
    compare(made, gradients, &names, pipeline)
}

/// As [`check`], of gradients at hand.
pub(crate) fn compare(
    made: &Made,
    gradients: Gradients,
    names: &[&str],
    pipeline: &[&dyn Pass],
) -> Result<f64, String> {
    let Gradients { mut program, function, .. } = gradients;
    passes::run(&mut program, pipeline).map_err(|e| e.to_string())?;
    let found = run(&program, &function, &made.inputs);
    let loss = run(&made.program, "main", &made.inputs)[0][0];
    if (found[0][0] - loss).abs() > TOLERANCE * loss.abs().max(1.0) {
        return Err(format!("the loss is {} with gradients and {loss} without", found[0][0]));
    }
    let mut worst: f64 = 0.0;
    for (&name, grad) in names.iter().zip(&found[1..]) {
        let expected = differences(made, name, grad.len());
        let scale = expected.iter().map(|(_, d)| d.abs()).fold(1e-3, f64::max);
        for &(i, d) in &expected {
            let error = (grad[i] - d).abs() / scale;
            if error.is_nan() || error >= TOLERANCE {
                return Err(format!("by {name}[{i}]: {} instead of {d}", grad[i]));
            }
            worst = worst.max(error);
        }
    }
    Ok(worst)
}

/// Constants of the gradients are single-precision numbers.
const TOLERANCE: f64 = 1e-6;
/// How many elements of an input are changed.
const ELEMENTS: usize = 40;

/// Central differences of the loss by some elements of input `name`.
fn differences(made: &Made, name: &str, len: usize) -> Vec<(usize, f64)> {
    let step = 1e-5;
    let at = |i: usize, by: f64| {
        let mut inputs = made.inputs.clone();
        let mut array = inputs[name].array().unwrap().as_ref().clone();
        array.floats_mut().unwrap()[i] += by;
        inputs.insert(name.to_owned(), array.into());
        run(&made.program, "main", &inputs)[0][0]
    };
    (0..len)
        .step_by(len.div_ceil(ELEMENTS).max(1))
        .map(|i| (i, (at(i, step) - at(i, -step)) / (2.0 * step)))
        .collect()
}
