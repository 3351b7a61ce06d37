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

use crate::error::{bug, failed, invalid, unsupported};
use crate::packing;
use crate::programs::{Entry, Programs, Update};

/// The factors of an adapter by the number of their slot, where it has any: `A` turned, `[in, rank]`,
/// and `B` `[out, rank]`.
pub(crate) type Factors = Vec<Option<(Tensor, Tensor)>>;

/// Requests of a program that are kept: two a state that takes turns.
const REQUESTS: usize = 16;

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
    /// Of each surface.
    bytes: usize,
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
    /// Requests by the caches' serial and which of the surfaces of each state is read.
    requests: HashMap<(u64, Vec<usize>), P::Request>,
}

/// A binding with its surface; a state's surface is the state's.
struct Bound<P: Port> {
    binding: Binding,
    surface: Option<Arc<P::Surface>>,
}

/// Writes into the surface of a binding, if it is one to write into, and says how many bytes.
type Write<'a> = dyn Fn(&Binding, &mut [u8]) -> Option<Result<usize>> + 'a;

/// How often a runnable holds each program, by its address.
pub(crate) type Holders = HashMap<usize, usize>;

/// How tensors lie in surfaces.
#[derive(Clone, Copy)]
struct Layout {
    /// Tokens of a program that has tokens as columns.
    columns: Option<usize>,
    /// What the widths of rows are filled up to a multiple of.
    multiple: usize,
}

/// A lowered function that can run.
pub(crate) struct Executable<P: Port> {
    layout: Layout,
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

impl<P: Port> Executable<P> {
    /// Compiles the programs of a function and makes its surfaces. `state_bytes` is that of all
    /// functions that share states.
    pub(crate) fn new(
        lowered: Lowered,
        state_bytes: usize,
        programs: &Programs<P>,
        chip: &Chip,
        host: &dyn Backend,
    ) -> Result<Self> {
        let Lowered { columns, steps, wires, inputs, outputs, states, .. } = lowered;
        let layout = Layout { columns, multiple: passes::ane::width_multiple(chip) };
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
                                Source::Tokens(wire) | Source::Raw(wire) | Source::Rows(wire) => {
                                    let known = shared.get(&(wire, bytes)).cloned();
                                    let surface = known.map_or_else(make, Ok)?;
                                    shared.insert((wire, bytes), surface.clone());
                                    Some(surface)
                                }
                                Source::AdapterA(_) | Source::AdapterB(_) | Source::Weight(_) => {
                                    Some(make()?)
                                }
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
        Ok(Executable { layout, steps: ready, wires, inputs, outputs, states, state_bytes })
    }

    /// Puts the factors of an adapter, or zeros, into its surfaces.
    pub(crate) fn adapt(&mut self, factors: &Factors, programs: &Programs<P>) -> Result<()> {
        self.fill(programs, &|binding, bytes| {
            let (number, second) = match binding.source {
                Source::AdapterA(number) => (number, false),
                Source::AdapterB(number) => (number, true),
                _ => return None,
            };
            bytes.fill(0);
            let factor = factors.get(number).and_then(Option::as_ref);
            let factor = factor.map(|(a, b)| if second { b } else { a });
            Some(factor.map_or(Ok(0), |f| packing::pack_raw(f, bytes)))
        })
    }

    /// Puts the weights that are inputs into their surfaces, by number.
    pub(crate) fn give(&mut self, weights: &[Tensor], programs: &Programs<P>) -> Result<()> {
        self.fill(programs, &|binding, bytes| match binding.source {
            Source::Weight(number) => {
                weights.get(number).map(|w| packing::pack_rows(w, binding.shape, bytes))
            }
            _ => None,
        })
    }

    /// Shows inputs that keep what is in them to `write`, which returns how many bytes it wrote.
    fn fill(&mut self, programs: &Programs<P>, write: &Write<'_>) -> Result<()> {
        for step in &mut self.steps {
            let Ready::Engine(step) = step else { continue };
            for bound in &step.inputs {
                let Some(surface) = &bound.surface else { continue };
                let copied = fill(programs, &step.entry.label, surface, &mut |bytes| {
                    write(&bound.binding, bytes).unwrap_or(Ok(0))
                })?;
                programs.count(|s| s.copied += copied);
            }
        }
        Ok(())
    }

