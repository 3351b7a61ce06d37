//! The backend: which functions go to the engine, in which sizes, and the state they share.

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ane_model::{Chip, Os};
use exec::port::Port;
use exec::{Backend, ExecError, Fallback, Result, Runnable, State, Tensors};
use mil::{Dim, Function, OpId, OpKind, Program, ValueData, ValueDef, ValueId};
use passes::ane::{HalfWeights, Lowered, Step, Target, Variable, legalised, lower, width_multiple};
use tensor::Tensor;

use crate::error::{bug, invalid, unsupported};
use crate::executable::{Executable, Factors, Holders, Resident, state_bytes};
use crate::programs::{Exhausted, Key, Programs, Update, lock};
use crate::stats::Stats;

/// How a program is spread over engine and host.
#[derive(Clone)]
pub struct Options {
    /// The chip that the port leads to. What sources dispute is taken as its values have it.
    pub chip: Chip,
    /// Its operating system.
    pub os: Os,
    /// Functions that run on the engine, all if none is named; others run on the host.
    pub functions: Option<Vec<String>>,
    /// The numbers of columns of a language model's programs, ascending, each a multiple of the chip's
    /// [width](passes::ane::width_multiple): a call takes the smallest that its tokens fit in, or is cut
    /// into several calls of the largest.
    pub columns: Vec<usize>,
    /// What may change without compiling.
    pub variable: Variable,
    /// How other weights get into a program; the self-test decides if nothing is said.
    pub update: Option<Update>,
    /// Called when the process has no compilation left.
    pub exhausted: Option<Exhausted>,
}

/// A backend over a port.
pub struct AneBackend<P: Port + 'static> {
    programs: Arc<Programs<P>>,
    host: Arc<dyn Backend>,
    options: Options,
    adapter: Arc<Mutex<Active>>,
}

/// The adapter in use.
#[derive(Default)]
struct Active {
    factors: Option<Arc<BTreeMap<String, (Tensor, Tensor)>>>,
    /// Counts changes.
    version: u64,
}

impl<P: Port + 'static> AneBackend<P> {
    /// A backend that gives the host what the engine does not take.
    pub fn new(port: Arc<P>, host: Arc<dyn Backend>, mut options: Options) -> Self {
        options.chip = options.chip.settled();
        let programs = Programs::new(port, options.chip.clone(), options.exhausted.clone());
        AneBackend { programs: Arc::new(programs), host, options, adapter: Arc::default() }
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        self.programs.stats()
    }

    /// Uses an adapter from the next call on: `A` `[rank, in]` and `B` `[out, rank]`, its factor
    /// included, by the name of the layer's weight; `None` for the model as it is. Nothing is compiled.
    /// Functions on the host take them as inputs, if they are [prepared](passes::low_rank) for it.
    ///
    /// # Errors
    /// When a layer has no slot for it, or the rank is larger than the slot's.
    pub fn use_adapter(&self, factors: Option<BTreeMap<String, (Tensor, Tensor)>>) -> Result<()> {
        let checked = factors.map(|factors| {
            let fitted = factors.into_iter().map(|(weight, (a, b))| {
                let slot = self.options.variable.adapters.iter().find(|s| s.weight == weight);
                let slot = slot.ok_or_else(|| invalid(format!("adapter: no slot for {weight}")))?;
                let rank = slot.rank.next_multiple_of(width_multiple(&self.options.chip));
                let fitted =
                    fit(&a, &b, rank).map_err(|m| invalid(format!("adapter {weight}: {m}")))?;
                Ok((weight, fitted))
            });
            fitted.collect::<Result<BTreeMap<_, _>>>()
        });
        let mut active = lock(&self.adapter);
        active.factors = checked.transpose()?.map(Arc::new);
        active.version += 1;
        Ok(())
    }

    fn lower(
        &self,
        program: &Program,
        name: &str,
        columns: usize,
        weights: &mut HalfWeights,
    ) -> Result<Lowered> {
        lowered(&self.options, program, name, columns, weights)
    }
}

