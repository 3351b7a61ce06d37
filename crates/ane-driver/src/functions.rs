//! A function lowered for the engine, ready to run: its programs, surfaces and requests.

use std::collections::hash_map::Entry as Place;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ane_model::Chip;
use exec::port::Port;
use exec::{Backend, Result, Runnable, State, Tensors};
use mil::{Dim, TensorType};
use passes::ane::{Binding, EngineStep, HostSource, Lowered, Source, StateSlot, Step, Wire};
use tensor::Tensor;

use crate::packing;
use crate::programs::{Entry, Programs, device, failed};

/// The factors of an adapter by the number of their slot: `A` `[rank, in]` and `B` `[out, rank]`.
pub(crate) type Factors = Vec<(Tensor, Tensor)>;

/// The caches of a [`State`] on the engine: two surfaces each, of which one is read and the other
/// written by turns.
pub(crate) struct Resident<P: Port> {
    /// By name.
    caches: BTreeMap<String, Cache<P>>,
    /// Whether the host's memory is older than the surfaces.
    pub(crate) ahead: bool,
    /// Tells requests that were made for other surfaces.
    serial: u64,
}

struct Cache<P: Port> {
    surfaces: [Arc<P::Surface>; 2],
    /// Which one holds the state.
    current: usize,
    /// Whether the surfaces are older than the host's memory.
    stale: bool,
    slot: StateSlot,
}

/// A step made ready.
enum Ready<P: Port> {
    Host {
        runnable: Box<dyn Runnable>,
        inputs: Vec<(String, HostSource)>,
        outputs: Vec<(String, Wire)>,
    },
    Engine(Box<EngineReady<P>>),
}

struct EngineReady<P: Port> {
    entry: Arc<Entry<P>>,
    inputs: Vec<Bound<P>>,
    outputs: Vec<Bound<P>>,
    /// Requests by which of the surfaces of its states is read; made for the caches of this serial.
    requests: HashMap<(u64, Vec<usize>), P::Request>,
}

/// A binding with its surface; a state's surface is the state's.
struct Bound<P: Port> {
    binding: Binding,
    surface: Option<Arc<P::Surface>>,
}

/// A lowered function that can run.
pub(crate) struct Function<P: Port> {
    columns: usize,
    steps: Vec<Ready<P>>,
    wires: Vec<TensorType>,
    inputs: Vec<(String, Wire)>,
    outputs: Vec<(String, Wire)>,
    pub(crate) states: Vec<StateSlot>,
    /// Bytes of the surfaces of requests that have states.
    state_bytes: usize,
}

/// Bytes that the surfaces of requests with states need.
pub(crate) fn state_bytes(lowered: &Lowered, chip: &Chip) -> usize {
    let engine = lowered.steps.iter().filter_map(|step| match step {
        Step::Engine(step) if has_state(step) => Some(step),
        _ => None,
    });
    let bytes = engine.map(|step| {
        EngineStep::surface_bytes(&step.inputs, chip)
            .max(EngineStep::surface_bytes(&step.outputs, chip))
    });
    bytes.max().unwrap_or(0)
}

fn has_state(step: &EngineStep) -> bool {
    step.inputs.iter().any(|b| matches!(b.source, Source::State(_)))
}