    /// Counts how often each program is held.
    pub(crate) fn count(&self, holders: &mut Holders) {
        for step in &self.steps {
            if let Ready::Engine(step) = step {
                *holders.entry(Arc::as_ptr(&step.entry) as usize).or_default() += 1;
            }
        }
    }

    /// Takes the constants of `lowered`, which is this function with other weights. What was done to
    /// each program is `update`, where it has to be done.
    pub(crate) fn update(
        &mut self,
        lowered: Lowered,
        programs: &Programs<P>,
        update: Option<Update>,
        holders: &mut Holders,
        host: &dyn Backend,
    ) -> Result<()> {
        if lowered.steps.len() != self.steps.len() {
            return Err(unsupported(
                "other weights make other programs: the model must be prepared again",
            ));
        }
        for (ready, step) in self.steps.iter_mut().zip(lowered.steps) {
            match (ready, step) {
                (Ready::Host { runnable, .. }, Step::Host(step)) => {
                    *runnable = host.prepare(&step.program)?;
                }
                (Ready::Engine(ready), Step::Engine(step)) => {
                    let alike =
                        |own: &[Bound<P>], new: &[Binding]| own.iter().map(|b| &b.binding).eq(new);
                    if !alike(&ready.inputs, &step.inputs) || !alike(&ready.outputs, &step.outputs)
                    {
                        return Err(unsupported(
                            "other weights make other programs: the model must be prepared again",
                        ));
                    }
                    let held = holders.entry(Arc::as_ptr(&ready.entry) as usize).or_default();
                    let new = programs.updated(&ready.entry, &step.program, update, *held)?;
                    *held -= 1;
                    *holders.entry(Arc::as_ptr(&new) as usize).or_default() += 1;
                    ready.entry = new;
                }
                _ => return Err(unsupported("other weights change what runs on the engine")),
            }
        }
        Ok(())
    }