/// `A` turned, `[in, rank]`, and `B` `[out, rank]`, in fp16, padded with zeros to the rank of their slot.
fn fit(a: &Tensor, b: &Tensor, rank: usize) -> std::result::Result<(Tensor, Tensor), String> {
    let (&[own, inner], &[out, second]) = (a.shape(), b.shape()) else {
        return Err("factors are no matrices".into());
    };
    if own != second || own > rank {
        return Err(format!("A {:?} and B {:?} in a slot of rank {rank}", a.shape(), b.shape()));
    }
    let floats = |t: &Tensor| {
        let values = mil::eval::tensor_floats(t).ok_or("factors are no floats")?;
        let fits = values.iter().all(|&x| half::f16::from_f64(x).is_finite());
        fits.then_some(values).ok_or("a factor is beyond fp16, in which the engine computes")
    };
    let (a, b) = (floats(a)?, floats(b)?);
    let wide = |rows: usize, at: &dyn Fn(usize, usize) -> f64| {
        let mut wide = vec![half::f16::ZERO; rows * rank];
        for (row, to) in wide.chunks_exact_mut(rank.max(1)).enumerate() {
            to[..own]
                .iter_mut()
                .enumerate()
                .for_each(|(k, t)| *t = half::f16::from_f64(at(row, k)));
        }
        Tensor::from_slice(&[rows, rank], &wide).map_err(|e| e.to_string())
    };
    Ok((wide(inner, &|i, k| a[k * inner + i])?, wide(out, &|o, k| b[o * own + k])?))
}

impl<P: Port + 'static> Backend for AneBackend<P> {
    fn name(&self) -> &str {
        "ane"
    }

    fn check(&self, program: &Program) -> Vec<Fallback> {
        let legal = match legalised(program) {
            Ok(legal) => legal,
            Err(e) => {
                let names = self.names(program).into_iter();
                let all = names.flat_map(|n| Self::all_on_host(program, &n, &e.to_string()));
                return all.collect();
            }
        };
        let mut found = Vec::new();
        for name in self.names(&legal) {
            let columns = self.options.columns.first().copied().unwrap_or(1);
            match self.lower(&legal, &name, columns, &mut HalfWeights::default()) {
                Ok(lowered) => found.extend(fallbacks(&name, &lowered)),
                Err(e) => found.extend(Self::all_on_host(program, &name, &e.to_string())),
            }
        }
        found
    }

    fn prepare(&self, program: &Program) -> Result<Box<dyn Runnable>> {
        Ok(Box::new(self.open(program)?))
    }
}

fn lowered(
    options: &Options,
    program: &Program,
    name: &str,
    columns: usize,
    weights: &mut HalfWeights,
) -> Result<Lowered> {
    let Options { chip, os, variable, .. } = options;
    let target = Target { chip, os: *os, columns };
    Ok(lower(program, name, &target, variable, weights)?)
}

/// A function's inputs and outputs without what is between.
fn signature(function: &Function) -> Function {
    let mut signature = Function::new(function.opset);
    let copy = |to: &mut Function, &v: &ValueId| {
        let data = ValueData { def: ValueDef::Param, ..function.values[v].clone() };
        to.values.push(data)
    };
    signature.inputs = function.inputs.iter().map(|v| copy(&mut signature, v)).collect();
    signature.body.outputs =
        function.body.outputs.iter().map(|v| copy(&mut signature, v)).collect();
    signature
}

