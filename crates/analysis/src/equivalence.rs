//! Whether a program computes what another one does, on random inputs.

use std::collections::BTreeMap;

use mil::eval::{self, Arithmetic, Array, Data, States, Value};
use mil::package::{Kind, Package, Shapes};
use mil::{ErrorKind, Program, TensorType};
use serde::Serialize;
use tensor::DType;

use crate::Error;
use crate::error::{Context, Result, bail, ensure};
use crate::inputs::{InputArg, Inputs};
use crate::padding;

/// Calls of a function that has states, each of which finds what the one before left.
const STEPS: usize = 3;

/// How close results must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Closeness {
    /// Equal to the bit, where the results of each operation are rounded to their types.
    Bits,
    /// Equal but for rounding, where nothing but constants is rounded: a result of half precision may be off
    /// by a hundredth of its largest element, any other by a ten-thousandth.
    Rounding,
    /// Equal where nothing at all is rounded but in double precision: sums may be in another order.
    Exact,
}

impl Closeness {
    fn arithmetic(self) -> Arithmetic {
        match self {
            Closeness::Bits => Arithmetic::Fp16,
            Closeness::Rounding | Closeness::Exact => Arithmetic::Exact,
        }
    }

    /// The largest difference allowed, as a part of the largest element.
    fn limit(self, halves: bool) -> f64 {
        match self {
            Closeness::Bits => 0.0,
            Closeness::Rounding if halves => 1e-2,
            Closeness::Rounding => 1e-4,
            Closeness::Exact => 1e-9,
        }
    }
}

/// What was compared of one function.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Checked {
    /// The function.
    pub function: String,
    /// Sets of input shapes.
    pub shapes: usize,
    /// Calls with each.
    pub steps: usize,
    /// The largest difference of an element, as a part of the largest element of its tensor.
    pub difference: f64,
}

/// Calls of a program's functions, and what they gave.
pub struct Reference {
    closeness: Closeness,
    /// Whether something in the program is of half precision.
    halves: bool,
    trials: Vec<Trial>,
}

/// Calls of one function with inputs of fixed shapes.
struct Trial {
    function: String,
    sizes: BTreeMap<String, usize>,
    inputs: Steps,
    expected: Outcome,
}

/// The inputs of each call, by name.
type Steps = Vec<BTreeMap<String, Value>>;

/// The part of the first array that is compared with the second; `None` for all of it.
type Cut<'a> = dyn Fn(&Array, &Array) -> Option<Array> + 'a;

/// What calls gave: outputs by name of each, and the states after the last.
struct Outcome {
    outputs: Vec<BTreeMap<String, Value>>,
    states: States,
}

impl Reference {
    /// Runs every function of `package` on `given` inputs, and random ones where none are given: at the
    /// inputs' default shapes and, where they may have others, at a second set of shapes. Integers that are not
    /// given are of 0 to 9; where the program refuses those, they are 0.
    ///
    /// # Errors
    /// When a function cannot be run on such inputs; those of [`Inputs::new`].
    pub fn new(
        package: &Package,
        given: &[InputArg],
        closeness: Closeness,
        seed: u64,
    ) -> Result<Self> {
        let functions = &package.program.functions;
        let mut trials = Vec::new();
        for name in functions.keys() {
            let shapes = input_shapes(package, name);
            trials.push(
                Trial::new(package, name, &shapes[0], given, (closeness, seed))
                    .with_context(|| format!("function {name}"))?,
            );
            for other in &shapes[1..] {
                // A second choice of shapes need not fit together; the first one must.
                trials.extend(Trial::new(package, name, other, given, (closeness, seed)));
            }
        }
        let halves = has_halves(&package.program);
        Ok(Reference { closeness, halves, trials })
    }

    /// How close results must be.
    pub fn closeness(&self) -> Closeness {
        self.closeness
    }

    /// Runs the same calls of `program` and compares.
    ///
    /// # Errors
    /// The first that fails or gives something else: function, step, and output or state.
    pub fn hold(&self, program: &Program) -> Result<Vec<Checked>> {
        self.compared(program, &|trial| Ok(trial.inputs.clone()), &|_, _| None)
    }

    /// As [`Reference::hold`], for a program of whose inputs, outputs and states some axes are longer. Inputs are
    /// lengthened by what is no number, which must have no effect; of outputs and states the part is compared
    /// that was there before.
    ///
    /// # Errors
    /// As [`Reference::hold`].
    pub fn hold_grown(&self, program: &Program) -> Result<Vec<Checked>> {
        self.compared(program, &|trial| grown_inputs(trial, program), &|actual, expected| {
            let corner = padding::fits(&expected.shape, &actual.shape);
            corner.then(|| padding::cut(actual, &expected.shape))
        })
    }

