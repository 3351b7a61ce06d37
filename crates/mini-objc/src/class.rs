//! Classes, their methods and instance variables, and the table of classes by name.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::foundation::CLASSES;

/// What every object begins with.
#[repr(C)]
pub(crate) struct Object {
    pub(crate) isa: AtomicPtr<Class>,
}

impl Object {
    pub(crate) fn class(&self) -> &'static Class {
        // SAFETY: `isa` is set when an object is made, to a class, and classes are never freed.
        unsafe { &*self.isa.load(Ordering::Relaxed) }
    }
}

/// A selector is the address of its name.
pub(crate) type Sel = Option<&'static c_char>;

pub(crate) fn selector_name(selector: Sel) -> &'static CStr {
    // SAFETY: selectors come from `sel_registerName`, which keeps whole C strings for ever.
    selector.map_or(c"", |first| unsafe { CStr::from_ptr(first) })
}

/// A class, or the class of one, which holds its class methods. It is an object itself, hence the order of fields.
#[repr(C)]
pub(crate) struct Class {
    object: Object,
    pub(crate) name: &'static CStr,
    pub(crate) superclass: Option<&'static Class>,
    pub(crate) is_meta: bool,
    /// Bytes of an instance.
    pub(crate) size: AtomicUsize,
    /// Methods known when the class was written.
    fixed: &'static [Method],
    added: Mutex<Vec<&'static Method>>,
    ivars: Mutex<Vec<&'static Ivar>>,
}

impl Class {
    /// A class, or with `meta` absent a class of classes.
    pub(crate) const fn new(
        name: &'static CStr,
        superclass: Option<&'static Class>,
        meta: Option<&'static Class>,
        size: usize,
        fixed: &'static [Method],
    ) -> Self {
        let isa = match meta {
            Some(meta) => std::ptr::from_ref(meta).cast_mut(),
            None => std::ptr::null_mut(),
        };
        Class {
            object: Object { isa: AtomicPtr::new(isa) },
            name,
            superclass,
            is_meta: meta.is_none(),
            size: AtomicUsize::new(size),
            fixed,
            added: Mutex::new(Vec::new()),
            ivars: Mutex::new(Vec::new()),
        }
    }

    /// The class that holds the class methods.
    pub(crate) fn meta(&self) -> Option<&'static Class> {
        // SAFETY: as in `Object::class`; null for a class of classes.
        unsafe { self.object.isa.load(Ordering::Relaxed).as_ref() }
    }

    /// The class and those it inherits from, nearest first.
    pub(crate) fn lineage(&'static self) -> impl Iterator<Item = &'static Class> {
        std::iter::successors(Some(self), |class| class.superclass)
    }

    /// The method that a message of this name runs, as the system was made, whatever a test has changed.
    pub(crate) fn original(&'static self, name: &CStr) -> Option<&'static Method> {
        self.lineage().find_map(|class| {
            let added = lock(&class.added);
            let found = added.iter().find(|method| method.name == name).copied();
            found.or_else(|| class.fixed.iter().find(|method| method.name == name))
        })
    }

    pub(crate) fn add_method(&self, method: Method) {
        lock(&self.added).push(Box::leak(Box::new(method)));
    }

    /// Makes room in each instance.
    pub(crate) fn add_ivar(&self, name: &CStr, size: usize, alignment: usize, types: &CStr) {
        let offset = self.size.load(Ordering::Relaxed).next_multiple_of(alignment);
        self.size.store(offset + size, Ordering::Relaxed);
        let ivar = Ivar { name: keep(name), types: keep(types), offset };
        lock(&self.ivars).push(Box::leak(Box::new(ivar)));
    }

    pub(crate) fn ivar(&'static self, name: &CStr) -> Option<&'static Ivar> {
        self.lineage().find_map(|class| lock(&class.ivars).iter().find(|i| i.name == name).copied())
    }
}

/// A method's code, whatever its signature.
pub(crate) type Code = *const ();

/// A method.
pub(crate) struct Method {
    pub(crate) name: &'static CStr,
    pub(crate) types: &'static CStr,
    pub(crate) code: Code,
}

// SAFETY: nothing of it changes, and code may be read from any thread.
unsafe impl Sync for Method {}
// SAFETY: as above.
unsafe impl Send for Method {}

/// An instance variable.
pub(crate) struct Ivar {
    pub(crate) name: &'static CStr,
    pub(crate) types: &'static CStr,
    pub(crate) offset: usize,
}

/// Classes made while the program runs.
static MADE: Mutex<Vec<&'static Class>> = Mutex::new(Vec::new());

/// The class of this name, hidden or not.
pub(crate) fn find(name: &CStr) -> Option<&'static Class> {
    let made = lock(&MADE);
    made.iter().chain(CLASSES).find(|class| class.name == name).copied()
}

/// A new class that [`find`] does not yet know.
pub(crate) fn make(superclass: &'static Class, name: &CStr) -> &'static Class {
    let name = keep(name);
    let meta = Box::leak(Box::new(Class::new(name, superclass.meta(), None, 0, &[])));
    let size = superclass.size.load(Ordering::Relaxed);
    Box::leak(Box::new(Class::new(name, Some(superclass), Some(meta), size, &[])))
}

/// Makes a class known.
pub(crate) fn register(class: &'static Class) {
    lock(&MADE).push(class);
}

/// The text, kept for ever.
pub(crate) fn keep(text: &CStr) -> &'static CStr {
    Box::leak(text.to_owned().into_boxed_c_str())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