impl<P: Port + 'static> AneBackend<P> {
    /// Makes a program ready to run; nothing is compiled before it runs.
    ///
    /// # Errors
    /// As [`Backend::prepare`].
    pub fn open(&self, program: &Program) -> Result<AneRunnable<P>> {
        self.check_options()?;
        let host = self.host.prepare(program)?;
        let legal = legalised(program)?;
        let program = legal.as_ref();
        let mut weights = HalfWeights::default();
        let mut lowered = Vec::new();
        for name in self.names(program) {
            let function = program.functions.get(&name);
            let function = function.ok_or_else(|| ExecError::NoFunction(name.clone()))?;
            let most = tokens_of(function);
            for &columns in &self.options.columns {
                let part = self.lower(program, &name, columns, &mut weights)?;
                // A function of a fixed number of tokens, or of none, needs one size.
                let last = part.columns.is_none() || most.is_some_and(|t| t <= columns);
                lowered.push((name.clone(), part));
                if last {
                    break;
                }
            }
        }
        let lowered = self.within_budget(program, lowered)?;
        self.check_variable(program, &lowered)?;
        let bytes = lowered.iter().map(|(_, l)| state_bytes(l, &self.options.chip)).max();
        let mut fallen = Vec::new();
        let mut functions: BTreeMap<String, Vec<Sized<P>>> = BTreeMap::new();
        for (name, lowered) in lowered {
            for f in fallbacks(&name, &lowered) {
                if !fallen.contains(&f) {
                    fallen.push(f);
                }
            }
            let columns = lowered.columns.unwrap_or(usize::MAX);
            let sized = Sized { columns, lowered: Some(lowered), function: None, adapter: 0 };
            functions.entry(name).or_default().push(sized);
        }
        let signatures =
            program.functions.iter().map(|(name, f)| (name.clone(), signature(f))).collect();
        Ok(AneRunnable {
            programs: self.programs.clone(),
            host_backend: self.host.clone(),
            host,
            options: self.options.clone(),
            weights,
            program: legal.into_owned(),
            adapter: self.adapter.clone(),
            signatures,
            functions,
            state_bytes: bytes.unwrap_or(0),
            fallbacks: fallen,
        })
    }

    /// The functions that run on the engine.
    fn names(&self, program: &Program) -> Vec<String> {
        match &self.options.functions {
            Some(names) => names.clone(),
            None => program.functions.keys().cloned().collect(),
        }
    }

    /// The operations of a function, which all stay on the host.
    fn all_on_host(program: &Program, name: &str, reason: &str) -> Vec<Fallback> {
        let Some(function) = program.functions.get(name) else { return Vec::new() };
        let one = |op: OpId| Fallback {
            function: name.to_owned(),
            kind: function.ops[op].kind,
            operation: function.describe(op),
            reason: reason.to_owned(),
        };
        function.body.ops.iter().map(|&op| one(op)).filter(|f| f.kind != OpKind::Const).collect()
    }

    fn check_options(&self) -> Result<()> {
        let Options { columns, chip, .. } = &self.options;
        let multiple = width_multiple(chip);
        let whole = columns.iter().all(|&c| c > 0 && c.is_multiple_of(multiple));
        if columns.is_empty() || !whole || !columns.is_sorted() {
            return Err(invalid(format!(
                "columns {columns:?}: {} wants multiples of {multiple}, ascending",
                chip.title
            )));
        }
        Ok(())
    }

    /// The functions without some of their sizes, where all sizes together are more programs than this
    /// process can still compile. A call that can be cut is then made in pieces of the smaller size, at which
    /// functions have most programs in common; another one takes the larger size.
    fn within_budget(
        &self,
        program: &Program,
        mut lowered: Vec<(String, Lowered)>,
    ) -> Result<Vec<(String, Lowered)>> {
        let Some(budget) = &self.options.chip.runtime.compiles else { return Ok(lowered) };
        let spent = self.programs.port().usage().compilations;
        let budget = (budget.value as usize).saturating_sub(spent);
        fn programs(lowered: &Lowered) -> impl Iterator<Item = &Program> {
            lowered.steps.iter().filter_map(|step| match step {
                Step::Engine(step) => Some(&step.program),
                Step::Host(_) => None,
            })
        }
        if lowered.iter().map(|(_, l)| programs(l).count()).sum::<usize>() <= budget {
            return Ok(lowered);
        }
        let keys = |(_, l): &(String, Lowered)| programs(l).map(Key::of).collect();
        let mut keys: Vec<Vec<Key>> = lowered.iter().map(keys).collect::<Result<_>>()?;
        while keys.iter().flatten().collect::<HashSet<_>>().len() > budget {
            // Sizes of a function follow each other, the smallest first.
            let Some(smaller) = lowered.windows(2).position(|pair| pair[0].0 == pair[1].0) else {
                break;
            };
            let name = &lowered[smaller].0;
            let index = match program.functions.get(name).is_some_and(can_be_cut) {
                true => lowered.iter().rposition(|(n, _)| n == name).unwrap_or(smaller),
                false => smaller,
            };
            lowered.remove(index);
            keys.remove(index);
        }
        Ok(lowered)
    }

    /// Every layer whose weight or adapter is an input must be on the engine in every function that
    /// runs there.
    fn check_variable(&self, program: &Program, lowered: &[(String, Lowered)]) -> Result<()> {
        let Variable { adapters, weights } = &self.options.variable;
        let slots = adapters.iter().map(|slot| (&slot.weight, true));
        for (weight, adapted) in slots.chain(weights.iter().map(|weight| (weight, false))) {
            let has =
                |name: &String| passes::ane::has_layer(program, &program.functions[name], weight);
            let mut known = false;
            for (name, lowered) in lowered.iter().filter(|(name, _)| has(name)) {
                known = true;
                let there = match adapted {
                    true => lowered.adapters.iter().any(|(s, _)| s.weight == *weight),
                    false => lowered.weights.iter().any(|(w, _)| w == weight),
                };
                if !there {
                    return Err(unsupported(format!(
                        "the layer of {weight}, which is to change, is on the host in function {name}"
                    )));
                }
            }
            if !known {
                return Err(invalid(format!("no layer has weight {weight}, which is to change")));
            }
        }
        Ok(())
    }
}

