//! The framework's four classes with the signatures of public class dumps, over the interpreter of `mil`.
//!
//! They do what is known of the real ones: the compiler reads the files of the working directory, evaluation wants a
//! loaded program and surfaces of one size, and surfaces are bound to names in alphabetical order.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use mil::eval::{Arithmetic, Array, Value};
use mil::package::blob::BlobFile;
use mil::text::BlobSource;
use mil::{OpError, Program, TensorType};
use objc2::rc::Retained;
use objc2::runtime::{AnyClass, AnyObject, Bool, NSObject};
use objc2::{AnyThread, ClassType, DefinedClass, define_class, msg_send};
use objc2_foundation::{
    NSArray, NSData, NSDictionary, NSError, NSNumber, NSString, NSTemporaryDirectory,
};
use tensor::{AlignedBuf, Bytes, Tensor};

use super::machine;
use crate::real::surface::IoSurface;

static LOADED: AtomicUsize = AtomicUsize::new(0);

/// Programs that the engine holds.
pub(super) fn loaded_programs() -> usize {
    LOADED.load(Ordering::SeqCst)
}

/// Makes the classes known, once.
pub(super) fn register() -> [&'static AnyClass; 4] {
    [Descriptor::class(), Model::class(), Wrapper::class(), Request::class()]
}

type Files = BTreeMap<String, Vec<u8>>;

pub(super) struct Source {
    text: Vec<u8>,
    files: Files,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "_ANEInMemoryModelDescriptor"]
    #[ivars = Source]
    struct Descriptor;

    impl Descriptor {
        #[unsafe(method_id(modelWithMILText:weights:optionsPlist:))]
        fn model(
            text: Option<&AnyObject>,
            weights: Option<&AnyObject>,
            options: Option<&AnyObject>,
        ) -> Option<Retained<Self>> {
            describe(text, weights, options)
        }
    }
);

/// Text must be data, not a string, and weights a dictionary, not nil.
fn describe(
    text: Option<&AnyObject>,
    weights: Option<&AnyObject>,
    options: Option<&AnyObject>,
) -> Option<Retained<Descriptor>> {
    let text = text?.downcast_ref::<NSData>()?.to_vec();
    let weights = weights?.downcast_ref::<NSDictionary>()?;
    if options.is_some() {
        return None;
    }
    let mut files = Files::new();
    let keys = weights.allKeys();
    for i in 0..keys.count() {
        let key = keys.objectAtIndex(i);
        let entry = weights.objectForKey(&key)?;
        let entry = entry.downcast_ref::<NSDictionary>()?;
        let value = |name: &str| entry.objectForKey(&NSString::from_str(name));
        let offset = value("offset")?.downcast_ref::<NSNumber>()?.as_usize();
        let data = value("data")?.downcast_ref::<NSData>()?.to_vec();
        files.insert(key.downcast_ref::<NSString>()?.to_string(), data.get(offset..)?.to_vec());
    }
    let this = Descriptor::alloc().set_ivars(Source { text, files });
    // SAFETY: `-init` of NSObject takes nothing.
    Some(unsafe { msg_send![super(this), init] })
}

pub(super) struct State {
    descriptor: Retained<Descriptor>,
    program: RefCell<Option<Program>>,
    is_loaded: Cell<bool>,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "_ANEInMemoryModel"]
    #[ivars = State]
    struct Model;

    impl Model {
        #[unsafe(method_id(inMemoryModelWithDescriptor:))]
        fn new(descriptor: Option<&AnyObject>) -> Option<Retained<Self>> {
            in_memory(descriptor)
        }

        #[unsafe(method_id(hexStringIdentifier))]
        fn identifier(&self) -> Retained<NSString> {
            NSString::from_str(&self.hex())
        }

        #[unsafe(method(compileWithQoS:options:error:))]
        fn compile(&self, _qos: u32, options: Option<&AnyObject>, error: *mut *mut NSError) -> Bool {
            answer(options.ok_or(nil_options()).and_then(|_| self.compiled()), error)
        }

        #[unsafe(method(loadWithQoS:options:error:))]
        fn load(&self, _qos: u32, options: Option<&AnyObject>, error: *mut *mut NSError) -> Bool {
            answer(options.ok_or(nil_options()).and_then(|_| self.loaded()), error)
        }

        #[unsafe(method(evaluateWithQoS:options:request:error:))]
        fn evaluate(
            &self,
            _qos: u32,
            options: Option<&AnyObject>,
            request: Option<&AnyObject>,
            error: *mut *mut NSError,
        ) -> Bool {
            answer(options.ok_or(nil_options()).and_then(|_| self.evaluated(request)), error)
        }

        #[unsafe(method(unloadWithQoS:error:))]
        fn unload(&self, _qos: u32, error: *mut *mut NSError) -> Bool {
            answer(self.unloaded(), error)
        }
    }
);

