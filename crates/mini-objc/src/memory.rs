//! Objects: room, counted references, autorelease pools.

use std::alloc::Layout;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::class::{Class, Object, Sel};

/// What lies before an object.
#[repr(C, align(16))]
struct Header {
    references: AtomicUsize,
    size: usize,
}

static LIVE: AtomicUsize = AtomicUsize::new(0);
static UNPOOLED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Objects to release, with `None` where a pool begins.
    static POOL: RefCell<Vec<Option<NonNull<Object>>>> = const { RefCell::new(Vec::new()) };
}

/// Objects not yet freed, in the whole process.
#[must_use]
pub fn live_objects() -> usize {
    LIVE.load(Ordering::SeqCst)
}

/// Objects autoreleased on a thread without a pool, which nobody will ever release.
#[must_use]
pub fn unpooled() -> usize {
    UNPOOLED.load(Ordering::SeqCst)
}

fn header(object: NonNull<Object>) -> NonNull<Header> {
    // SAFETY: `allocate` puts a header before each object, and classes, which have none, are not counted.
    unsafe { object.cast::<Header>().sub(1) }
}

fn layout(size: usize) -> Layout {
    let bytes = size.saturating_add(size_of::<Header>());
    Layout::from_size_align(bytes, align_of::<Header>()).unwrap_or(Layout::new::<Header>())
}

/// A zeroed instance with one reference.
pub(crate) fn allocate(class: &'static Class) -> NonNull<Object> {
    let size = class.size.load(Ordering::Relaxed);
    let layout = layout(size);
    // SAFETY: the layout holds at least a header.
    let memory =
        NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).map(NonNull::cast::<Header>);
    let Some(memory) = memory else { std::alloc::handle_alloc_error(layout) };
    // SAFETY: the memory is ours, aligned and large enough for a header and an object after it.
    unsafe {
        memory.write(Header { references: AtomicUsize::new(1), size });
        let object = memory.add(1).cast::<Object>();
        object.as_ref().isa.store(std::ptr::from_ref(class).cast_mut(), Ordering::Relaxed);
        LIVE.fetch_add(1, Ordering::SeqCst);
        object
    }
}

/// Gives an object's memory back; the end of `-dealloc`.
pub(crate) fn free(object: NonNull<Object>) {
    let header = header(object);
    // SAFETY: the last reference is gone, and the layout is the one of `allocate`.
    unsafe {
        let layout = layout(header.as_ref().size);
        std::alloc::dealloc(header.as_ptr().cast(), layout);
    }
    LIVE.fetch_sub(1, Ordering::SeqCst);
}

/// The object, unless it is a class: those are not counted.
fn counted(object: Option<NonNull<Object>>) -> Option<NonNull<Object>> {
    // SAFETY: who sends a reference holds one, so the object lives; a class of classes has a null `isa`.
    let class = unsafe { object?.as_ref().isa.load(Ordering::Relaxed).as_ref() }?;
    if class.is_meta { None } else { object }
}

pub(crate) fn retain(object: Option<NonNull<Object>>) {
    if let Some(object) = counted(object) {
        // SAFETY: a counted object has a header.
        unsafe { header(object).as_ref() }.references.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn release(object: Option<NonNull<Object>>) {
    let Some(object) = counted(object) else { return };
    // SAFETY: a counted object has a header.
    if unsafe { header(object).as_ref() }.references.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    // SAFETY: it lives until its `-dealloc` has run.
    let class = unsafe { object.as_ref() }.class();
    if let Some(method) = class.original(c"dealloc") {
        // SAFETY: `-dealloc` takes nothing and returns nothing.
        let code: extern "C-unwind" fn(NonNull<Object>, Sel) =
            unsafe { std::mem::transmute(method.code) };
        code(object, Some(crate::abi::intern(c"dealloc")));
    }
}

pub(crate) fn autorelease(object: Option<NonNull<Object>>) {
    if let Some(object) = counted(object) {
        POOL.with_borrow_mut(|pool| {
            if pool.is_empty() {
                UNPOOLED.fetch_add(1, Ordering::SeqCst);
            } else {
                pool.push(Some(object));
            }
        });
    }
}

/// Opens a pool; returns what [`pop`] takes.
pub(crate) fn push() -> usize {
    POOL.with_borrow_mut(|pool| {
        pool.push(None);
        pool.len() - 1
    })
}

/// Closes a pool and those opened in it.
pub(crate) fn pop(start: usize) {
    // One at a time, because what is released may autorelease.
    while let Some(object) =
        POOL.with_borrow_mut(|pool| if pool.len() > start { pool.pop() } else { None })
    {
        release(object);
    }
}