/// The fixed number of tokens of a function, if it has one: the second axis of its first tensor.
fn tokens_of(function: &Function) -> Option<usize> {
    let mut tensors = function.inputs.iter().filter_map(|&v| function.tensor_ty(v));
    tensors.find(|t| t.rank() >= 2)?.shape.get(1).and_then(Dim::fixed)
}

/// What of a lowered function is on the host.
fn fallbacks(name: &str, lowered: &Lowered) -> Vec<Fallback> {
    let mut found = Vec::new();
    for step in &lowered.steps {
        let Step::Host(step) = step else { continue };
        // Programs of positions stand for no operation of the source.
        if step.inputs.iter().any(|(_, s)| matches!(s, passes::ane::HostSource::Padded(_))) {
            continue;
        }
        for function in step.program.functions.values() {
            for &op in &function.body.ops {
                let operation = &function.ops[op];
                if operation.kind == OpKind::Const {
                    continue;
                }
                let described = function.describe(op);
                let refused = lowered.refused.iter().find(|(o, _)| *o == described);
                let reason = refused.map_or("it has no form on the engine", |(_, why)| why);
                found.push(Fallback {
                    function: name.to_owned(),
                    kind: operation.kind,
                    operation: described,
                    reason: reason.to_owned(),
                });
            }
        }
    }
    found
}

/// A function at one number of columns, compiled when first needed.
struct Sized<P: Port> {
    columns: usize,
    lowered: Option<Lowered>,
    function: Option<Ready<P>>,
    adapter: u64,
}

struct Ready<P: Port> {
    function: Executable<P>,
    /// Weight and `[out, in]` of each layer with an adapter.
    slots: Vec<(String, [usize; 2])>,
    /// The same of each weight that is an input.
    given: Vec<(String, [usize; 2])>,
}

/// A program over a port.
pub struct AneRunnable<P: Port + 'static> {
    programs: Arc<Programs<P>>,
    host_backend: Arc<dyn Backend>,
    host: Box<dyn Runnable>,
    options: Options,
    program: Program,
    weights: HalfWeights,
    adapter: Arc<Mutex<Active>>,
    /// Inputs and outputs of every function.
    signatures: BTreeMap<String, Function>,
    functions: BTreeMap<String, Vec<Sized<P>>>,
    state_bytes: usize,
    fallbacks: Vec<Fallback>,
}

/// The weights that are inputs, by number.
fn given_weights(program: &Program, given: &[(String, [usize; 2])]) -> Result<Vec<Tensor>> {
    let one = |(name, size): &(String, [usize; 2])| {
        let weight = program.weights.find(name).and_then(|id| program.weights.get(id));
        let weight = weight.ok_or_else(|| invalid(format!("there is no weight {name}")))?;
        passes::ane::half_precision(&weight.tensor, name)?
            .reshaped(size)
            .map_err(|e| bug(format!("weight {name}: {e}")))
    };
    given.iter().map(one).collect()
}

/// Numbers the caches of this process: a state may be used with another runnable than made them.
static SERIALS: AtomicU64 = AtomicU64::new(0);