    /// Runs the function, on at most as many tokens as its programs have columns. `state` holds what
    /// states the host has.
    pub(crate) fn run(
        &mut self,
        inputs: &Tensors,
        tokens: usize,
        state: &mut State,
        resident: &mut Resident<P>,
        programs: &Programs<P>,
    ) -> Result<Tensors> {
        // Tensors on the host, and the surfaces that hold one.
        let mut tensors: HashMap<Wire, Tensor> = HashMap::new();
        let mut held: HashMap<Wire, Arc<P::Surface>> = HashMap::new();
        for (name, wire) in &self.inputs {
            let tensor = inputs.get(name).ok_or_else(|| bug(format!("input {name} is missing")))?;
            tensors.insert(*wire, tensor.clone());
        }
        let layout = self.layout;
        let slots = self.states.iter().map(|s| s.slots).min();
        for step in &mut self.steps {
            match step {
                Ready::Host { runnable, inputs, outputs } => {
                    let mut given = Tensors::new();
                    for (name, source) in inputs {
                        let (HostSource::Wire(wire) | HostSource::Padded(wire)) = *source;
                        let tensor = match tensors.entry(wire) {
                            Place::Occupied(known) => known.into_mut(),
                            Place::Vacant(place) => {
                                let ty = &self.wires[wire.0];
                                place.insert(fetch(&held, wire, ty, layout, tokens, programs)?)
                            }
                        };
                        let tensor = match source {
                            HostSource::Wire(_) => tensor.clone(),
                            HostSource::Padded(_) => {
                                padded(tensor, layout.columns.unwrap_or(0), slots)?
                            }
                        };
                        given.insert(name.clone(), tensor);
                    }
                    let mut made = runnable.run("main", &given, state)?;
                    for (name, wire) in outputs {
                        let tensor = made.remove(name);
                        let tensor = tensor.ok_or_else(|| bug(format!("{name} was not made")))?;
                        tensors.insert(*wire, tensor);
                    }
                }
                Ready::Engine(step) => {
                    step.run(&tensors, &mut held, layout, &self.states, resident, programs)?;
                }
            }
        }
        let mut results = Tensors::new();
        for (name, wire) in &self.outputs {
            let tensor = match tensors.get(wire) {
                Some(tensor) => tensor.clone(),
                None => fetch(&held, *wire, &self.wires[wire.0], layout, tokens, programs)?,
            };
            results.insert(name.clone(), tensor);
        }
        // Masks multiply and add, so what is not finite in any slot of a cache reaches every later result.
        if !self.states.is_empty() && !results.values().all(finite) {
            return Err(unsupported("a result is not finite: the model left the engine's range"));
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
        layout: Layout,
        states: &[StateSlot],
        resident: &mut Resident<P>,
        programs: &Programs<P>,
    ) -> Result<()> {
        let label = &self.entry.label;
        let mut copied = 0;
        for bound in &self.inputs {
            let Some(surface) = &bound.surface else { continue };
            let (Source::Tokens(wire) | Source::Raw(wire) | Source::Rows(wire)) =
                bound.binding.source
            else {
                continue;
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
                        tensor.ok_or_else(|| bug(format!("{label}: an input is not made")))?;
                    let Binding { source, shape, .. } = &bound.binding;
                    copied += fill(programs, label, surface, &mut |bytes| match source {
                        Source::Tokens(_) => {
                            packing::pack_tokens(tensor, layout.columns.unwrap_or(0), bytes)
                        }
                        Source::Rows(_) => packing::pack_rows(tensor, *shape, bytes),
                        _ => packing::pack_raw(tensor, bytes),
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
        let key = (resident.serial, turns);
        if !self.requests.contains_key(&key) {
            // Each holds surfaces: those of caches long unused must not be kept for ever.
            if self.requests.len() >= REQUESTS {
                self.requests.retain(|(serial, _), _| *serial == resident.serial);
            }
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
            if let (Source::Tokens(wire) | Source::Rows(wire), Some(surface)) =
                (&bound.binding.source, &bound.surface)
            {
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

    /// Makes the surfaces of a function's states that there are none of yet. Caches that another
    /// program made in another size go through the host's memory.
    pub(crate) fn make(
        &mut self,
        function: &Executable<P>,
        state: &mut State,
        programs: &Programs<P>,
    ) -> Result<()> {
        let bytes = function.state_bytes;
        let other = |slot: &StateSlot| {
            self.caches.get(&slot.name).is_some_and(|c| c.bytes != bytes || c.slot != *slot)
        };
        if function.states.iter().any(other) {
            if self.ahead {
                self.download(state, programs)?;
            }
            self.caches.clear();
        }
        for slot in &function.states {
            if !self.caches.contains_key(&slot.name) {
                let make = || programs.port().surface(bytes).map(Arc::new);
                let surfaces = make().and_then(|a| Ok([a, make()?]));
                let surfaces = surfaces.map_err(|e| failed(&slot.name, &e))?;
                let cache = Cache { surfaces, current: 0, stale: true, slot: slot.clone(), bytes };
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

/// The host's form of a tensor that a surface holds.
fn fetch<P: Port>(
    held: &HashMap<Wire, Arc<P::Surface>>,
    wire: Wire,
    ty: &TensorType,
    layout: Layout,
    tokens: usize,
    programs: &Programs<P>,
) -> Result<Tensor> {
    let surface = held.get(&wire).ok_or_else(|| bug("a tensor is used before it is made"))?;
    // A fixed number of tokens is the function's own.
    let tokens = ty.shape.get(1).and_then(Dim::fixed).unwrap_or(tokens);
    let mut result = Err(bug("a surface shows nothing"));
    let access = programs.port().access(surface, &mut |bytes| {
        result = match layout.columns {
            Some(columns) => packing::unpack_tokens(bytes, ty, columns, tokens),
            None => packing::unpack_rows(bytes, ty, layout.multiple),
        };
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

/// Positions, lengthened with -1. Each is a slot of its own.
fn padded(tensor: &Tensor, columns: usize, slots: Option<usize>) -> Result<Tensor> {
    let values = tensor.as_slice::<i32>().map_err(|e| bug(e.to_string()))?;
    for (i, &position) in values.iter().enumerate() {
        let inside = usize::try_from(position).is_ok_and(|p| slots.is_none_or(|n| p < n));
        if !inside || values[..i].contains(&position) {
            let of = slots.map_or_else(String::new, |n| format!(" of {n} slots"));
            return Err(invalid(format!("position {position} is no slot of its own{of}")));
        }
    }
    let mut values = values.to_vec();
    values.resize(columns, -1);
    Tensor::from_slice(&[columns], &values).map_err(|e| bug(e.to_string()))
}
