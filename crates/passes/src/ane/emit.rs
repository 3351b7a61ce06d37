//! The engine's form of each operation, and the building of steps.

use std::collections::{BTreeMap, HashMap};

use ane_model::chip::BindingOrder;
use half::f16;
use mil::{
    Arg, Error, ErrorKind, Function, FunctionBuilder, Literal, OpError, OpId, OpKind, OpView,
    Opset, Payload, Program, Result, TensorType, ValueId,
};
use tensor::{DType, Tensor, WeightStore};

use super::host::{self, Auxiliary};
use super::partition::{tokens, weight_name};
use super::weights::halves;
use super::{
    AdapterSlot, Binding, EngineStep, HalfWeights, HostSource, HostStep, Lowered, Source,
    StateSlot, Step, Target, Wire, used_from_outside,
};

/// A function on its way to steps.
pub(super) struct Lowering<'a> {
    program: &'a Program,
    name: &'a str,
    function: &'a Function,
    target: Target<'a>,
    slots: &'a [AdapterSlot],
    weights: &'a mut HalfWeights,
    wires: Vec<(String, TensorType)>,
    wire_of: HashMap<ValueId, Wire>,
    auxiliary: HashMap<(ValueId, Auxiliary), Wire>,
    states: Vec<(ValueId, StateSlot)>,
    adapters: Vec<(AdapterSlot, [usize; 2])>,
    inputs: Vec<(String, Wire)>,
    steps: Vec<Step>,
}

fn bug(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Bug, message)
}

