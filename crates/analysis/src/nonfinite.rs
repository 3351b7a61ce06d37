//! Which operation of a run first makes a NaN or an infinity that its arguments do not have.

use std::collections::{BTreeMap, HashMap};

use mil::eval::Value;
use mil::{Function, Program, ValueDef, ValueId};
use serde::Serialize;

use crate::statistics;

/// Where numbers ended.
#[derive(Clone, Serialize)]
pub struct Origin {
    /// In which call, from 0.
    pub step: usize,
    /// The operation, as errors name it.
    pub operation: String,
    /// Name of its result.
    pub result: String,
    /// Type of its result.
    #[serde(rename = "type")]
    pub ty: String,
    /// How many elements are NaN.
    pub nan: usize,
    /// How many elements are infinite.
    pub infinite: usize,
}

/// Whether a value has NaN, and whether it has infinities.
type Marks = (bool, bool);

/// Watches the values of one call.
pub struct Watch<'a> {
    program: &'a Program,
    function: &'a Function,
    step: usize,
    marks: HashMap<ValueId, Marks>,
    /// What was found.
    pub origin: Option<Origin>,
}

impl<'a> Watch<'a> {
    /// A watch over step `step`, with the given inputs: what they bring is not made.
    pub fn new(
        program: &'a Program,
        function: &'a Function,
        step: usize,
        inputs: &BTreeMap<String, Value>,
    ) -> Self {
        let marked = |&v: &ValueId| Some((v, marks(inputs.get(&function.values[v].name)?)));
        let marks = function.inputs.iter().filter_map(marked).collect();
        Watch { program, function, step, marks, origin: None }
    }

    /// Takes note of value `v`.
    pub fn observe(&mut self, v: ValueId, value: &Value) {
        if self.origin.is_some() {
            return;
        }
        let made = marks(value);
        self.marks.insert(v, made);
        let ValueDef::Result(op, _) = self.function.values[v].def else { return };
        if made == (false, false) {
            return;
        }
        let (mut nan, mut infinite) = (false, false);
        self.function.for_each_use(op, &mut |used| {
            // A result that a nested block hands out is no argument, but where its mark comes from.
            let of = self.marks.get(&used).copied().unwrap_or_else(|| self.of_constant(used));
            nan |= of.0;
            infinite |= of.1;
        });
        for arg in self.function.ops[op].args.iter().flatten() {
            arg.for_each_literal(&mut |literal| {
                let of = Value::from_literal(literal, &self.program.weights);
                let of = of.map_or((false, false), |value| marks(&value));
                nan |= of.0;
                infinite |= of.1;
            });
        }
        if (made.0 && !nan) || (made.1 && !infinite) {
            let (nan, infinite) = counts(value);
            self.origin = Some(Origin {
                step: self.step,
                operation: self.function.describe(op),
                result: self.function.values[v].name.clone(),
                ty: self.function.ty(v).to_string(),
                nan,
                infinite,
            });
        }
    }

    fn of_constant(&self, v: ValueId) -> Marks {
        let value = self.function.const_of(v);
        let value = value.and_then(|l| Value::from_literal(l, &self.program.weights).ok());
        value.map_or((false, false), |value| marks(&value))
    }
}

fn marks(value: &Value) -> Marks {
    let (nan, infinite) = counts(value);
    (nan > 0, infinite > 0)
}

fn counts(value: &Value) -> (usize, usize) {
    let add = |a: (usize, usize), b: (usize, usize)| (a.0 + b.0, a.1 + b.1);
    match value {
        Value::Array(array) => statistics::nonfinite(array),
        Value::List(items) => items.iter().map(counts).fold((0, 0), add),
        Value::Dict(entries) => entries.iter().map(|(_, v)| counts(v)).fold((0, 0), add),
        Value::State(_) => (0, 0),
    }
}