fn in_memory(descriptor: Option<&AnyObject>) -> Option<Retained<Model>> {
    let descriptor = descriptor?.downcast_ref::<Descriptor>()?;
    let state = State {
        descriptor: objc2::Message::retain(descriptor),
        program: RefCell::new(None),
        is_loaded: Cell::new(false),
    };
    // SAFETY: `-init` of NSObject takes nothing.
    Some(unsafe { msg_send![super(Model::alloc().set_ivars(state)), init] })
}

/// Code and words of an error.
type Failure = (isize, String);

fn failure<T: ToString + ?Sized>(code: isize, words: &T) -> Failure {
    (code, words.to_string())
}

fn nil_options() -> Failure {
    failure(1, "options are nil")
}

/// Yes, or no with an autoreleased error for who asked for one.
fn answer(outcome: Result<(), Failure>, error: *mut *mut NSError) -> Bool {
    let Err((code, words)) = outcome else { return Bool::YES };
    if !error.is_null() {
        let domain = NSString::from_str("com.apple.appleneuralengine");
        let key = NSString::from_str("NSLocalizedDescription");
        let words = NSString::from_str(&words);
        let info = NSDictionary::from_slices(&[&*key], &[&**words as &AnyObject]);
        // SAFETY: the dictionary leads from a string to what the key asks for; the place is there.
        unsafe {
            let made =
                NSError::initWithDomain_code_userInfo(NSError::alloc(), &domain, code, Some(&info));
            *error = Retained::autorelease_return(made);
        }
    }
    Bool::NO
}

impl Model {
    fn source(&self) -> &Source {
        self.ivars().descriptor.ivars()
    }

    /// Equal for equal text and weights; processes are kept apart, because they run the same tests.
    fn hex(&self) -> String {
        let mut hasher = DefaultHasher::new();
        let source = self.source();
        (&source.text, &source.files, std::process::id()).hash(&mut hasher);
        format!("{:016X}", hasher.finish())
    }

