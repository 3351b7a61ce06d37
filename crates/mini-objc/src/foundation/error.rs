//! `NSError`.

use std::ptr::NonNull;

use super::collections::value_of;
use super::string::{string, text};
use super::{Owned, dealloc, fill, held, holder, method};
use crate::class::{Code, Object, Sel};

/// A domain, which is a string, a code, and the words for them where they were given.
struct Failure {
    domain: Owned,
    code: isize,
    words: Option<Owned>,
}

holder!(
    _OBJC_CLASS_NSError,
    NSErrorMeta,
    c"NSError",
    &[],
    &[
        method(c"initWithDomain:code:userInfo:", c"@@:@q@", init as Code),
        method(c"domain", c"@@:", domain as Code),
        method(c"code", c"q@:", code as Code),
        method(c"localizedDescription", c"@@:", description as Code),
        method(c"dealloc", c"v@:", dealloc::<Failure> as Code),
    ]
);

extern "C-unwind" fn init(
    object: NonNull<Object>,
    _: Sel,
    domain: NonNull<Object>,
    code: isize,
    user_info: Option<&Object>,
) -> NonNull<Object> {
    let words = user_info.and_then(|pairs| value_of(pairs, b"NSLocalizedDescription"));
    fill(object, Failure { domain: Owned::retain(domain), code, words: words.map(Owned::retain) })
}

extern "C-unwind" fn domain(object: &Object, _: Sel) -> NonNull<Object> {
    // SAFETY: the method is of a class whose instances hold a failure.
    unsafe { held::<Failure>(object) }.domain.0
}

extern "C-unwind" fn code(object: &Object, _: Sel) -> isize {
    // SAFETY: the method is of a class whose instances hold a failure.
    unsafe { held::<Failure>(object) }.code
}

/// The error's own words, or what Foundation says of one without.
extern "C-unwind" fn description(object: &Object, _: Sel) -> NonNull<Object> {
    // SAFETY: the method is of a class whose instances hold a failure, and that its domain.
    let (failure, domain) = unsafe {
        let failure = held::<Failure>(object);
        (failure, failure.domain.0.as_ref())
    };
    if let Some(words) = &failure.words {
        return words.0;
    }
    let domain = String::from_utf8_lossy(text(domain).map_or(b"", |text| text.bytes()));
    let words = format!("The operation could not be completed. ({domain} error {}.)", failure.code);
    string(words.as_bytes())
}
