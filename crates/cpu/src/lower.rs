//! From a function at fixed sizes to its plan: binding, shared products, views, memory.

use std::collections::{BTreeSet, HashMap, HashSet};

use mil::{Arg, Function, OpId, OpKind, OpView, Program, Type, ValueId};
use tensor::{DType, Tensor};

use crate::bind;
use crate::chains::{self, Found, Uses};
use crate::kernel::{Binding, Kernel, Native, Operand, Source};
use crate::layout::Layout;
use crate::op_cx::{Bind, Constants, OpCx, Reason, fixed};
use crate::ops::attention::AngleTables;
use crate::ops::convert::{Narrow, Widen};
use crate::ops::{linear, states};
use crate::plan::{self, Held, InterpretedStep, NativeStep, Output, Place, Plan, Step};
use crate::state_use::{StateUse, state_type};

/// Lowers function `name` of `program`, whose sizes are fixed as far as they can be; also tells which
/// operations are left to the interpreter.
pub(crate) fn lower(
    program: &Program,
    name: &str,
    constants: &mut Constants,
) -> (Plan, Vec<(OpId, Reason)>) {
    let mut single = Program { weights: program.weights.clone(), ..Program::default() };
    let function = program.functions.get(name).cloned();
    let function = function.unwrap_or_else(|| Function::new(mil::Opset::Ios18));
    let mut copied = HashSet::new();
    let (mut plan, fallbacks) = loop {
        let mut lowering = Lowering {
            program,
            name,
            function: &function,
            constants,
            memory: Memory::default(),
            slots: HashMap::new(),
            widened: HashMap::new(),
            angles: HashMap::new(),
            states: StateUse::new(copied.clone()),
            drafts: Vec::new(),
            fallbacks: Vec::new(),
        };
        lowering.inputs();
        lowering.body();
        let outputs = lowering.outputs();
        lowering.drop_unused(&outputs);
        let stale = lowering.states.stale(&lowering.drafts, &outputs);
        if stale.is_empty() {
            let fallbacks = std::mem::take(&mut lowering.fallbacks);
            break (lowering.finish(outputs), fallbacks);
        }
        copied.extend(stale);
    };
    single.functions.insert(name.to_owned(), function);
    plan.program = single;
    plan.function = name.to_owned();
    (plan, fallbacks)
}

/// The operations of `function` that no kernel runs, and why; for reports that need no plan.
pub(crate) fn reasons(
    program: &Program,
    name: &str,
    function: &Function,
    constants: &mut Constants,
) -> Vec<(OpId, Reason)> {
    let mut found = Vec::new();
    for &id in &function.body.ops {
        let op = &function.ops[id];
        if op.kind == OpKind::Const {
            continue;
        }
        let view = OpView::new(function, &program.weights, op);
        let constants = &mut *constants;
        let cx = &mut OpCx { view, op, constants, program: (program, name) };
        if let Err(reason) = bind::bind(cx) {
            found.push((id, reason));
        }
    }
    found
}

/// A tensor in memory whose place is not decided yet.
#[derive(Clone)]
pub(crate) struct Slot {
    /// In what it lies.
    pub(crate) owner: Owner,
    /// Offset in the owner, in bytes.
    pub(crate) start: usize,
    /// Bytes.
    pub(crate) len: usize,
    dtype: DType,
    shape: Vec<usize>,
}

/// What a tensor lies in, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// A constant.
    Const(usize),
    /// An input of the function.
    Input(usize),
    /// Memory that steps write.
    Buffer(usize),
    /// The memory of a state, as it is at that read of one.
    State(usize),
}

/// A step whose memory is not decided yet.
pub(crate) enum Draft {
    /// A kernel's.
    Native(Drafted),
    /// The reference interpreter's.
    Interpreted(Interpreted),
    /// None: nothing uses its results.
    Unused,
}

/// [`NativeStep`] before places are decided.
pub(crate) struct Drafted {
    pub(crate) op: OpId,
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) ins: Vec<Slot>,
    pub(crate) outs: Vec<usize>,
    /// Names of the states that it writes.
    pub(crate) writes: Vec<String>,
}