impl<P: Port> Function<P> {
    /// Compiles the programs of a function and makes its surfaces. `state_bytes` is that of all
    /// functions that share states.
    pub(crate) fn new(
        lowered: Lowered,
        columns: usize,
        state_bytes: usize,
        programs: &Programs<P>,
        chip: &Chip,
        host: &dyn Backend,
    ) -> Result<Self> {
        let Lowered { steps, wires, inputs, outputs, states, .. } = lowered;
        // A tensor that one program hands to another stays in one surface if both want that size.
        let mut shared: HashMap<(Wire, usize), Arc<P::Surface>> = HashMap::new();
        let mut ready = Vec::new();
        for step in steps {
            ready.push(match step {
                Step::Host(step) => Ready::Host {
                    runnable: host.prepare(&step.program)?,
                    inputs: step.inputs,
                    outputs: step.outputs,
                },
                Step::Engine(step) => {
                    let entry = programs.compiled(&step.program, &step.label)?;
                    let size = |bindings: &[Binding]| match has_state(&step) {
                        true => state_bytes,
                        false => EngineStep::surface_bytes(bindings, chip),
                    };
                    let (in_bytes, out_bytes) = (size(&step.inputs), size(&step.outputs));
                    let mut bound = |bindings: &[Binding], bytes: usize| {
                        let one = |binding: &Binding| {
                            let make = || {
                                let made = programs.port().surface(bytes);
                                made.map(Arc::new).map_err(|e| failed(&step.label, &e))
                            };
                            let surface = match binding.source {
                                Source::State(_) => None,
                                Source::Tokens(wire) | Source::Raw(wire) => {
                                    let known = shared.get(&(wire, bytes)).cloned();
                                    let surface = known.map_or_else(make, Ok)?;
                                    shared.insert((wire, bytes), surface.clone());
                                    Some(surface)
                                }
                                Source::AdapterA(_) | Source::AdapterB(_) => Some(make()?),
                            };
                            Ok(Bound { binding: binding.clone(), surface })
                        };
                        bindings.iter().map(one).collect::<Result<Vec<_>>>()
                    };
                    Ready::Engine(Box::new(EngineReady {
                        inputs: bound(&step.inputs, in_bytes)?,
                        outputs: bound(&step.outputs, out_bytes)?,
                        entry,
                        requests: HashMap::new(),
                    }))
                }
            });
        }
        Ok(Function { columns, steps: ready, wires, inputs, outputs, states, state_bytes })
    }

    /// Puts the factors of an adapter, or none, into its surfaces.
    pub(crate) fn adapt(
        &mut self,
        factors: Option<&Factors>,
        programs: &Programs<P>,
    ) -> Result<()> {
        for step in &mut self.steps {
            let Ready::Engine(step) = step else { continue };
            for bound in &step.inputs {
                let (number, second) = match bound.binding.source {
                    Source::AdapterA(number) => (number, false),
                    Source::AdapterB(number) => (number, true),
                    _ => continue,
                };
                let factor = factors.and_then(|f| f.get(number));
                let factor = factor.map(|(a, b)| if second { b } else { a });
                let Some(surface) = &bound.surface else { continue };
                let copied = fill(programs, &step.entry.label, surface, &mut |bytes| {
                    bytes.fill(0);
                    factor.map_or(Ok(0), |f| packing::pack_raw(f, bytes))
                })?;
                programs.count(|s| s.copied += copied);
            }
        }
        Ok(())
    }

    /// Runs the function on at most [`Self::columns`] tokens.
    pub(crate) fn run(
        &mut self,
        inputs: &Tensors,
        tokens: usize,
        resident: &mut Resident<P>,
        programs: &Programs<P>,
    ) -> Result<Tensors> {
        // Tensors on the host, and the surfaces that hold one.
        let mut tensors: HashMap<Wire, Tensor> = HashMap::new();
        let mut held: HashMap<Wire, Arc<P::Surface>> = HashMap::new();
        for (name, wire) in &self.inputs {
            let tensor =
                inputs.get(name).ok_or_else(|| device(format!("input {name} is missing")))?;
            tensors.insert(*wire, tensor.clone());
        }
        for step in &mut self.steps {
            match step {
                Ready::Host { runnable, inputs, outputs } => {
                    let mut given = Tensors::new();
                    for (name, source) in inputs {
                        let (HostSource::Wire(wire) | HostSource::Padded(wire)) = *source;
                        let tensor = match tensors.entry(wire) {
                            Place::Occupied(known) => known.into_mut(),
                            Place::Vacant(place) => {
                                let (wires, columns) = (&self.wires, self.columns);
                                place.insert(fetch(&held, wire, wires, columns, tokens, programs)?)
                            }
                        };
                        let tensor = match source {
                            HostSource::Wire(_) => tensor.clone(),
                            HostSource::Padded(_) => padded(tensor, self.columns)?,
                        };
                        given.insert(name.clone(), tensor);
                    }
                    let mut none = runnable.new_state()?;
                    let mut made = runnable.run("main", &given, &mut none)?;
                    for (name, wire) in outputs {
                        let tensor = made.remove(name);
                        let tensor =
                            tensor.ok_or_else(|| device(format!("{name} was not made")))?;
                        tensors.insert(*wire, tensor);
                    }
                }
                Ready::Engine(step) => {
                    step.run(&tensors, &mut held, self.columns, &self.states, resident, programs)?;
                }
            }
        }
        let mut results = Tensors::new();
        for (name, wire) in &self.outputs {
            let tensor = match tensors.get(wire) {
                Some(tensor) => tensor.clone(),
                None => fetch(&held, *wire, &self.wires, self.columns, tokens, programs)?,
            };
            results.insert(name.clone(), tensor);
        }
        // Masks multiply and add, so what is not finite in any slot of a cache reaches every later result.
        if !self.states.is_empty() && !results.values().all(finite) {
            return Err(device("a result is not finite: the model left the engine's range"));
        }
        resident.ahead |= !self.states.is_empty();
        Ok(results)
    }
}