impl<P: Port + 'static> AneRunnable<P> {
    /// The function at the size for `tokens`, compiled and with the adapter in use.
    fn ready(&mut self, name: &str, tokens: usize) -> Result<(usize, &mut Executable<P>)> {
        let sizes =
            self.functions.get_mut(name).ok_or_else(|| ExecError::NoFunction(name.to_owned()))?;
        let index = sizes.iter().position(|s| s.columns >= tokens).unwrap_or(sizes.len() - 1);
        let sized = &mut sizes[index];
        if let Some(lowered) = sized.lowered.take() {
            let slots =
                lowered.adapters.iter().map(|(s, size)| (s.weight.clone(), *size)).collect();
            let given = lowered.weights.clone();
            let kept = lowered.clone();
            let made = Executable::new(
                lowered,
                self.state_bytes,
                &self.programs,
                &self.options.chip,
                self.host_backend.as_ref(),
            )
            .and_then(|mut function| {
                function.give(&given_weights(&self.program, &given)?, &self.programs)?;
                Ok(Ready { function, slots, given })
            });
            match made {
                Ok(ready) => sized.function = Some(ready),
                Err(e) => {
                    sized.lowered = Some(kept);
                    return Err(e);
                }
            }
        }
        let columns = sized.columns;
        let ready =
            sized.function.as_mut().ok_or_else(|| ExecError::NoFunction(name.to_owned()))?;
        let (factors, version) = {
            let active = lock(&self.adapter);
            (active.factors.clone(), active.version)
        };
        if sized.adapter != version {
            let mut given = Factors::new();
            for (weight, [out, inner]) in &ready.slots {
                let factors = factors.as_ref().and_then(|all| all.get(weight));
                if let Some((a, b)) = factors
                    && [b.shape()[0], a.shape()[0]] != [*out, *inner]
                {
                    let (a, b) = (a.shape()[0], b.shape()[0]);
                    let message =
                        format!("is of {a} inputs and {b} outputs, the layer of {inner} and {out}");
                    return Err(invalid(format!("adapter {weight}: {message}")));
                }
                given.push(factors.cloned());
            }
            ready.function.adapt(&given, &self.programs)?;
        }
        sized.adapter = version;
        Ok((columns, &mut ready.function))
    }

    /// Takes the weights of `program`, which is the prepared one with other weights: those that are
    /// inputs are written into their surfaces, programs with others are updated as the options or the
    /// [self-test](crate::self_test) say. States are kept.
    ///
    /// # Errors
    /// When it is another program, or the engine does not take it. Some weights may then be new and
    /// others old.
    pub fn set_weights(&mut self, program: &Program) -> Result<()> {
        let legal = legalised(program)?.into_owned();
        let old = self.program.weights.iter().map(|(id, w)| (id, w.name.clone(), w.tensor.clone()));
        let old: Vec<_> = old.collect();
        let sizes = |program: &Program| -> Vec<(String, usize, usize)> {
            let functions = program.functions.iter();
            functions.map(|(name, f)| (name.clone(), f.ops.len(), f.values.len())).collect()
        };
        if sizes(&self.program) != sizes(&legal) || old.len() != legal.weights.iter().len() {
            return Err(invalid("the program is another one than was prepared"));
        }
        for (id, name, tensor) in &old {
            let new = legal.weights.get(*id).map(|w| &w.tensor);
            let new = new.filter(|n| n.dtype() == tensor.dtype() && n.shape() == tensor.shape());
            let new =
                new.ok_or_else(|| invalid(format!("weight {name} is of another type or shape")))?;
            if new.bytes().as_ptr() != tensor.bytes().as_ptr() {
                self.weights.forget(*id);
            }
        }
        self.host = self.host_backend.prepare(program)?;
        let mut holders = Holders::new();
        let ready = self.functions.values().flatten().filter_map(|sized| sized.function.as_ref());
        ready.for_each(|ready| ready.function.count(&mut holders));
        for (name, sizes) in &mut self.functions {
            for sized in sizes {
                let columns = sized.lowered.as_ref().map_or(Some(sized.columns), |l| l.columns);
                let columns = columns.unwrap_or(self.options.columns[0]);
                let fresh = lowered(&self.options, &legal, name, columns, &mut self.weights)?;
                let Some(ready) = &mut sized.function else {
                    sized.lowered = Some(fresh);
                    continue;
                };
                let update = self.options.update;
                let host = self.host_backend.as_ref();
                ready.function.update(fresh, &self.programs, update, &mut holders, host)?;
                ready.function.give(&given_weights(&legal, &ready.given)?, &self.programs)?;
            }
        }
        self.program = legal;
        Ok(())
    }

    /// The caches on the engine that belong to a state.
    fn resident(&self, state: &mut State) -> Box<Resident<P>> {
        let held = state.take_device().and_then(|held: Box<dyn Any + Send>| held.downcast().ok());
        held.unwrap_or_else(|| Box::new(Resident::new(SERIALS.fetch_add(1, Ordering::Relaxed))))
    }
}

impl<P: Port + 'static> Runnable for AneRunnable<P> {
    fn new_state(&self) -> Result<State> {
        self.host.new_state()
    }

    fn run(&mut self, function: &str, inputs: &Tensors, state: &mut State) -> Result<Tensors> {
        if let Some(signature) = self.signatures.get(function) {
            exec::check_inputs(function, signature, inputs)?;
            state.check(signature)?;
        }
        let mut resident = self.resident(state);
        let result = match self.functions.contains_key(function) {
            true => self.on_engine(function, inputs, state, &mut resident),
            false => self.on_host(function, inputs, state, &mut resident),
        };
        match result {
            Ok(results) => {
                state.put_device(resident);
                Ok(results)
            }
            Err(e) => {
                // A state of which nothing is known must be an empty one: what is not finite in any
                // slot would reach the results of a sequence that starts over, too.
                if let Ok(fresh) = self.host.new_state() {
                    *state = fresh;
                }
                Err(e)
            }
        }
    }

    fn fallbacks(&self) -> &[Fallback] {
        &self.fallbacks
    }
}

