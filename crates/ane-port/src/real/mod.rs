//! The port itself: one message a verb.

mod framework;
mod library;
mod message;
mod object;
mod surface;
mod system;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use exec::port::{Machine, Port, PortError, PortResult, Qos, Usage, Verb, VirtualTime, WeightFile};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyObject, Bool, Sel};
use objc2_foundation::{
    NSArray, NSData, NSDictionary, NSError, NSNumber, NSString, NSTemporaryDirectory,
};

use self::framework::Framework;
use self::object::{Object, as_object, refusal};
use self::surface::{Claim, SurfaceApi};
use self::system::System;

pub use self::surface::Surface;

/// The Neural Engine of this Mac.
pub struct AnePort {
    framework: Framework,
    surfaces: SurfaceApi,
    machine: Machine,
    counters: Arc<Counters>,
}

/// A model of the port: `_ANEInMemoryModel`.
pub struct Model {
    object: Object,
    identifier: String,
    /// Compiling, loading and unloading exclude each other and evaluations, which do not exclude each other.
    gate: RwLock<()>,
    counters: Arc<Counters>,
}

/// A request of the port: `_ANERequest`.
pub struct Request {
    object: Object,
    claims: Vec<Claim>,
}

/// What the process holds now, for [`Usage`].
#[derive(Default)]
struct Counters {
    compilations: AtomicUsize,
    models: AtomicUsize,
    loaded: AtomicUsize,
    surfaces: AtomicUsize,
    surface_bytes: AtomicUsize,
}

impl AnePort {
    /// Opens the engine of this machine.
    ///
    /// # Errors
    /// When the system is not macOS, has no such framework, or has one that differs from the framework this was
    /// written for; the message says in what.
    pub fn open() -> PortResult<AnePort> {
        AnePort::with(Path::new(crate::FRAMEWORK), System::load()?)
    }

    /// Opens the framework at `path` on the given system.
    fn with(path: &Path, system: System) -> PortResult<AnePort> {
        let framework = Framework::open(path, &system.machine.os)?;
        let System { surfaces, machine } = system;
        Ok(AnePort { framework, surfaces, machine, counters: Arc::default() })
    }

    /// Sends a verb that takes options and answers yes or no.
    fn send_with_options(
        &self,
        verb: Verb,
        method: &framework::WithOptions,
        model: &Model,
        qos: Qos,
    ) -> PortResult<()> {
        let _alone = model.gate.write().unwrap_or_else(PoisonError::into_inner);
        autoreleasepool(|_| {
            let options = NSDictionary::<NSString, AnyObject>::new();
            answer(verb, |error| {
                // SAFETY: the receiver is of the class whose method this is, and the options live.
                unsafe { method.send(&model.object, (qos.0, as_object(&*options), error)) }
            })
        })
    }
}

/// Runs a method that answers no with an error, and tells the error.
fn answer(verb: Verb, send: impl FnOnce(*mut *mut NSError) -> Bool) -> PortResult<()> {
    let mut error: *mut NSError = ptr::null_mut();
    if send(&raw mut error).as_bool() {
        return Ok(());
    }
    // SAFETY: the method has left it null or made it an object that the pool around this holds.
    Err(refusal(verb, unsafe { error.as_ref() }))
}

/// A verb's complaint that the framework returned nothing.
fn nil(verb: Verb, method: Sel) -> PortError {
    PortError { verb, status: None, message: format!("{method} returned nil"), reason: None }
}

