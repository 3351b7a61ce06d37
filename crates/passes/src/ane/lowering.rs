//! The building of steps: programs for the engine and for the host, and what goes from one to another.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ane_model::chip::BindingOrder;
use mil::{
    Arg, Error, ErrorKind, Function, FunctionBuilder, OpId, OpKind, OpView, Opset, Payload,
    Program, Result, TensorType, ValueDef, ValueId,
};
use tensor::{DType, Tensor, WeightStore};

use super::emitter::Emitter;
use super::host::{self, Auxiliary};
use super::weights::halves;
use super::{
    AdapterSlot, Binding, EngineStep, Form, HalfWeights, HostSource, HostStep, Lowered, Source,
    StateSlot, Step, Target, Variable, Wire, plain, used_from_outside,
};

/// A function on its way to steps.
pub(super) struct Lowering<'a> {
    pub(super) program: &'a Program,
    pub(super) name: &'a str,
    pub(super) function: &'a Function,
    pub(super) form: Form,
    pub(super) target: Target<'a>,
    pub(super) variable: &'a Variable,
    pub(super) weights: &'a mut HalfWeights,
    pub(super) wires: Vec<(String, TensorType)>,
    wire_of: HashMap<ValueId, Wire>,
    pub(super) auxiliary: HashMap<(ValueId, Auxiliary), Wire>,
    pub(super) states: Vec<(ValueId, StateSlot)>,
    pub(super) adapters: Vec<(AdapterSlot, [usize; 2])>,
    pub(super) given: Vec<(String, [usize; 2])>,
    inputs: Vec<(String, Wire)>,
    pub(super) steps: Vec<Step>,
}

/// What became of a segment for the engine.
pub(super) struct Emitted {
    /// Which operation of the program comes from which.
    pub(super) origins: BTreeMap<OpId, OpId>,
    /// Operations that turned out to have no form, and why.
    pub(super) refused: BTreeMap<OpId, String>,
}

pub(super) fn bug(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Bug, message)
}

impl<'a> Lowering<'a> {
    pub(super) fn new(
        program: &'a Program,
        name: &'a str,
        form: Form,
        target: &Target<'a>,
        variable: &'a Variable,
        weights: &'a mut HalfWeights,
    ) -> Self {
        let function = &program.functions[name];
        let mut lowering = Lowering {
            program,
            name,
            function,
            form,
            target: *target,
            variable,
            weights,
            wires: Vec::new(),
            wire_of: HashMap::new(),
            auxiliary: HashMap::new(),
            states: Vec::new(),
            adapters: Vec::new(),
            given: Vec::new(),
            inputs: Vec::new(),
            steps: Vec::new(),
        };
        for &v in &function.inputs {
            if function.tensor_ty(v).is_some() {
                let wire = lowering.new_wire(v);
                lowering.inputs.push((function.values[v].name.clone(), wire));
            }
        }
        lowering
    }

    fn new_wire(&mut self, v: ValueId) -> Wire {
        let data = &self.function.values[v];
        let ty = self
            .function
            .tensor_ty(v)
            .cloned()
            .unwrap_or_else(|| TensorType::new(DType::F32, [0usize; 0]));
        self.wires.push((data.name.clone(), ty));
        let wire = Wire(self.wires.len() - 1);
        self.wire_of.insert(v, wire);
        wire
    }

    pub(super) fn wire(&self, v: ValueId) -> Result<Wire> {
        let name = &self.function.values[v].name;
        self.wire_of.get(&v).copied().ok_or_else(|| bug(format!("{name} crosses no border")))
    }

    pub(super) fn last(&self) -> Option<&Step> {
        self.steps.last()
    }

    /// Values that operations in `ops` make and others, or the function's end, use.
    fn results(&self, ops: &[OpId]) -> Vec<ValueId> {
        let own: BTreeSet<OpId> = ops.iter().copied().collect();
        let others: Vec<OpId> =
            self.function.body.ops.iter().copied().filter(|op| !own.contains(op)).collect();
        let mut used: BTreeSet<ValueId> =
            used_from_outside(self.function, &others).into_iter().collect();
        used.extend(&self.function.body.outputs);
        let made = ops.iter().flat_map(|&op| self.function.ops[op].outputs.iter().copied());
        made.filter(|v| used.contains(v)).collect()
    }