impl<P: Port> EngineReady<P> {
    fn run(
        &mut self,
        tensors: &HashMap<Wire, Tensor>,
        held: &mut HashMap<Wire, Arc<P::Surface>>,
        columns: usize,
        states: &[StateSlot],
        resident: &mut Resident<P>,
        programs: &Programs<P>,
    ) -> Result<()> {
        let label = &self.entry.label;
        let mut copied = 0;
        for bound in &self.inputs {
            let Some(surface) = &bound.surface else { continue };
            let (wire, raw) = match bound.binding.source {
                Source::Tokens(wire) => (wire, false),
                Source::Raw(wire) => (wire, true),
                _ => continue,
            };
            match held.get(&wire) {
                Some(holder) if Arc::ptr_eq(holder, surface) => {}
                Some(holder) => {
                    let bytes = bound.binding.shape.iter().product::<usize>() * 2;
                    let data = copy_of(programs, label, holder, bytes)?;
                    copied += fill(programs, label, surface, &mut |to| {
                        to[..bytes].copy_from_slice(&data);
                        Ok(bytes)
                    })?;
                }
                None => {
                    let tensor = tensors.get(&wire);
                    let tensor =
                        tensor.ok_or_else(|| device(format!("{label}: an input is not made")))?;
                    copied += fill(programs, label, surface, &mut |bytes| match raw {
                        true => packing::pack_raw(tensor, bytes),
                        false => packing::pack_tokens(tensor, columns, bytes),
                    })?;
                    held.insert(wire, surface.clone());
                }
            }
        }
        let used: Vec<&str> = self
            .inputs
            .iter()
            .filter_map(|b| match b.binding.source {
                Source::State(i) => Some(states[i].name.as_str()),
                _ => None,
            })
            .collect();
        let turns: Vec<usize> = used.iter().map(|name| resident.caches[*name].current).collect();
        programs.load(&self.entry)?;
        let key = (resident.serial, turns);
        if !self.requests.contains_key(&key) {
            // Requests for caches that are gone hold their memory.
            self.requests.retain(|(serial, _), _| *serial == resident.serial);
            let surfaces = |bounds: &[Bound<P>], turn: usize| -> Vec<Arc<P::Surface>> {
                let one = |b: &Bound<P>| match (&b.surface, &b.binding.source) {
                    (None, Source::State(i)) => {
                        let cache = &resident.caches[&states[*i].name];
                        Some(cache.surfaces[(cache.current + turn) % 2].clone())
                    }
                    (surface, _) => surface.clone(),
                };
                bounds.iter().filter_map(one).collect()
            };
            let (inputs, outputs) = (surfaces(&self.inputs, 0), surfaces(&self.outputs, 1));
            let request = programs.port().request(
                &inputs.iter().map(Arc::as_ref).collect::<Vec<_>>(),
                &outputs.iter().map(Arc::as_ref).collect::<Vec<_>>(),
            );
            self.requests.insert(key.clone(), request.map_err(|e| failed(label, &e))?);
        }
        programs.evaluate(&self.entry, &self.requests[&key])?;
        for name in used {
            if let Some(cache) = resident.caches.get_mut(name) {
                cache.current = 1 - cache.current;
            }
        }
        for bound in &self.outputs {
            if let (Source::Tokens(wire), Some(surface)) = (&bound.binding.source, &bound.surface) {
                held.insert(*wire, surface.clone());
            }
        }
        programs.count(|s| s.copied += copied);
        Ok(())
    }
}

impl<P: Port> Resident<P> {
    pub(crate) fn new(serial: u64) -> Self {
        Resident { caches: BTreeMap::new(), ahead: false, serial }
    }

