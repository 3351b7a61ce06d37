//! `NSObject`.

use std::ptr::NonNull;

use super::method;
use crate::abi::{Bool, intern};
use crate::class::{Class, Code, Object, Sel, selector_name};
use crate::{changes, memory};

#[unsafe(no_mangle)]
pub(crate) static _OBJC_CLASS_NSObject: Class = Class::new(
    c"NSObject",
    None,
    Some(&NSObjectMeta),
    size_of::<Object>(),
    &[
        method(c"init", c"@@:", init as Code),
        method(c"dealloc", c"v@:", dealloc as Code),
        method(c"class", c"#@:", class as Code),
        method(c"isKindOfClass:", c"C@:#", is_kind_of as Code),
        method(c"respondsToSelector:", c"C@::", responds_to as Code),
    ],
);
pub(crate) static NSObjectMeta: Class = Class::new(
    c"NSObject",
    Some(&_OBJC_CLASS_NSObject),
    None,
    0,
    &[method(c"alloc", c"@@:", alloc as Code), method(c"new", c"@@:", new as Code)],
);

extern "C-unwind" fn alloc(class: &'static Class, _: Sel) -> NonNull<Object> {
    memory::allocate(class)
}

extern "C-unwind" fn new(class: &'static Class, _: Sel) -> NonNull<Object> {
    let object = memory::allocate(class);
    let code = changes::method(class, c"init").map_or(init as Code, |method| method.code);
    // SAFETY: `-init` takes nothing and returns the object.
    let init: extern "C-unwind" fn(NonNull<Object>, Sel) -> NonNull<Object> =
        unsafe { std::mem::transmute(code) };
    init(object, Some(intern(c"init")))
}

extern "C-unwind" fn init(object: NonNull<Object>, _: Sel) -> NonNull<Object> {
    object
}

extern "C-unwind" fn dealloc(object: NonNull<Object>, _: Sel) {
    memory::free(object);
}

extern "C-unwind" fn class(object: &Object, _: Sel) -> &'static Class {
    object.class()
}

extern "C-unwind" fn is_kind_of(object: &Object, _: Sel, class: Option<&'static Class>) -> Bool {
    let mut lineage = object.class().lineage();
    Bool::from(class.is_some_and(|class| lineage.any(|one| std::ptr::eq(one, class))))
}

extern "C-unwind" fn responds_to(object: &Object, _: Sel, selector: Sel) -> Bool {
    Bool::from(changes::method(object.class(), selector_name(selector)).is_some())
}