    /// A step of operations as they are. States of plain programs are the host's; those of the
    /// dialect's caches are the engine's.
    pub(super) fn host(&mut self, ops: &[OpId]) -> Result<()> {
        let inputs = used_from_outside(self.function, ops);
        let results = self.results(ops);
        let is_state = |&v: &ValueId| self.function.ty(v).as_state().is_some();
        if self.form == Form::Dialect
            && let Some(v) = inputs.iter().copied().find(|v| is_state(v))
        {
            let name = &self.function.values[v].name;
            let message = format!("function {}: state {name} is used on the host", self.name);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let program = host::part(self.program, self.name, ops, &inputs, &results)?;
        let named = |v: ValueId| self.function.values[v].name.clone();
        let inputs = inputs
            .into_iter()
            .filter(|v| !is_state(v))
            .map(|v| Ok((named(v), HostSource::Wire(self.wire(v)?))))
            .collect::<Result<_>>()?;
        let outputs = results.into_iter().map(|v| (named(v), self.new_wire(v))).collect();
        self.steps.push(Step::Host(HostStep { program, inputs, outputs }));
        Ok(())
    }

    /// A program of operations that the engine takes.
    pub(super) fn engine(&mut self, ops: &[OpId]) -> Result<Emitted> {
        let opset = self.target.os.opset().unwrap_or(Opset::Ios16).min(Opset::Ios18);
        let mut store = WeightStore::new();
        let mut emitter = Emitter::new(
            FunctionBuilder::new("main", opset, &mut store),
            self.target.columns,
            self.target.width_multiple(),
        );
        let mut emitted = Emitted { origins: BTreeMap::new(), refused: BTreeMap::new() };
        for &op in ops {
            let first = emitter.b.function().ops.len();
            let made = match self.form {
                Form::Dialect => self.emit(&mut emitter, op),
                Form::Plain { .. } => self.emit_plain(&mut emitter, op),
            };
            match made {
                Ok(()) => {}
                // Of a valid program, what is wrong in four axes has no form.
                Err(e)
                    if matches!(e.kind, ErrorKind::Unsupported | ErrorKind::Limit)
                        || e.kind == ErrorKind::Invalid && self.form != Form::Dialect =>
                {
                    emitted.refused.insert(op, e.message);
                    self.pretend(&mut emitter, op);
                }
                Err(e) => return Err(e),
            }
            let added = emitter.b.function().ops.keys().skip(first);
            emitted.origins.extend(added.map(|new| (new, op)));
        }
        for v in self.results(ops) {
            let wire = self.new_wire(v);
            let Some(&made) = emitter.values.get(&v) else { continue };
            let name = format!("out_{}", self.function.values[v].name);
            let first = emitter.b.function().ops.len();
            match self.form {
                Form::Dialect => emitter.output(made, &name, Source::Tokens(wire))?,
                Form::Plain { .. } => {
                    let rows = emitter.rows(made, &name)?;
                    emitter.output(rows, &name, Source::Rows(wire))?;
                }
            }
            if let ValueDef::Result(maker, _) = self.function.values[v].def {
                let added = emitter.b.function().ops.keys().skip(first);
                emitted.origins.extend(added.map(|new| (new, maker)));
            }
        }
        let Emitter { b, inputs, outputs, .. } = emitter;
        let mut function = b.finish(Vec::new());
        let (mut inputs, mut outputs) =
            (bindings(&function, inputs)?, bindings(&function, outputs)?);
        // Names in the order of the signature serve two of the orders that sources claim.
        function.inputs = inputs.iter().map(|(v, _)| *v).collect();
        function.body.outputs = outputs.iter().map(|(v, _)| *v).collect();
        if self.target.chip.switches.binding.as_ref().map(|s| s.value) == Some(BindingOrder::Size) {
            let size = |b: &Binding| b.shape.iter().product::<usize>();
            inputs.sort_by_key(|(_, b)| size(b));
            outputs.sort_by_key(|(_, b)| std::cmp::Reverse(size(b)));
        }
        let strip = |list: Vec<(ValueId, Binding)>| list.into_iter().map(|(_, b)| b).collect();
        let program = Program {
            functions: [("main".to_owned(), function)].into(),
            weights: store,
            ..Program::default()
        };
        mil::verify(&program)?;
        let (inputs, outputs) = (strip(inputs), strip(outputs));
        self.steps.push(Step::Engine(EngineStep {
            label: self.label(ops),
            program,
            inputs,
            outputs,
        }));
        Ok(emitted)
    }

    /// Takes the results of a refused operation for given, so that those after it can be tried.
    fn pretend(&mut self, e: &mut Emitter<'_>, op: OpId) {
        for v in self.function.ops[op].outputs.clone() {
            let shape = match self.form {
                Form::Dialect => super::partition::tokens(self.function, v)
                    .map(|(_, width)| [1, width, 1, e.columns]),
                Form::Plain { .. } => self.function.tensor_ty(v).and_then(plain::embedded),
            };
            if let Some(shape) = shape {
                let wire = self.new_wire(v);
                let name = format!("in_{}", self.function.values[v].name);
                let input = e.input(&name, shape, Source::Raw(wire));
                e.values.insert(v, input);
            }
        }
    }

    fn label(&self, ops: &[OpId]) -> String {
        match ops {
            [first, .., last] => {
                let (first, last) = (self.function.describe(*first), self.function.describe(*last));
                format!("{}: {first} to {last}", self.name)
            }
            _ => ops
                .iter()
                .map(|&op| format!("{}: {}", self.name, self.function.describe(op)))
                .collect(),
        }
    }

    pub(super) fn finish(mut self, refused: Vec<(String, String)>) -> Result<Lowered> {
        let body = &self.function.body.outputs;
        // A constant crosses no border, unless the function returns it.
        let constant = |v: &ValueId| self.function.const_of(*v).is_some();
        let constants: Vec<ValueId> = body.iter().copied().filter(constant).collect();
        if !constants.is_empty() {
            let program = host::part(self.program, self.name, &[], &[], &constants)?;
            let named = |v: ValueId| self.function.values[v].name.clone();
            let outputs = constants.into_iter().map(|v| (named(v), self.new_wire(v))).collect();
            self.steps.push(Step::Host(HostStep { program, inputs: Vec::new(), outputs }));
        }
        let outputs = body
            .iter()
            .map(|&v| Ok((self.function.values[v].name.clone(), self.wire(v)?)))
            .collect::<Result<_>>()?;
        Ok(Lowered {
            columns: (self.form == Form::Dialect).then_some(self.target.columns),
            steps: self.steps,
            wires: self.wires.into_iter().map(|(_, ty)| ty).collect(),
            inputs: self.inputs,
            outputs,
            states: self.states.into_iter().map(|(_, s)| s).collect(),
            weights: self.given,
            adapters: self.adapters,
            refused,
        })
    }

    pub(super) fn view(&self, id: OpId) -> OpView<'a> {
        OpView::new(self.function, &self.program.weights, &self.function.ops[id])
    }