    /// Makes the surfaces of a function's states that there are none of yet.
    pub(crate) fn make(&mut self, function: &Function<P>, programs: &Programs<P>) -> Result<()> {
        for slot in &function.states {
            if !self.caches.contains_key(&slot.name) {
                let make = || programs.port().surface(function.state_bytes).map(Arc::new);
                let surfaces = make().and_then(|a| Ok([a, make()?]));
                let surfaces = surfaces.map_err(|e| failed(&slot.name, &e))?;
                let cache = Cache { surfaces, current: 0, stale: true, slot: slot.clone() };
                self.caches.insert(slot.name.clone(), cache);
            }
        }
        Ok(())
    }

    /// The host's memory is what counts from now on.
    pub(crate) fn forget(&mut self) {
        self.caches.values_mut().for_each(|cache| cache.stale = true);
    }

    /// Writes the host's memory into the surfaces that are older.
    pub(crate) fn upload(&mut self, state: &State, programs: &Programs<P>) -> Result<()> {
        for (name, cache) in self.caches.iter_mut().filter(|(_, cache)| cache.stale) {
            let buffer = state.get(name)?;
            let StateSlot { heads, dim, slots, .. } = cache.slot;
            let surface = &cache.surfaces[cache.current];
            let copied = fill(programs, name, surface, &mut |bytes| {
                packing::pack_state(&buffer.data, buffer.dtype, [heads, dim, slots], bytes);
                Ok(heads * dim * slots * 2)
            })?;
            cache.stale = false;
            programs.count(|s| s.copied += copied);
        }
        Ok(())
    }

    /// Writes what the surfaces hold into the host's memory.
    pub(crate) fn download(&mut self, state: &mut State, programs: &Programs<P>) -> Result<()> {
        for (name, cache) in &self.caches {
            let buffer = state.get_mut(name)?;
            let StateSlot { heads, dim, slots, .. } = cache.slot;
            let bytes = heads * dim * slots * 2;
            let data = copy_of(programs, name, &cache.surfaces[cache.current], bytes)?;
            packing::unpack_state(&data, buffer.dtype, [heads, dim, slots], &mut buffer.data);
            programs.count(|s| s.copied += bytes);
        }
        self.ahead = false;
        Ok(())
    }
}

/// Shows a surface's bytes to `write`, which says how many it wrote.
fn fill<P: Port>(
    programs: &Programs<P>,
    label: &str,
    surface: &P::Surface,
    write: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
) -> Result<usize> {
    let mut result = Ok(0);
    let access = programs.port().access(surface, &mut |bytes| result = write(bytes));
    access.map_err(|e| failed(label, &e))?;
    result
}

fn copy_of<P: Port>(
    programs: &Programs<P>,
    label: &str,
    surface: &P::Surface,
    bytes: usize,
) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    let access =
        programs.port().access(surface, &mut |data| copy.extend_from_slice(&data[..bytes]));
    access.map_err(|e| failed(label, &e))?;
    Ok(copy)
}

/// The host's form of a tensor of tokens that a surface holds.
fn fetch<P: Port>(
    held: &HashMap<Wire, Arc<P::Surface>>,
    wire: Wire,
    wires: &[TensorType],
    columns: usize,
    tokens: usize,
    programs: &Programs<P>,
) -> Result<Tensor> {
    let surface = held.get(&wire).ok_or_else(|| device("a tensor is used before it is made"))?;
    let ty = &wires[wire.0];
    // A fixed number of tokens is the function's own.
    let tokens = ty.shape.get(1).and_then(Dim::fixed).unwrap_or(tokens);
    let mut result = Err(device("a surface shows nothing"));
    let access = programs.port().access(surface, &mut |bytes| {
        result = packing::unpack_tokens(bytes, ty, columns, tokens);
    });
    access.map_err(|e| failed("reading a surface", &e))?;
    let tensor = result?;
    programs.count(|s| s.copied += tensor.len() * 2);
    Ok(tensor)
}

/// Whether a tensor of floats holds neither infinity nor NaN.
fn finite(tensor: &Tensor) -> bool {
    mil::eval::tensor_floats(tensor).is_none_or(|values| values.iter().all(|x| x.is_finite()))
}

/// A vector of int32, lengthened with -1.
fn padded(tensor: &Tensor, columns: usize) -> Result<Tensor> {
    let values = tensor.as_slice::<i32>().map_err(|e| device(e.to_string()))?;
    let mut values = values.to_vec();
    values.resize(columns, -1);
    Tensor::from_slice(&[columns], &values).map_err(|e| device(e.to_string()))
}
