//! The private framework: its four classes and the nine methods that the port sends.

use std::ffi::CStr;
use std::path::Path;

use exec::port::PortResult;
use objc2::runtime::{AnyClass, AnyObject, Bool};
use objc2_foundation::NSError;

use super::library::{self, failure};
use super::message::{Message, Side};
use super::surface::IoSurface;

/// An object given to a method.
type Given = *const AnyObject;
/// An object that a method returns.
type Returned = *mut AnyObject;
/// Where a method puts its error.
type ErrorOut = *mut *mut NSError;

/// A method that takes quality of service, options and a place for an error.
pub(super) type WithOptions = Message<(u32, Given, ErrorOut), Bool>;

/// Inputs, their indices, outputs, their indices, weights, statistics, procedure.
type Bindings = (Given, Given, Given, Given, Given, Given, Given);

/// The framework, open. Fields are in the order of use.
pub(super) struct Framework {
    /// `_ANEInMemoryModelDescriptor`
    pub(super) descriptor: &'static AnyClass,
    /// Text, weights and options to a descriptor.
    pub(super) describe: Message<(Given, Given, Given), Returned>,
    /// `_ANEInMemoryModel`
    pub(super) model: &'static AnyClass,
    /// A descriptor to a model.
    pub(super) in_memory: Message<(Given,), Returned>,
    pub(super) identifier: Message<(), Returned>,
    pub(super) compile: WithOptions,
    pub(super) load: WithOptions,
    /// `_ANEIOSurfaceObject`
    pub(super) wrappers: &'static AnyClass,
    /// A surface to its wrapper.
    pub(super) wrap: Message<(*mut IoSurface,), Returned>,
    /// `_ANERequest`
    pub(super) requests: &'static AnyClass,
    /// [`Bindings`] to a request.
    pub(super) request: Message<Bindings, Returned>,
    pub(super) evaluate: Message<(u32, Given, Given, ErrorOut), Bool>,
    pub(super) unload: Message<(u32, ErrorOut), Bool>,
}

impl Framework {
    /// Opens the framework at `path`, on the version `os` of the system, and checks every method before any is sent.
    pub(super) fn open(path: &Path, os: &str) -> PortResult<Self> {
        library::open(path)?;
        let class = |name: &CStr| {
            AnyClass::get(name).ok_or_else(|| {
                let name = name.to_string_lossy();
                failure(format!("class {name} is missing in {} of macOS {os}", path.display()))
            })
        };
        let descriptor = class(c"_ANEInMemoryModelDescriptor")?;
        let model = class(c"_ANEInMemoryModel")?;
        let wrappers = class(c"_ANEIOSurfaceObject")?;
        let requests = class(c"_ANERequest")?;
        let request = c"requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:";
        Ok(Framework {
            describe: Message::bind(
                descriptor,
                Side::Class,
                c"modelWithMILText:weights:optionsPlist:",
                os,
            )?,
            in_memory: Message::bind(model, Side::Class, c"inMemoryModelWithDescriptor:", os)?,
            identifier: Message::bind(model, Side::Instance, c"hexStringIdentifier", os)?,
            compile: Message::bind(model, Side::Instance, c"compileWithQoS:options:error:", os)?,
            load: Message::bind(model, Side::Instance, c"loadWithQoS:options:error:", os)?,
            wrap: Message::bind(wrappers, Side::Class, c"objectWithIOSurface:", os)?,
            request: Message::bind(requests, Side::Class, request, os)?,
            evaluate: Message::bind(
                model,
                Side::Instance,
                c"evaluateWithQoS:options:request:error:",
                os,
            )?,
            unload: Message::bind(model, Side::Instance, c"unloadWithQoS:error:", os)?,
            descriptor,
            model,
            wrappers,
            requests,
        })
    }
}
