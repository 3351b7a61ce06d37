//! Fixes a program and compares what it gives before and after in exact arithmetic.

use std::collections::BTreeMap;

use ane_model::{CheckOptions, Chip, Fix, Path, check};
use mil::eval::{self, Arithmetic, Array, Data, Value};
use mil::{FunctionBuilder, Literal, OpKind, Opset, Program, TensorType, ValueId};
use rigel_passes::fixes::{Fixed, fix};
use tensor::DType;
use testkit::seeded;

/// Calls of each function; states stay from one to the next.
const STEPS: usize = 3;

/// How far apart results may be where nothing is rounded: sums in another order.
pub(crate) const ORDER: f64 = 1e-11;

/// The same where a rewriting makes constants of single or half precision.
pub(crate) const fn constants(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 5e-3,
        DType::F32 => 2e-6,
        _ => ORDER,
    }
}

/// A random program and what it is checked for.
pub(crate) struct Subject {
    pub(crate) program: Program,
    pub(crate) chip: Chip,
    pub(crate) path: Path,
    pub(crate) interface: bool,
}

impl Subject {
    /// A function `main` made by `build`, for a chip by the direct path.
    pub(crate) fn new(
        chip: &str,
        build: impl FnOnce(&mut FunctionBuilder<'_>) -> mil::Result<Vec<ValueId>>,
    ) -> Self {
        let mut program = Program::default();
        let mut f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
        let outputs = build(&mut f).unwrap();
        let function = f.finish(outputs);
        program.functions.insert("main".to_owned(), function);
        mil::verify(&program).unwrap();
        let chip = Chip::find(chip).unwrap().clone();
        Subject { program, chip, path: Path::Direct, interface: false }
    }

    fn options(&self) -> CheckOptions<'_> {
        CheckOptions { chip: &self.chip, path: self.path, os: None }
    }

    /// Findings that `kind` answers.
    fn findings(&self, program: &Program, kind: Fix) -> usize {
        check(program, &self.options()).iter().filter(|d| d.rule.rewriting == Some(kind)).count()
    }

    /// The program after all that can be fixed.
    pub(crate) fn fixed(&self) -> (Program, Fixed) {
        let mut program = self.program.clone();
        let fixed = fix(&mut program, &self.options(), self.interface, &|_| true).unwrap();
        (program, fixed)
    }

    /// Fixes the program: `kind` is called for and done, its rules complain no more, a second time nothing is done,
    /// and results are within `limit` of the largest element of each. Returns the largest difference.
    pub(crate) fn prove(&self, kind: Fix, limit: f64) -> Result<f64, String> {
        let (after, fixed) = self.fixed();
        let told = || format!("{:?}\n{:?}", fixed.applied, fixed.left);
        if !fixed.applied.iter().any(|a| a.fix == kind) {
            return Err(format!("no {kind:?}: {}", told()));
        }
        if self.findings(&self.program, kind) == 0 || self.findings(&after, kind) > 0 {
            return Err(format!("the rule does not complain before, or does after: {}", told()));
        }
        let mut again = after.clone();
        let second = fix(&mut again, &self.options(), self.interface, &|_| true).unwrap();
        if !second.applied.is_empty() {
            return Err(format!("not idempotent: {:?}", second.applied));
        }
        let mut largest = 0f64;
        for name in self.program.functions.keys() {
            let expected = run(&self.program, &self.program, name)?;
            let actual = run(&after, &self.program, name)?;
            for (name, e) in &expected {
                let a = actual.get(name).ok_or_else(|| format!("{name} is missing"))?;
                let difference = difference(a, e).map_err(|why| format!("{name}: {why}"))?;
                if difference.is_nan() || difference > limit {
                    return Err(format!("{name} differs by {difference:e}: {}", told()));
                }
                largest = largest.max(difference);
            }
        }
        Ok(largest)
    }
}

/// Outputs of each call and the states after the last. Inputs are those of the program `before`; where the function
/// has longer ones now, what is new is no number.
fn run(program: &Program, before: &Program, name: &str) -> Result<BTreeMap<String, Array>, String> {
    let (function, old) = (&program.functions[name], &before.functions[name]);
    let mut states = eval::new_states(program, name).map_err(|e| e.to_string())?;
    let mut results = BTreeMap::new();
    for step in 0..STEPS {
        let mut given = BTreeMap::new();
        for (&v, &was) in function.inputs.iter().zip(&old.inputs) {
            let Some(ty) = function.tensor_ty(v) else { continue };
            let (input, small) = (&function.values[v].name, old.tensor_ty(was).unwrap());
            let array = input_array(input, step, small);
            given.insert(input.clone(), Value::from(grown(&array, &ty.fixed_shape().unwrap())));
        }
        let values = eval::run(program, name, Arithmetic::Exact, &given, &mut states);
        for (&v, value) in function.body.outputs.iter().zip(values.map_err(|e| e.to_string())?) {
            let key = format!("output {} of step {step}", function.values[v].name);
            results.insert(key, Array::clone(value.array().unwrap()));
        }
    }
    results.extend(states.into_iter().map(|(state, array)| (format!("state {state}"), array)));
    Ok(results)
}

