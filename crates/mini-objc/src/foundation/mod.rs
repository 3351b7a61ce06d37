//! The few classes of Foundation that `ane-port` and its fakes use, with the methods that they use.

#![allow(non_upper_case_globals, reason = "the names of classes are Apple's")]

mod collections;
mod error;
mod object;
mod string;
mod values;

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::class::{Class, Code, Method, Object, Sel};
use crate::memory;

/// All of them.
pub(crate) static CLASSES: &[&Class] = &[
    &object::_OBJC_CLASS_NSObject,
    &string::_OBJC_CLASS_NSString,
    &values::_OBJC_CLASS_NSData,
    &values::_OBJC_CLASS_NSNumber,
    &collections::_OBJC_CLASS_NSArray,
    &collections::_OBJC_CLASS_NSDictionary,
    &error::_OBJC_CLASS_NSError,
];

const fn method(name: &'static CStr, types: &'static CStr, code: Code) -> Method {
    Method { name, types, code }
}

/// A class whose instances hold a `T`: its symbol, name, class methods and methods.
macro_rules! holder {
    ($symbol:ident, $meta:ident, $name:literal, $class_methods:expr, $methods:expr) => {
        #[unsafe(no_mangle)]
        pub(crate) static $symbol: crate::class::Class = crate::class::Class::new(
            $name,
            Some(&crate::foundation::object::_OBJC_CLASS_NSObject),
            Some(&$meta),
            crate::foundation::HOLDER_BYTES,
            $methods,
        );
        static $meta: crate::class::Class = crate::class::Class::new(
            $name,
            Some(&crate::foundation::object::NSObjectMeta),
            None,
            0,
            $class_methods,
        );
    };
}
use holder;

/// An object that holds a value, absent between `alloc` and `init`.
#[repr(C)]
struct Holder<T> {
    object: Object,
    value: AtomicPtr<T>,
}

const HOLDER_BYTES: usize = size_of::<Holder<()>>();

/// The value that an object holds.
///
/// # Safety
/// The object is of the class whose instances hold a `T`, and has been initialised.
unsafe fn held<T>(object: &Object) -> &T {
    let holder = std::ptr::from_ref(object).cast::<Holder<T>>();
    // SAFETY: the caller's word; `fill` has put a leaked box there.
    unsafe { &*(*holder).value.load(Ordering::Acquire) }
}

/// Puts a value in a fresh object of a class whose instances hold a `T`.
fn fill<T>(object: NonNull<Object>, value: T) -> NonNull<Object> {
    // SAFETY: the classes here that call this are as large as a holder.
    let holder = unsafe { object.cast::<Holder<T>>().as_ref() };
    holder.value.store(Box::into_raw(Box::new(value)), Ordering::Release);
    object
}

/// `-dealloc` of a class whose instances hold a `T`.
extern "C-unwind" fn dealloc<T>(object: NonNull<Object>, _: Sel) {
    // SAFETY: as in `fill`, and nobody refers to the object any more.
    unsafe {
        let value = object.cast::<Holder<T>>().as_ref().value.load(Ordering::Acquire);
        if !value.is_null() {
            drop(Box::from_raw(value));
        }
    }
    memory::free(object);
}

/// A counted reference.
struct Owned(NonNull<Object>);

impl Owned {
    fn retain(object: NonNull<Object>) -> Self {
        memory::retain(Some(object));
        Owned(object)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        memory::release(Some(self.0));
    }
}

/// `count` values from `start`.
///
/// # Safety
/// They are there, unless `count` is 0.
unsafe fn slice<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's word.
    unsafe { std::slice::from_raw_parts(start, count) }
}
