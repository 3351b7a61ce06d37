//! Seven faults, each planted in one verb of the port; a life through the faulty port must show each.
//!
//! The first four are mistakes in how a message is sent; a port that binds its methods before it sends any cannot make
//! them, which the last test shows. The others are mistakes that types do not see.

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr;

use exec::port::{Machine, Port, PortResult, Qos, Usage, Verb, VirtualTime, WeightFile};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyClass, AnyObject, Bool};
use objc2::{Message as _, msg_send};
use objc2_foundation::{NSDictionary, NSError, NSNumber, NSString};

use super::life::{alone, check, port};
use crate::real::message::{Message, Side};
use crate::real::object::{Object, as_object};
use crate::real::surface::Claim;
use crate::real::{AnePort, Model, Request, Surface, answer, indices, nil, wrappers};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// Quality of service in 64 bits.
    WrongInteger,
    /// A surface as a pointer to anything.
    WrongPointer,
    /// Loading without a place for the error.
    MissingError,
    /// `Qos` for `QoS`.
    MisspeltSelector,
    /// Surfaces where their indices belong, and the other way round.
    SwappedArrays,
    /// The surface of input 0 given as that of input 1, and the other way round.
    SwappedIndices,
    /// A reference too many.
    Leak,
    /// The program is left with the engine.
    MissingUnload,
}

struct Faulty {
    port: AnePort,
    fault: Fault,
}

impl Port for Faulty {
    type Model = Model;
    type Surface = Surface;
    type Request = Request;

    fn machine(&self) -> &Machine {
        self.port.machine()
    }

