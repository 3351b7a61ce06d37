//! `NSArray` and `NSDictionary`.

use std::ptr::NonNull;

use super::string::text;
use super::{Owned, dealloc, fill, held, holder, method, slice};
use crate::class::{Code, Object, Sel};
use crate::memory;

holder!(
    _OBJC_CLASS_NSArray,
    NSArrayMeta,
    c"NSArray",
    &[],
    &[
        method(c"initWithObjects:count:", c"@@:^@Q", init_array as Code),
        method(c"count", c"Q@:", array_count as Code),
        method(c"objectAtIndex:", c"@@:Q", object_at as Code),
        method(c"dealloc", c"v@:", dealloc::<Vec<Owned>> as Code),
    ]
);

extern "C-unwind" fn init_array(
    object: NonNull<Object>,
    _: Sel,
    objects: *const NonNull<Object>,
    count: usize,
) -> NonNull<Object> {
    // SAFETY: the interface asks for that many objects.
    let objects = unsafe { slice(objects, count) };
    fill(object, objects.iter().map(|object| Owned::retain(*object)).collect::<Vec<Owned>>())
}

extern "C-unwind" fn array_count(object: &Object, _: Sel) -> usize {
    // SAFETY: the method is of a class whose instances hold objects.
    unsafe { held::<Vec<Owned>>(object) }.len()
}

/// Past the end it is nil; Apple's raises an exception.
extern "C-unwind" fn object_at(object: &Object, _: Sel, index: usize) -> Option<NonNull<Object>> {
    // SAFETY: the method is of a class whose instances hold objects.
    unsafe { held::<Vec<Owned>>(object) }.get(index).map(|owned| owned.0)
}

/// Keys and what they lead to, in the order given.
type Pairs = Vec<(Owned, Owned)>;

holder!(
    _OBJC_CLASS_NSDictionary,
    NSDictionaryMeta,
    c"NSDictionary",
    &[],
    &[
        method(c"init", c"@@:", init_empty as Code),
        method(c"initWithObjects:forKeys:count:", c"@@:^@^@Q", init_pairs as Code),
        method(c"count", c"Q@:", pairs_count as Code),
        method(c"allKeys", c"@@:", all_keys as Code),
        method(c"objectForKey:", c"@@:@", object_for as Code),
        method(c"dealloc", c"v@:", dealloc::<Pairs> as Code),
    ]
);

extern "C-unwind" fn init_empty(object: NonNull<Object>, _: Sel) -> NonNull<Object> {
    fill(object, Pairs::new())
}

/// Keys are strings, which do not change: keeping them is copying them.
extern "C-unwind" fn init_pairs(
    object: NonNull<Object>,
    _: Sel,
    objects: *const NonNull<Object>,
    keys: *const NonNull<Object>,
    count: usize,
) -> NonNull<Object> {
    // SAFETY: the interface asks for that many of both.
    let (objects, keys) = unsafe { (slice(objects, count), slice(keys, count)) };
    let pairs = keys.iter().zip(objects).map(|(k, o)| (Owned::retain(*k), Owned::retain(*o)));
    fill(object, pairs.collect::<Pairs>())
}

extern "C-unwind" fn pairs_count(object: &Object, _: Sel) -> usize {
    // SAFETY: the method is of a class whose instances hold pairs.
    unsafe { held::<Pairs>(object) }.len()
}

extern "C-unwind" fn all_keys(object: &Object, _: Sel) -> NonNull<Object> {
    // SAFETY: the method is of a class whose instances hold pairs.
    let pairs = unsafe { held::<Pairs>(object) };
    let keys: Vec<Owned> = pairs.iter().map(|(key, _)| Owned::retain(key.0)).collect();
    let array = fill(memory::allocate(&_OBJC_CLASS_NSArray), keys);
    memory::autorelease(Some(array));
    array
}

extern "C-unwind" fn object_for(
    object: &Object,
    _: Sel,
    key: Option<&Object>,
) -> Option<NonNull<Object>> {
    value_of(object, text(key?)?.bytes())
}

/// What a key leads to in a dictionary.
pub(super) fn value_of(dictionary: &Object, key: &[u8]) -> Option<NonNull<Object>> {
    // SAFETY: those who call have a dictionary, whose instances hold pairs.
    let pairs = unsafe { held::<Pairs>(dictionary) };
    let same = |known: &Owned| {
        // SAFETY: the dictionary holds a reference to its key.
        text(unsafe { known.0.as_ref() }).is_some_and(|text| text.bytes() == key)
    };
    pairs.iter().find(|(known, _)| same(known)).map(|(_, value)| value.0)
}
