//! The verbs: programs, surfaces, requests and what a process holds of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ane_model::chip::Reload;
use ane_model::rules::{Call, Outcome, Severity, TextObject, check_call};
use exec::port::{
    self, Port, PortError, PortResult, Qos, Stage, Usage, Verb, VirtualTime, WeightFile,
};
use mil::eval::Array;
use sha2::{Digest, Sha256};
use tensor::{Bytes, Tensor};

use crate::compiled::{Compiled, Refusal, Slot};
use crate::engine::Engine;
use crate::machine::Machine;

/// What an evaluation that goes wrong returns.
const INFERENCE_ERROR: &str =
    "ANEProgramProcessRequestDirect() Failed with status=0x1d : Program Inference error";

/// An emulated Neural Engine, as one process sees it.
pub struct Emulator {
    machine: Machine,
    engine: Engine,
    description: port::Machine,
    usage: Arc<Mutex<Usage>>,
    in_flight: AtomicUsize,
    time: Mutex<VirtualTime>,
}

/// A program.
pub struct Model {
    identifier: String,
    directory: PathBuf,
    life: Mutex<Life>,
    usage: Arc<Mutex<Usage>>,
}

struct Life {
    stage: Stage,
    compiled: Option<Arc<Compiled>>,
}

/// Shared memory.
pub struct Surface(Arc<Memory>);

struct Memory {
    bytes: Mutex<Vec<u8>>,
    size: usize,
    usage: Arc<Mutex<Usage>>,
}

/// Surfaces in the order of a program's inputs and outputs.
pub struct Request {
    inputs: Vec<Arc<Memory>>,
    outputs: Vec<Arc<Memory>>,
}

impl Drop for Model {
    fn drop(&mut self) {
        lock(&self.usage).models -= 1;
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut usage = lock(&self.usage);
        usage.surfaces -= 1;
        usage.surface_bytes -= self.size;
    }
}

/// A panic elsewhere leaves counters and bytes as they are, which are valid at every moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn error(verb: Verb, message: impl Into<String>, reason: impl Into<String>) -> PortError {
    let message = message.into();
    let hexadecimal = |at: usize| {
        let digits: String =
            message[at + 2..].chars().take_while(char::is_ascii_hexdigit).collect();
        i64::from_str_radix(&digits, 16).ok()
    };
    let status = message.find("0x").and_then(hexadecimal);
    PortError { verb, status, message, reason: Some(reason.into()) }
}

fn refused(verb: Verb, refusal: &Refusal) -> PortError {
    error(verb, refusal.message.clone(), refusal.reason.clone())
}

fn wrong_stage(verb: Verb, stage: Stage) -> PortError {
    let name = match stage {
        Stage::Created => "not compiled",
        Stage::Compiled => "compiled and not loaded",
        Stage::Loaded => "loaded",
        Stage::Unloaded => "unloaded",
    };
    error(verb, "the program is not in the state that this needs", format!("it is {name}"))
}

impl Emulator {
    /// A process on `machine` that has not used the engine yet.
    pub fn new(machine: Machine) -> Self {
        let description = port::Machine {
            chip: machine.chip.name.clone(),
            os: machine.os.to_string(),
            emulated: true,
        };
        Emulator {
            engine: Engine::new(&machine.chip, machine.arithmetic),
            description,
            machine,
            usage: Arc::default(),
            in_flight: AtomicUsize::new(0),
            time: Mutex::new(VirtualTime {
                evaluating: Some(Duration::ZERO),
                preparing: Some(Duration::ZERO),
            }),
        }
    }

    /// Adds to one of the clock's times; what is unknown makes all that follows unknown.
    fn pass(&self, time: Option<Duration>, of: impl Fn(&mut VirtualTime) -> &mut Option<Duration>) {
        let mut clock = lock(&self.time);
        let so_far = of(&mut clock);
        *so_far = so_far.zip(time).and_then(|(a, b)| a.checked_add(b));
    }

    /// Fails if the call breaks a rule for certain.
    fn allow(&self, verb: Verb, call: &Call) -> PortResult<()> {
        for (rule, finding) in check_call(call, &self.machine.chip) {
            let fails = !matches!(
                rule.outcome,
                Outcome::WrongResult | Outcome::Slow | Outcome::OffEngine | Outcome::Contract
            );
            if fails && finding.severity.unwrap_or(rule.severity) == Severity::Error {
                let reason = format!("{}: {}", rule.id, finding.message);
                return Err(error(verb, rule.code.unwrap_or(rule.symptom), reason));
            }
        }
        Ok(())
    }

    /// Where the rows of a tensor lie whose width surfaces should not have: sources say only that data
    /// are then silently wrong; here they are wrong because rows begin at multiples of that width.
    fn spread(&self, slot: &Slot) -> Option<Spread> {
        let multiple = self.machine.chip.io.width_multiple.as_ref().map(|f| f.value as usize)?;
        let (&width, rest) = slot.shape.split_last()?;
        let rows: usize = rest.iter().product();
        if multiple == 0 || width.is_multiple_of(multiple) || rows <= 1 {
            return None;
        }
        let each = slot.bytes / (rows * width);
        Some(Spread { row: width * each, stride: width.next_multiple_of(multiple) * each })
    }

