//! How far apart the results of two programs are: both run on the same inputs by the reference interpreter.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use mil::eval::{self, Arithmetic, Array, Data, States, Value};
use mil::package::Package;
use mil::{Function, Program, ValueDef, ValueId};
use serde::Serialize;

use super::changes::pair_outputs;
use super::matching::{self, Matching};
use crate::constants::Scope;
use crate::difference::{Agreement, Difference, agreement};
use crate::error::{Context, Result};
use crate::inputs::{self, InputArg, Inputs};
use crate::outputs::arrays;

/// What to run, and what to look at.
pub struct NumericOptions<'a> {
    /// Function of both; by default the first package's default.
    pub function: Option<&'a str>,
    /// The inputs of the first function; the second is given the same.
    pub inputs: &'a [InputArg],
    /// How many times to run, states being kept.
    pub steps: usize,
    /// Seed of random inputs.
    pub seed: u64,
    /// How both round.
    pub arithmetic: Arithmetic,
    /// Whether to compare the results of all operations that both have.
    pub operations: bool,
    /// What counts as apart; see [`Difference::exceeds`].
    pub tolerance: f64,
}

/// An output or state of one step.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// In which call, from 0.
    pub step: usize,
    /// Its name in the first function.
    pub name: String,
    /// Element type and shape in the first function.
    #[serde(rename = "type")]
    pub ty: String,
    /// Those in the second, if others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_type: Option<String>,
    /// How far apart; `None` where shapes differ.
    pub difference: Option<Difference>,
    /// Of outputs with rows of several numbers: where the largest has the same place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argmax: Option<Agreement>,
    /// Whether it is beyond the tolerance.
    pub exceeds: bool,
}

/// The result of an operation that both functions have.
#[derive(Clone, Debug, Serialize)]
pub struct OperationDifference {
    /// In which call, from 0.
    pub step: usize,
    /// Kind of operation.
    pub kind: String,
    /// Name of the result in the first function.
    pub name: String,
    /// How far apart; `None` where shapes differ or it is no array.
    pub difference: Option<Difference>,
    /// Whether it is beyond the tolerance.
    pub exceeds: bool,
}

/// Where results part.
#[derive(Clone, Debug, Serialize)]
pub struct Divergence {
    /// In which call, from 0.
    pub step: usize,
    /// The operation in the first function, as errors name it.
    pub operation: String,
    /// The operation in the second.
    pub other: String,
    /// How far apart its results are.
    pub difference: Difference,
}

/// How far apart the results of two functions are.
#[derive(Clone, Debug, Serialize)]
pub struct NumericDiff {
    /// The first package's function.
    pub function: String,
    /// What counts as apart.
    pub tolerance: f64,
    /// Outputs that both have, step by step.
    pub outputs: Vec<Compared>,
    /// How many outputs only one of the functions has.
    pub unpaired: usize,
    /// States that both have, as each step leaves them.
    pub states: Vec<Compared>,
    /// Operations that both have, in the order of the second function, if asked for.
    pub operations: Vec<OperationDifference>,
    /// The first operation that is beyond the tolerance while what it is given is not, if operations were
    /// compared.
    pub first_divergence: Option<Divergence>,
}

impl NumericDiff {
    /// Whether both have the same outputs, and all outputs and states are equal.
    pub fn is_same(&self) -> bool {
        let equal = |c: &Compared| c.difference.as_ref().is_some_and(Difference::is_none);
        self.unpaired == 0 && self.outputs.iter().chain(&self.states).all(equal)
    }

    /// Whether both have the same outputs, and all outputs and states are within the tolerance.
    pub fn is_close(&self) -> bool {
        self.unpaired == 0 && !self.outputs.iter().chain(&self.states).any(|c| c.exceeds)
    }
}

