//! Working memory that each thread keeps between calls, so that kernels do not fault in fresh pages.

use std::cell::RefCell;

thread_local! {
    /// A stack, as a task may run on a thread that already holds a buffer.
    static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with `len` numbers of any value.
pub(crate) fn with_scratch<R>(len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    let result = work(&mut buffer[..len]);
    FREE.with_borrow_mut(|free| free.push(buffer));
    result
}
