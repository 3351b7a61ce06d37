//! The backend: which functions go to the engine, in which sizes, and the state they share.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ane_model::{Chip, Os};
use exec::port::Port;
use exec::{Backend, ExecError, Fallback, Result, Runnable, State, Tensors};
use mil::{Dim, OpKind, Program};
use passes::ane::{AdapterSlot, HalfWeights, Lowered, Step, Target, lower};
use tensor::Tensor;

use crate::functions::{Factors, Function, Resident, state_bytes};
use crate::programs::{Exhausted, Programs, device, lock};
use crate::stats::Stats;

/// How a program is spread over engine and host.
#[derive(Clone)]
pub struct Options {
    /// The chip that the port leads to. What sources dispute is taken as its values have it.
    pub chip: Chip,
    /// Its operating system.
    pub os: Os,
    /// Functions that run on the engine; others run on the host.
    pub functions: Vec<String>,
    /// The numbers of columns of programs, ascending: a call takes the smallest that its tokens fit
    /// in, or is cut into several calls of the largest.
    pub columns: Vec<usize>,
    /// Linear layers that adapters change.
    pub adapters: Vec<AdapterSlot>,
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
    ///
    /// # Errors
    /// When a layer has no slot for it, or the rank is larger than the slot's.
    pub fn use_adapter(&self, factors: Option<BTreeMap<String, (Tensor, Tensor)>>) -> Result<()> {
        let checked = factors.map(|factors| {
            let fitted = factors.into_iter().map(|(weight, (a, b))| {
                let slot = self.options.adapters.iter().find(|s| s.weight == weight);
                let slot = slot.ok_or_else(|| device(format!("adapter: no slot for {weight}")))?;
                let fitted =
                    fit(&a, &b, slot.rank).map_err(|m| device(format!("adapter {weight}: {m}")))?;
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
        let Options { chip, os, adapters, .. } = &self.options;
        let target = Target { chip, os: *os, columns };
        Ok(lower(program, name, &target, adapters, weights)?)
    }
}

/// Factors padded with zeros to the rank of their slot.
fn fit(a: &Tensor, b: &Tensor, rank: usize) -> std::result::Result<(Tensor, Tensor), String> {
    let (&[own, inner], &[out, second]) = (a.shape(), b.shape()) else {
        return Err("factors are no matrices".into());
    };
    if own != second || own > rank {
        return Err(format!("A {:?} and B {:?} in a slot of rank {rank}", a.shape(), b.shape()));
    }
    let floats = |t: &Tensor| mil::eval::tensor_floats(t).ok_or("factors are no floats");
    let half = |x: f64| half::f16::from_f64(x);
    let mut wide_a: Vec<half::f16> = floats(a)?.into_iter().map(half).collect();
    wide_a.resize(rank * inner, half::f16::ZERO);
    let mut wide_b = vec![half::f16::ZERO; out * rank];
    for (to, from) in wide_b.chunks_exact_mut(rank).zip(floats(b)?.chunks_exact(own.max(1))) {
        to.iter_mut().zip(from).for_each(|(t, &x)| *t = half(x));
    }
    let made =
        |shape: &[usize], v: &[half::f16]| Tensor::from_slice(shape, v).map_err(|e| e.to_string());
    Ok((made(&[rank, inner], &wide_a)?, made(&[out, rank], &wide_b)?))
}

impl<P: Port + 'static> Backend for AneBackend<P> {
    fn name(&self) -> &str {
        "ane"
    }

    fn check(&self, program: &Program) -> Vec<Fallback> {
        let mut found = Vec::new();
        for name in &self.options.functions {
            let columns = self.options.columns.first().copied().unwrap_or(1);
            match self.lower(program, name, columns, &mut HalfWeights::default()) {
                Ok(lowered) => found.extend(fallbacks(name, &lowered)),
                Err(e) => found.push(Fallback {
                    function: name.clone(),
                    kind: OpKind::Const,
                    operation: name.clone(),
                    reason: e.to_string(),
                }),
            }
        }
        found
    }

    fn prepare(&self, program: &Program) -> Result<Box<dyn Runnable>> {
        let mut weights = HalfWeights::default();
        let mut lowered = Vec::new();
        for name in &self.options.functions {
            let function = program.functions.get(name);
            let function = function.ok_or_else(|| ExecError::NoFunction(name.clone()))?;
            let most = tokens_of(function);
            for &columns in &self.options.columns {
                lowered.push((
                    name.clone(),
                    columns,
                    self.lower(program, name, columns, &mut weights)?,
                ));
                // A function of a fixed number of tokens needs one size.
                if most.is_some_and(|t| t <= columns) {
                    break;
                }
            }
        }
        let bytes = lowered.iter().map(|(_, _, l)| state_bytes(l, &self.options.chip)).max();
        let mut fallen = Vec::new();
        let mut functions: BTreeMap<String, Vec<Sized<P>>> = BTreeMap::new();
        for (name, columns, lowered) in lowered {
            for f in fallbacks(&name, &lowered) {
                if !fallen.contains(&f) {
                    fallen.push(f);
                }
            }
            let sized = Sized { columns, lowered: Some(lowered), function: None, adapter: 0 };
            functions.entry(name).or_default().push(sized);
        }
        let host = self.host.prepare(program)?;
        Ok(Box::new(AneRunnable {
            programs: self.programs.clone(),
            host_backend: self.host.clone(),
            host,
            chip: self.options.chip.clone(),
            slots: self.options.adapters.clone(),
            adapter: self.adapter.clone(),
            functions,
            state_bytes: bytes.unwrap_or(0),
            fallbacks: fallen,
        }))
    }
}

/// The fixed number of tokens of a function, if it has one: the second axis of its first tensor.
fn tokens_of(function: &mil::Function) -> Option<usize> {
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
    function: Function<P>,
    slots: Vec<String>,
}

struct AneRunnable<P: Port + 'static> {
    programs: Arc<Programs<P>>,
    host_backend: Arc<dyn Backend>,
    host: Box<dyn Runnable>,
    chip: Chip,
    slots: Vec<AdapterSlot>,
    adapter: Arc<Mutex<Active>>,
    functions: BTreeMap<String, Vec<Sized<P>>>,
    state_bytes: usize,
    fallbacks: Vec<Fallback>,
}

/// Numbers the caches of this process: a state may be used with another runnable than made them.
static SERIALS: AtomicU64 = AtomicU64::new(0);

impl<P: Port + 'static> AneRunnable<P> {
    /// The function at the size for `tokens`, compiled and with the adapter in use.
    fn ready(&mut self, name: &str, tokens: usize) -> Result<(usize, &mut Function<P>)> {
        let sizes =
            self.functions.get_mut(name).ok_or_else(|| ExecError::NoFunction(name.to_owned()))?;
        let index = sizes.iter().position(|s| s.columns >= tokens).unwrap_or(sizes.len() - 1);
        let sized = &mut sizes[index];
        if let Some(lowered) = sized.lowered.take() {
            let slots = lowered.adapters.iter().map(|(slot, _)| slot.weight.clone()).collect();
            let kept = lowered.clone();
            let made = Function::new(
                lowered,
                sized.columns,
                self.state_bytes,
                &self.programs,
                &self.chip,
                self.host_backend.as_ref(),
            );
            match made {
                Ok(function) => sized.function = Some(Ready { function, slots }),
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
        if sized.adapter != version && !self.slots.is_empty() {
            let factors: Option<Factors> = factors.map(|all| {
                let one = |weight: &String| {
                    let none = || Tensor::from_slice::<f32>(&[0], &[]);
                    all.get(weight).cloned().or_else(|| Some((none().ok()?, none().ok()?)))
                };
                ready.slots.iter().filter_map(one).collect()
            });
            ready.function.adapt(factors.as_ref(), &self.programs)?;
        }
        sized.adapter = version;
        Ok((columns, &mut ready.function))
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
                *state = self.host.new_state()?;
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
        state: &State,
        resident: &mut Resident<P>,
    ) -> Result<Tensors> {
        let tokens = inputs.values().filter(|t| t.shape().len() >= 2).map(|t| t.shape()[1]).max();
        let tokens = tokens.unwrap_or(1);
        let programs = self.programs.clone();
        let mut results = Tensors::new();
        let mut start = 0;
        while start < tokens || start == 0 {
            let (columns, ready) = self.ready(function, tokens - start)?;
            resident.make(ready, &programs)?;
            resident.upload(state, &programs)?;
            let count = columns.min(tokens - start);
            let part = inputs
                .iter()
                .map(|(name, t)| Ok((name.clone(), slice(t, tokens, start, count)?)))
                .collect::<Result<Tensors>>()?;
            results = ready.run(&part, count, resident, &programs)?;
            start += count.max(1);
        }
        Ok(results)
    }
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
    let bytes = bytes.ok_or_else(|| device("an input is shorter than it says"))?;
    Tensor::new(tensor.dtype(), &shape, bytes).map_err(|e| device(e.to_string()))
}
