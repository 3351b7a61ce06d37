//! Working memory that each thread keeps between calls, so that kernels do not fault in fresh pages.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

thread_local! {
    /// A stack, as a task may run on a thread that already holds a buffer.
    static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Numbers of any value, given back to the thread at the end.
///
/// A value and not a function that calls a closure: a closure's body is compiled on its own, without
/// the instruction set of the kernel it stands in.
pub(crate) struct Scratch {
    buffer: Vec<f32>,
    len: usize,
}

impl Scratch {
    /// `len` numbers.
    pub(crate) fn new(len: usize) -> Self {
        let mut buffer = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
        if buffer.len() < len {
            buffer.resize(len, 0.0);
        }
        Scratch { buffer, len }
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.buffer[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        FREE.with_borrow_mut(|free| free.push(buffer));
    }
}