impl Draft {
    /// A kernel that writes no state.
    fn native(op: OpId, kernel: Box<dyn Kernel>, ins: Vec<Slot>, outs: Vec<usize>) -> Self {
        Draft::Native(Drafted { op, kernel, ins, outs, writes: Vec::new() })
    }
}

/// [`InterpretedStep`] before places are decided.
pub(crate) struct Interpreted {
    op: OpId,
    pub(crate) uses: Vec<(ValueId, Slot)>,
    dynamic: Vec<ValueId>,
    pub(crate) states: Vec<(ValueId, String)>,
    pub(crate) results: Vec<(ValueId, Option<Slot>)>,
}

#[derive(Default)]
struct Memory {
    constants: Vec<Tensor>,
    /// Lengths of the buffers.
    buffers: Vec<usize>,
}

impl Memory {
    fn constant(&mut self, tensor: Tensor) -> Slot {
        let slot = Slot {
            owner: Owner::Const(self.constants.len()),
            start: 0,
            len: tensor.bytes().len(),
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
        };
        self.constants.push(tensor);
        slot
    }

    fn buffer(&mut self, dtype: DType, shape: Vec<usize>) -> Slot {
        let len = dtype.byte_len(shape.iter().product()).unwrap_or(0);
        self.buffers.push(len);
        Slot { owner: Owner::Buffer(self.buffers.len() - 1), start: 0, len, dtype, shape }
    }
}

impl Slot {
    /// The buffer it lies in.
    pub(crate) fn buffer(&self) -> Option<usize> {
        match self.owner {
            Owner::Buffer(b) => Some(b),
            _ => None,
        }
    }
}

struct Lowering<'a> {
    program: &'a Program,
    name: &'a str,
    function: &'a Function,
    constants: &'a mut Constants,
    memory: Memory,
    slots: HashMap<ValueId, Slot>,
    /// `fp32` copies of values of narrower types.
    widened: HashMap<ValueId, Slot>,
    /// Cosine and sine tables by positions and frequencies.
    angles: HashMap<(ValueId, Vec<u8>), [Slot; 2]>,
    states: StateUse,
    drafts: Vec<Draft>,
    fallbacks: Vec<(OpId, Reason)>,
}

impl<'a> Lowering<'a> {
    fn inputs(&mut self) {
        let tensors =
            self.function.inputs.iter().filter(|&&v| self.function.ty(v).as_state().is_none());
        for (number, &v) in tensors.enumerate() {
            let Ok((dtype, shape)) = fixed(self.function.ty(v)) else { continue };
            let len = dtype.byte_len(shape.iter().product()).unwrap_or(0);
            let slot = Slot { owner: Owner::Input(number), start: 0, len, dtype, shape };
            self.slots.insert(v, slot);
        }
    }

    fn body(&mut self) {
        let groups = self.shared_products();
        let uses = Uses::of(self.function);
        let mut done: HashSet<OpId> = HashSet::new();
        for (place, &id) in self.function.body.ops.iter().enumerate() {
            if self.function.ops[id].kind == OpKind::Const || done.contains(&id) {
                continue;
            }
            let group = groups.iter().find(|g| g[0] == id);
            if let Some(group) = group.filter(|g| self.linears(g).is_ok()) {
                done.extend(group);
                continue;
            }
            if self.on_states(id) {
                continue;
            }
            let (function, rest) = (self.function, &self.function.body.ops[place..]);
            let found = chains::find(function, rest, &done, &uses, |id, f| self.with_cx(id, f));
            if let Some(Found { ops, results, native }) = found
                && self.native(id, &results, native).is_ok()
            {
                done.extend(ops);
                continue;
            }
            let bound = match self.with_cx(id, bind::bind) {
                Ok(Binding::Native(native)) => {
                    self.native(id, &self.function.ops[id].outputs, native)
                }
                Ok(Binding::View { of, offsets }) => self.view(id, &of, &offsets),
                Ok(Binding::Constants(tensors)) => {
                    let results = self.function.ops[id].outputs.iter().copied().zip(tensors);
                    for (v, tensor) in results {
                        let slot = tensor.map(|t| self.memory.constant(t));
                        self.slots.extend(slot.map(|slot| (v, slot)));
                    }
                    Ok(())
                }
                Err(reason) => Err(reason),
            };
            if let Err(reason) = bound {
                self.fallbacks.push((id, reason));
                self.interpreted(id);
            }
        }
    }