    /// A refusal of operation `id`, which then runs on the host.
    pub(super) fn unsupported(&self, id: OpId, why: impl Into<String>) -> Error {
        let place = |e| Error::at_op(e, self.name, self.function.describe(id));
        place(mil::OpError::unsupported(why))
    }

    pub(super) fn arg(&self, id: OpId, name: &str) -> Result<ValueId> {
        match self.function.ops[id].arg(name) {
            Some(Arg::Value(v)) => Ok(*v),
            _ => Err(bug(format!("{}: {name} is no value", self.function.describe(id)))),
        }
    }

    /// The fp16 form of constant `name`, if it is given.
    pub(super) fn opt_half(&mut self, id: OpId, name: &str) -> Result<Option<Tensor>> {
        let view = self.view(id);
        let Some(literal) = view.literal(name) else {
            return match view.arg(name) {
                None => Ok(None),
                Some(_) => Err(self.unsupported(id, format!("{name} is computed"))),
            };
        };
        let shape = literal.ty.as_tensor().and_then(TensorType::fixed_shape).unwrap_or_default();
        if let Payload::Weight(weight) = literal.payload {
            return Ok(Some(self.weights.get(&self.program.weights, weight, &shape)?));
        }
        let tensor = literal.resolve(&self.program.weights);
        tensor.map(|t| halves(t, name)).transpose()
    }