    fn compiled(&self) -> Result<(), Failure> {
        let directory = PathBuf::from(NSTemporaryDirectory().to_string()).join(self.hex());
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path).map_err(|e| failure(2, &format!("{}: {e}", path.display())))
        };
        let source = self.source();
        let text = read("model.mil")?;
        if text != source.text {
            return Err(failure(2, "model.mil is not the text of the descriptor"));
        }
        let mut files = Files::new();
        for key in source.files.keys() {
            files.insert(key.clone(), read(key.trim_start_matches("@model_path/"))?);
        }
        let text = std::str::from_utf8(&text).map_err(|e| failure(2, &e))?;
        let parsed = mil::text::parse(text, &Blobs(files));
        let parsed = parsed.map_err(|e| failure(2, &format!("InvalidMILProgram: {e}")))?;
        *self.ivars().program.borrow_mut() = Some(parsed.program);
        Ok(())
    }

    fn loaded(&self) -> Result<(), Failure> {
        if self.ivars().program.borrow().is_none() {
            return Err(failure(3, "not compiled"));
        }
        if !self.ivars().is_loaded.replace(true) {
            LOADED.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    fn unloaded(&self) -> Result<(), Failure> {
        if !self.ivars().is_loaded.replace(false) {
            return Err(failure(4, "not loaded"));
        }
        LOADED.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn evaluated(&self, request: Option<&AnyObject>) -> Result<(), Failure> {
        let request = request.and_then(AnyObject::downcast_ref::<Request>);
        let request = request.ok_or_else(|| failure(5, "no request"))?.ivars();
        if !self.ivars().is_loaded.get() {
            return Err(failure(5, "not loaded"));
        }
        for bound in [&request.inputs, &request.outputs] {
            let mut sizes = bound.values().map(|wrapper| wrapper.memory().len());
            let first = sizes.next();
            if sizes.any(|size| Some(size) != first) {
                let words = "ANEProgramProcessRequestDirect() Failed with status=0x1d : Program Inference error";
                return Err(failure(15, words));
            }
        }
        let program = self.ivars().program.borrow();
        let program = program.as_ref().ok_or_else(|| failure(5, "not compiled"))?;
        interpret(program, request).map_err(|e| failure(5, &e))
    }
}

/// Runs `main` on the surfaces: packed from byte 0, in alphabetical order of the names.
fn interpret(program: &Program, request: &Bound) -> Result<(), String> {
    let main = &program.functions["main"];
    let sorted = |ids: &[mil::ValueId]| {
        let mut ids: Vec<_> = ids.iter().copied().enumerate().collect();
        ids.sort_by_key(|(_, id)| main.values[*id].name.clone());
        ids
    };
    let mut inputs = BTreeMap::new();
    for (place, (_, id)) in sorted(&main.inputs).into_iter().enumerate() {
        let ty = main.tensor_ty(id).ok_or("an input that is no tensor")?;
        let shape = ty.fixed_shape().ok_or("a shape that is not fixed")?;
        let size = ty.dtype.byte_len(shape.iter().product()).ok_or("a size too large")?;
        let surface = request.inputs.get(&place).ok_or("an input without a surface")?;
        let tensor = Tensor::new(ty.dtype, &shape, bytes(&surface.memory()[..size]));
        let array =
            Array::from_tensor(&tensor.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        inputs.insert(main.values[id].name.clone(), Value::from(array));
    }
    let mut states = BTreeMap::new();
    let outputs = mil::eval::run(program, "main", Arithmetic::Fp16, &inputs, &mut states);
    let outputs = outputs.map_err(|e| e.to_string())?;
    for (place, (nth, _)) in sorted(&main.body.outputs).into_iter().enumerate() {
        let array = outputs[nth].array().map_err(|e| e.to_string())?;
        let tensor = array.to_tensor().map_err(|e| e.to_string())?;
        let surface = request.outputs.get(&place).ok_or("an output without a surface")?;
        surface.memory()[..tensor.bytes().len()].copy_from_slice(tensor.bytes());
    }
    Ok(())
}

fn bytes(from: &[u8]) -> Bytes {
    let mut buffer = AlignedBuf::zeroed(from.len());
    buffer.copy_from_slice(from);
    Bytes::from_buf(buffer)
}

/// The weight files of a working directory, by the names that the text has for them.
struct Blobs(Files);

impl BlobSource for Blobs {
    fn tensor(&self, path: &str, offset: u64, ty: &TensorType) -> Result<Tensor, OpError> {
        let file = self.0.get(path).ok_or_else(|| OpError::invalid(format!("no file {path}")))?;
        BlobFile::new(bytes(file))?.tensor(offset, ty)
    }
}

/// A reference to a surface.
pub(super) struct Kept(*mut IoSurface);

impl Drop for Kept {
    fn drop(&mut self) {
        machine::give_up(self.0);
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "_ANEIOSurfaceObject"]
    #[ivars = Kept]
    struct Wrapper;

    impl Wrapper {
        #[unsafe(method_id(objectWithIOSurface:))]
        fn new(surface: *mut IoSurface) -> Option<Retained<Self>> {
            wrap(surface)
        }
    }
);

fn wrap(surface: *mut IoSurface) -> Option<Retained<Wrapper>> {
    if surface.is_null() {
        return None;
    }
    machine::take(surface);
    // SAFETY: `-init` of NSObject takes nothing.
    Some(unsafe { msg_send![super(Wrapper::alloc().set_ivars(Kept(surface))), init] })
}

impl Wrapper {
    fn memory<'a>(&self) -> &'a mut [u8] {
        machine::memory(self.ivars().0)
    }
}

/// Surfaces by place.
pub(super) struct Bound {
    inputs: BTreeMap<usize, Retained<Wrapper>>,
    outputs: BTreeMap<usize, Retained<Wrapper>>,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "_ANERequest"]
    #[ivars = Bound]
    struct Request;

    impl Request {
        #[unsafe(method_id(requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:))]
        fn new(
            inputs: Option<&AnyObject>,
            input_indices: Option<&AnyObject>,
            outputs: Option<&AnyObject>,
            output_indices: Option<&AnyObject>,
            weights: Option<&AnyObject>,
            statistics: Option<&AnyObject>,
            procedure: Option<&AnyObject>,
        ) -> Option<Retained<Self>> {
            let plain = weights.is_none() && statistics.is_none() && is_zero(procedure);
            plain.then(|| request((inputs, input_indices), (outputs, output_indices))).flatten()
        }
    }
);

fn is_zero(number: Option<&AnyObject>) -> bool {
    number.and_then(AnyObject::downcast_ref::<NSNumber>).is_some_and(|n| n.as_usize() == 0)
}

type Pair<'a> = (Option<&'a AnyObject>, Option<&'a AnyObject>);

fn request(inputs: Pair<'_>, outputs: Pair<'_>) -> Option<Retained<Request>> {
    let bound = Bound { inputs: places(inputs)?, outputs: places(outputs)? };
    // SAFETY: `-init` of NSObject takes nothing.
    Some(unsafe { msg_send![super(Request::alloc().set_ivars(bound)), init] })
}

/// One wrapper for each index, and the indices from 0 in any order.
fn places((wrappers, indices): Pair<'_>) -> Option<BTreeMap<usize, Retained<Wrapper>>> {
    let wrappers = wrappers?.downcast_ref::<NSArray>()?;
    let indices = indices?.downcast_ref::<NSArray>()?;
    let count = wrappers.count();
    let mut places = BTreeMap::new();
    for i in 0..count.max(indices.count()) {
        let wrapper = (i < count).then(|| wrappers.objectAtIndex(i))?;
        let index = (i < indices.count()).then(|| indices.objectAtIndex(i))?;
        let index = index.downcast_ref::<NSNumber>()?.as_usize();
        let wrapper = wrapper.downcast_ref::<Wrapper>()?;
        places.insert(index, objc2::Message::retain(wrapper));
    }
    (places.keys().copied().eq(0..count)).then_some(places)
}
