//! `NSString`, and the C function that returns one.

use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

use super::{dealloc, fill, held, holder, method, slice};
use crate::class::{Code, Object, Sel};
use crate::memory;

/// `NSUTF8StringEncoding`; encodings are an `int` in GNUstep.
const UTF8: i32 = 4;

/// The text's bytes and a zero.
pub(super) struct Text(Vec<u8>);

impl Text {
    fn new(bytes: &[u8]) -> Self {
        let mut bytes = bytes.to_vec();
        bytes.push(0);
        Text(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.split_last().map_or(&[], |(_, bytes)| bytes)
    }
}

holder!(
    _OBJC_CLASS_NSString,
    NSStringMeta,
    c"NSString",
    &[],
    &[
        method(c"initWithBytes:length:encoding:", c"@@:^vQi", init as Code),
        method(c"lengthOfBytesUsingEncoding:", c"Q@:i", length as Code),
        method(c"UTF8String", c"*@:", utf8 as Code),
        method(c"dealloc", c"v@:", dealloc::<Text> as Code),
    ]
);

/// An autoreleased string.
pub(super) fn string(bytes: &[u8]) -> NonNull<Object> {
    let object = fill(memory::allocate(&_OBJC_CLASS_NSString), Text::new(bytes));
    memory::autorelease(Some(object));
    object
}

/// The text of a string; `None` of anything else.
pub(super) fn text(object: &Object) -> Option<&Text> {
    let is_string = std::ptr::eq(object.class(), &raw const _OBJC_CLASS_NSString);
    // SAFETY: strings are initialised when they are made.
    is_string.then(|| unsafe { held(object) })
}

extern "C-unwind" fn init(
    object: NonNull<Object>,
    _: Sel,
    bytes: *const u8,
    length: usize,
    encoding: i32,
) -> Option<NonNull<Object>> {
    // SAFETY: the interface asks for that many bytes.
    let bytes = unsafe { slice(bytes, length) };
    if encoding != UTF8 || std::str::from_utf8(bytes).is_err() {
        memory::release(Some(object));
        return None;
    }
    Some(fill(object, Text::new(bytes)))
}

extern "C-unwind" fn length(object: &Object, _: Sel, _encoding: i32) -> usize {
    text(object).map_or(0, |text| text.bytes().len())
}

extern "C-unwind" fn utf8(object: &Object, _: Sel) -> *const c_char {
    text(object).map_or(std::ptr::null(), |text| text.0.as_ptr().cast())
}

/// The folder for temporary files, with a slash at the end, as Foundation has it.
#[unsafe(no_mangle)]
extern "C-unwind" fn NSTemporaryDirectory() -> NonNull<Object> {
    string(std::env::temp_dir().join("").as_os_str().as_bytes())
}
