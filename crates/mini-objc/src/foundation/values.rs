//! `NSData` and `NSNumber`.

use std::ptr::NonNull;

use super::{dealloc, fill, held, holder, method, slice};
use crate::class::{Class, Code, Object, Sel};
use crate::memory;

holder!(
    _OBJC_CLASS_NSData,
    NSDataMeta,
    c"NSData",
    &[],
    &[
        method(c"initWithBytes:length:", c"@@:^vQ", init as Code),
        method(c"length", c"Q@:", length as Code),
        method(c"bytes", c"^v@:", bytes as Code),
        method(c"dealloc", c"v@:", dealloc::<Vec<u8>> as Code),
    ]
);

extern "C-unwind" fn init(
    object: NonNull<Object>,
    _: Sel,
    bytes: *const u8,
    length: usize,
) -> NonNull<Object> {
    // SAFETY: the interface asks for that many bytes.
    fill(object, unsafe { slice(bytes, length) }.to_vec())
}

extern "C-unwind" fn length(object: &Object, _: Sel) -> usize {
    // SAFETY: the method is of a class whose instances hold bytes.
    unsafe { held::<Vec<u8>>(object) }.len()
}

extern "C-unwind" fn bytes(object: &Object, _: Sel) -> *const u8 {
    // SAFETY: the method is of a class whose instances hold bytes.
    unsafe { held::<Vec<u8>>(object) }.as_ptr()
}

holder!(
    _OBJC_CLASS_NSNumber,
    NSNumberMeta,
    c"NSNumber",
    &[method(c"numberWithUnsignedInteger:", c"@@:Q", number as Code)],
    &[
        method(c"unsignedIntegerValue", c"Q@:", value as Code),
        method(c"dealloc", c"v@:", dealloc::<usize> as Code),
    ]
);

extern "C-unwind" fn number(class: &'static Class, _: Sel, value: usize) -> NonNull<Object> {
    let object = fill(memory::allocate(class), value);
    memory::autorelease(Some(object));
    object
}

extern "C-unwind" fn value(object: &Object, _: Sel) -> usize {
    // SAFETY: the method is of a class whose instances hold a number.
    *unsafe { held(object) }
}
