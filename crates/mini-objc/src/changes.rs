//! Systems that differ from the one expected: without a class, without a method, with a method of another signature.

use std::ffi::{CStr, CString};
use std::sync::Mutex;

use crate::class::{Class, Method, keep, lock};

/// A difference, undone when dropped.
#[must_use = "the system is as before once this is dropped"]
pub struct Change(usize);

impl Drop for Change {
    fn drop(&mut self) {
        lock(&CHANGES).retain(|row| row.id != self.0);
    }
}

struct Row {
    id: usize,
    class: CString,
    effect: Effect,
}

enum Effect {
    Hidden,
    /// The method is gone, or this one is there in its place.
    Method {
        name: CString,
        is_meta: bool,
        instead: Option<&'static Method>,
    },
}

static CHANGES: Mutex<Vec<Row>> = Mutex::new(Vec::new());

/// Makes a class unknown to those who ask for it by name.
pub fn hide_class(name: &CStr) -> Change {
    add(name, Effect::Hidden)
}

/// Takes a class's own method away, or with `types` gives it that signature. `+name` is a class method, `-name` one of
/// instances.
///
/// # Panics
/// When there is no such class or method.
pub fn change_method(class: &CStr, method: &CStr, types: Option<&CStr>) -> Change {
    let (sign, name) = method.to_bytes_with_nul().split_first().expect("a sign and a name");
    let name = CStr::from_bytes_with_nul(name).expect("it ends as it did");
    let is_meta = *sign == b'+';
    let known = crate::class::find(class).expect("a known class");
    let holder = if is_meta { known.meta() } else { Some(known) };
    let original = holder.and_then(|holder| holder.original(name)).expect("a known method");
    let instead = types.map(|types| {
        let method = Method { name: original.name, types: keep(types), code: original.code };
        &*Box::leak(Box::new(method))
    });
    add(class, Effect::Method { name: name.to_owned(), is_meta, instead })
}

fn add(class: &CStr, effect: Effect) -> Change {
    let mut rows = lock(&CHANGES);
    let id = rows.iter().map(|row| row.id + 1).max().unwrap_or(0);
    rows.push(Row { id, class: class.to_owned(), effect });
    Change(id)
}

pub(crate) fn is_hidden(class: &Class) -> bool {
    let rows = lock(&CHANGES);
    rows.iter().any(|row| matches!(row.effect, Effect::Hidden) && *row.class == *class.name)
}

/// The method that a message of this name runs.
pub(crate) fn method(class: &'static Class, selector: &CStr) -> Option<&'static Method> {
    for row in lock(&CHANGES).iter() {
        if let Effect::Method { name, is_meta, instead } = &row.effect
            && *row.class == *class.name
            && *is_meta == class.is_meta
            && **name == *selector
        {
            return *instead;
        }
    }
    class.original(selector)
}