    fn compared(
        &self,
        program: &Program,
        inputs: &dyn Fn(&Trial) -> Result<Steps>,
        cut: &Cut<'_>,
    ) -> Result<Vec<Checked>> {
        let mut all: Vec<Checked> = Vec::new();
        for trial in &self.trials {
            let difference = inputs(trial)
                .and_then(|inputs| self.difference(trial, program, &inputs, cut))
                .with_context(|| format!("function {}", trial.function))?;
            match all.iter_mut().find(|c| c.function == trial.function) {
                Some(checked) => {
                    checked.shapes += 1;
                    checked.difference = checked.difference.max(difference);
                }
                None => all.push(Checked {
                    function: trial.function.clone(),
                    shapes: 1,
                    steps: trial.inputs.len(),
                    difference,
                }),
            }
        }
        Ok(all)
    }

    /// The largest difference between what `trial` gave and gives.
    fn difference(
        &self,
        trial: &Trial,
        program: &Program,
        inputs: &[BTreeMap<String, Value>],
        cut: &Cut<'_>,
    ) -> Result<f64> {
        let arithmetic = self.closeness.arithmetic();
        let actual = outcome(program, &trial.function, &trial.sizes, inputs, arithmetic)?;
        let mut largest = 0f64;
        let mut same = |place: String, actual: &Value, expected: &Value| {
            let corner = match (actual, expected) {
                (Value::Array(a), Value::Array(e)) => cut(a, e).map(Value::from),
                _ => None,
            };
            let actual = corner.as_ref().unwrap_or(actual);
            let difference = value_difference(actual, expected).context(place.clone())?;
            let Some(difference) = difference else {
                bail!(
                    "{place}: cannot be compared: before, too, no element is a number; other inputs may help (--input)"
                );
            };
            let limit = self.closeness.limit(self.halves || has_halves(program));
            if difference.is_nan() || difference > limit {
                bail!(
                    "{place}: differs by {difference:.1e} of the largest element, more than {limit:.1e}"
                );
            }
            largest = largest.max(difference);
            Ok(())
        };
        let steps = trial.expected.outputs.iter().zip(&actual.outputs).enumerate();
        for (step, (expected, actual)) in steps {
            names("outputs", actual, expected)?;
            for (name, expected) in expected {
                same(format!("output {name} of step {step}"), &actual[name], expected)?;
            }
        }
        let expected = &trial.expected.states;
        names("states", &actual.states, expected)?;
        for (name, expected) in expected {
            let (actual, expected) = (actual.states[name].clone(), expected.clone());
            same(format!("state {name}"), &actual.into(), &expected.into())?;
        }
        Ok(largest)
    }
}

/// The inputs of a trial, as long as those of `program`.
fn grown_inputs(trial: &Trial, program: &Program) -> Result<Steps> {
    let function = program.functions.get(&trial.function).context("the function is missing")?;
    let grown = |(name, value): (&String, &Value)| {
        let ty = function.input(name).and_then(|v| function.tensor_ty(v));
        let shape = ty.and_then(TensorType::fixed_shape);
        let value = match (value, shape) {
            (Value::Array(a), Some(shape)) if padding::fits(&a.shape, &shape) => {
                padding::grown(a, &shape).into()
            }
            _ => value.clone(),
        };
        (name.clone(), value)
    };
    Ok(trial.inputs.iter().map(|step| step.iter().map(grown).collect()).collect())
}

/// Whether something in the program is of half precision.
fn has_halves(program: &Program) -> bool {
    let mut values = program.functions.values().flat_map(|f| f.values.values());
    values.any(|v| {
        let mut half = false;
        v.ty.for_each_tensor(&mut |t| half |= t.dtype == DType::F16);
        half
    })
}

/// Checks that the names are the same.
fn names<A, B>(what: &str, a: &BTreeMap<String, A>, e: &BTreeMap<String, B>) -> Result<()> {
    let list =
        |names: Vec<&String>| names.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(", ");
    let (actual, expected) = (list(a.keys().collect()), list(e.keys().collect()));
    ensure!(actual == expected, "{what} {actual} instead of {expected}");
    Ok(())
}

