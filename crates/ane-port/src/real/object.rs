//! Objects of the framework, and what its errors say.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use exec::port::{PortError, Verb};
use objc2::Message;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::AnyObject;
use objc2_foundation::NSError;

/// A counted reference to an object of the framework. It is given up inside a pool, because an object's end may
/// autorelease others.
pub(super) struct Object(ManuallyDrop<Retained<AnyObject>>);

// SAFETY: references are counted atomically. The objects held here are descriptors, models, requests and wrappers of
// surfaces. They are only sent messages by the port, which keeps a model's changes apart by a lock and changes nothing
// else after making it.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// Takes a reference to what a method returned; `None` for nil.
    pub(super) fn new(returned: *mut AnyObject) -> Option<Self> {
        // SAFETY: the method returned nil or an object that the pool around the call holds.
        unsafe { Retained::retain(returned) }.map(|object| Object(ManuallyDrop::new(object)))
    }
}

impl Deref for Object {
    type Target = AnyObject;

    fn deref(&self) -> &AnyObject {
        &self.0
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: nobody uses it after this.
        autoreleasepool(|_| unsafe { ManuallyDrop::drop(&mut self.0) });
    }
}

/// The object as a method takes it.
pub(super) fn as_object<T: Message>(object: &T) -> *const AnyObject {
    std::ptr::from_ref(object).cast()
}

/// What a method that answered no has to say.
pub(super) fn refusal(verb: Verb, error: Option<&NSError>) -> PortError {
    let Some(error) = error else {
        let message = "the framework refused without an error".to_owned();
        return PortError { verb, status: None, message, reason: None };
    };
    let words = error.localizedDescription().to_string();
    let code = i64::try_from(error.code()).unwrap_or(i64::MAX);
    let status = status_in(&words).unwrap_or(code);
    let message = format!("{words} ({} {code})", error.domain());
    PortError { verb, status: Some(status), message, reason: None }
}

/// The engine's own status, which errors name in their words: `status=0x1d : Program Inference error`.
pub(super) fn status_in(words: &str) -> Option<i64> {
    let (_, rest) = words.split_once("status=0x")?;
    let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
    i64::from_str_radix(&rest[..end], 16).ok()
}