impl Port for AnePort {
    type Model = Model;
    type Surface = Surface;
    type Request = Request;

    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn model(&self, text: &[u8], weights: &[WeightFile<'_>]) -> PortResult<Model> {
        let of = &self.framework;
        autoreleasepool(|_| {
            let text = NSData::with_bytes(text);
            let files = dictionary(weights);
            // SAFETY: the receiver is the class whose method this is; text and files live, nil is no options.
            let descriptor = Object::new(unsafe {
                of.describe.send(
                    of.descriptor.as_ref(),
                    (as_object(&*text), as_object(&*files), ptr::null()),
                )
            });
            let descriptor = descriptor.ok_or_else(|| nil(Verb::Model, of.describe.selector()))?;
            // SAFETY: the receiver is the class whose method this is, and the descriptor lives.
            let object = Object::new(unsafe {
                of.in_memory.send(of.model.as_ref(), (as_object(&*descriptor),))
            });
            let object = object.ok_or_else(|| nil(Verb::Model, of.in_memory.selector()))?;
            // SAFETY: the receiver is of the class whose method this is.
            let identifier = Object::new(unsafe { of.identifier.send(&object, ()) });
            let identifier = identifier.as_deref().and_then(AnyObject::downcast_ref::<NSString>);
            let identifier =
                identifier.ok_or_else(|| nil(Verb::Model, of.identifier.selector()))?.to_string();
            self.counters.models.fetch_add(1, Ordering::Relaxed);
            Ok(Model {
                object,
                identifier,
                gate: RwLock::new(()),
                counters: Arc::clone(&self.counters),
            })
        })
    }

    fn identifier(&self, model: &Model) -> String {
        model.identifier.clone()
    }

    fn directory(&self, model: &Model) -> PathBuf {
        autoreleasepool(|_| {
            PathBuf::from(NSTemporaryDirectory().to_string()).join(&model.identifier)
        })
    }

    fn compile(&self, model: &Model, qos: Qos) -> PortResult<()> {
        self.counters.compilations.fetch_add(1, Ordering::Relaxed);
        self.send_with_options(Verb::Compile, &self.framework.compile, model, qos)
    }

    fn load(&self, model: &Model, qos: Qos) -> PortResult<()> {
        self.send_with_options(Verb::Load, &self.framework.load, model, qos)?;
        self.counters.loaded.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn unload(&self, model: &Model, qos: Qos) -> PortResult<()> {
        let _alone = model.gate.write().unwrap_or_else(PoisonError::into_inner);
        autoreleasepool(|_| {
            answer(Verb::Unload, |error| {
                // SAFETY: the receiver is of the class whose method this is.
                unsafe { self.framework.unload.send(&model.object, (qos.0, error)) }
            })
        })?;
        self.counters.loaded.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn surface(&self, bytes: usize) -> PortResult<Surface> {
        Surface::new(&self.framework, &self.surfaces, bytes, &self.counters)
    }

    fn access(&self, surface: &Surface, access: &mut dyn FnMut(&mut [u8])) -> PortResult<()> {
        surface.access(access)
    }

    fn request(&self, inputs: &[&Surface], outputs: &[&Surface]) -> PortResult<Request> {
        let of = &self.framework;
        autoreleasepool(|_| {
            let (ins, in_indices) = (wrappers(inputs), indices(inputs.len()));
            let (outs, out_indices) = (wrappers(outputs), indices(outputs.len()));
            let procedure = NSNumber::new_usize(0);
            let arguments = (
                as_object(&*ins),
                as_object(&*in_indices),
                as_object(&*outs),
                as_object(&*out_indices),
                // No weights buffer and no statistics.
                ptr::null(),
                ptr::null(),
                as_object(&*procedure),
            );
            // SAFETY: the receiver is the class whose method this is, and all arguments live.
            let object = Object::new(unsafe { of.request.send(of.requests.as_ref(), arguments) });
            let object = object.ok_or_else(|| nil(Verb::Request, of.request.selector()))?;
            Ok(Request { object, claims: Claim::all(inputs, outputs) })
        })
    }

    fn evaluate(&self, model: &Model, request: &Request, qos: Qos) -> PortResult<()> {
        let _loaded = model.gate.read().unwrap_or_else(PoisonError::into_inner);
        let _held: Vec<_> = request.claims.iter().map(Claim::hold).collect();
        autoreleasepool(|_| {
            let options = NSDictionary::<NSString, AnyObject>::new();
            answer(Verb::Evaluate, |error| {
                let arguments = (qos.0, as_object(&*options), as_object(&*request.object), error);
                // SAFETY: the receiver is of the class whose method this is, and the arguments live.
                unsafe { self.framework.evaluate.send(&model.object, arguments) }
            })
        })
    }

    fn usage(&self) -> Usage {
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Usage {
            compilations: read(&self.counters.compilations),
            models: read(&self.counters.models),
            loaded: read(&self.counters.loaded),
            surfaces: read(&self.counters.surfaces),
            surface_bytes: read(&self.counters.surface_bytes),
        }
    }

    fn virtual_time(&self) -> VirtualTime {
        VirtualTime::default()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.counters.models.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `key -> {offset: 0, data}` of each file. The bytes are copied, since the framework keeps them.
fn dictionary(
    weights: &[WeightFile<'_>],
) -> Retained<NSDictionary<NSString, NSDictionary<NSString, AnyObject>>> {
    let (offset, data) = (NSString::from_str("offset"), NSString::from_str("data"));
    let zero = NSNumber::new_usize(0);
    let keys: Vec<_> = weights.iter().map(|file| NSString::from_str(file.key)).collect();
    let files: Vec<_> = weights
        .iter()
        .map(|file| {
            let bytes = NSData::with_bytes(file.data);
            let values: [&AnyObject; 2] = [&zero, &bytes];
            NSDictionary::from_slices(&[&*offset, &*data], &values)
        })
        .collect();
    let keys: Vec<&NSString> = keys.iter().map(|key| &**key).collect();
    let files: Vec<_> = files.iter().map(|file| &**file).collect();
    NSDictionary::from_slices(&keys, &files)
}

fn wrappers(surfaces: &[&Surface]) -> Retained<NSArray<AnyObject>> {
    let objects: Vec<&AnyObject> = surfaces.iter().map(|surface| surface.wrapper()).collect();
    NSArray::from_slice(&objects)
}

fn indices(count: usize) -> Retained<NSArray<NSNumber>> {
    let numbers: Vec<_> = (0..count).map(NSNumber::new_usize).collect();
    NSArray::from_retained_slice(&numbers)
}