/// Numbers in [-2, 2), or the number of the step.
fn input_array(name: &str, step: usize, ty: &TensorType) -> Array {
    let shape = ty.fixed_shape().unwrap();
    let n = shape.iter().product();
    let data = if ty.dtype.is_int() {
        Data::Int(vec![step as i64; n])
    } else {
        let values = seeded::tensor(step as u64 + 1, name, n, 2.0);
        Data::Float(values.into_iter().map(f64::from).collect())
    };
    Array { dtype: ty.dtype, shape, data }
}

/// For each element of the corner `small` its place in `large`.
fn corner(small: &[usize], large: &[usize]) -> Vec<usize> {
    let grow = |places: Vec<usize>, (&s, &l): (&usize, &usize)| {
        places.iter().flat_map(|&p| (0..s).map(move |i| p * l + i)).collect()
    };
    small.iter().zip(large).fold(vec![0], grow)
}

fn grown(array: &Array, shape: &[usize]) -> Array {
    if array.shape == shape {
        return array.clone();
    }
    let mut values = vec![f64::NAN; shape.iter().product()];
    for (place, &value) in corner(&array.shape, shape).into_iter().zip(array.floats().unwrap()) {
        values[place] = value;
    }
    Array { dtype: array.dtype, shape: shape.to_vec(), data: Data::Float(values) }
}

/// The largest difference from `e`, over the largest element of it, in the corner that `e` is of.
fn difference(a: &Array, e: &Array) -> Result<f64, String> {
    let fits = a.shape.len() == e.shape.len() && e.shape.iter().zip(&a.shape).all(|(e, a)| e <= a);
    if !fits || a.dtype != e.dtype {
        return Err(format!("{} {:?} instead of {} {:?}", a.dtype, a.shape, e.dtype, e.shape));
    }
    let (actual, expected) = (a.floats().unwrap(), e.floats().unwrap());
    let largest = expected.iter().fold(f64::MIN_POSITIVE, |m, v| m.max(v.abs()));
    if !largest.is_finite() || expected.iter().any(|v| v.is_nan()) {
        return Err("the program gives no numbers".to_owned());
    }
    let pairs = corner(&e.shape, &a.shape).into_iter().zip(expected);
    Ok(pairs.fold(0.0, |worst: f64, (place, e)| {
        let d = (actual[place] - e).abs() / largest;
        if d.is_nan() { f64::NAN } else { worst.max(d) }
    }))
}

/// A constant with seeded values in [-scale, scale).
pub(crate) fn literal(dtype: DType, name: &str, shape: &[usize], scale: f32) -> Literal {
    let values = seeded::tensor(7, name, shape.iter().product(), scale);
    let data = Data::Float(values.into_iter().map(f64::from).collect());
    Literal::tensor(Array { dtype, shape: shape.to_vec(), data }.to_tensor().unwrap())
}

/// A weight of the weight file.
pub(crate) fn weight(
    f: &mut FunctionBuilder<'_>,
    dtype: DType,
    name: &str,
    shape: &[usize],
    scale: f32,
) -> ValueId {
    let literal = literal(dtype, name, shape, scale);
    let tensor = literal.resolve(f.weights()).unwrap().clone();
    f.new_weight(name, tensor).unwrap()
}

/// Up to three operations on each element, as `seed` says.
pub(crate) fn around(f: &mut FunctionBuilder<'_>, x: ValueId, seed: usize) -> mil::Result<ValueId> {
    let (mut x, mut seed) = (x, seed);
    for _ in 0..seed % 4 {
        seed /= 4;
        let dtype = f.ty(x).as_tensor().unwrap().dtype;
        x = match seed % 5 {
            0 => f.op(OpKind::Tanh).arg("x", x).result()?,
            1 => f.op(OpKind::Relu).arg("x", x).result()?,
            2 => f.op(OpKind::Add).arg("x", x).arg("y", x).result()?,
            3 => {
                let half = f.constant("half", literal(dtype, "half", &[], 1.0));
                f.op(OpKind::Mul).arg("x", x).arg("y", half).result()?
            }
            _ => f.op(OpKind::Sigmoid).arg("x", x).result()?,
        };
    }
    Ok(x)
}