/// Runs a function of both packages, whose programs verify, on the same inputs.
///
/// # Errors
/// When there is no such function in both, an input does not fit or has no counterpart, or an operation fails.
pub fn compare_runs(a: &Package, b: &Package, options: &NumericOptions<'_>) -> Result<NumericDiff> {
    let name = options.function.or(a.default_function()).context("the program has no function")?;
    let (pairs, ..) = super::functions(a, b);
    let other = pairs.iter().find(|(n, _)| n == name).map(|(_, other)| other.as_str());
    let other = other.with_context(|| format!("no function \"{name}\" in both"))?;
    let mut inputs = Inputs::new(a, name, options.inputs, options.steps, options.seed)?;
    let scopes = (Scope::new(&a.program, name), Scope::new(&b.program, other));
    let (x, y) = scopes.0.zip(scopes.1).context("the functions to run")?;
    let matching = matching::pair(&x, &y);
    let first = specialised(&a.program, name, &inputs.sizes)?;
    let given = inputs.step(0);
    let sizes = inputs::sizes(y.function, &converted(&x, &y, &matching, &given)?)?;
    let second = specialised(&b.program, other, &sizes)?;
    let scopes = (Scope::new(&first, name), Scope::new(&second, other));
    let (x, y) = scopes.0.zip(scopes.1).context("the functions to run")?;
    let mut states = (eval::new_states(&first, name)?, eval::new_states(&second, other)?);
    let paired = pair_outputs(&x, &y, &matching).len();
    let all = x.function.body.outputs.len() + y.function.body.outputs.len();
    let mut diff = NumericDiff {
        function: name.to_owned(),
        tolerance: options.tolerance,
        outputs: Vec::new(),
        unpaired: all.saturating_sub(2 * paired),
        states: Vec::new(),
        operations: Vec::new(),
        first_divergence: None,
    };
    let run = Run { a: &x, b: &y, matching: &matching, options };
    let mut given = Some(given);
    for step in 0..options.steps {
        let given = given.take().unwrap_or_else(|| inputs.step(step));
        run.step(step, &given, &mut states, &mut diff)?;
    }
    Ok(diff)
}

/// The program with `sizes` put in.
fn specialised(program: &Program, name: &str, sizes: &BTreeMap<String, usize>) -> Result<Program> {
    if sizes.is_empty() {
        return Ok(program.clone());
    }
    Ok(program.specialize_function(name, sizes)?)
}

/// What the second function is given: the first one's inputs in its own names and element types.
fn converted(
    a: &Scope<'_>,
    b: &Scope<'_>,
    matching: &Matching,
    given: &BTreeMap<String, Value>,
) -> Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    let partner: HashMap<ValueId, ValueId> =
        matching.params.iter().map(|(&v, &w)| (w, v)).collect();
    for &w in &b.function.inputs {
        let Some(ty) = b.function.tensor_ty(w) else { continue };
        let name = &b.function.values[w].name;
        let missing = || format!("the second program's input {name} ({ty}) has no counterpart");
        let value = partner.get(&w).and_then(|&v| given.get(&a.function.values[v].name));
        let array = value.with_context(missing)?.array()?;
        let array = inputs::converted(array, ty.dtype);
        let array = array.with_context(|| format!("the second program's input {name}"))?;
        all.insert(name.clone(), array.into());
    }
    Ok(all)
}

struct Run<'a> {
    a: &'a Scope<'a>,
    b: &'a Scope<'a>,
    matching: &'a Matching,
    options: &'a NumericOptions<'a>,
}