    fn model(&self, text: &[u8], weights: &[WeightFile<'_>]) -> PortResult<Model> {
        let model = self.port.model(text, weights)?;
        if self.fault == Fault::Leak {
            let _ = Retained::into_raw((*model.object).retain());
        }
        Ok(model)
    }

    fn identifier(&self, model: &Model) -> String {
        self.port.identifier(model)
    }

    fn directory(&self, model: &Model) -> PathBuf {
        self.port.directory(model)
    }

    fn compile(&self, model: &Model, qos: Qos) -> PortResult<()> {
        if self.fault != Fault::WrongInteger {
            return self.port.compile(model, qos);
        }
        let options = NSDictionary::<NSString, AnyObject>::new();
        answer(Verb::Compile, |error: *mut *mut NSError| -> Bool {
            let qos = u64::from(qos.0);
            // SAFETY: it is not; that is the fault.
            unsafe {
                msg_send![&*model.object, compileWithQoS: qos, options: &*options, error: error]
            }
        })
    }

    fn load(&self, model: &Model, qos: Qos) -> PortResult<()> {
        if self.fault != Fault::MissingError {
            return self.port.load(model, qos);
        }
        let options = NSDictionary::<NSString, AnyObject>::new();
        // SAFETY: it is not; that is the fault.
        let ok: Bool = unsafe { msg_send![&*model.object, loadWithQoS: qos.0, options: &*options] };
        answer(Verb::Load, |_| ok)
    }

    fn unload(&self, model: &Model, qos: Qos) -> PortResult<()> {
        match self.fault {
            Fault::MissingUnload => Ok(()),
            Fault::MisspeltSelector => answer(Verb::Unload, |error: *mut *mut NSError| -> Bool {
                // SAFETY: it is not; that is the fault.
                unsafe { msg_send![&*model.object, unloadWithQos: qos.0, error: error] }
            }),
            _ => self.port.unload(model, qos),
        }
    }

    fn surface(&self, bytes: usize) -> PortResult<Surface> {
        let surface = self.port.surface(bytes)?;
        if self.fault == Fault::WrongPointer {
            let raw: *mut c_void = ptr::null_mut();
            // SAFETY: it is not; that is the fault.
            let _: *mut AnyObject =
                unsafe { msg_send![self.port.framework.wrappers, objectWithIOSurface: raw] };
        }
        Ok(surface)
    }

    fn access(&self, surface: &Surface, access: &mut dyn FnMut(&mut [u8])) -> PortResult<()> {
        self.port.access(surface, access)
    }

    fn request(&self, inputs: &[&Surface], outputs: &[&Surface]) -> PortResult<Request> {
        autoreleasepool(|_| {
            let (ins, mut in_indices) = (wrappers(inputs), indices(inputs.len()));
            let (mut first, mut second) = (as_object(&*ins), as_object(&*in_indices));
            match self.fault {
                Fault::SwappedArrays => std::mem::swap(&mut first, &mut second),
                Fault::SwappedIndices => {
                    let numbers: Vec<_> =
                        (0..inputs.len()).rev().map(NSNumber::new_usize).collect();
                    in_indices = objc2_foundation::NSArray::from_retained_slice(&numbers);
                    second = as_object(&*in_indices);
                }
                _ => return self.port.request(inputs, outputs),
            }
            let (outs, out_indices) = (wrappers(outputs), indices(outputs.len()));
            let (outs, out_indices) = (as_object(&*outs), as_object(&*out_indices));
            let procedure = NSNumber::new_usize(0);
            let rest = as_object(&*procedure);
            let of = &self.port.framework;
            let arguments = (first, second, outs, out_indices, ptr::null(), ptr::null(), rest);
            // SAFETY: the types are right; what the objects are is the fault.
            let object = Object::new(unsafe { of.request.send(of.requests.as_ref(), arguments) });
            let object = object.ok_or_else(|| nil(Verb::Request, of.request.selector()))?;
            Ok(Request { object, claims: Claim::all(inputs, outputs) })
        })
    }

    fn evaluate(&self, model: &Model, request: &Request, qos: Qos) -> PortResult<()> {
        self.port.evaluate(model, request, qos)
    }

    fn usage(&self) -> Usage {
        self.port.usage()
    }

    fn virtual_time(&self) -> VirtualTime {
        VirtualTime::default()
    }
}

/// The fault shows in a life, with words that begin or end so.
#[track_caller]
fn shows(fault: Fault, words: &str) {
    let _alone = alone();
    let found = check(&Faulty { port: port(), fault }).expect_err("the fault went unseen");
    assert!(found.contains(words), "{fault:?}: {found}");
}

#[test]
fn a_wrong_integer_width_shows() {
    shows(
        Fault::WrongInteger,
        "compileWithQoS:options:error:]: expected argument at index 0 to have type code 'I', but found 'Q'",
    );
}

#[test]
fn a_wrong_pointer_type_shows() {
    shows(
        Fault::WrongPointer,
        "objectWithIOSurface:]: expected argument at index 0 to have type code '^{__IOSurface=}', but found '^v'",
    );
}

#[test]
fn a_missing_error_argument_shows() {
    shows(Fault::MissingError, "loadWithQoS:options:]: method not found");
}

#[test]
fn a_misspelt_selector_shows() {
    shows(Fault::MisspeltSelector, "unloadWithQos:error:]: method not found");
}

#[test]
fn swapped_arrays_show() {
    shows(Fault::SwappedArrays, "request: requestWithInputs:");
}

#[test]
fn swapped_indices_show() {
    shows(Fault::SwappedIndices, ", not ");
}

#[test]
fn a_leak_shows() {
    shows(Fault::Leak, "(objects, unpooled, programs, surfaces) were");
}

#[test]
fn a_missing_unload_shows() {
    shows(Fault::MissingUnload, "(objects, unpooled, programs, surfaces) were");
}

/// The same four mistakes made where methods are bound, which is what the port does, on any system and without debug
/// assertions.
#[test]
fn binding_refuses_mistaken_messages() {
    let _alone = alone();
    let of = port().framework;
    type Given = *const AnyObject;
    type ErrorOut = *mut *mut NSError;
    fn refused<A: objc2::encode::EncodeArguments, R: objc2::encode::EncodeReturn>(
        class: &AnyClass,
        side: Side,
        selector: &std::ffi::CStr,
    ) -> String {
        Message::<A, R>::bind(class, side, selector, "26.2").map(drop).unwrap_err().to_string()
    }
    let wrong = refused::<(u64, Given, ErrorOut), Bool>(
        of.model,
        Side::Instance,
        c"compileWithQoS:options:error:",
    );
    assert!(wrong.contains("has another type: expected C@:Q@^@, found C"), "{wrong}");
    let wrong = refused::<(*mut c_void,), *mut AnyObject>(
        of.wrappers,
        Side::Class,
        c"objectWithIOSurface:",
    );
    assert!(wrong.contains("has another type: expected @@:^v, found @"), "{wrong}");
    let wrong = refused::<(u32, Given), Bool>(of.model, Side::Instance, c"loadWithQoS:options:");
    assert!(wrong.contains("is missing; expected it with type C@:I@"), "{wrong}");
    let wrong = refused::<(u32, ErrorOut), Bool>(of.model, Side::Instance, c"unloadWithQos:error:");
    assert!(wrong.contains("is missing; expected it with type C@:I^@"), "{wrong}");
    // A class method looked for among those of instances.
    let wrong = refused::<(Given,), *mut AnyObject>(
        of.model,
        Side::Instance,
        c"inMemoryModelWithDescriptor:",
    );
    assert!(
        wrong
            .contains("-[_ANEInMemoryModel inMemoryModelWithDescriptor:] of macOS 26.2 is missing"),
        "{wrong}"
    );
}