    /// The fp16 form of constant `name`.
    pub(super) fn half(&mut self, id: OpId, name: &str) -> Result<Tensor> {
        let tensor = self.opt_half(id, name)?;
        tensor.ok_or_else(|| self.unsupported(id, format!("{name} is no constant")))
    }

    /// A weight `[out, in]` as a kernel `[out, in, 1, 1]`.
    pub(super) fn matrix(&mut self, id: OpId, name: &str) -> Result<Tensor> {
        let half = self.half(id, name)?;
        let &[out, inner] = half.shape() else {
            return Err(bug(format!("{}: {name} is no matrix", self.function.describe(id))));
        };
        reshaped(&half, [out, inner, 1, 1])
    }

    /// `gelu` of `x` in the mode of operation `id`.
    pub(super) fn gelu(
        &self,
        e: &mut Emitter<'_>,
        id: OpId,
        x: ValueId,
        name: &str,
    ) -> Result<ValueId> {
        let place = |e| Error::at_op(e, self.name, self.function.describe(id));
        match self.view(id).str("mode").map_err(place)?.unwrap_or("EXACT") {
            "EXACT" => e.gelu(x, true, name),
            "TANH_APPROXIMATION" => e.gelu(x, false, name),
            mode => Err(self.unsupported(id, format!("mode {mode}"))),
        }
    }

    /// `conv(x, kernel)` by a 1x1 kernel, and the bias that argument `bias` is.
    pub(super) fn affine(
        &mut self,
        e: &mut Emitter<'_>,
        id: OpId,
        (x, kernel): (ValueId, Tensor),
        name: &str,
    ) -> Result<ValueId> {
        let y = e.conv(x, kernel, name)?;
        self.biased(e, id, y, name)
    }

    /// `y` `[N, out, H, W]` and the bias that argument `bias` is, if it is given.
    pub(super) fn biased(
        &mut self,
        e: &mut Emitter<'_>,
        id: OpId,
        y: ValueId,
        name: &str,
    ) -> Result<ValueId> {
        if self.function.ops[id].kind.param_index("bias").is_none() {
            return Ok(y);
        }
        let Some(bias) = self.opt_half(id, "bias")? else { return Ok(y) };
        let bias = reshaped(&bias, [1, bias.len(), 1, 1])?;
        let bias = e.weight(&format!("{name}_bias"), bias)?;
        e.binary(OpKind::Add, y, bias, &format!("{name}_biased"))
    }
}

pub(super) fn reshaped(tensor: &Tensor, shape: [usize; 4]) -> Result<Tensor> {
    tensor.reshaped(&shape).map_err(|e| bug(e.to_string()))
}

/// Inputs or outputs by name, which is the order of binding that most sources claim.
fn bindings(function: &Function, list: Vec<(ValueId, Source)>) -> Result<Vec<(ValueId, Binding)>> {
    let mut list: Vec<(ValueId, Binding)> = list
        .into_iter()
        .map(|(v, source)| {
            let shape = function.tensor_ty(v).and_then(TensorType::fixed_shape);
            let shape = shape.and_then(|s| s.try_into().ok());
            let shape = shape.ok_or_else(|| bug("a binding is not of rank 4"))?;
            Ok((v, Binding { name: function.values[v].name.clone(), source, shape }))
        })
        .collect::<Result<_>>()?;
    list.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    Ok(list)
}