    fn with_cx<T>(&mut self, id: OpId, f: impl FnOnce(&mut OpCx<'_>) -> T) -> T {
        let op = &self.function.ops[id];
        let view = OpView::new(self.function, &self.program.weights, op);
        let program = (self.program, self.name);
        f(&mut OpCx { view, op, constants: self.constants, program })
    }

    /// Linear layers of one input with weights that are constants or inputs, such as those of queries, keys
    /// and values: they can all run where the first of them stands.
    fn shared_products(&mut self) -> Vec<Vec<OpId>> {
        let mut groups: Vec<(ValueId, Vec<OpId>)> = Vec::new();
        for &id in &self.function.body.ops {
            let op = &self.function.ops[id];
            if !bind::is_linear(op.kind) {
                continue;
            }
            let Some(Arg::Value(x)) = op.arg("x") else { continue };
            let function = self.function;
            let constant = |o: &Operand| match o.source {
                Source::Const(_) => true,
                Source::Value(v) => function.inputs.contains(&v),
                Source::Widened(_) | Source::Angles { .. } => false,
            };
            let native = self
                .with_cx(id, linear::parts)
                .is_ok_and(|p| constant(&p.weight) && p.bias.as_ref().is_none_or(constant));
            if !native {
                continue;
            }
            match groups.iter_mut().find(|(v, _)| v == x) {
                Some((_, group)) => group.push(id),
                None => groups.push((*x, vec![id])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    fn linears(&mut self, group: &[OpId]) -> Bind<()> {
        let parts = group.iter().map(|&id| self.with_cx(id, linear::parts));
        let native = linear::linears(parts.collect::<Bind<_>>()?)?;
        let results = group.iter().flat_map(|&op| &self.function.ops[op].outputs).copied();
        self.native(group[0], &results.collect::<Vec<_>>(), native)
    }

    /// Adds the step of a kernel that stands for `op`, or also for others, and computes `results`.
    fn native(&mut self, op: OpId, results: &[ValueId], native: Native) -> Bind<()> {
        let ins = native.inputs.iter().map(|o| self.operand(op, o)).collect::<Bind<_>>()?;
        let mut outs = Vec::new();
        let mut narrowed = Vec::new();
        for &v in results {
            let (dtype, shape) = fixed(self.function.ty(v))?;
            let slot = self.memory.buffer(dtype, shape.clone());
            self.slots.insert(v, slot.clone());
            if native.floats && dtype == DType::F16 {
                let wide = self.memory.buffer(DType::F32, shape);
                outs.extend(wide.buffer());
                narrowed.push((wide, slot));
            } else {
                outs.extend(slot.buffer());
            }
        }
        for bytes in native.scratch {
            outs.extend(self.memory.buffer(DType::U8, vec![bytes]).buffer());
        }
        let (kernel, writes) = (native.kernel, native.writes);
        self.drafts.push(Draft::Native(Drafted { op, kernel, ins, outs, writes }));
        for (wide, slot) in narrowed {
            let outs = slot.buffer().into_iter().collect();
            let kernel = Box::new(Narrow);
            self.drafts.push(Draft::native(op, kernel, vec![wide], outs));
        }
        Ok(())
    }

    fn operand(&mut self, op: OpId, operand: &Operand) -> Bind<Slot> {
        let slot = match &operand.source {
            Source::Const(tensor) => self.memory.constant(tensor.clone()),
            Source::Value(v) => self.slot_of(*v)?,
            Source::Widened(v) => self.widen(op, *v)?,
            Source::Angles { positions, inv_freq, sine } => {
                self.angle_table(op, *positions, inv_freq)?[usize::from(*sine)].clone()
            }
        };
        Ok(Slot { shape: operand.shape.clone(), ..slot })
    }

    fn slot_of(&self, v: ValueId) -> Bind<Slot> {
        self.slots
            .get(&v)
            .cloned()
            .ok_or_else(|| "an operand that only the interpreter holds".into())
    }

    fn widen(&mut self, op: OpId, v: ValueId) -> Bind<Slot> {
        if let Some(slot) = self.widened.get(&v) {
            return Ok(slot.clone());
        }
        let narrow = self.slot_of(v)?;
        let wide = self.memory.buffer(DType::F32, narrow.shape.clone());
        let outs = wide.buffer().into_iter().collect();
        self.drafts.push(Draft::native(op, Box::new(Widen), vec![narrow], outs));
        self.widened.insert(v, wide.clone());
        Ok(wide)
    }

    fn angle_table(&mut self, op: OpId, positions: ValueId, inv_freq: &Tensor) -> Bind<[Slot; 2]> {
        let key = (positions, inv_freq.bytes().to_vec());
        if let Some(tables) = self.angles.get(&key) {
            return Ok(tables.clone());
        }
        let positions = self.slot_of(positions)?;
        let shape = vec![positions.shape.iter().product(), inv_freq.len()];
        let tables = [(); 2].map(|()| self.memory.buffer(DType::F32, shape.clone()));
        let ins = vec![positions, self.memory.constant(inv_freq.clone())];
        let outs = tables.iter().filter_map(Slot::buffer).collect();
        self.drafts.push(Draft::native(op, Box::new(AngleTables), ins, outs));
        self.angles.insert(key, tables.clone());
        Ok(tables)
    }

    fn view(&mut self, id: OpId, of: &Operand, offsets: &[usize]) -> Bind<()> {
        let base = match &of.source {
            // What reads the results cannot know that they lie in a file.
            Source::Const(tensor) => self.memory.constant(exec::aligned(tensor)?),
            _ => self.operand(id, of)?,
        };
        for (&v, offset) in self.function.ops[id].outputs.iter().zip(offsets) {
            let (dtype, shape) = fixed(self.function.ty(v))?;
            let len = dtype.byte_len(shape.iter().product()).unwrap_or(0);
            let slot = Slot { owner: base.owner, start: base.start + offset, len, dtype, shape };
            self.slots.insert(v, slot);
        }
        Ok(())
    }

    fn interpreted(&mut self, id: OpId) {
        let function = self.function;
        let (mut used, mut inner) = (BTreeSet::new(), BTreeSet::new());
        function.for_each_use(id, &mut |v| {
            used.insert(v);
        });
        values_inside(function, id, &mut inner);
        let mut draft = Interpreted {
            op: id,
            uses: Vec::new(),
            dynamic: Vec::new(),
            states: Vec::new(),
            results: Vec::new(),
        };
        for v in used {
            if inner.contains(&v) || function.const_of(v).is_some() {
                continue;
            }
            if matches!(function.ty(v), Type::State(_)) {
                draft.states.push((v, function.values[v].name.clone()));
            } else if let Some(slot) = self.slots.get(&v) {
                draft.uses.push((v, slot.clone()));
            } else {
                draft.dynamic.push(v);
            }
        }
        for &v in &function.ops[id].outputs {
            let held = fixed(function.ty(v)).ok();
            let slot = held.map(|(dtype, shape)| self.memory.buffer(dtype, shape));
            if let Some(slot) = &slot {
                self.slots.insert(v, slot.clone());
            }
            draft.results.push((v, slot));
        }
        self.drafts.push(Draft::Interpreted(draft));
    }

    /// Runs an operation on a state in the state's own memory, where that can be; says whether it did.
    fn on_states(&mut self, id: OpId) -> bool {
        let op = &self.function.ops[id];
        let place = self.drafts.len();
        match op.kind {
            OpKind::ReadState => {
                let Some(Arg::Value(state)) = op.arg("input") else { return false };
                let Ok((dtype, shape)) = state_type(self.function.ty(*state)) else { return false };
                let name = self.function.values[*state].name.clone();
                let value = op.outputs[0];
                let Some(owner) = self.states.read(*state, name, value, place) else {
                    return false;
                };
                let len = dtype.byte_len(shape.iter().product()).unwrap_or(0);
                self.slots.insert(value, Slot { owner, start: 0, len, dtype, shape });
                true
            }
            OpKind::WriteState => {
                let (Some(Arg::Value(state)), Some(Arg::Value(data))) =
                    (op.arg("input"), op.arg("data"))
                else {
                    return false;
                };
                // What lies in the state already, as it must be now.
                match self.slots.get(data).map(|slot| slot.owner) {
                    Some(Owner::State(read)) => self.states.writes_back(read, *state, place),
                    _ => false,
                }
            }
            OpKind::SliceUpdate | OpKind::Scatter => self.update_in_place(id).unwrap_or(false),
            _ => false,
        }
    }

    /// Updates a part of a state that was read and is written right after.
    fn update_in_place(&mut self, id: OpId) -> Option<bool> {
        let op = &self.function.ops[id];
        let name = if op.kind == OpKind::Scatter { "data" } else { "x" };
        let (Some(Arg::Value(old)), &[new]) = (op.arg(name), &op.outputs[..]) else { return None };
        let slot = self.slots.get(old)?.clone();
        let Owner::State(read) = slot.owner else { return None };
        let state = self.states.state_of(read);
        if slot.len != self.states_len(state)? || !self.is_written_next(id, state, new) {
            return None;
        }
        let state_name = self.function.values[state].name.clone();
        let native = self.with_cx(id, |cx| states::update(cx, Some(state_name.clone()))).ok()?;
        let ins =
            native.inputs.iter().map(|o| self.operand(id, o)).collect::<Bind<Vec<_>>>().ok()?;
        let at = self.drafts.len();
        let owner = self.states.updated(read, new, state_name, at)?;
        let (kernel, writes) = (native.kernel, native.writes);
        self.drafts.push(Draft::Native(Drafted { op: id, kernel, ins, outs: Vec::new(), writes }));
        self.slots.insert(new, Slot { owner, ..slot });
        Some(true)
    }

    fn states_len(&self, state: ValueId) -> Option<usize> {
        let (dtype, shape) = state_type(self.function.ty(state)).ok()?;
        dtype.byte_len(shape.iter().product())
    }

    /// Whether `new`, made by `id`, is written to `state` with nothing using the state in between.
    fn is_written_next(&self, id: OpId, state: ValueId, new: ValueId) -> bool {
        let after = self.function.body.ops.iter().skip_while(|&&op| op != id).skip(1);
        for &op in after {
            let mut uses = false;
            self.function.for_each_use(op, &mut |v| uses |= v == state);
            if uses {
                let op = &self.function.ops[op];
                let data = matches!(op.arg("data"), Some(Arg::Value(v)) if *v == new);
                return op.kind == OpKind::WriteState && data;
            }
        }
        false
    }

    /// Takes out the steps whose results nothing reads.
    fn drop_unused(&mut self, outputs: &[(ValueId, Option<Slot>)]) {
        let mut used = vec![false; self.memory.buffers.len()];
        let mark = |slot: &Slot, used: &mut Vec<bool>| {
            if let Some(b) = slot.buffer() {
                used[b] = true;
            }
        };
        outputs.iter().flat_map(|(_, slot)| slot).for_each(|slot| mark(slot, &mut used));
        for draft in self.drafts.iter_mut().rev() {
            match draft {
                Draft::Native(step) => {
                    if step.writes.is_empty() && !step.outs.iter().any(|&b| used[b]) {
                        *draft = Draft::Unused;
                    } else {
                        step.ins.iter().for_each(|slot| mark(slot, &mut used));
                    }
                }
                Draft::Interpreted(step) => {
                    step.uses.iter().for_each(|(_, slot)| mark(slot, &mut used));
                }
                Draft::Unused => {}
            }
        }
    }

    /// The outputs of the function and where they lie.
    fn outputs(&mut self) -> Vec<(ValueId, Option<Slot>)> {
        let slot = |v: ValueId| {
            let constant = self.function.const_of(v);
            let constant = constant.and_then(|c| c.resolve(&self.program.weights)).cloned();
            let slot = match constant {
                Some(tensor) => Some(self.memory.constant(tensor)),
                None => self.slots.get(&v).cloned(),
            };
            (v, slot)
        };
        self.function.body.outputs.iter().copied().map(slot).collect()
    }

    /// Decides where everything lies.
    fn finish(self, outputs: Vec<(ValueId, Option<Slot>)>) -> Plan {
        let mut layout = Layout::new(&self.memory.buffers, &self.drafts, &outputs);
        let in_place = layout.share_in_place(&self.drafts);
        let places = layout.place(&outputs, self.states.of_reads());
        let place = |slot: &Slot| places.of(slot);
        let held =
            |slot: &Slot| Held { place: place(slot), dtype: slot.dtype, shape: slot.shape.clone() };
        let steps =
            self.drafts.into_iter().zip(in_place).filter_map(|(draft, in_place)| match draft {
                Draft::Native(Drafted { op, kernel, ins, outs, .. }) => {
                    let outs: Vec<Place> = outs.iter().map(|&b| places.buffer(b)).collect();
                    let arena: Vec<_> = outs.iter().filter_map(Place::arena).collect();
                    let mut sorted: Vec<usize> = (0..arena.len()).collect();
                    sorted.sort_by_key(|&i| (arena[i].start, arena[i].end));
                    let ins: Vec<Place> = ins.iter().map(place).collect();
                    let mut states: Vec<usize> = ins.iter().filter_map(Place::state).collect();
                    states.sort_unstable();
                    states.dedup();
                    let step =
                        NativeStep { op, kernel, ins, outs, arena, sorted, in_place, states };
                    Some(Step::Native(step))
                }
                Draft::Unused => None,
                Draft::Interpreted(draft) => Some(Step::Interpreted(InterpretedStep {
                    op: draft.op,
                    uses: draft.uses.iter().map(|(v, slot)| (*v, held(slot))).collect(),
                    dynamic: draft.dynamic,
                    states: draft.states,
                    results: draft
                        .results
                        .iter()
                        .map(|(v, s)| (*v, s.as_ref().map(held)))
                        .collect(),
                })),
            });
        let steps: Vec<Step> = steps.collect();
        let ends = plan::direct_ends(&steps, places.direct_lens.len());
        let mut outputs: Vec<Output> = outputs
            .iter()
            .map(|(v, slot)| {
                let held = slot.as_ref().map(held);
                let done = match held.as_ref().map(|held| &held.place) {
                    Some(Place::Direct(i, _)) => ends[*i],
                    _ => steps.len(),
                };
                Output { name: self.function.values[*v].name.clone(), value: *v, held, done }
            })
            .collect();
        outputs.sort_by_key(|output| output.done);
        Plan {
            program: Program::default(),
            function: String::new(),
            steps,
            constants: self.memory.constants,
            arena_bytes: places.arena_bytes,
            unshared_bytes: self.memory.buffers.iter().sum(),
            outputs,
            direct: places.direct_lens,
            states: self.states.names,
        }
    }
}

/// The values that nested blocks of `id` make themselves.
fn values_inside(function: &Function, id: OpId, inner: &mut BTreeSet<ValueId>) {
    for block in &function.ops[id].blocks {
        inner.extend(&block.params);
        for &op in &block.ops {
            inner.extend(&function.ops[op].outputs);
            values_inside(function, op, inner);
        }
    }
}
