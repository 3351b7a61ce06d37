//! The runtime's functions under their C names, as objc2 declares them in its module `ffi`.
//!
//! Pointers that may be null are `Option`s of references, which have the same representation.

#![allow(non_snake_case, reason = "the names are Apple's")]

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Mutex;

use crate::changes;
use crate::class::{self, Class, Code, Ivar, Method, Object, Sel, lock, selector_name};
use crate::memory;

/// GNUstep's `BOOL`.
pub(crate) type Bool = u8;

static SELECTORS: Mutex<Option<HashSet<&'static CStr>>> = Mutex::new(None);

/// The selector of a name: one for each name.
pub(crate) fn intern(name: &CStr) -> &'static c_char {
    let mut selectors = lock(&SELECTORS);
    let known = selectors.get_or_insert_default();
    let kept = known.get(name).copied().unwrap_or_else(|| {
        let kept = class::keep(name);
        known.insert(kept);
        kept
    });
    // SAFETY: a C string has a first character, if only the closing zero, and this one is kept for ever.
    unsafe { &*kept.as_ptr() }
}

/// The C string that starts here.
///
/// # Safety
/// It must end, and live as long as the borrow.
unsafe fn text<'a>(start: *const c_char) -> &'a CStr {
    // SAFETY: the caller's word.
    unsafe { CStr::from_ptr(start) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sel_registerName(name: *const c_char) -> Sel {
    // SAFETY: the interface asks for a C string.
    Some(intern(unsafe { text(name) }))
}

#[unsafe(no_mangle)]
extern "C" fn sel_getName(selector: Sel) -> *const c_char {
    selector_name(selector).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn sel_isEqual(a: Sel, b: Sel) -> Bool {
    Bool::from(selector_name(a) == selector_name(b))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn objc_getClass(name: *const c_char) -> Option<&'static Class> {
    // SAFETY: the interface asks for a C string.
    class::find(unsafe { text(name) }).filter(|class| !changes::is_hidden(class))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn objc_allocateClassPair(
    superclass: Option<&'static Class>,
    name: *const c_char,
    _extra_bytes: usize,
) -> Option<&'static Class> {
    // SAFETY: the interface asks for a C string.
    let name = unsafe { text(name) };
    if class::find(name).is_some() {
        return None;
    }
    Some(class::make(superclass?, name))
}

#[unsafe(no_mangle)]
extern "C" fn objc_registerClassPair(class: Option<&'static Class>) {
    if let Some(class) = class {
        class::register(class);
    }
}

/// Objects' code may still run, so nothing is taken back.
#[unsafe(no_mangle)]
extern "C" fn objc_disposeClassPair(_class: Option<&'static Class>) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn class_addIvar(
    class: Option<&'static Class>,
    name: *const c_char,
    size: usize,
    alignment_log2: u8,
    types: *const c_char,
) -> Bool {
    let Some(class) = class else { return 0 };
    // SAFETY: the interface asks for C strings.
    let (name, types) = unsafe { (text(name), text(types)) };
    class.add_ivar(name, size, 1 << alignment_log2, types);
    1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn class_addMethod(
    class: Option<&'static Class>,
    selector: Sel,
    code: Code,
    types: *const c_char,
) -> Bool {
    let Some(class) = class else { return 0 };
    // SAFETY: the interface asks for a C string.
    let types = class::keep(unsafe { text(types) });
    class.add_method(Method { name: selector_name(selector), types, code });
    1
}

#[unsafe(no_mangle)]
extern "C" fn class_getName(class: Option<&'static Class>) -> *const c_char {
    class.map_or(c"nil", |class| class.name).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn class_getSuperclass(class: Option<&'static Class>) -> Option<&'static Class> {
    class?.superclass
}

#[unsafe(no_mangle)]
extern "C" fn class_isMetaClass(class: Option<&'static Class>) -> Bool {
    Bool::from(class.is_some_and(|class| class.is_meta))
}

#[unsafe(no_mangle)]
extern "C" fn class_getInstanceSize(class: Option<&'static Class>) -> usize {
    class.map_or(0, |class| class.size.load(std::sync::atomic::Ordering::Relaxed))
}

#[unsafe(no_mangle)]
extern "C" fn class_getInstanceMethod(
    class: Option<&'static Class>,
    selector: Sel,
) -> Option<&'static Method> {
    changes::method(class?, selector_name(selector))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_getClassMethod(
    class: Option<&'static Class>,
    selector: Sel,
) -> Option<&'static Method> {
    changes::method(class?.meta()?, selector_name(selector))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn class_getInstanceVariable(
    class: Option<&'static Class>,
    name: *const c_char,
) -> Option<&'static Ivar> {
    // SAFETY: the interface asks for a C string.
    class?.ivar(unsafe { text(name) })
}

#[unsafe(no_mangle)]
extern "C" fn class_createInstance(
    class: Option<&'static Class>,
    _extra_bytes: usize,
) -> Option<NonNull<Object>> {
    class.map(memory::allocate)
}

#[unsafe(no_mangle)]
extern "C" fn method_getName(method: Option<&'static Method>) -> Sel {
    method.map(|method| intern(method.name))
}

#[unsafe(no_mangle)]
extern "C" fn method_getTypeEncoding(method: Option<&'static Method>) -> *const c_char {
    method.map_or(c"", |method| method.types).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn method_getImplementation(method: Option<&'static Method>) -> Code {
    method.map_or(std::ptr::null(), |method| method.code)
}

/// With the receiver and the selector.
#[unsafe(no_mangle)]
extern "C" fn method_getNumberOfArguments(method: Option<&'static Method>) -> c_uint {
    let colons = method.map_or(0, |m| m.name.to_bytes().iter().filter(|b| **b == b':').count());
    c_uint::try_from(colons + 2).unwrap_or(c_uint::MAX)
}

#[unsafe(no_mangle)]
extern "C" fn ivar_getName(ivar: Option<&'static Ivar>) -> *const c_char {
    ivar.map_or(c"", |ivar| ivar.name).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ivar_getOffset(ivar: Option<&'static Ivar>) -> isize {
    ivar.map_or(0, |ivar| isize::try_from(ivar.offset).unwrap_or(0))
}

#[unsafe(no_mangle)]
extern "C" fn ivar_getTypeEncoding(ivar: Option<&'static Ivar>) -> *const c_char {
    ivar.map_or(c"", |ivar| ivar.types).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn object_getClass(object: Option<&Object>) -> Option<&'static Class> {
    object.map(Object::class)
}

/// A receiver and the class above which its method is looked for.
#[repr(C)]
struct Super {
    receiver: Option<&'static Object>,
    class: Option<&'static Class>,
}

/// Runs where a message has no method; Apple's runtime raises an exception, which ends the program too.
extern "C" fn unrecognised(object: Option<&Object>, selector: Sel) {
    let class = object.map_or(c"nil", |object| object.class().name);
    eprintln!(
        "{}: unrecognised selector {}",
        class.to_string_lossy(),
        selector_name(selector).to_string_lossy()
    );
    std::process::abort();
}

fn look_up(class: Option<&'static Class>, selector: Sel) -> Code {
    let method = class.and_then(|class| changes::method(class, selector_name(selector)));
    method.map_or(unrecognised as Code, |method| method.code)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup(receiver: Option<&Object>, selector: Sel) -> Code {
    look_up(receiver.map(Object::class), selector)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup_super(receiver: &Super, selector: Sel) -> Code {
    if receiver.receiver.is_some() {
        look_up(receiver.class, selector)
    } else {
        unrecognised as Code
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retain(object: Option<NonNull<Object>>) -> Option<NonNull<Object>> {
    memory::retain(object);
    object
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_release(object: Option<NonNull<Object>>) {
    memory::release(object);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autorelease(object: Option<NonNull<Object>>) -> Option<NonNull<Object>> {
    memory::autorelease(object);
    object
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleaseReturnValue(
    object: Option<NonNull<Object>>,
) -> Option<NonNull<Object>> {
    memory::autorelease(object);
    object
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retainAutoreleasedReturnValue(
    object: Option<NonNull<Object>>,
) -> Option<NonNull<Object>> {
    memory::retain(object);
    object
}

/// The pools are on each thread's own stack, whose height stands for the pool.
#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPush() -> *mut c_void {
    std::ptr::without_provenance_mut(memory::push())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPop(pool: *mut c_void) {
    memory::pop(pool.addr());
}
