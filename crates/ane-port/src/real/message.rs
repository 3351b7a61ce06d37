//! A method with the types it is sent: it exists only once the class at hand is seen to have that very signature.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::marker::PhantomData;

use exec::port::{PortError, PortResult, Verb};
use objc2::encode::{EncodeArguments, EncodeReturn};
use objc2::runtime::{AnyClass, AnyObject, MessageReceiver, Sel};

/// Who understands a method.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The class itself.
    Class,
    /// Its instances.
    Instance,
}

/// A method that takes `A` and returns `R`, checked.
pub(super) struct Message<A, R> {
    selector: Sel,
    types: PhantomData<fn(A) -> R>,
}

impl<A: EncodeArguments, R: EncodeReturn> Message<A, R> {
    /// Finds the method and compares its signature; `os` is the version to name when they differ.
    pub(super) fn bind(
        class: &AnyClass,
        side: Side,
        selector: &CStr,
        os: &str,
    ) -> PortResult<Self> {
        let selector = Sel::register(selector);
        let (sign, holder) = match side {
            Side::Class => ('+', class.metaclass()),
            Side::Instance => ('-', class),
        };
        let complaint = |what: String| PortError {
            verb: Verb::Open,
            status: None,
            message: format!("{sign}[{class} {selector}] of macOS {os} {what}"),
            reason: None,
        };
        let Some(method) = holder.instance_method(selector) else {
            return Err(complaint(format!(
                "is missing; expected it with type {}",
                Self::encoding()
            )));
        };
        holder.verify_sel::<A, R>(selector).map_err(|difference| {
            // SAFETY: the method is the runtime's own, and so is the C string, for ever.
            let found = unsafe { CStr::from_ptr(objc2::ffi::method_getTypeEncoding(method)) };
            let (expected, found) = (Self::encoding(), found.to_string_lossy());
            complaint(format!(
                "has another type: expected {expected}, found {found} ({difference})"
            ))
        })?;
        Ok(Message { selector, types: PhantomData })
    }

    /// Its name.
    pub(super) fn selector(&self) -> Sel {
        self.selector
    }

    /// The signature as the runtime writes it, without offsets: result, receiver, selector, arguments.
    pub(super) fn encoding() -> String {
        let mut text = format!("{}@:", R::ENCODING_RETURN);
        for argument in A::ENCODINGS {
            let _ = write!(text, "{argument}");
        }
        text
    }

    /// Sends it.
    ///
    /// # Safety
    /// The receiver is the class it was bound to, or for [`Side::Instance`] an instance of that; pointers among
    /// the arguments are null, where the method allows it, or point to what it expects.
    pub(super) unsafe fn send(&self, receiver: &AnyObject, arguments: A) -> R {
        // SAFETY: the types were compared when this was made; the rest is the caller's word.
        unsafe { receiver.send_message(self.selector, arguments) }
    }
}