    fn run(&self, compiled: &Compiled, request: &Request) -> PortResult<()> {
        let failed = |reason: String| error(Verb::Evaluate, INFERENCE_ERROR, reason);
        let sizes = |slots: &[Slot], memory: &[Arc<Memory>], what: &str| {
            if slots.len() != memory.len() {
                return Err(failed(format!("{} {what} for {}", memory.len(), slots.len())));
            }
            for (slot, memory) in slots.iter().zip(memory) {
                if memory.size < slot.bytes {
                    let Slot { name, bytes, .. } = slot;
                    let size = memory.size;
                    return Err(failed(format!(
                        "{what} {name} has {bytes} bytes, its surface {size}"
                    )));
                }
            }
            Ok(slots.iter().zip(memory).map(|(s, m)| (m.size as u64, s.bytes as u64)).collect())
        };
        let call = Call::Evaluate {
            inputs: sizes(&compiled.inputs, &request.inputs, "inputs")?,
            outputs: sizes(&compiled.outputs, &request.outputs, "outputs")?,
            queued: (self.machine.queued + self.in_flight.load(Ordering::SeqCst)).saturating_sub(1)
                as u64,
        };
        self.allow(Verb::Evaluate, &call)?;
        if let Some(refusal) = &compiled.unusable {
            return Err(refused(Verb::Evaluate, refusal));
        }
        let mut inputs = BTreeMap::new();
        for (slot, memory) in compiled.inputs.iter().zip(&request.inputs) {
            let bytes = match self.spread(slot) {
                Some(rows) => Bytes::copy_from(&rows.gathered(&lock(&memory.bytes), slot.bytes)),
                None => Bytes::copy_from(&lock(&memory.bytes)[..slot.bytes]),
            };
            let tensor = Tensor::new(slot.ty.dtype, &slot.shape, bytes);
            let tensor = tensor.map_err(|e| failed(format!("input {}: {e}", slot.name)))?;
            let array = Array::from_tensor(&tensor).map_err(|e| failed(e.to_string()))?;
            inputs.insert(slot.value, array);
        }
        let results = self.engine.run(compiled, inputs).map_err(|e| failed(e.to_string()))?;
        for (slot, memory) in compiled.outputs.iter().zip(&request.outputs) {
            let tensor = results[&slot.value].to_tensor().map_err(|e| failed(e.to_string()))?;
            let mut memory = lock(&memory.bytes);
            match self.spread(slot) {
                Some(rows) => rows.scatter(tensor.bytes(), &mut memory),
                None => memory[..slot.bytes].copy_from_slice(tensor.bytes()),
            }
        }
        let time = self.machine.clock.evaluation(&compiled.program, &self.machine.chip);
        self.pass(time, |clock| &mut clock.evaluating);
        Ok(())
    }
}

/// Rows of bytes, and how far apart they begin.
struct Spread {
    row: usize,
    stride: usize,
}

impl Spread {
    /// The first `len` bytes of the rows in `from`, zeros where it ends.
    fn gathered(&self, from: &[u8], len: usize) -> Vec<u8> {
        let mut to = vec![0; len];
        for (row, at) in to.chunks_mut(self.row).zip((0..).step_by(self.stride)) {
            let given = from.get(at..).unwrap_or_default();
            row.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
        }
        to
    }

    /// Writes rows as far as `to` goes.
    fn scatter(&self, from: &[u8], to: &mut [u8]) {
        for (row, at) in from.chunks(self.row).zip((0..).step_by(self.stride)) {
            let place = to.get_mut(at..).unwrap_or_default();
            place.iter_mut().zip(row).for_each(|(to, from)| *to = *from);
        }
    }
}

impl Port for Emulator {
    type Model = Model;
    type Surface = Surface;
    type Request = Request;

    fn machine(&self) -> &port::Machine {
        &self.description
    }