impl<P: Port + 'static> AneRunnable<P> {
    fn on_host(
        &mut self,
        function: &str,
        inputs: &Tensors,
        state: &mut State,
        resident: &mut Resident<P>,
    ) -> Result<Tensors> {
        let adapted = lock(&self.adapter).factors.is_some();
        let lacks = |(number, slot): (usize, &passes::ane::AdapterSlot)| {
            let f = self.program.functions.get(function);
            f.is_some_and(|f| {
                passes::ane::has_layer(&self.program, f, &slot.weight)
                    && !passes::low_rank::takes_inputs(f, number)
            })
        };
        if adapted && self.options.variable.adapters.iter().enumerate().any(lacks) {
            return Err(unsupported(format!(
                "function {function} runs on the host, which an adapter does not reach"
            )));
        }
        if resident.ahead {
            resident.download(state, &self.programs)?;
        }
        let results = self.host.run(function, inputs, state);
        // The host may have changed the caches: they are uploaded before the engine's next run.
        resident.forget();
        results
    }

    fn on_engine(
        &mut self,
        function: &str,
        inputs: &Tensors,
        state: &mut State,
        resident: &mut Resident<P>,
    ) -> Result<Tensors> {
        let programs = self.programs.clone();
        let signature = self.signatures.get(function);
        let signature = signature.ok_or_else(|| ExecError::NoFunction(function.to_owned()))?;
        let tokens = inputs.values().filter(|t| t.shape().len() >= 2).map(|t| t.shape()[1]).max();
        let tokens = tokens.unwrap_or(1);
        let widest = self.functions[function].last().map_or(0, |sized| sized.columns);
        if tokens > widest && !can_be_cut(signature) {
            return self.on_host(function, inputs, state, resident);
        }
        let stateful = signature.inputs.iter().any(|&v| signature.ty(v).as_state().is_some());
        let mut results = Tensors::new();
        let mut start = 0;
        while start < tokens || start == 0 {
            let (columns, ready) = self.ready(function, tokens - start)?;
            // The states of plain MIL are the host's.
            let hosts = stateful && ready.states.is_empty();
            if hosts && resident.ahead {
                resident.download(state, &programs)?;
            }
            resident.make(ready, state, &programs)?;
            resident.upload(state, &programs)?;
            let count = columns.min(tokens - start);
            let part = inputs
                .iter()
                .map(|(name, t)| Ok((name.clone(), slice(t, tokens, start, count)?)))
                .collect::<Result<Tensors>>()?;
            results = ready.run(&part, count, state, resident, &programs)?;
            if hosts {
                resident.forget();
            }
            start += count.max(1);
        }
        Ok(results)
    }
}

/// Whether a call can be made in pieces: tokens see earlier pieces through states alone, and of the
/// results only the last piece's are kept.
fn can_be_cut(signature: &Function) -> bool {
    let by_token = |v: &ValueId| {
        let axis = signature.tensor_ty(*v).and_then(|t| t.shape.get(1));
        axis.is_some_and(|d| d.fixed().is_none())
    };
    signature.inputs.iter().any(|&v| signature.ty(v).as_state().is_some())
        && !signature.body.outputs.iter().any(by_token)
}

/// Tokens `start..start + count` of a tensor `[1, T]`, `[1, T, ...]` or `[T]`.
fn slice(tensor: &Tensor, tokens: usize, start: usize, count: usize) -> Result<Tensor> {
    let axis = usize::from(tensor.shape().len() >= 2);
    if count == tokens || tensor.shape().get(axis) != Some(&tokens) {
        return Ok(tensor.clone());
    }
    let mut shape = tensor.shape().to_vec();
    let each = tensor.bytes().len() / tokens.max(1);
    let bytes = tensor.bytes().slice(start * each..(start + count) * each);
    shape[axis] = count;
    let bytes = bytes.ok_or_else(|| bug("an input is shorter than it says"))?;
    Tensor::new(tensor.dtype(), &shape, bytes).map_err(|e| bug(e.to_string()))
}