impl Run<'_> {
    fn step(
        &self,
        step: usize,
        given: &BTreeMap<String, Value>,
        states: &mut (States, States),
        diff: &mut NumericDiff,
    ) -> Result<()> {
        let Run { a, b, matching, options } = *self;
        let mut seen = HashMap::<ValueId, VecDeque<Rc<Array>>>::new();
        let mut note = |v: ValueId, value: &Value| {
            if let (true, Value::Array(array)) = (options.operations, value) {
                seen.entry(v).or_default().push_back(array.clone());
            }
        };
        let (first, second) = (&mut states.0, &mut states.1);
        let rounding = options.arithmetic;
        let out = eval::run_observed(a.program, a.name, rounding, given, first, &mut note)?;
        let given = converted(a, b, matching, given)?;
        let mut watch = Watch { run: self, step, seen, agrees: HashMap::new(), diff };
        let mut observe = |w: ValueId, value: &Value| {
            if options.operations {
                watch.observe(w, value);
            }
        };
        let other = eval::run_observed(b.program, b.name, rounding, &given, second, &mut observe)?;
        let outputs = pair_outputs(a, b, matching);
        for (i, j) in outputs {
            let one = |function: &Function, out: &[Value], i: usize| {
                arrays(&function.values[function.body.outputs[i]].name, out[i].clone())
            };
            let (x, y) = (one(a.function, &out, i)?, one(b.function, &other, j)?);
            for ((name, x), (_, y)) in x.iter().zip(&y) {
                diff.outputs.push(self.compared(step, name, x, y));
            }
        }
        for (&v, &w) in &matching.params {
            let (name, other) = (&a.function.values[v].name, &b.function.values[w].name);
            if let (Some(x), Some(y)) = (states.0.get(name), states.1.get(other)) {
                let state = self.compared(step, name, x, y);
                diff.states.push(Compared { argmax: None, ..state });
            }
        }
        diff.states.sort_by(|x, y| (x.step, &x.name).cmp(&(y.step, &y.name)));
        Ok(())
    }

    fn compared(&self, step: usize, name: &str, x: &Array, y: &Array) -> Compared {
        let ty = |a: &Array| mil::TensorType::new(a.dtype, a.shape.iter().copied()).to_string();
        let difference = Difference::new(x, y);
        let rows = x.shape.last().is_some_and(|&n| n > 1) && matches!(x.data, Data::Float(_));
        let exceeds = difference.as_ref().is_none_or(|d| d.exceeds(self.options.tolerance));
        Compared {
            step,
            name: name.to_owned(),
            ty: ty(x),
            other_type: (ty(x) != ty(y)).then(|| ty(y)),
            difference,
            argmax: if rows { agreement(x, y) } else { None },
            exceeds,
        }
    }
}

/// Watches the second function's values of one call.
struct Watch<'a, 'd> {
    run: &'a Run<'a>,
    step: usize,
    /// The first function's values, in the order they were made.
    seen: HashMap<ValueId, VecDeque<Rc<Array>>>,
    /// Whether the second function's values are within the tolerance.
    agrees: HashMap<ValueId, bool>,
    diff: &'d mut NumericDiff,
}

impl Watch<'_, '_> {
    fn observe(&mut self, w: ValueId, value: &Value) {
        let Run { a, b, matching, options } = *self.run;
        let ValueDef::Result(q, i) = b.function.values[w].def else { return };
        let mut given = true;
        b.function.for_each_use(q, &mut |used| {
            given &= used == w || self.agrees.get(&used).copied().unwrap_or(true);
        });
        let p = matching.back.get(&q);
        let v = p.and_then(|&p| a.function.ops[p].outputs.get(i as usize));
        // A value made several times, as in a loop, is compared turn by turn.
        let other = v.and_then(|v| self.seen.get_mut(v)?.pop_front());
        let (Some(&p), Some(&v), Some(x), Value::Array(y)) = (p, v, other, value) else {
            self.agrees.insert(w, given);
            return;
        };
        let difference = Difference::new(&x, y);
        let exceeds = difference.as_ref().is_none_or(|d| d.exceeds(options.tolerance));
        // Of other shapes nothing is known but what it is made of.
        self.agrees.insert(w, if difference.is_some() { !exceeds } else { given });
        if let (Some(difference), true, true, None) =
            (&difference, exceeds, given, &self.diff.first_divergence)
        {
            self.diff.first_divergence = Some(Divergence {
                step: self.step,
                operation: a.function.describe(p),
                other: b.function.describe(q),
                difference: difference.clone(),
            });
        }
        self.diff.operations.push(OperationDifference {
            step: self.step,
            kind: a.function.ops[p].kind.name().to_owned(),
            name: a.function.values[v].name.clone(),
            difference,
            exceeds,
        });
    }
}