    fn model(&self, text: &[u8], weights: &[WeightFile<'_>]) -> PortResult<Model> {
        self.allow(Verb::Model, &Call::Describe { text: TextObject::NsData, weights: true })?;
        let mut files = Sha256::new();
        for file in weights {
            files.update((file.key.len() as u64).to_le_bytes());
            files.update(file.key);
            files.update((file.data.len() as u64).to_le_bytes());
            files.update(file.data);
        }
        // The framework's identifiers are three digests: of the text, the weights, the options.
        let mut identifier = String::new();
        for digest in [Sha256::digest(text), files.finalize(), Sha256::digest([])] {
            if !identifier.is_empty() {
                identifier.push('_');
            }
            for byte in digest {
                // Writing to a string does not fail.
                let _ = write!(identifier, "{byte:02X}");
            }
        }
        lock(&self.usage).models += 1;
        Ok(Model {
            directory: self.machine.directory.join(&identifier),
            identifier,
            life: Mutex::new(Life { stage: Stage::Created, compiled: None }),
            usage: self.usage.clone(),
        })
    }

    fn identifier(&self, model: &Model) -> String {
        model.identifier.clone()
    }

    fn directory(&self, model: &Model) -> PathBuf {
        model.directory.clone()
    }

    fn compile(&self, model: &Model, _qos: Qos) -> PortResult<()> {
        let ordinal = {
            let mut usage = lock(&self.usage);
            usage.compilations += 1;
            usage.compilations as u64
        };
        self.allow(Verb::Compile, &Call::Compile { ordinal })?;
        let mut life = lock(&model.life);
        if life.stage == Stage::Loaded {
            return Err(wrong_stage(Verb::Compile, life.stage));
        }
        let compiled = Compiled::new(&self.machine, &model.directory)
            .map_err(|refusal| refused(Verb::Compile, &refusal))?;
        let time = self.machine.clock.compilation(&compiled.program, &self.machine.chip);
        self.pass(time, |clock| &mut clock.preparing);
        *life = Life { stage: Stage::Compiled, compiled: Some(Arc::new(compiled)) };
        Ok(())
    }

    fn load(&self, model: &Model, _qos: Qos) -> PortResult<()> {
        let mut life = lock(&model.life);
        let mut compiled = match (&life.compiled, life.stage) {
            (Some(compiled), Stage::Compiled | Stage::Unloaded) => compiled.clone(),
            (_, stage) => return Err(wrong_stage(Verb::Load, stage)),
        };
        let loaded = lock(&self.usage).loaded as u64;
        self.allow(Verb::Load, &Call::Load { loaded })?;
        let reload = self.machine.chip.switches.delta_reload.as_ref().map(|r| r.value);
        if life.stage == Stage::Unloaded && reload.is_some_and(|r| r != Reload::Ignored) {
            let again = Compiled::new(&self.machine, &model.directory)
                .map_err(|refusal| refused(Verb::Load, &refusal))?;
            if reload == Some(Reload::Refused) && !again.has_weights_of(&compiled) {
                let reason = "the weight file is not the one that was compiled";
                return Err(error(Verb::Load, "the program could not be loaded", reason));
            }
            compiled = Arc::new(again);
        }
        if let Some(refusal) = &compiled.unloadable {
            return Err(refused(Verb::Load, refusal));
        }
        let time = self.machine.clock.load(&compiled.program, &self.machine.chip);
        self.pass(time, |clock| &mut clock.preparing);
        *life = Life { stage: Stage::Loaded, compiled: Some(compiled) };
        lock(&self.usage).loaded += 1;
        Ok(())
    }

    fn unload(&self, model: &Model, _qos: Qos) -> PortResult<()> {
        let mut life = lock(&model.life);
        if life.stage != Stage::Loaded {
            return Err(wrong_stage(Verb::Unload, life.stage));
        }
        life.stage = Stage::Unloaded;
        lock(&self.usage).loaded -= 1;
        Ok(())
    }

    fn surface(&self, bytes: usize) -> PortResult<Surface> {
        let mut memory = Vec::new();
        memory
            .try_reserve_exact(bytes)
            .map_err(|e| error(Verb::Surface, "IOSurfaceCreate returned nil", e.to_string()))?;
        memory.resize(bytes, 0);
        let mut usage = lock(&self.usage);
        usage.surfaces += 1;
        usage.surface_bytes += bytes;
        let (bytes, usage) = (Mutex::new(memory), self.usage.clone());
        let size = lock(&bytes).len();
        Ok(Surface(Arc::new(Memory { bytes, size, usage })))
    }

    fn access(&self, surface: &Surface, access: &mut dyn FnMut(&mut [u8])) -> PortResult<()> {
        access(&mut lock(&surface.0.bytes));
        Ok(())
    }

    fn request(&self, inputs: &[&Surface], outputs: &[&Surface]) -> PortResult<Request> {
        let memory = |surfaces: &[&Surface]| surfaces.iter().map(|s| s.0.clone()).collect();
        Ok(Request { inputs: memory(inputs), outputs: memory(outputs) })
    }

    fn evaluate(&self, model: &Model, request: &Request, _qos: Qos) -> PortResult<()> {
        let compiled = {
            let life = lock(&model.life);
            match (&life.compiled, life.stage) {
                (Some(compiled), Stage::Loaded) => compiled.clone(),
                (_, stage) => return Err(wrong_stage(Verb::Evaluate, stage)),
            }
        };
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let result = self.run(&compiled, request);
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn usage(&self) -> Usage {
        *lock(&self.usage)
    }

    fn virtual_time(&self) -> VirtualTime {
        *lock(&self.time)
    }
}