impl Trial {
    fn new(
        package: &Package,
        name: &str,
        shapes: &BTreeMap<String, Vec<usize>>,
        given: &[InputArg],
        (closeness, seed): (Closeness, u64),
    ) -> Result<Self> {
        let function = package.program.functions.get(name).context("it is missing")?;
        let stateful = function.inputs.iter().any(|&v| function.ty(v).as_state().is_some());
        let steps = if stateful { STEPS } else { 1 };
        let known = |a: &&InputArg| a.name().and_then(|name| function.input(name)).is_some();
        let given: Vec<InputArg> = given.iter().filter(known).cloned().collect();
        let run = |integers: &str| -> Result<Trial> {
            let mut arguments = given.clone();
            for &v in &function.inputs {
                let (input, ty) = (&function.values[v].name, function.tensor_ty(v));
                let Some(ty) = ty.filter(|_| given.iter().all(|a| a.name() != Some(input))) else {
                    continue;
                };
                let source = if ty.dtype.is_int() { integers } else { "random" };
                let shape = shapes.get(input).map(|shape| {
                    format!(":{}", shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x"))
                });
                let argument = format!("{input}={source}{}", shape.unwrap_or_default());
                arguments.push(argument.parse().map_err(Error::Invalid)?);
            }
            let mut made = Inputs::new(package, name, &arguments, steps, seed)?;
            let inputs: Vec<_> = (0..steps).map(|step| made.step(step)).collect();
            let sizes = std::mem::take(&mut made.sizes);
            let arithmetic = closeness.arithmetic();
            let expected = outcome(&package.program, name, &sizes, &inputs, arithmetic)?;
            Ok(Trial { function: name.to_owned(), sizes, inputs, expected })
        };
        run("random").or_else(|first| {
            let invalid = |e: &mil::Error| e.kind == ErrorKind::Invalid;
            let values = matches!(first.cause(), Error::Program(e) if invalid(e));
            // Positions and lengths are small, and often may only be 0 together.
            if values { run("zeros").map_err(|_| first) } else { Err(first) }
        })
    }
}

fn outcome(
    program: &Program,
    name: &str,
    sizes: &BTreeMap<String, usize>,
    inputs: &[BTreeMap<String, Value>],
    arithmetic: Arithmetic,
) -> Result<Outcome> {
    let specialized = program.specialize_function(name, sizes)?;
    let function = specialized.functions.get(name).context("the function is missing")?;
    let mut states = eval::new_states(&specialized, name)?;
    let mut outputs = Vec::new();
    for given in inputs {
        let values = eval::run(&specialized, name, arithmetic, given, &mut states)?;
        let named = function.body.outputs.iter().map(|&v| function.values[v].name.clone());
        outputs.push(named.zip(values).collect());
    }
    Ok(Outcome { outputs, states })
}

/// The largest difference between elements, as a part of the largest expected one; `None` where there are elements
/// and none of them is a number.
fn value_difference(actual: &Value, expected: &Value) -> Result<Option<f64>> {
    let parts = match (actual, expected) {
        (Value::Array(a), Value::Array(e)) => return array_difference(a, e),
        (Value::List(a), Value::List(e)) if a.len() == e.len() => {
            a.iter().zip(e).map(|(a, e)| value_difference(a, e)).collect::<Result<Vec<_>>>()?
        }
        (Value::Dict(a), Value::Dict(e)) if a.len() == e.len() => {
            let pairs = a.iter().zip(e).flat_map(|((ak, av), (ek, ev))| [(ak, ek), (av, ev)]);
            pairs.map(|(a, e)| value_difference(a, e)).collect::<Result<Vec<_>>>()?
        }
        _ => bail!("is a value of another form"),
    };
    let numbers = parts.iter().flatten().copied();
    Ok(numbers.reduce(f64::max).or(parts.is_empty().then_some(0.0)))
}

fn array_difference(a: &Array, e: &Array) -> Result<Option<f64>> {
    let same_type = a.dtype == e.dtype && a.shape == e.shape;
    ensure!(same_type, "{} {:?} instead of {} {:?}", a.dtype, a.shape, e.dtype, e.shape);
    let (Data::Float(a), Data::Float(e)) = (&a.data, &e.data) else {
        return Ok(Some(if a.data == e.data { 0.0 } else { f64::INFINITY }));
    };
    if !e.is_empty() && a.iter().zip(e).all(|(a, e)| a.is_nan() && e.is_nan()) {
        return Ok(None);
    }
    let largest = e.iter().filter(|v| v.is_finite()).fold(f64::MIN_POSITIVE, |m, v| m.max(v.abs()));
    let differences = a.iter().zip(e).map(|(a, e)| match (a - e).abs() {
        _ if a == e || (a.is_nan() && e.is_nan()) => 0.0,
        d if d.is_nan() || !e.is_finite() => f64::INFINITY,
        d => d / largest,
    });
    Ok(Some(differences.fold(0.0, f64::max)))
}

/// Shapes that the inputs of function `name` may have together: the default ones (inputs without a choice left
/// out), then others if there is a choice.
fn input_shapes(package: &Package, name: &str) -> Vec<BTreeMap<String, Vec<usize>>> {
    let inputs = package.interface(name).map(|i| i.inputs).unwrap_or_default();
    let mut other = BTreeMap::new();
    for input in inputs {
        let Kind::Array(_, shapes) = input.kind else { continue };
        if let Some(shape) = other_shape(&shapes) {
            other.insert(input.name, shape);
        }
    }
    let mut all = vec![BTreeMap::new()];
    if !other.is_empty() {
        all.push(other);
    }
    all
}

/// A shape that is not the default one.
fn other_shape(shapes: &Shapes) -> Option<Vec<usize>> {
    let sizes = |shape: &[i64]| shape.iter().map(|&n| usize::try_from(n).ok()).collect();
    match shapes {
        Shapes::Fixed(_) => None,
        Shapes::Enumerated { default, shapes } => sizes(shapes.iter().find(|s| *s != default)?),
        Shapes::Range { default, ranges } => {
            let default: Vec<usize> = sizes(default)?;
            let size = |(&n, &(low, high)): (&usize, &(u64, Option<u64>))| {
                let high = high.map_or(usize::MAX, |h| h as usize);
                if n < high { n + 1 } else { n.saturating_sub(1).max(low as usize) }
            };
            Some(default.iter().zip(ranges).map(size).collect())
        }
    }
}

/// The smallest number of steps, of `1..=count`, after which `holds` fails, by halving; it holds after none and
/// fails after all.
pub fn first_failing(count: usize, mut holds: impl FnMut(usize) -> bool) -> usize {
    let (mut good, mut bad) = (0, count);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if holds(middle) { good = middle } else { bad = middle }
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(body: &str) -> Package {
        let text = format!(
            "program(1.3)\n[]\n{{\n    func main<ios18>(tensor<fp32, [2, 3]> x, tensor<int32, [2]> i, \
             state<tensor<fp32, [2, 3]>> s) {{\n{body}    }} -> (y);\n}}"
        );
        let parsed = mil::text::parse(&text, &mil::text::NoBlobs).unwrap();
        Package::from_program(parsed.program)
    }

    const SUM: &str = "tensor<fp32, [2, 3]> r = read_state(input = s);
        tensor<fp32, [2, 3]> n = add(x = r, y = x);
        write_state(input = s, data = n);
        tensor<fp32, [2, 3]> y = gather(x = n, indices = i, axis = int32(0));\n";

    #[test]
    fn states_count_over_steps_and_integers_are_legal() {
        let before = package(SUM);
        let reference = Reference::new(&before, &[], Closeness::Bits, 0).unwrap();
        let checked = reference.hold(&before.program).unwrap();
        assert_eq!((checked[0].steps, checked[0].difference), (STEPS, 0.0));
        // What the first step hides, a later one shows.
        let other = package(&SUM.replace("add(x = r, y = x)", "maximum(x = r, y = x)"));
        let error = reference.hold(&other.program).unwrap_err();
        assert_eq!(error.to_string(), "function main");
        let cause = error.cause().to_string();
        assert!(cause.starts_with("output y of step"), "{cause}");
    }

    #[test]
    fn rounding_is_allowed_only_where_it_may_be() {
        let before = package(SUM);
        let reference = Reference::new(&before, &[], Closeness::Rounding, 0).unwrap();
        let scaled = SUM.replace(
            "tensor<fp32, [2, 3]> y = gather(x = n,",
            "tensor<fp32, [2, 3]> m = mul(x = n, y = fp32(1.00001));
        tensor<fp32, [2, 3]> y = gather(x = m,",
        );
        let scaled = package(&scaled);
        assert!(reference.hold(&scaled.program).unwrap()[0].difference > 0.0);
        let exact = Reference::new(&before, &[], Closeness::Bits, 0).unwrap();
        exact.hold(&scaled.program).unwrap_err();
    }

    #[test]
    fn what_is_no_number_is_not_equal() {
        let sum = SUM.replace("add(x = r, y = x)", "mul(x = x, y = fp32(nan))");
        let before = package(&sum);
        let reference = Reference::new(&before, &[], Closeness::Exact, 0).unwrap();
        let error = reference.hold(&before.program).unwrap_err().cause().to_string();
        assert!(error.starts_with("output y of step 0: cannot be compared"), "{error}");
    }

    #[test]
    fn halving_finds_the_first() {
        for count in 1..9 {
            for first in 1..=count {
                assert_eq!(first_failing(count, |n| n < first), first);
            }
        }
    }
}