impl<'a> Lowering<'a> {
    pub(super) fn new(
        program: &'a Program,
        name: &'a str,
        target: &Target<'a>,
        slots: &'a [AdapterSlot],
        weights: &'a mut HalfWeights,
    ) -> Self {
        let function = &program.functions[name];
        let mut lowering = Lowering {
            program,
            name,
            function,
            target: *target,
            slots,
            weights,
            wires: Vec::new(),
            wire_of: HashMap::new(),
            auxiliary: HashMap::new(),
            states: Vec::new(),
            adapters: Vec::new(),
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

    fn wire(&self, v: ValueId) -> Result<Wire> {
        let name = &self.function.values[v].name;
        self.wire_of.get(&v).copied().ok_or_else(|| bug(format!("{name} crosses no border")))
    }

    pub(super) fn last(&self) -> Option<&Step> {
        self.steps.last()
    }

    /// Values that operations in `ops` make and others, or the function's end, use.
    fn results(&self, ops: &[OpId]) -> Vec<ValueId> {
        let others: Vec<OpId> =
            self.function.body.ops.iter().copied().filter(|op| !ops.contains(op)).collect();
        let mut used = used_from_outside(self.function, &others);
        used.extend(&self.function.body.outputs);
        let made = ops.iter().flat_map(|&op| self.function.ops[op].outputs.iter().copied());
        made.filter(|v| used.contains(v)).collect()
    }

    /// A step of operations as they are.
    pub(super) fn host(&mut self, ops: &[OpId]) -> Result<()> {
        let inputs = used_from_outside(self.function, ops);
        let results = self.results(ops);
        let state = |&v: &ValueId| self.function.ty(v).as_state().is_some();
        if let Some(v) = inputs.iter().copied().find(|v| state(v)) {
            let name = &self.function.values[v].name;
            let message = format!("function {}: state {name} is used on the host", self.name);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let program = host::part(self.program, self.name, ops, &inputs, &results)?;
        let named = |v: ValueId| self.function.values[v].name.clone();
        let inputs = inputs
            .into_iter()
            .map(|v| Ok((named(v), HostSource::Wire(self.wire(v)?))))
            .collect::<Result<_>>()?;
        let outputs = results.into_iter().map(|v| (named(v), self.new_wire(v))).collect();
        self.steps.push(Step::Host(HostStep { program, inputs, outputs }));
        Ok(())
    }

    /// The tensor that the host makes once for all steps.
    fn auxiliary(&mut self, positions: ValueId, wanted: Auxiliary) -> Result<Wire> {
        if let Some(&wire) = self.auxiliary.get(&(positions, wanted.clone())) {
            return Ok(wire);
        }
        let (program, ty) = wanted.program(self.target.columns)?;
        let wire = Wire(self.wires.len());
        self.wires.push((wanted.label().to_owned(), ty));
        let source = HostSource::Padded(self.wire(positions)?);
        self.steps.push(Step::Host(HostStep {
            program,
            inputs: vec![("positions".to_owned(), source)],
            outputs: vec![("y".to_owned(), wire)],
        }));
        self.auxiliary.insert((positions, wanted), wire);
        Ok(wire)
    }

    fn state(&mut self, v: ValueId) -> Result<usize> {
        if let Some(i) = self.states.iter().position(|(known, _)| *known == v) {
            let name = &self.states[i].1.name;
            let message = format!("function {}: state {name} is written twice", self.name);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let name = self.function.values[v].name.clone();
        let ty = self.function.ty(v).as_state();
        let Some(&[1, heads, slots, dim]) = ty.and_then(TensorType::fixed_shape).as_deref() else {
            let message = format!("function {}: state {name} has no fixed size", self.name);
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        self.states.push((v, StateSlot { name, heads, dim, slots }));
        Ok(self.states.len() - 1)
    }

    /// A program of operations that the engine takes; which operation of it comes from which.
    pub(super) fn engine(&mut self, ops: &[OpId]) -> Result<BTreeMap<OpId, OpId>> {
        let opset = self.target.os.opset().unwrap_or(Opset::Ios16).min(Opset::Ios18);
        let mut store = WeightStore::new();
        let mut emitter = Emitter {
            b: FunctionBuilder::new("main", opset, &mut store),
            columns: self.target.columns,
            values: HashMap::new(),
            constants: HashMap::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let mut origins = BTreeMap::new();
        for &op in ops {
            let first = emitter.b.function().ops.len();
            self.emit(&mut emitter, op)?;
            let added = emitter.b.function().ops.keys().skip(first);
            origins.extend(added.map(|new| (new, op)));
        }
        for v in self.results(ops) {
            let wire = self.new_wire(v);
            let made = emitter.values[&v];
            let name = format!("out_{}", self.function.values[v].name);
            emitter.output(made, &name, Source::Tokens(wire))?;
        }
        let Emitter { b, inputs, outputs, .. } = emitter;
        let order = self.target.chip.switches.binding.as_ref().map(|s| s.value);
        let mut function = b.finish(Vec::new());
        let bindings = |list: Vec<(ValueId, Source)>| {
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
            Ok::<_, Error>(list)
        };
        let (inputs, outputs) = (bindings(inputs)?, bindings(outputs)?);
        // Names in the order of the signature serve two of the orders that sources claim.
        function.inputs = inputs.iter().map(|(v, _)| *v).collect();
        function.body.outputs = outputs.iter().map(|(v, _)| *v).collect();
        let strip = |list: Vec<(ValueId, Binding)>| list.into_iter().map(|(_, b)| b).collect();
        let (mut inputs, mut outputs): (Vec<Binding>, Vec<Binding>) =
            (strip(inputs), strip(outputs));
        if order == Some(BindingOrder::Size) {
            let size = |b: &Binding| b.shape.iter().product::<usize>();
            inputs.sort_by_key(size);
            outputs.sort_by_key(|b| std::cmp::Reverse(size(b)));
        }
        let program = Program {
            functions: [("main".to_owned(), function)].into(),
            weights: store,
            ..Program::default()
        };
        mil::verify(&program)?;
        let label = match ops {
            [first, .., last] => {
                let (first, last) = (self.function.describe(*first), self.function.describe(*last));
                format!("{}: {first} to {last}", self.name)
            }
            _ => ops
                .iter()
                .map(|&op| format!("{}: {}", self.name, self.function.describe(op)))
                .collect(),
        };
        self.steps.push(Step::Engine(EngineStep { label, program, inputs, outputs }));
        Ok(origins)
    }

    pub(super) fn finish(self, refused: Vec<(String, String)>) -> Result<Lowered> {
        let outputs = &self.function.body.outputs;
        let outputs = outputs
            .iter()
            .map(|&v| Ok((self.function.values[v].name.clone(), self.wire(v)?)))
            .collect::<Result<_>>()?;
        Ok(Lowered {
            steps: self.steps,
            wires: self.wires.into_iter().map(|(_, ty)| ty).collect(),
            inputs: self.inputs,
            outputs,
            states: self.states.into_iter().map(|(_, s)| s).collect(),
            adapters: self.adapters,
            refused,
        })
    }

    fn emit(&mut self, e: &mut Emitter<'_>, id: OpId) -> Result<()> {
        let op = &self.function.ops[id];
        let view = OpView::new(self.function, &self.program.weights, op);
        let place = |error: OpError| Error::at_op(error, self.name, self.function.describe(id));
        let name = self.function.values[op.outputs[0]].name.clone();
        let name = name.as_str();
        let float = |key: &str| view.float(key).map_err(place);
        let made = match op.kind {
            OpKind::LlmLinear => self.linear(e, id, name)?,
            OpKind::LlmRmsNorm => {
                let x = self.tensor(e, id, "x")?;
                let rank = self.rank(id, "x")?;
                let gamma = self.half(id, "weight")?;
                let epsilon = float("epsilon")?.unwrap_or(0.0);
                e.normalise(x, &gamma, None, epsilon, (rank == 4).then(|| gamma.len()), name)?
            }
            OpKind::LayerNorm => {
                let x = self.tensor(e, id, "x")?;
                let width = self.width(id, "x")?;
                let one = || half_vector(&vec![f16::ONE; width]);
                let gamma = self.opt_half(id, "gamma")?.map_or_else(one, Ok)?;
                let beta = self.opt_half(id, "beta")?;
                let epsilon = float("epsilon")?.unwrap_or(1e-5);
                let centred = e.centre(x, name)?;
                e.normalise(centred, &gamma, beta.as_ref(), epsilon, None, name)?
            }
            OpKind::LlmGatedMlp => {
                let x = self.tensor(e, id, "x")?;
                let gate = self.matrix(id, "gate")?;
                let gate = e.conv(x, gate, &format!("{name}_gate"))?;
                let gate = match view.str("activation").map_err(place)? {
                    Some("silu") => e.silu(gate, name)?,
                    Some("gelu") => e.gelu(gate, true, name)?,
                    Some("gelu_tanh") => e.gelu(gate, false, name)?,
                    other => {
                        return Err(place(OpError::unsupported(format!("activation {other:?}"))));
                    }
                };
                let up = self.matrix(id, "up")?;
                let up = e.conv(x, up, &format!("{name}_up"))?;
                let inner = e.binary(OpKind::Mul, gate, up, &format!("{name}_inner"))?;
                let down = self.matrix(id, "down")?;
                e.conv(inner, down, name)?
            }
            OpKind::Gelu => {
                let x = self.tensor(e, id, "x")?;
                let exact = view.str("mode").map_err(place)?.unwrap_or("EXACT") == "EXACT";
                e.gelu(x, exact, name)?
            }
            OpKind::Silu => {
                let x = self.tensor(e, id, "x")?;
                e.silu(x, name)?
            }
            OpKind::Tanh | OpKind::Sigmoid => {
                let x = self.tensor(e, id, "x")?;
                e.unary(op.kind, x, name)?
            }
            // Channels first, heads and flat tokens lie alike.
            OpKind::Reshape => self.tensor(e, id, "x")?,
            OpKind::Add | OpKind::Mul => {
                let (x, y) = (self.operand(e, id, "x")?, self.operand(e, id, "y")?);
                e.binary(op.kind, x, y, name)?
            }
            OpKind::LlmRope => self.rope(e, id, name)?,
            OpKind::LlmAttention => self.attention(e, id, name)?,
            other => return Err(bug(format!("{} has no form on the engine", other.name()))),
        };
        e.values.insert(self.function.ops[id].outputs[0], made);
        Ok(())
    }

    fn arg(&self, id: OpId, name: &str) -> Result<ValueId> {
        match self.function.ops[id].arg(name) {
            Some(Arg::Value(v)) => Ok(*v),
            _ => Err(bug(format!("{}: {name} is no value", self.function.describe(id)))),
        }
    }

    fn rank(&self, id: OpId, name: &str) -> Result<usize> {
        Ok(self.function.tensor_ty(self.arg(id, name)?).map_or(0, TensorType::rank))
    }

    fn width(&self, id: OpId, name: &str) -> Result<usize> {
        let v = self.arg(id, name)?;
        let tokens = tokens(self.function, v);
        Ok(tokens.ok_or_else(|| bug(format!("{} are no tokens", self.function.values[v].name)))?.1)
    }

    /// The engine's form of a tensor of tokens, an input of the program if another step makes it.
    fn tensor(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let v = self.arg(id, name)?;
        if let Some(&known) = e.values.get(&v) {
            return Ok(known);
        }
        let (width, wire) = (self.width(id, name)?, self.wire(v)?);
        let label = format!("in_{}", self.function.values[v].name);
        let input = e.input(&label, [1, width, 1, e.columns], Source::Tokens(wire));
        e.values.insert(v, input);
        Ok(input)
    }

    /// A tensor or a scalar constant.
    fn operand(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let view = OpView::new(self.function, &self.program.weights, &self.function.ops[id]);
        if view.literal(name).is_none() {
            return self.tensor(e, id, name);
        }
        let place = |error: OpError| Error::at_op(error, self.name, self.function.describe(id));
        let value = view.float(name).map_err(place)?.unwrap_or(0.0);
        Ok(e.scalar(value))
    }

    fn opt_half(&mut self, id: OpId, name: &str) -> Result<Option<Tensor>> {
        let view = OpView::new(self.function, &self.program.weights, &self.function.ops[id]);
        let Some(literal) = view.literal(name) else { return Ok(None) };
        let shape = literal.ty.as_tensor().and_then(TensorType::fixed_shape).unwrap_or_default();
        if let Payload::Weight(weight) = literal.payload {
            return Ok(Some(self.weights.get(&self.program.weights, weight, &shape)?));
        }
        let tensor = literal.resolve(&self.program.weights);
        tensor.map(|t| halves(t, name)).transpose()
    }

    /// The fp16 form of constant `name`.
    fn half(&mut self, id: OpId, name: &str) -> Result<Tensor> {
        let missing = format!("{}: {name} is no constant", self.function.describe(id));
        self.opt_half(id, name)?.ok_or_else(|| Error::new(ErrorKind::Unsupported, missing))
    }

    /// A weight `[out, in]` as a kernel `[out, in, 1, 1]`.
    fn matrix(&mut self, id: OpId, name: &str) -> Result<Tensor> {
        let half = self.half(id, name)?;
        let &[out, inner] = half.shape() else {
            return Err(bug(format!("{}: {name} is no matrix", self.function.describe(id))));
        };
        half.reshaped(&[out, inner, 1, 1]).map_err(|e| bug(e.to_string()))
    }

    fn linear(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let x = self.tensor(e, id, "x")?;
        let kernel = self.matrix(id, "weight")?;
        let (out, inner) = (kernel.shape()[0], kernel.shape()[1]);
        let weight = weight_name(self.program, self.function, id);
        let slot = self.slots.iter().find(|s| Some(&s.weight) == weight.as_ref()).cloned();
        let mut y = e.conv(x, kernel, name)?;
        if let Some(bias) = self.opt_half(id, "bias")? {
            let bias = bias.reshaped(&[1, out, 1, 1]).map_err(|e| bug(e.to_string()))?;
            let bias = e.weight(&format!("{name}_bias"), bias)?;
            y = e.binary(OpKind::Add, y, bias, &format!("{name}_biased"))?;
        }
        let Some(slot) = slot else { return Ok(y) };
        let (rank, number, columns) = (slot.rank, self.adapters.len(), e.columns);
        self.adapters.push((slot, [out, inner]));
        let a = e.input(&format!("lora_a_{name}"), [1, rank, 1, inner], Source::AdapterA(number));
        let b = e.input(&format!("lora_b_{name}"), [1, out, 1, rank], Source::AdapterB(number));
        let a = e.reshape(a, [1, 1, rank, inner], &format!("{name}_a"))?;
        let b = e.reshape(b, [1, 1, out, rank], &format!("{name}_b"))?;
        let x = e.reshape(x, [1, 1, inner, columns], &format!("{name}_x"))?;
        let low = e.matmul(a, x, [false, false], &format!("{name}_low"))?;
        let change = e.matmul(b, low, [false, false], &format!("{name}_change"))?;
        let change = e.reshape(change, [1, out, 1, columns], &format!("{name}_changed"))?;
        e.binary(OpKind::Add, y, change, &format!("{name}_adapted"))
    }

    fn rope(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let view = OpView::new(self.function, &self.program.weights, &self.function.ops[id]);
        let place = |error: OpError| Error::at_op(error, self.name, self.function.describe(id));
        let interleaved = view.bool_or("interleaved", false).map_err(place)?;
        let constant = view.literal("inv_freq").and_then(|l| l.resolve(&self.program.weights));
        let frequencies = constant.and_then(mil::eval::tensor_floats);
        let frequencies = frequencies.ok_or_else(|| bug("inv_freq is no constant of floats"))?;
        let positions = self.arg(id, "positions")?;
        let x = self.tensor(e, id, "x")?;
        let shape = self.function.tensor_ty(self.arg(id, "x")?).map(|t| t.shape.clone());
        let sizes = shape.as_deref().and_then(|s| Some((s.get(2)?.fixed()?, s.get(3)?.fixed()?)));
        let (heads, dim) = sizes.ok_or_else(|| bug("rotation of a tensor without heads"))?;
        let mut rotation = vec![f16::ZERO; dim * dim];
        let mut table = vec![0.0f32; dim];
        let pairs = frequencies.len();
        for (i, &frequency) in frequencies.iter().enumerate() {
            let [first, second] = if interleaved { [2 * i, 2 * i + 1] } else { [i, i + pairs] };
            rotation[first * dim + second] = f16::NEG_ONE;
            rotation[second * dim + first] = f16::ONE;
            table[first] = frequency as f32;
            table[second] = frequency as f32;
        }
        let bits: Vec<u32> = table.iter().map(|f| f.to_bits()).collect();
        let sine = Auxiliary::Rotation { frequencies: bits.clone(), sine: true };
        let cosine = Auxiliary::Rotation { frequencies: bits, sine: false };
        let columns = e.columns;
        let sine = self.auxiliary(positions, sine)?;
        let cosine = self.auxiliary(positions, cosine)?;
        let sine = e.raw("in_sine", [1, 1, dim, columns], sine);
        let cosine = e.raw("in_cosine", [1, 1, dim, columns], cosine);
        let rotation = Tensor::from_slice(&[1, 1, dim, dim], &rotation);
        let rotation = e.shared(
            &format!("rotation_{interleaved}_{pairs}_{dim}"),
            rotation.map_err(|e| bug(e.to_string()))?,
        )?;
        let split = e.reshape(x, [1, heads, dim, columns], &format!("{name}_heads"))?;
        let turned = e.matmul(rotation, split, [false, false], &format!("{name}_turned"))?;
        let turned = e.binary(OpKind::Mul, turned, sine, &format!("{name}_sine"))?;
        let kept = e.binary(OpKind::Mul, split, cosine, &format!("{name}_cosine"))?;
        let sum = e.binary(OpKind::Add, kept, turned, &format!("{name}_sum"))?;
        e.reshape(sum, [1, heads * dim, 1, columns], name)
    }

    fn attention(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let view = OpView::new(self.function, &self.program.weights, &self.function.ops[id]);
        let place = |error: OpError| Error::at_op(error, self.name, self.function.describe(id));
        let scale = view.float("scale").map_err(place)?.unwrap_or(1.0);
        let (window, softcap) =
            (view.int("window").map_err(place)?, view.float("softcap").map_err(place)?);
        let positions = self.arg(id, "positions")?;
        let query = self.tensor(e, id, "query")?;
        let width = self.width(id, "query")?;
        let (key, value) = (self.tensor(e, id, "key")?, self.tensor(e, id, "value")?);
        let states =
            [self.state(self.arg(id, "key_cache")?)?, self.state(self.arg(id, "value_cache")?)?];
        let StateSlot { heads: groups, dim, slots, .. } = self.states[states[0]].1;
        let (heads, s) = (width / dim, e.columns);
        let written = Auxiliary::Written { slots };
        let kept = Auxiliary::Kept { slots };
        let mask = Auxiliary::Mask { slots, window };
        let (written, kept, mask) = (
            self.auxiliary(positions, written)?,
            self.auxiliary(positions, kept)?,
            self.auxiliary(positions, mask)?,
        );
        let written = e.raw(&format!("in_written_{slots}"), [1, 1, s, slots], written);
        let kept = e.raw(&format!("in_kept_{slots}"), [1, 1, 1, slots], kept);
        let window = window.map_or_else(String::new, |w| format!("_{w}"));
        let mask = e.raw(&format!("in_mask_{slots}{window}"), [1, 1, s, slots], mask);
        let mut caches = Vec::new();
        for (state, new) in states.into_iter().zip([key, value]) {
            let channels = groups * dim;
            let label = self.states[state].1.name.clone();
            let old =
                e.input(&format!("in_{label}"), [1, channels, 1, slots], Source::State(state));
            let new = e.reshape(new, [1, 1, channels, s], &format!("{label}_rows"))?;
            let new = e.matmul(new, written, [false, false], &format!("{label}_placed"))?;
            let new = e.reshape(new, [1, channels, 1, slots], &format!("{label}_new"))?;
            let old = e.binary(OpKind::Mul, old, kept, &format!("{label}_kept"))?;
            let cache = e.binary(OpKind::Add, old, new, &format!("out_{label}"))?;
            e.output(cache, &format!("out_{label}"), Source::State(state))?;
            caches.push(e.reshape(cache, [1, groups, dim, slots], &format!("{label}_heads"))?);
        }
        // The factor goes on the query, before the products can leave the range of fp16.
        let factor = e.scalar(scale);
        let q = e.binary(OpKind::Mul, query, factor, &format!("{name}_scaled"))?;
        let q = e.reshape(q, [1, heads, dim, s], &format!("{name}_heads"))?;
        let q = e.transpose(q, [0, 1, 3, 2], &format!("{name}_rows"))?;
        let rows = heads / groups * s;
        let q = e.reshape(q, [1, groups, rows, dim], &format!("{name}_groups"))?;
        let scores = e.matmul(q, caches[0], [false, false], &format!("{name}_products"))?;
        let mut scores = e.reshape(scores, [1, heads, s, slots], &format!("{name}_scores"))?;
        if let Some(cap) = softcap {
            let down = e.scalar(cap.recip());
            scores = e.binary(OpKind::Mul, scores, down, &format!("{name}_small"))?;
            scores = e.unary(OpKind::Tanh, scores, &format!("{name}_squashed"))?;
            let up = e.scalar(cap);
            scores = e.binary(OpKind::Mul, scores, up, &format!("{name}_capped"))?;
        }
        let masked = e.binary(OpKind::Add, scores, mask, &format!("{name}_masked"))?;
        let weights = e.softmax(masked, &format!("{name}_weights"))?;
        let weights = e.reshape(weights, [1, groups, rows, slots], &format!("{name}_grouped"))?;
        let mixed = e.matmul(weights, caches[1], [false, true], &format!("{name}_mixed"))?;
        let mixed = e.reshape(mixed, [1, heads, s, dim], &format!("{name}_mixed_heads"))?;
        let mixed = e.transpose(mixed, [0, 1, 3, 2], &format!("{name}_columns"))?;
        e.reshape(mixed, [1, heads * dim, 1, s], name)
    }
}

fn half_vector(values: &[f16]) -> Result<Tensor> {
    Tensor::from_slice(&[values.len()], values).map_err(|e| bug(e.to_string()))
}

/// One program for the engine under construction. Every constant argument is a named constant.
struct Emitter<'w> {
    b: FunctionBuilder<'w>,
    columns: usize,
    /// The engine's form of the source's values.
    values: HashMap<ValueId, ValueId>,
    constants: HashMap<String, ValueId>,
    inputs: Vec<(ValueId, Source)>,
    outputs: Vec<(ValueId, Source)>,
}

impl Emitter<'_> {
    fn input(&mut self, name: &str, shape: [usize; 4], source: Source) -> ValueId {
        let dims = shape.map(mil::Dim::Fixed);
        let v = self.b.input(name, TensorType::new(DType::F16, dims));
        self.inputs.push((v, source));
        v
    }

    /// An input that several operations share.
    fn raw(&mut self, name: &str, shape: [usize; 4], wire: Wire) -> ValueId {
        let known = self.inputs.iter().find(|(_, source)| *source == Source::Raw(wire));
        match known {
            Some(&(v, _)) => v,
            None => self.input(name, shape, Source::Raw(wire)),
        }
    }

    fn output(&mut self, v: ValueId, name: &str, source: Source) -> Result<()> {
        if self.inputs.iter().any(|(i, _)| *i == v) || self.outputs.iter().any(|(o, _)| *o == v) {
            return Err(bug(format!("{name} is an input or an output already")));
        }
        self.b.rename(v, name);
        self.outputs.push((v, source));
        Ok(())
    }

    fn constant(&mut self, key: String, literal: Literal) -> ValueId {
        if let Some(&v) = self.constants.get(&key) {
            return v;
        }
        let v = self.b.constant(&key, literal);
        self.constants.insert(key, v);
        v
    }

    fn scalar(&mut self, x: f64) -> ValueId {
        let half = f16::from_f64(x);
        self.constant(format!("c_{:04x}", half.to_bits()), Literal::scalar(half))
    }

    fn flag(&mut self, flag: bool) -> ValueId {
        self.constant(format!("c_{flag}"), Literal::bool(flag))
    }

    fn ints(&mut self, values: &[i32]) -> ValueId {
        let words: Vec<String> = values.iter().map(|v| v.to_string().replace('-', "m")).collect();
        self.constant(format!("c_{}", words.join("_")), Literal::vector(values))
    }

    fn int(&mut self, value: i32) -> ValueId {
        let key = format!("c_int_{}", value.to_string().replace('-', "m"));
        self.constant(key, Literal::scalar(value))
    }

    fn weight(&mut self, name: &str, tensor: Tensor) -> Result<ValueId> {
        self.b.new_weight(name, tensor)
    }

    fn shared(&mut self, key: &str, tensor: Tensor) -> Result<ValueId> {
        if let Some(&v) = self.constants.get(key) {
            return Ok(v);
        }
        let v = self.weight(key, tensor)?;
        self.constants.insert(key.to_owned(), v);
        Ok(v)
    }

    fn unary(&mut self, kind: OpKind, x: ValueId, name: &str) -> Result<ValueId> {
        self.b.op(kind).arg("x", x).name(name).result()
    }

    fn binary(&mut self, kind: OpKind, x: ValueId, y: ValueId, name: &str) -> Result<ValueId> {
        self.b.op(kind).arg("x", x).arg("y", y).name(name).result()
    }

    fn reshape(&mut self, x: ValueId, shape: [usize; 4], name: &str) -> Result<ValueId> {
        let shape = self.ints(&shape.map(|n| n as i32));
        self.b.op(OpKind::Reshape).arg("x", x).arg("shape", shape).name(name).result()
    }

    fn transpose(&mut self, x: ValueId, perm: [i32; 4], name: &str) -> Result<ValueId> {
        let perm = self.ints(&perm);
        self.b.op(OpKind::Transpose).arg("x", x).arg("perm", perm).name(name).result()
    }

    fn matmul(&mut self, x: ValueId, y: ValueId, turned: [bool; 2], name: &str) -> Result<ValueId> {
        let [tx, ty] = turned.map(|t| self.flag(t));
        let op = self.b.op(OpKind::Matmul).arg("x", x).arg("y", y);
        op.arg("transpose_x", tx).arg("transpose_y", ty).name(name).result()
    }

    fn softmax(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let axis = self.int(-1);
        self.b.op(OpKind::Softmax).arg("x", x).arg("axis", axis).name(name).result()
    }

    fn reduce(&mut self, kind: OpKind, x: ValueId, axis: i32, name: &str) -> Result<ValueId> {
        let (axes, keep) = (self.ints(&[axis]), self.flag(true));
        self.b.op(kind).arg("x", x).arg("axes", axes).arg("keep_dims", keep).name(name).result()
    }

    fn conv(&mut self, x: ValueId, kernel: Tensor, name: &str) -> Result<ValueId> {
        let weight = self.weight(&format!("{name}_weight"), kernel)?;
        let (ones, zeros) = (self.ints(&[1, 1]), self.ints(&[0, 0, 0, 0]));
        let groups = self.int(1);
        let valid = self.constant("c_valid".to_owned(), Literal::string("valid"));
        let op = self.b.op(OpKind::Conv).arg("x", x).arg("weight", weight).arg("strides", ones);
        let op = op.arg("pad_type", valid).arg("pad", zeros).arg("dilations", ones);
        op.arg("groups", groups).name(name).result()
    }

    /// `x` less its mean over the channels.
    fn centre(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let mean = self.reduce(OpKind::ReduceMean, x, 1, &format!("{name}_mean"))?;
        self.binary(OpKind::Sub, x, mean, &format!("{name}_centred"))
    }

    /// `x / sqrt(mean(x^2) + epsilon) * gamma + beta` over the channels, or over the `dim` elements of
    /// each head. Squares of large activations leave the range of fp16 and of the accumulator, squares
    /// of small ones are lost, hence `x` is divided by its largest magnitude first; `epsilon` is below
    /// what fp16 holds well, its root is not.
    fn normalise(
        &mut self,
        x: ValueId,
        gamma: &Tensor,
        beta: Option<&Tensor>,
        epsilon: f64,
        dim: Option<usize>,
        name: &str,
    ) -> Result<ValueId> {
        let shape = self.b.function().tensor_ty(x).and_then(TensorType::fixed_shape);
        let width =
            shape.and_then(|s| s.get(1).copied()).ok_or_else(|| bug("a norm of no tokens"))?;
        let s = self.columns;
        let (x, axis) = match dim {
            Some(dim) => (self.reshape(x, [1, width / dim, dim, s], &format!("{name}_split"))?, 2),
            None => (x, 1),
        };
        let magnitude = self.unary(OpKind::Abs, x, &format!("{name}_abs"))?;
        let largest =
            self.reduce(OpKind::ReduceMax, magnitude, axis, &format!("{name}_largest"))?;
        let least = self.scalar((-7f64).exp2());
        let largest = self.binary(OpKind::Maximum, largest, least, &format!("{name}_divisor"))?;
        let y = self.binary(OpKind::RealDiv, x, largest, &format!("{name}_unit"))?;
        let square = self.binary(OpKind::Mul, y, y, &format!("{name}_squares"))?;
        let mean = self.reduce(OpKind::ReduceMean, square, axis, &format!("{name}_mean_square"))?;
        let root = self.scalar(epsilon.sqrt());
        let root = self.binary(OpKind::RealDiv, root, largest, &format!("{name}_epsilon_root"))?;
        let added = self.binary(OpKind::Mul, root, root, &format!("{name}_epsilon"))?;
        let sum = self.binary(OpKind::Add, mean, added, &format!("{name}_sum"))?;
        let deviation = self.unary(OpKind::Sqrt, sum, &format!("{name}_root"))?;
        let y = self.binary(OpKind::RealDiv, y, deviation, &format!("{name}_normal"))?;
        let shape = if dim.is_some() { [1, 1, gamma.len(), 1] } else { [1, gamma.len(), 1, 1] };
        let gamma = gamma.reshaped(&shape).map_err(|e| bug(e.to_string()))?;
        let gamma = self.weight(&format!("{name}_gamma"), gamma)?;
        let mut y = self.binary(OpKind::Mul, y, gamma, &format!("{name}_scaled"))?;
        if let Some(beta) = beta {
            let beta = beta.reshaped(&[1, beta.len(), 1, 1]).map_err(|e| bug(e.to_string()))?;
            let beta = self.weight(&format!("{name}_beta"), beta)?;
            y = self.binary(OpKind::Add, y, beta, &format!("{name}_shifted"))?;
        }
        match dim {
            Some(_) => self.reshape(y, [1, width, 1, s], name),
            None => Ok(y),
        }
    }

    /// `x sigmoid(x)`.
    fn silu(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let gate = self.unary(OpKind::Sigmoid, x, &format!("{name}_sigmoid"))?;
        self.binary(OpKind::Mul, x, gate, &format!("{name}_silu"))
    }

    /// `x/2 (1 + erf(x / sqrt 2))`, or with `tanh(x (a + b x^2))`, whose square stays in range where
    /// the usual cube does not.
    fn gelu(&mut self, x: ValueId, exact: bool, name: &str) -> Result<ValueId> {
        let inner = if exact {
            let factor = self.scalar(std::f64::consts::FRAC_1_SQRT_2);
            let scaled = self.binary(OpKind::Mul, x, factor, &format!("{name}_scaled"))?;
            self.unary(OpKind::Erf, scaled, &format!("{name}_erf"))?
        } else {
            let a = (2.0 / std::f64::consts::PI).sqrt();
            let (a, b) = (self.scalar(a), self.scalar(a * 0.044_715));
            let square = self.binary(OpKind::Mul, x, x, &format!("{name}_square"))?;
            let slope = self.binary(OpKind::Mul, square, b, &format!("{name}_slope"))?;
            let slope = self.binary(OpKind::Add, slope, a, &format!("{name}_steeper"))?;
            let scaled = self.binary(OpKind::Mul, x, slope, &format!("{name}_argument"))?;
            self.unary(OpKind::Tanh, scaled, &format!("{name}_tanh"))?
        };
        let (one, half) = (self.scalar(1.0), self.scalar(0.5));
        let inner = self.binary(OpKind::Add, inner, one, &format!("{name}_one"))?;
        let x = self.binary(OpKind::Mul, x, half, &format!("{name}_half"))?;
        self.binary(OpKind::Mul, x, inner, &format!("{name}_gelu"))
    }
}
